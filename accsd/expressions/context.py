"""The values that expressions are evaluated with: checked and converted once, for as many expressions as there are."""

from collections.abc import Collection, Mapping
from datetime import datetime
from functools import cached_property
from typing import Any, Final, cast

import orjson

from accsd.errors import Bug, InvalidValue, Place
from accsd.expressions.program import Names, activation
from accsd.expressions.results import written_moment

MAX_CONTEXT_BYTES: Final = 4 * 1024 * 1024


class Budget:
    """What the expressions of several contexts may take together, in nanoseconds, beside those that are quick."""

    def __init__(self, nanoseconds: int) -> None:
        self.left: int = nanoseconds

    def spend(self, nanoseconds: int) -> bool:
        """Whether it is enough."""
        self.left -= nanoseconds
        return self.left >= 0


class Context:
    """Values by the names that expressions call them.

    A value is JSON, and may hold datetimes anywhere. What `names.moments` names is a time for expressions, given as a
    datetime or as RFC 3339 text; every other datetime becomes RFC 3339 text. `left_out` are paths that were too large
    to be given: an expression that refers to one is told so. `budget` is shared with other contexts."""

    def __init__(
        self,
        values: Mapping[str, object],
        names: Names,
        *,
        left_out: Collection[Place] = (),
        budget: Budget | None = None,
    ) -> None:
        if strangers := sorted(set(values) - set(names.roots)):
            raise Bug(f"no expression could refer to {', '.join(strangers)}")
        encoded = _encoded(values)
        self.names: Names = names
        self.budget: Budget | None = budget
        self.size: int = len(encoded)
        self.document: dict[str, Any] = orjson.loads(encoded)
        self.left_out: tuple[Place, ...] = tuple(left_out)
        self._moments: dict[str, datetime] = {
            name: moment for name in names.moments if (moment := _moment(values, name)) is not None
        }

    @cached_property
    def activation(self) -> Any:
        values = {name: self.document[name] for name in self.names.values if name in self.document}
        return activation(self.names, values | self._moments)

    def reach(self, path: Place) -> tuple[int, object]:
        """How many parts of a path lead to a value, and that value."""
        here: Any = self.document
        for length, part in enumerate(path):
            if not isinstance(here, dict | list):
                return length, here
            try:
                here = cast("Any", here)[part]
            except (LookupError, TypeError):
                return length, cast("Any", here)
        return len(path), here


def _encoded(values: Mapping[str, object]) -> bytes:
    # orjson refuses what would harm the library: 255 levels (at 20,000 its stack is full), lone surrogates, integers
    # beyond 64 bits.
    try:
        encoded = orjson.dumps(values, default=_moment_text, option=orjson.OPT_PASSTHROUGH_DATETIME)
    except TypeError as error:
        raise InvalidValue(f"the values given to expressions are not JSON: {error.__cause__ or error}") from None
    if len(encoded) > MAX_CONTEXT_BYTES:
        raise InvalidValue(
            f"the values given to expressions have {len(encoded)} bytes; the limit is {MAX_CONTEXT_BYTES}"
        )
    # The library ends a text at a NUL, silently. An escaped backslash before u0000 is none.
    if b"\\u0000" in encoded and b"\\u0000" in encoded.replace(b"\\\\", b""):
        raise InvalidValue("the values given to expressions hold a text with the character NUL")
    return encoded


def _moment_text(value: object) -> str:
    if isinstance(value, datetime):
        return written_moment(value)
    raise TypeError(type(value).__name__)


def _moment(values: Mapping[str, object], name: str) -> datetime | None:
    here: Any = values
    for part in name.split("."):
        here = cast("Mapping[str, Any]", here).get(part) if isinstance(here, Mapping) else None
    if here is None or isinstance(here, datetime):
        return here
    try:
        moment = datetime.fromisoformat(here)
    except (TypeError, ValueError):
        raise InvalidValue(f"{name} is not a time as RFC 3339 has it") from None
    if moment.tzinfo is None:
        raise InvalidValue(f"{name} is a time without an offset")
    return moment
