"""Times of PostgreSQL's that datetime can't hold. Anybody may write one into a job, and whoever lists jobs must not
stumble over it."""

from datetime import UTC, datetime, timedelta
from typing import Any, Final, Self, SupportsIndex

_EPOCH: Final = datetime(2000, 1, 1, tzinfo=UTC)  # PostgreSQL's, in microseconds from which it sends a time
_MICROSECOND: Final = timedelta(microseconds=1)
_INFINITY: Final = 2**63 - 1
_CYCLE_YEARS: Final = 400  # after which the calendar repeats itself, weekdays and all
_CYCLE: Final = timedelta(days=146_097) // _MICROSECOND
# A day within what datetime can hold, so that it can be had in any zone too.
_LAST: Final = datetime.max.replace(tzinfo=UTC) - timedelta(days=1)
_FIRST: Final = datetime.min.replace(tzinfo=UTC) + timedelta(days=1)


class FarTime(datetime):
    """A time of PostgreSQL's that datetime can't hold: an infinity, or a year before 1 or after 9999. It counts as the
    last or first one that datetime can, and is written as what it is."""

    microseconds: int  # since PostgreSQL's epoch

    @classmethod
    def of(cls, microseconds: int) -> Self:
        end = _LAST if microseconds > 0 else _FIRST
        moment = cls(end.year, end.month, end.day, tzinfo=UTC)
        moment.microseconds = microseconds
        return moment

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        """A copy knows it too."""
        return type(self).of, (self.microseconds,)

    def __str__(self) -> str:
        if abs(self.microseconds) >= _INFINITY:
            return "infinity" if self.microseconds > 0 else "-infinity"
        cycles, rest = divmod(self.microseconds, _CYCLE)
        alike = _EPOCH + rest * _MICROSECOND
        year = alike.year + cycles * _CYCLE_YEARS
        written = alike.isoformat()[4:]
        return f"{year:04}{written}" if year > 0 else f"{1 - year:04}{written} BC"


def from_microseconds(microseconds: int) -> datetime:
    """As PostgreSQL sends a time."""
    try:
        return _EPOCH + microseconds * _MICROSECOND
    except OverflowError:
        return FarTime.of(microseconds)


def in_microseconds(moment: datetime) -> int:
    return moment.microseconds if isinstance(moment, FarTime) else (moment - _EPOCH) // _MICROSECOND
