"""Steps with expressions: what waits to be resolved, the results that they refer to, and what was decided."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from accsd.db.answers import Answer, read_answer, read_answers
from accsd.db.pool import Database

CHANNEL: Final = "_resolve"


@dataclass(frozen=True, slots=True)
class TaskToResolve:
    task_id: UUID
    job_id: UUID
    task_key: str
    generation: int
    workflow_id: UUID
    workflow_changed_at: datetime
    options: Mapping[str, Any] | None
    trigger: Mapping[str, Any] | None
    job_created_at: datetime
    now: datetime


async def tasks_to_resolve(db: Database, *, limit: int) -> list[TaskToResolve]:
    """In the order of the claims."""
    rows = await db.fetch("SELECT * FROM accs.tasks_to_resolve($1)", limit, repeatable=True)
    return [TaskToResolve(**dict(row)) for row in rows]


@dataclass(frozen=True, slots=True)
class StepResult:
    """What an earlier step has left. `results` is None where it was skipped or is too large to be read at once;
    `size` tells which."""

    job_id: UUID
    task_key: str
    status: str
    results: Any
    size: int | None


async def step_results(db: Database, wanted: Sequence[tuple[UUID, str]]) -> list[StepResult]:
    """The results of these steps, by job and key, as far as they have ended."""
    jobs, keys = [job for job, _ in wanted], [key for _, key in wanted]
    rows = await db.fetch("SELECT * FROM accs.step_results($1, $2)", jobs, keys, repeatable=True)
    return [StepResult(**dict(row)) for row in rows]


async def resolve_tasks(db: Database, verdicts: Sequence[Mapping[str, Any]]) -> dict[UUID, Answer]:
    """Says what follows for each task: {task_id, generation, verdict: run | skip | error | done, given, delay, reason,
    message, results, cache_for, salt}. One that is accepted and done, though it was to run, had a cached result."""
    rows = await db.fetch("SELECT * FROM accs.resolve_tasks($1)", list(verdicts), repeatable=True)
    return read_answers(rows)


async def fan_out(
    db: Database,
    task_id: UUID,
    generation: int,
    given: Sequence[Mapping[str, Any] | None],
    *,
    delays: Sequence[float],
    parallel: int | None = None,
    tolerate: int = 0,
    cache_for: float | None = None,
    salt: str | None = None,
) -> Answer:
    """Makes a task for each item of a step: each is given what stands here, or skipped where that is None."""
    row = await db.fetchrow(
        "SELECT * FROM accs.fan_out($1, $2, $3, $4, $5, $6, $7, $8)",
        task_id,
        generation,
        list(given),
        parallel,
        tolerate,
        list(delays) if any(delays) else None,
        cache_for,
        salt,
        repeatable=True,
    )
    assert row is not None, "fan_out always answers"
    return read_answer(row)
