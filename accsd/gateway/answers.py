"""Answers as JSON: rows with the tables' own words, instants in UTC, durations in seconds."""

import dataclasses
from collections.abc import Mapping
from datetime import timedelta
from functools import cache
from typing import Any, Final, cast, get_args, get_type_hints

import orjson
from starlette.responses import Response

from accsd.explain.redaction import Redaction

JSON: Final = "application/json"
_FORMAT: Final = orjson.OPT_UTC_Z | orjson.OPT_NON_STR_KEYS


def answer(body: Any, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(encode(body), status_code=status, headers=dict(headers or {}), media_type=JSON)


def encode(body: Any) -> bytes:
    return orjson.dumps(body, default=_encoded, option=_FORMAT)


def _encoded(value: Any) -> Any:
    match value:
        case timedelta():
            return value.total_seconds()
        case set() | frozenset() | tuple():
            return list(cast("frozenset[Any]", value))
        case Mapping():
            return dict(cast("Mapping[Any, Any]", value))
        case _:
            return str(value)


def document(row: Any, redaction: Redaction | None = None) -> dict[str, Any]:
    """A row for programs: durations are named `…_seconds`; with `redaction`, values that look secret are struck out."""
    durations = _durations(row.__class__)
    found: dict[str, Any] = {}
    for field in dataclasses.fields(row):
        value = getattr(row, field.name)
        if field.name in durations:
            found[f"{field.name}_seconds"] = None if value is None else value.total_seconds()
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            found[field.name] = document(value, redaction)
        else:
            found[field.name] = value if redaction is None else redaction.of(field.name, value)
    return found


@cache
def _durations(kind: type) -> frozenset[str]:
    hints = get_type_hints(kind)
    return frozenset(name for name, hint in hints.items() if hint is timedelta or timedelta in get_args(hint))
