"""The options that a workflow or a tool takes, for people: each with its type, whether it must be given, and what it is
for, as its JSON Schema says."""

from collections.abc import Mapping
from typing import Any, cast

import orjson


def options_of(schema: Mapping[str, Any]) -> list[tuple[str, str, str, str]]:
    """Name, type, required or default, description."""
    required: Any = schema.get("required")
    must = set(cast("list[str]", required)) if isinstance(required, list) else set[str]()
    properties: Any = schema.get("properties")
    found = cast("dict[str, Any]", properties) if isinstance(properties, dict) else {}
    return [
        (name, _type(each), "required" if name in must else _default(each), _text(each, "description"))
        for name, each in sorted(found.items())
    ]


def _type(schema: Any) -> str:
    if not isinstance(schema, dict):
        return "any"
    written = cast("dict[str, Any]", schema)
    if isinstance(choices := written.get("enum"), list):
        return " | ".join(orjson.dumps(each).decode() for each in cast("list[Any]", choices)[:8])
    kind: Any = written.get("type", "any")
    return " | ".join(map(str, cast("list[Any]", kind))) if isinstance(kind, list) else str(kind)


def _default(schema: Any) -> str:
    if not isinstance(schema, dict) or "default" not in schema:
        return ""
    return f"default {orjson.dumps(cast('dict[str, Any]', schema)['default']).decode()}"


def _text(schema: Any, field: str) -> str:
    found = cast("dict[str, Any]", schema).get(field) if isinstance(schema, dict) else None
    return found if isinstance(found, str) else ""
