"""The shapes of answers, for the description of the API: made from the rows themselves, so that they can't differ.

Answers are not checked against them at run time; a test does that with every route (schemathesis).
"""

import dataclasses
from datetime import timedelta
from functools import cache
from types import NoneType
from typing import Any, get_args, get_type_hints

from pydantic import TypeAdapter

from accsd.errors import Bug

Schema = dict[str, Any]


def answers(schema: Schema, status: int = 200, says: str = "The answer") -> dict[int | str, dict[str, Any]]:
    """For `responses` of a route."""
    return {status: {"description": says, "content": {"application/json": {"schema": schema}}}}


def listed(schema: Schema) -> Schema:
    """A whole list: it is small by nature."""
    return {"type": "object", "required": ["items"], "properties": {"items": {"type": "array", "items": schema}}}


def paged(schema: Schema) -> Schema:
    """A page of a long list."""
    found = listed(schema)
    found["properties"] |= {
        "next": {"type": ["string", "null"], "description": "The cursor of the next page."},
        "as_of": {"type": "string", "format": "date-time"},
        "scan": {
            "type": ["object", "null"],
            "description": "How far a filter has looked; `complete: false` means that older ones were not looked at.",
            "properties": {
                "complete": {"type": "boolean"},
                "looked_at": {"type": "integer"},
                "back_to": {"type": ["string", "null"]},
            },
        },
    }
    return found


def objects(**properties: Schema) -> Schema:
    return {"type": "object", "properties": properties}


ANYTHING: Schema = {"type": "object"}
TEXT: Schema = {"type": "string"}


@cache
def row_schema(kind: type) -> Schema:
    """The schema of `answers.document` of such a row."""
    if not dataclasses.is_dataclass(kind):
        raise Bug(f"{kind} is no row")
    hints = get_type_hints(kind)
    properties: dict[str, Schema] = {}
    for field in dataclasses.fields(kind):
        hint = hints[field.name]
        if hint is timedelta or timedelta in get_args(hint):
            is_null = NoneType in get_args(hint)
            properties[f"{field.name}_seconds"] = {"type": ["number", "null"] if is_null else "number"}
        elif dataclasses.is_dataclass(hint) and isinstance(hint, type):
            properties[field.name] = row_schema(hint)
        else:
            properties[field.name] = _plain(hint)
    return {"type": "object", "required": sorted(properties), "properties": properties}


def _plain(hint: Any) -> Schema:
    found = TypeAdapter(hint).json_schema()
    return {} if "$defs" in found else found
