"""Writes of an attempt that holds its lease: start, heartbeat, progress."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from accsd.db.answers import Answer, read_answers
from accsd.db.pool import Database
from accsd.model import Fence


@dataclass(frozen=True, slots=True)
class Progress:
    """How far an attempt is, 0 to 1, with a message and its results so far."""

    fence: Fence
    progress: float
    message: str | None = None
    results: Mapping[str, Any] | None = None


def fence_arrays(fences: Sequence[Fence]) -> tuple[list[UUID], list[int]]:
    """Fences as the verbs take them: ids and attempts, one array each."""
    return [fence.task_id for fence in fences], [fence.attempt_id for fence in fences]


async def start_tasks(db: Database, fences: Sequence[Fence], *, owner: str) -> dict[UUID, Answer]:
    rows = await db.fetch("SELECT * FROM accs.start_tasks($1, $2, $3)", *fence_arrays(fences), owner, repeatable=True)
    return read_answers(rows)


async def heartbeat(
    db: Database,
    fences: Sequence[Fence],
    *,
    owner: str,
    node: str,
    lease: timedelta,
    instance: str | None = None,
    within: float | None = None,
) -> dict[UUID, Answer]:
    """Extends the leases and says that the node is there. A refused lease is lost: stop its work and write nothing.

    `instance` is the process that registered the node; NameTaken where another one has done so since.
    """
    ids, attempts = fence_arrays(fences)
    rows = await db.fetch(
        "SELECT * FROM accs.heartbeat($1, $2, $3, $4, $5, $6)",
        node,
        owner,
        ids,
        attempts,
        lease,
        instance,
        repeatable=True,
        within=within,
    )
    return read_answers(rows)


async def report_progress(db: Database, reports: Sequence[Progress], *, owner: str) -> dict[UUID, Answer]:
    ids, attempts = fence_arrays([report.fence for report in reports])
    rows = await db.fetch(
        "SELECT * FROM accs.report_progress($1, $2, $3, $4::float8[]::numeric[], $5, $6)",
        ids,
        attempts,
        owner,
        [report.progress for report in reports],
        [report.message for report in reports],
        [report.results for report in reports],
        repeatable=True,
    )
    return read_answers(rows)


# One task at a time, under the names of the original library.


async def mark_task_running(db: Database, fence: Fence, *, owner: str) -> Answer:
    return (await start_tasks(db, [fence], owner=owner))[fence.task_id]


async def update_task_progress(
    db: Database, fence: Fence, progress: float, *, owner: str, message: str | None = None
) -> Answer:
    return (await report_progress(db, [Progress(fence, progress, message)], owner=owner))[fence.task_id]
