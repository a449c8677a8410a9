"""How long a failed task waits before it is tried again, and an outgoing event before it is sent again.

The forms that a step may choose, in seconds: nothing (exponential), `{"strategy": "exponential" | "linear"
| "fixed", "base": 15, "cap": 3600}`, or a list such as `[30, 120, 300]` whose last element repeats. SQL
computes the same figure when an attempt fails, and a test compares the two. Jitter is added where the due
time is written, not here.
"""

from dataclasses import dataclass
from datetime import timedelta
from math import isfinite
from typing import Any, Final, Literal, cast

from accsd.errors import InvalidValue
from accsd.values.validation import did_you_mean

DEFAULT_BASE_SEC = 15.0
DEFAULT_CAP_SEC = 3600.0
LONGEST_SEC = 366 * 86400.0

Strategy = Literal["exponential", "linear", "fixed"]
_STRATEGIES: tuple[Strategy, ...] = ("exponential", "linear", "fixed")
_FIELDS = ("strategy", "base", "cap")
# What failed together does not come back together: up to a tenth later, by the event's id.
_SPREAD: Final = 1000


@dataclass(frozen=True)
class Curve:
    """A delay that follows from the number of the attempt. `base` None means the installation's."""

    strategy: Strategy = "exponential"
    base: float | None = None
    cap: float = DEFAULT_CAP_SEC

    def seconds(self, attempt: int, default_base: float) -> float:
        base = default_base if self.base is None else self.base
        if self.strategy == "fixed":
            return min(self.cap, base)
        if self.strategy == "linear":
            return min(self.cap, base * attempt)
        # 2.0 ** 1024 would raise; far before that every base but zero has met its cap.
        return min(self.cap, base * 2.0 ** min(attempt - 1, 1000))


@dataclass(frozen=True)
class Ladder:
    """A list of delays, one for each attempt; after the last one, the last delay again."""

    steps: tuple[float, ...]

    def seconds(self, attempt: int, default_base: float) -> float:
        del default_base
        return self.steps[min(attempt, len(self.steps)) - 1]


def backoff_seconds(spec: object, attempt: int, base: float = DEFAULT_BASE_SEC) -> float:
    """Seconds to wait after failure number `attempt`, counted from 1. `spec` is the step's backoff."""
    return parse_backoff(spec).seconds(max(1, attempt), base)


@dataclass(frozen=True, slots=True)
class Persistence:
    """An event is sent again `first` after its first failure, then after twice as long each time, up to `longest`; it
    is given up when it is `give_up` old."""

    first: timedelta = timedelta(seconds=5)
    longest: timedelta = timedelta(hours=1)
    give_up: timedelta = timedelta(days=7)


def again_in(event: int, *, failures: int, age: timedelta, persistence: Persistence) -> timedelta | None:
    """How long an event that is `age` old waits after so many failures, the last one just now. None: it is given up."""
    if age >= persistence.give_up:
        return None
    curve = Curve(base=persistence.first.total_seconds(), cap=persistence.longest.total_seconds())
    seconds = curve.seconds(max(1, failures), 0.0)
    # The last try is at the end of its time, not a pause later.
    until_end = persistence.give_up - age
    spread = 1 + event * 7919 % _SPREAD / _SPREAD / 10
    return min(timedelta(seconds=seconds * spread), until_end)


def parse_backoff(spec: object) -> Curve | Ladder:
    """Reads any of the forms, or raises InvalidValue: a sentence that goes on from the word "backoff"."""
    if spec is None:
        return Curve()
    if isinstance(spec, list | tuple):
        return _ladder(cast("list[object]", spec))
    if isinstance(spec, dict):
        return _curve(cast("dict[str, object]", spec))
    raise InvalidValue('must be a list of seconds or a table such as {"strategy": "linear", "base": 15}')


def _ladder(spec: list[object]) -> Ladder:
    if not spec:
        raise InvalidValue("is an empty list; give it at least one delay")
    return Ladder(tuple(_delay(value, "each delay") for value in spec))


def _curve(spec: dict[str, object]) -> Curve:
    for field in spec:
        if field not in _FIELDS:
            raise InvalidValue(f'has an unknown field "{field}"{did_you_mean(str(field), _FIELDS)}')
    strategy = _strategy(spec.get("strategy", "exponential"))
    base = spec.get("base")
    return Curve(
        strategy=strategy,
        base=None if base is None else _delay(base, "base"),
        cap=_cap(spec.get("cap"), strategy),
    )


def _strategy(value: Any) -> Strategy:
    for strategy in _STRATEGIES:
        if value == strategy:
            return strategy
    raise InvalidValue(f"strategy must be exponential, linear or fixed{did_you_mean(str(value)[:60], _STRATEGIES)}")


def _cap(value: object, strategy: Strategy) -> float:
    if value is not None:
        return _delay(value, "cap")
    # A fixed delay cannot grow, so a cap that nobody asked for would only contradict it.
    return LONGEST_SEC if strategy == "fixed" else DEFAULT_CAP_SEC


def _delay(value: object, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        raise InvalidValue(f"{what} must be a number of seconds")
    if not 0 <= value <= LONGEST_SEC:
        raise InvalidValue(f"{what} must be between 0 and {LONGEST_SEC:.0f} seconds")
    return float(value)
