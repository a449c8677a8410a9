"""Makes any Python value one that PostgreSQL's jsonb accepts.

Tasks answer in JSON that they write themselves, and Python's parsers let through what jsonb refuses: NaN,
Infinity, \\u0000, lone surrogates, integers beyond 64 bits, bottomless nesting. One bad value must not cost
a batch of events, so everything on its way to a jsonb column or a log line passes through `sanitise`, which
never raises and whose answer, encoded, fits in `max_bytes`.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, time
from enum import Enum
from math import isfinite, isnan
from typing import Any, Final, cast

import orjson

# Of everything that is given to a task or comes from one; schema.sql has the same number. orjson writes 254 levels and
# reads 1,024; jsonb's parser stops at its stack's depth.
MAX_DEPTH: Final = 64
MAX_BYTES: Final = 256 * 1024
MAX_KEY_CHARS: Final = 1024

_TOO_DEEP: Final = "<too deep>"
_TRUNCATED: Final = "<truncated>"
_UNREADABLE: Final = "<unreadable>"
_REPLACEMENT: Final = "\ufffd"
# What a container keeps back, so that it can still say that something was left out: `,"<truncated>":true`
_RESERVE: Final = len(_TRUNCATED) + 8
_BRACKETS: Final = 2
_INT_MIN: Final = -(2**63)
_INT_MAX: Final = 2**64 - 1

Scrub = Callable[[str], str]


def sanitise(
    value: object, *, max_depth: int = MAX_DEPTH, max_bytes: int = MAX_BYTES, scrub: Scrub | None = None
) -> Any:
    """A value equal to `value` where jsonb can hold that, and the nearest one that it can hold where not.

    NaN and the infinities become text, as PostgreSQL's own to_jsonb does. `scrub` sees every text before
    it is cut, so that half a secret cannot survive at the cut.
    """
    try:
        clean = _Walk(max_depth=max_depth, room=max_bytes, scrub=scrub or str).value(value, depth=0)
    except Exception:  # noqa: BLE001 - an object's own methods may do anything; so may a full stack
        return _UNREADABLE
    return None if clean is _NO_ROOM else clean


def is_too_deep(value: object) -> bool:
    """Whether it is nested deeper than MAX_DEPTH, level by level: it may be deeper than Python's stack."""
    level: list[object] = [value]
    for _ in range(MAX_DEPTH + 1):
        level = [each for each in level if isinstance(each, Mapping | list | tuple)]
        if not level:
            return False
        # by identity, or a list that holds itself twice would double at each level
        level = list({id(each): each for container in level for each in _elements(container)}.values())
    return True


def _elements(container: Any) -> Iterable[object]:
    return cast("Mapping[object, object]", container).values() if isinstance(container, Mapping) else container


class _NoRoom:
    """The answer of a walk that could not afford a value: the container around it then says `<truncated>`."""


_NO_ROOM: Final = _NoRoom()


@dataclass
class _Walk:
    """One pass over a value, which spends `room` bytes as it goes."""

    max_depth: int
    room: int
    scrub: Scrub

    def value(self, value: object, depth: int) -> Any:
        if value is None or isinstance(value, bool):
            return self._afford(value)
        if isinstance(value, Enum):
            return self.value(value.value, depth)
        if isinstance(value, str):
            return self._text(str.__str__(value))
        if isinstance(value, int):
            return self._integer(int(value))
        if isinstance(value, float):
            return self._afford(_finite(float(value)))
        if isinstance(value, Mapping | list | tuple | set | frozenset):
            return self._container(cast("Any", value), depth)
        return self._text(_described(value))

    def _container(self, value: Any, depth: int) -> Any:
        if depth >= self.max_depth:
            return self._afford(_TOO_DEEP)
        if not self._pay(_BRACKETS + _RESERVE):
            return _NO_ROOM
        try:
            if isinstance(value, Mapping):
                return self._object(cast("Mapping[object, object]", value), depth)
            return self._array(value, depth)
        except Exception:  # noqa: BLE001 - a container of strange making: lose it, keep what is around it
            return self._afford(_UNREADABLE)

    def _array(self, values: Iterable[object], depth: int) -> list[Any]:
        clean: list[Any] = []
        for value in values:
            item = self.value(value, depth + 1) if self._pay(1) else _NO_ROOM
            if item is _NO_ROOM:
                clean.append(_TRUNCATED)
                return clean
            clean.append(item)
        self.room += _RESERVE
        return clean

    def _object(self, values: Mapping[object, object], depth: int) -> dict[str, Any]:
        clean: dict[str, Any] = {}
        for key, value in values.items():
            name = self._key(key)
            item = self.value(value, depth + 1) if self._pay(len(orjson.dumps(name)) + 2) else _NO_ROOM
            if item is _NO_ROOM:
                clean[_TRUNCATED] = True
                return clean
            clean[name] = item
        self.room += _RESERVE
        return clean

    def _key(self, key: object) -> str:
        if isinstance(key, str):
            text = str.__str__(key)
        elif key is None or isinstance(key, bool | float):
            text = orjson.dumps(key).decode()
        else:
            text = _described(key)
        return _storable_text(self.scrub(text))[:MAX_KEY_CHARS]

    def _integer(self, value: int) -> Any:
        if _INT_MIN <= value <= _INT_MAX:
            return self._afford(value)
        return self._text(_digits(value))

    def _text(self, raw: str) -> Any:
        text = _storable_text(self.scrub(raw))
        if self._pay(size := len(orjson.dumps(text))):
            return text
        fitting = _cut(text, size, self.room - len("…".encode()))
        return self._afford(fitting + "…") if fitting else _NO_ROOM

    def _afford(self, value: Any) -> Any:
        return value if self._pay(len(orjson.dumps(value))) else _NO_ROOM

    def _pay(self, price: int) -> bool:
        if price > self.room:
            return False
        self.room -= price
        return True


def _finite(value: float) -> float | str:
    if isfinite(value):
        return value
    if isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def _digits(value: int) -> str:
    """Python may be told to refuse printing integers of more than 640 digits, which is about 2,100 bits."""
    bits = value.bit_length()
    return str(value) if bits <= 2048 else f"<integer of {bits} bits>"


def _storable_text(text: str) -> str:
    if "\x00" in text:
        text = text.replace("\x00", _REPLACEMENT)
    try:
        text.encode()
    except UnicodeEncodeError:
        # By way of UTF-16 a pair of surrogates becomes the character that it means; only lone ones are lost.
        text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def _cut(text: str, size: int, room: int) -> str:
    """Nearly the longest prefix that encodes within `room` bytes; an escaped character may need six."""
    if room <= _BRACKETS:
        return ""
    text = text[:room]
    while text and (size := len(orjson.dumps(text))) > room:
        text = text[: min(len(text) - 1, len(text) * room // size)]
    return text


def _described(value: object) -> str:
    if isinstance(value, bytes | bytearray):
        return value.decode("utf-8", "replace")
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, int):
        return _digits(value)
    try:
        return str(value)
    except Exception:  # noqa: BLE001 - any object may come here, and its __str__ may do anything
        return f"<unreadable {type(value).__name__}>"
