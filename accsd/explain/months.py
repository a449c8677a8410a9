"""The months of history: which are in the database, which in the object store, and whether an archive is well."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from accsd.db.history import Archive, archives
from accsd.db.months import MONTHLY, months_of
from accsd.db.pool import Database
from accsd.explain.words import duration
from accsd.settings import RetentionSettings


@dataclass(frozen=True, slots=True)
class Month:
    """A month of one table; what only an archive knows is None while there is none."""

    month: str
    state: str
    is_well: bool
    rows: int | None
    size_bytes: int | None
    verified_at: datetime | None


async def months(db: Database) -> list[Month]:
    """By name; an archive that another one has replaced is not among them."""
    archived = [one for one in await archives(db) if one.superseded_at is None]
    found = [
        Month(one.partition, state(one), one.refused is None, one.rows, one.size_bytes, one.verified_at)
        for one in archived
    ]
    waiting = {one.partition for one in archived}
    found += [
        Month(name, "in the database", True, None, None, None) for name in await months_here(db) if name not in waiting
    ]
    return sorted(found, key=lambda each: each.month)


async def months_here(db: Database) -> list[str]:
    return [month for table in MONTHLY for month in await months_of(db, table)]


def state(one: Archive) -> str:
    """Where an archived month is, and what was wrong with it at the last look."""
    if one.superseded_at is not None:
        return "replaced"
    where = "archived" if one.dropped_at is not None else "archived, still in the database"
    return where if one.refused is None else f"{where}; NOT WELL: {one.refused}"


def retention_words(settings: RetentionSettings) -> Sequence[str]:
    """How long things stay, one sentence each."""
    said = {
        "Task events": settings.events,
        "The ledger of schedules": settings.ledger,
        "Events": settings.topics,
        "Finished jobs": settings.jobs,
    }
    of_workflows = {f"Finished jobs of {name}": each.jobs for name, each in settings.workflows.items()}
    return [f"{what}: {_age(age)}" for what, age in (said | of_workflows).items()]


def _age(age: timedelta | str) -> str:
    return duration(age) if isinstance(age, timedelta) else "for ever"
