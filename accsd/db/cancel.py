"""Ends without an attempt: jobs are cancelled or closed, steps are skipped."""

from collections.abc import Sequence
from uuid import UUID

from accsd.db.answers import Answer, read_answers
from accsd.db.pool import Database


async def cancel_jobs(
    db: Database, job_ids: Sequence[UUID], *, reason: str | None = None, by: str | None = None
) -> dict[UUID, Answer]:
    """Cancels jobs, running tasks included; the nodes that serve them are notified."""
    rows = await db.fetch("SELECT * FROM accs.cancel_jobs($1, $2, $3)", list(job_ids), reason, by, repeatable=True)
    return read_answers(rows)


async def skip_tasks(
    db: Database, task_ids: Sequence[UUID], *, reason: str = "condition_false", by: str | None = None
) -> dict[UUID, Answer]:
    """Skips steps; a skipped step satisfies the steps that depend on it."""
    rows = await db.fetch(
        "SELECT * FROM accs.skip_tasks($1, $2, p_by => $3)", list(task_ids), reason, by, repeatable=True
    )
    return read_answers(rows)


async def close_jobs(db: Database, job_ids: Sequence[UUID]) -> dict[UUID, Answer]:
    return read_answers(await db.fetch("SELECT * FROM accs.close_jobs($1)", list(job_ids), repeatable=True))


async def maybe_finish_job(db: Database, job_id: UUID) -> bool:
    """Closes a job whose tasks are all terminal; returns whether it is closed. The last finish does it by itself."""
    return (await close_jobs(db, [job_id]))[job_id].is_effective
