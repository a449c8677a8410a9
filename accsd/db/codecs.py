"""Columns as Python values: JSON alike on every connection; times that Python can't hold, where people read."""

import json
from collections.abc import Mapping
from typing import Any, Final, cast

import orjson
from asyncpg import Connection
from asyncpg.pool import PoolConnectionProxy

from accsd.values.json import sanitise
from accsd.values.times import from_microseconds, in_microseconds

_LARGEST_READ: Final = 256 * 1024 * 1024  # jsonb's own limit: no stored value is cut for its size
_LONGEST_INTEGER: Final = 4000  # digits; Python itself refuses 4,300


async def speak_json(connection: Connection | PoolConnectionProxy) -> None:
    for name in ("json", "jsonb"):
        await connection.set_type_codec(name, schema="pg_catalog", encoder=to_json, decoder=from_json, format="text")


async def speak_of_any_time(connection: Connection | PoolConnectionProxy) -> None:
    """Lets the connection read times that datetime can't hold: such a row must not hide the others in a list. It costs
    a call of Python for each time, so it is for people's questions; the daemon never reads such a column."""
    await connection.set_type_codec(
        "timestamptz",
        schema="pg_catalog",
        encoder=lambda moment: (in_microseconds(moment),),
        decoder=lambda sent: from_microseconds(sent[0]),
        format="tuple",
    )


def to_json(value: object) -> str:
    return orjson.dumps(value, default=_as_dict).decode()


def from_json(text: str) -> Any:
    """Reads JSON. jsonb holds numbers and nestings that no parser takes: the nearest readable value stands for such a
    value, so that it does not hide the other rows."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        pass
    try:
        return sanitise(json.loads(text, parse_int=_integer), max_bytes=_LARGEST_READ)
    except (ValueError, RecursionError):
        return {"<unreadable>": True}


def _as_dict(value: object) -> dict[Any, Any]:
    """A Mapping as a dict: the verbs take any Mapping; orjson knows only dict."""
    if isinstance(value, Mapping):
        return dict(cast("Mapping[Any, Any]", value))
    raise TypeError(f"{type(value).__name__} is no JSON")


def _integer(digits: str) -> int | str:
    return int(digits) if len(digits) <= _LONGEST_INTEGER else digits
