"""The tables that are partitioned by month: their months are made ahead of time, and leave through the archive."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from accsd.db.pool import Database


@dataclass(frozen=True, slots=True)
class Monthly:
    """A table with months, as it is archived. `subject`: the column by which its lines are sorted and found."""

    name: str
    at: str
    subject: str
    then: Sequence[str]  # the order of the lines of one subject
    line: str  # the columns of an archived line of the row e

    @property
    def order(self) -> str:
        return ", ".join(f"e.{column}" for column in (self.subject, *self.then))

    def within(self, month: str) -> str:
        """The bounds of a month, as constants: the planner then leaves the other months out."""
        year, number = (int(part) for part in month.removeprefix(f"{self.name}_").split("_"))
        following = f"{year + number // 12:04}-{number % 12 + 1:02}"
        return f"{self.at} >= '{year:04}-{number:02}-01T00:00:00Z' AND {self.at} < '{following}-01T00:00:00Z'"


def _instant(column: str) -> str:
    """In UTC, whatever the session's time zone is."""
    return f"""to_char(e.{column} AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') AS {column}"""


def _local(column: str) -> str:
    return f"""to_char(e.{column}, 'YYYY-MM-DD"T"HH24:MI:SS.US') AS {column}"""


# what is JSON comes last: whoever looks for another column in a line finds that first
TASK_EVENTS: Final = Monthly(
    "task_events",
    "ts",
    "job_id",
    ("ts", "id"),
    f"e.id, e.job_id, e.job_task_id, {_instant('ts')}, e.source, e.level, e.type, e.message, e.attempt_id, e.data",
)
FIRINGS: Final = Monthly(
    "firings",
    "nominal",
    "schedule_id",
    ("nominal", "fold", "cause_id"),
    f"""e.schedule_id, {_local("nominal")}, e.fold, e.cause_id, e.outcome, e.reason, {_instant("due_at")},
    {_instant("settled_at")}, extract(epoch FROM e.late) AS late_sec, e.job_id, e.revision, e.settled_by,
    {_local("merged_into")}, {_local("until_nominal")}, e.times, e.detail""",
)
EVENTS: Final = Monthly(
    "events",
    "at",
    "topic",
    ("id",),
    f"""e.id, e.topic, e.key, e.source, {_instant("occurred_at")}, {_instant("at")}, e.job_id, e.depth, e.chain,
    e.matched, e.payload""",
)
MONTHLY: Final = (TASK_EVENTS, FIRINGS, EVENTS)


def table_of(month: str) -> Monthly:
    """The table of a month that is in the database, or was archived."""
    return next(table for table in MONTHLY if month.removeprefix(f"{table.name}_") == month[-len("YYYY_MM") :])


async def make_months(db: Database, *, months_ahead: int = 3) -> list[str]:
    """Makes the partitions of the coming months; returns the names of those that were missing. Each table has a
    transaction of its own: whoever writes to two of them can't be in a deadlock with it."""
    made: list[str] = []
    for table in MONTHLY:
        rows = await db.fetch("SELECT accs.make_months($1, $2)", table.name, months_ahead, repeatable=True)
        made += [row[0] for row in rows]
    return made


async def months_of(db: Database, table: Monthly, *, older_than: timedelta | None = None) -> list[str]:
    """The months that are in the database, oldest first; with `older_than` only those that have been over so long."""
    rows = await db.fetch("SELECT accs.months_of($1, $2)", table.name, older_than, repeatable=True)
    return [row[0] for row in rows]
