"""What the joblib door does: jobs are registered, tasks submitted, claimed and ended, workers removed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from accsd.db.answers import Verdict
from accsd.db.nodes import upsert_heartbeat
from accsd.db.pool import Database
from accsd.db.submit import Submission, check_options, new_id
from accsd.db.views.joblib import JoblibJob, JoblibTask, node_of, tasks_of, workers_of

_HEARTBEAT: Final = """
    SELECT count(*) FROM accs.heartbeat($1, $1, ARRAY(SELECT task_id FROM accs.live WHERE node = $1 ORDER BY task_id),
                                        ARRAY(SELECT attempt_id FROM accs.live WHERE node = $1 ORDER BY task_id), $2)"""


@dataclass(frozen=True, slots=True)
class Registered:
    verdict: Verdict
    reason: str | None
    job_id: UUID | None
    worker: UUID
    workers: list[UUID]


async def make_worker(db: Database, user: str) -> tuple[UUID, datetime]:
    """A worker of this actor. It takes any number of tasks at once."""
    worker = new_id()
    labels = {"accs.kind": "joblib", "joblib.user": user}
    node = await upsert_heartbeat(db, node_of(worker), labels=labels, max_concurrency={"joblib": 1_000_000})
    assert node.last_seen is not None
    return worker, node.last_seen


async def hear_worker(db: Database, worker: UUID, lease: timedelta) -> datetime | None:
    """Keeps the leases of all that a worker holds. When it was heard; None: it is gone."""
    await db.fetch(_HEARTBEAT, node_of(worker), lease, repeatable=True)
    return await db.fetchval("SELECT last_seen FROM public.nodes WHERE name = $1", node_of(worker), repeatable=True)


@dataclass(frozen=True, slots=True)
class RemovedWorker:
    """The rooms whose jobs, and whose providers, are not what they were."""

    jobs: list[str]
    providers: list[str]


async def remove_worker(
    db: Database, node: str, *, silent: timedelta | None = None, keep: bool = False, by: str | None = None
) -> RemovedWorker | None:
    """A worker with all that it holds. With `silent` only if it was not heard for that long. None: it is not there."""
    row = await db.fetchrow(
        "SELECT * FROM accs.joblib_remove_worker($1, $2, $3, $4)", node, silent, keep, by, repeatable=True
    )
    return None if row is None else RemovedWorker(row["jobs"], row["providers"])


async def register_job(
    db: Database,
    name: str,
    schema: Mapping[str, Any],
    *,
    policy: Mapping[str, Any] | None,
    at_once: int | None,
    worker: UUID | None,
    user: str,
) -> Registered:
    """A job, served by this worker, or by a new one. Refused with schema_conflict or worker_not_found."""
    serving = worker or new_id()
    row = await db.fetchrow(
        "SELECT * FROM accs.joblib_register($1, $2, $3, $4, $5, $6, $7)",
        name,
        schema,
        policy,
        node_of(serving),
        worker is None,
        user,
        at_once,
        repeatable=True,
    )
    assert row is not None
    return Registered(Verdict(row["answer"]), row["reason"], row["job_id"], serving, workers_of(row["workers"] or ()))


@dataclass(frozen=True, slots=True)
class SubmittedTask:
    verdict: Verdict
    reason: str | None
    job_id: UUID | None


async def submit_task(
    db: Database,
    job: JoblibJob,
    options: Mapping[str, Any],
    *,
    key: str | None,
    user: str,
    needs_worker: bool,
) -> SubmittedTask:
    """Refused with workflow_inactive, no_executor or no_workers. Raises OptionsInvalid where the payload is checked."""
    await check_options(db, [Submission(job.workflow_id, options)])
    row = await db.fetchrow(
        "SELECT * FROM accs.joblib_submit($1, $2, $3, $4, $5, $6)",
        job.full_name,
        options,
        new_id(),
        key,
        user,
        needs_worker,
        repeatable=True,
    )
    assert row is not None
    return SubmittedTask(Verdict(row["answer"]), row["reason"], row["job_id"])


async def claim_task(db: Database, reads: Database, worker: UUID, lease: timedelta) -> JoblibTask | None:
    """The oldest task of all jobs that the worker serves. Not repeatable: an answer that is lost leaves it claimed."""
    claimed = await db.fetchval("SELECT job_id FROM accs.joblib_claim($1, $2)", node_of(worker), lease)
    if claimed is None:
        return None
    [task] = await tasks_of(reads, [claimed])
    return task


async def end_task(
    db: Database,
    task: JoblibTask,
    status: str,
    *,
    attempt: int | None,
    error: str | None,
    result: Mapping[str, Any] | None,
    keep: bool,
    by: str,
) -> tuple[Verdict, str | None]:
    row = await db.fetchrow(
        "SELECT * FROM accs.joblib_end($1, $2, $3, $4, $5, $6, $7)",
        task.id,
        attempt,
        status,
        error,
        result,
        keep,
        by,
        repeatable=True,
    )
    assert row is not None
    return Verdict(row["answer"]), row["reason"]


async def sweep(db: Database, *, internal: timedelta, claimed: timedelta | None, keep: bool) -> dict[str, int]:
    """What takes too long is ended; jobs that nobody serves or waits for are not offered any more. What was done."""
    rows = await db.fetch("SELECT * FROM accs.joblib_sweep($1, $2, $3)", internal, claimed, keep, repeatable=True)
    return {row["did"]: row["n"] for row in rows if row["n"]}


@dataclass(frozen=True, slots=True)
class PutProvider:
    verdict: Verdict
    reason: str | None
    id: UUID | None
    created_at: datetime | None
    worker: UUID


async def put_provider(
    db: Database,
    parts: Sequence[str],
    schema: Mapping[str, Any],
    content_type: str,
    *,
    worker: UUID | None,
    user: str,
    is_admin: bool,
) -> PutProvider:
    """`parts`: room, category, name. Refused with worker_not_found or not_yours."""
    serving = worker or new_id()
    row = await db.fetchrow(
        "SELECT * FROM accs.joblib_put_provider($1, $2, $3, $4, $5, $6, $7, $8, $9)",
        *parts,
        schema,
        content_type,
        node_of(serving),
        worker is None,
        user,
        is_admin,
        repeatable=True,
    )
    assert row is not None
    return PutProvider(Verdict(row["answer"]), row["reason"], row["id"], row["created_at"], serving)


async def drop_provider(db: Database, provider: UUID) -> str | None:
    """Its room; None: it is not there."""
    return await db.fetchval("SELECT accs.joblib_drop_provider($1)", provider, repeatable=True)
