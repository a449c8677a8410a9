"""A schedule's rule that was read and found good: what it was made from, and what names its times."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from accsd.planning.recurrence.calendars import Calendar
from accsd.planning.recurrence.cron import Cron
from accsd.planning.recurrence.points import Interval, LocalMoment, Moment
from accsd.planning.recurrence.rrule import RecurrenceSet
from accsd.planning.recurrence.spread import shift
from accsd.planning.recurrence.zones import Zone

# What names times on the wall clock, and what names instants.
OnTheClock = Cron | RecurrenceSet | LocalMoment
OnTheLine = Interval | Moment


class RuleKind(StrEnum):
    CRON = "cron"
    RRULE = "rrule"
    ONCE = "once"
    INTERVAL = "interval"


@dataclass(frozen=True, slots=True)
class Rule:
    """`expr` is what was written, `expanded` the same without H. An `@every` of cron has become an interval. The
    anchor is where an rrule (local time) or an interval (UTC) counts from."""

    kind: RuleKind
    expr: str
    expanded: str
    zone: Zone
    schedule_id: str
    source: OnTheClock | OnTheLine
    anchor: datetime | None = None
    start_at: datetime | None = None
    end_at: datetime | None = None
    spread: timedelta = timedelta(0)
    exclude: tuple[Calendar, ...] = ()
    only_on: tuple[Calendar, ...] = ()

    @property
    def shift(self) -> timedelta:
        """How much later than its instant each occurrence is due."""
        return shift(self.schedule_id, self.spread)
