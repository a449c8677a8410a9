"""Occurrences as columns: what tests compare."""

from dataclasses import dataclass
from datetime import datetime

from accsd.planning.recurrence import Rule, next_occurrences
from accsd.planning.recurrence.occurrences import Occurrence


@dataclass(frozen=True, slots=True)
class Note:
    """Why an occurrence does not fire: merged into another nominal time by a change of the zone's offset, or excluded
    by a calendar."""

    merged_into: datetime | None = None
    calendar: str | None = None
    label: str | None = None


@dataclass(frozen=True, slots=True)
class OccurrencePlan:
    """Columns of equal length, ordered by due time, then by nominal time. `exhausted`: nothing follows them."""

    nominals: tuple[datetime, ...]
    folds: tuple[int, ...]
    dues: tuple[datetime, ...]
    notes: tuple[Note | None, ...]
    exhausted: bool

    def __len__(self) -> int:
        return len(self.dues)


def plan(rule: Rule, after: datetime, n: int = 32) -> OccurrencePlan:
    """The next n occurrences that are due after an instant; more, if the last of them are due at once, and fewer, if
    the others lie beyond the horizon of this room."""
    found, exhausted = next_occurrences(rule, after, n)
    return OccurrencePlan(
        nominals=tuple(each.nominal for each in found),
        folds=tuple(each.fold for each in found),
        dues=tuple(each.due_at for each in found),
        notes=tuple(_note(each) for each in found),
        exhausted=exhausted,
    )


def _note(occurrence: Occurrence) -> Note | None:
    if occurrence.excluded is not None:
        return Note(calendar=occurrence.excluded.calendar, label=occurrence.excluded.label)
    return Note(merged_into=occurrence.merged_into) if occurrence.merged_into is not None else None
