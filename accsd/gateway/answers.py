"""Answers as JSON: rows with the tables' own words, instants in UTC, durations in seconds."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import cache
from operator import attrgetter
from typing import Any, Final, cast, get_args, get_type_hints

import anyio.to_thread
import orjson
from starlette.responses import Response

from accsd.explain.redaction import OF_USERS, Redaction

JSON: Final = "application/json"
_FEW_ROWS: Final = 200
_FORMAT: Final = orjson.OPT_UTC_Z | orjson.OPT_NON_STR_KEYS


def answer(body: Any, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(encode(body), status_code=status, headers=dict(headers or {}), media_type=JSON)


async def large_answer(make: Callable[[], Any], rows: int) -> Response:
    """An answer that many rows go into is made in a thread: meanwhile the loop has other things to do."""
    if rows <= _FEW_ROWS:
        return answer(make())
    return await anyio.to_thread.run_sync(lambda: answer(make()))


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
    shape = _shape(row.__class__)
    found = dict(zip(shape.shown, shape.values(row), strict=True))
    for name in shape.durations:
        if (length := found[name]) is not None:
            found[name] = length.total_seconds()
    for name in shape.rows:
        if dataclasses.is_dataclass(value := found[name]) and not isinstance(value, type):
            found[name] = document(value, redaction)
    if redaction is not None:
        for name in shape.of_users:
            found[name] = redaction.inside(found[name])
    return found


@dataclasses.dataclass(frozen=True, slots=True)
class _Shape:
    """What is known of a kind of row, so that it is not asked of each value: a page may have 5,000 rows."""

    shown: Sequence[str]
    values: Callable[[Any], Sequence[Any]]
    durations: Sequence[str]
    rows: Sequence[str]  # what may be a row itself
    of_users: Sequence[str]


@cache
def _shape(kind: type) -> _Shape:
    names, hints = [field.name for field in dataclasses.fields(kind)], get_type_hints(kind)
    durations = {name for name in names if hints[name] is timedelta or timedelta in get_args(hints[name])}
    return _Shape(
        shown=[f"{name}_seconds" if name in durations else name for name in names],
        values=attrgetter(*names) if len(names) > 1 else lambda row: (getattr(row, names[0]),),
        durations=[f"{name}_seconds" for name in durations],
        rows=[name for name in names if any(map(_may_be_a_row, (hints[name], *get_args(hints[name]))))],
        of_users=[name for name in names if name in OF_USERS],
    )


def _may_be_a_row(hint: Any) -> bool:
    return hint is Any or hint is object or dataclasses.is_dataclass(hint)
