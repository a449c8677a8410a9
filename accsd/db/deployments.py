"""Deployments that SeqPulse's clients announce: they begin, they end, and what their jobs have found is read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from accsd.db.answers import Verdict
from accsd.db.pool import Database, Record


@dataclass(frozen=True, slots=True)
class Deployment:
    id: UUID
    number: int
    project: str
    env: str
    idempotency_key: str | None
    branch: str | None
    metrics_endpoint: str | None
    window_minutes: int
    delay_minutes: int
    state: str
    pipeline_result: str | None
    created_by: str | None
    started_at: datetime
    finished_at: datetime | None
    duration_ms: int | None


@dataclass(frozen=True, slots=True)
class DeploymentVerdict:
    """What the analysis has found."""

    verdict: str
    confidence: float
    summary: str
    details: list[str]


@dataclass(frozen=True, slots=True)
class ReadDeployment:
    """A deployment with its analysis; `analysis`: pending, running, completed, failed; None: there is none yet."""

    deployment: Deployment
    analysis: str | None
    last_error: str | None
    verdict: DeploymentVerdict | None


@dataclass(frozen=True, slots=True)
class StoredSample:
    """One sample of a deployment: `values` is None until it was taken. `is_untried`: no try to take it has ended."""

    id: UUID | None
    phase: str
    sequence_index: int | None
    scheduled_at: datetime
    status: str
    is_untried: bool
    values: Mapping[str, Any] | None


_COLUMNS: Final = ", ".join(Deployment.__dataclass_fields__)
_FOUND: Final = f"""
SELECT {", ".join(f"d.{each}" for each in Deployment.__dataclass_fields__)}, s.status AS analysis, s.last_error,
       v.verdict, v.confidence, v.summary, v.details
  FROM accs.seqpulse_deployments d
  LEFT JOIN public.scheduled_jobs s ON s.deployment_id = d.id AND s.job_type = 'analysis'
  LEFT JOIN public.deployment_verdicts v ON v.deployment_id = d.id
"""


@dataclass(frozen=True, slots=True)
class Triggered:
    """`repeated`: it was there, by its key or because it runs in this environment."""

    id: UUID
    verdict: Verdict


async def trigger_deployment(
    db: Database,
    project: str,
    env: str,
    *,
    endpoint: str | None,
    window_minutes: int,
    delay_minutes: int,
    key: str | None = None,
    branch: str | None = None,
    by: str | None = None,
) -> Triggered:
    """Begins a deployment. Raises NotFound where the workflows of deployments were not written yet."""
    row = await db.fetchrow(
        "SELECT * FROM accs.trigger_deployment($1, $2, $3, $4, $5, $6, $7, $8)",
        project,
        env,
        endpoint,
        window_minutes,
        delay_minutes,
        key,
        branch,
        by,
        repeatable=True,
    )
    assert row is not None
    return Triggered(row["deployment_id"], Verdict(row["answer"]))


async def finish_deployment(
    db: Database, project: str, deployment_id: UUID, result: str, *, endpoint: str | None = None, by: str | None = None
) -> Verdict:
    """Ends a deployment and schedules what follows, all or nothing. `refused`: the project has no such deployment;
    `repeated`: it has ended already."""
    row = await db.fetchrow(
        "SELECT * FROM accs.finish_deployment($1, $2, $3, $4, $5)",
        project,
        deployment_id,
        result,
        endpoint,
        by,
        repeatable=True,
    )
    assert row is not None
    return Verdict(row["answer"])


async def known_deployment(db: Database, project: str, env: str, key: str | None) -> Deployment | None:
    """The deployment that `trigger_deployment` would answer with instead of a new one."""
    row = await db.fetchrow(
        f"""SELECT {_COLUMNS} FROM accs.seqpulse_deployments
             WHERE project = $1 AND (idempotency_key = $3 OR env = $2 AND state = 'running')
             ORDER BY (idempotency_key = $3) DESC NULLS LAST LIMIT 1""",
        project,
        env,
        key,
        repeatable=True,
    )
    return None if row is None else Deployment(**row)


async def deployment(db: Database, deployment_id: UUID) -> tuple[Deployment, datetime] | None:
    """A deployment, and what the database's clock shows."""
    row = await db.fetchrow(
        f"SELECT {_COLUMNS}, accs.clock() AS clock FROM accs.seqpulse_deployments WHERE id = $1",
        deployment_id,
        repeatable=True,
    )
    return None if row is None else (_deployment(row), row["clock"])


async def read_deployment(db: Database, project: str, which: UUID | int) -> ReadDeployment | None:
    """By its id, or by its number within the project."""
    column = "number" if isinstance(which, int) else "id"
    row = await db.fetchrow(f"{_FOUND} WHERE d.project = $1 AND d.{column} = $2", project, which, repeatable=True)
    return None if row is None else _read(row)


async def read_deployments(
    db: Database, project: str, *, env: str | None = None, below: int | None = None, limit: int = 50
) -> list[ReadDeployment]:
    """The newest first; `below` is the number of the last one of the page before."""
    rows = await db.fetch(
        f"""{_FOUND} WHERE d.project = $1 AND ($2::text IS NULL OR d.env = $2) AND ($3::int IS NULL OR d.number < $3)
             ORDER BY d.number DESC LIMIT $4""",
        project,
        env,
        below,
        limit,
        repeatable=True,
    )
    return [_read(row) for row in rows]


async def stored_samples(db: Database, deployment_id: UUID) -> list[StoredSample]:
    """Those that were taken and those that are still to be, in the order of their times."""
    rows = await db.fetch(
        """SELECT task_id, phase, sequence_index, scheduled_at, status, attempt, results FROM accs.deployment_jobs
            WHERE deployment_id = $1 AND job_type <> 'analysis' ORDER BY scheduled_at, job_id""",
        deployment_id,
        repeatable=True,
    )
    return [
        StoredSample(
            id=row["task_id"],
            phase=row["phase"],
            sequence_index=row["sequence_index"],
            scheduled_at=row["scheduled_at"],
            status=row["status"],
            is_untried=row["status"] in ("pending", "running") and not row["attempt"],
            values=row["results"] if row["status"] == "completed" else None,
        )
        for row in rows
    ]


async def sdh_hints(
    db: Database, project: str, *, deployment_id: UUID | None = None, severity: str | None = None, limit: int = 50
) -> Sequence[Record]:
    """Of one deployment, or of all of a project, the newest first."""
    return await db.fetch(
        """SELECT h.* FROM accs.seqpulse_deployments d JOIN public.sdh_hints h ON h.deployment_id = d.id
            WHERE d.project = $1 AND ($2::uuid IS NULL OR d.id = $2) AND ($3::text IS NULL OR h.severity = $3)
            ORDER BY d.number DESC, h.confidence DESC, h.metric LIMIT $4""",
        project,
        deployment_id,
        severity,
        limit,
        repeatable=True,
    )


def _deployment(row: Record) -> Deployment:
    return Deployment(**{name: row[name] for name in Deployment.__dataclass_fields__})


def _read(row: Record) -> ReadDeployment:
    verdict = DeploymentVerdict(row["verdict"], row["confidence"], row["summary"], row["details"] or [])
    return ReadDeployment(
        _deployment(row), row["analysis"], row["last_error"], None if row["verdict"] is None else verdict
    )
