"""When the builder has work next, and the verb that repairs the narrow tables."""

from dataclasses import dataclass
from datetime import timedelta

from accsd.db.pool import Database


@dataclass(frozen=True, slots=True)
class NextDue:
    """Times from now, by the database's clock; None: no job is pending, or no lease is live."""

    is_due: bool
    next_job: timedelta | None
    next_lease: timedelta | None


async def builder_outlook(db: Database) -> NextDue:
    """Is a job due, when is the next one due, and when does the next lease end (reclaim adds its grace)."""
    row = await db.fetchrow("SELECT * FROM accs.builder_outlook()", repeatable=True)
    assert row is not None, "builder_outlook always answers"
    return NextDue(row["due"], row["next_job"], row["next_lease"])


async def repair(db: Database, *, limit: int = 1000) -> dict[str, int]:
    """Recounts the narrow tables and repairs what disagrees; returns how many of each kind. Any repair means a bug."""
    rows = await db.fetch("SELECT * FROM accs.repair($1)", limit, repeatable=True)
    return {row["what"]: row["repaired"] for row in rows}
