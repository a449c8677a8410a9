"""When an outgoing event that did not get through is sent again, and when it is given up (INV-9)."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from accsd.planning.backoff import Curve

# What failed together does not come back together: up to a tenth later, by the event's id.
_SPREAD: Final = 1000


@dataclass(frozen=True, slots=True)
class Persistence:
    """`first` after the first failure, each time twice as long, up to `longest`; not after `give_up`."""

    first: timedelta = timedelta(seconds=5)
    longest: timedelta = timedelta(hours=1)
    give_up: timedelta = timedelta(days=7)


def again_in(event: int, *, failures: int, age: timedelta, persistence: Persistence) -> timedelta | None:
    """After so many failures, the last one just now, of an event that is `age` old. None: never."""
    if age >= persistence.give_up:
        return None
    curve = Curve(base=persistence.first.total_seconds(), cap=persistence.longest.total_seconds())
    seconds = curve.seconds(max(1, failures), 0.0)
    # The last try is at the end of its time, not a pause later.
    until_end = persistence.give_up - age
    spread = 1 + event * 7919 % _SPREAD / _SPREAD / 10
    return min(timedelta(seconds=seconds * spread), until_end)
