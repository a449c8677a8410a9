"""Events: appended, never changed, in monthly partitions. An agent appends the many lines of its tasks in batches."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID

from accsd.db.pool import Database, to_json
from accsd.model import EventType, Fence, Level
from accsd.values.json import sanitise

if TYPE_CHECKING:
    from accsd.log import LoggedEvent


async def append_events(db: Database, events: "Sequence[LoggedEvent]") -> list[int]:
    """Appends events; returns their ids. Not repeatable: an event sent twice is in the history twice."""
    rows = await db.fetch(
        "SELECT * FROM accs.append_events($1, $2, $3, $4, $5, $6, $7::text[]::jsonb[])",
        [event.job_id for event in events],
        [event.job_task_id for event in events],
        [event.source for event in events],
        [event.level for event in events],
        [event.type for event in events],
        [sanitise(event.message) for event in events],
        # As text: asyncpg would take a list among them for one more dimension of the array.
        [None if event.data is None else to_json(sanitise(event.data)) for event in events],
    )
    return [row[0] for row in rows]


@dataclass(frozen=True, slots=True)
class TaskEvent:
    """An event of an attempt; the database knows its job and source."""

    fence: Fence
    message: str | None
    level: Level = Level.INFO
    type: EventType | str = EventType.LOG
    data: Any = None


async def append_task_events(db: Database, events: Sequence[TaskEvent], *, owner: str) -> dict[Fence, int]:
    """Appends events; returns how many of each attempt were accepted: all if it holds its lease, 0 if it is stale.

    Not repeatable: an event sent twice is in the history twice.
    """
    rows = await db.fetch(
        "SELECT * FROM accs.append_task_events($1, $2, $3, $4, $5, $6, $7::text[]::jsonb[])",
        owner,
        [event.fence.task_id for event in events],
        [event.fence.attempt_id for event in events],
        [event.level for event in events],
        [event.type for event in events],
        [None if event.message is None else sanitise(event.message) for event in events],
        [None if event.data is None else to_json(sanitise(event.data)) for event in events],
    )
    return {Fence(row["task_id"], row["attempt_id"]): row["accepted"] for row in rows}


async def append_task_event(
    db: Database,
    job_id: UUID,
    message: str,
    *,
    job_task_id: UUID | None = None,
    source: str,
    level: Level = Level.INFO,
    type: EventType | str = EventType.LOG,  # noqa: A002 - A5 names it
    data: Any = None,
) -> int:
    from accsd.log import LoggedEvent  # imports structlog, a third of the start of a command that needs none

    event = LoggedEvent(job_id, job_task_id, source, level, type, message, data)
    return (await append_events(db, [event]))[0]
