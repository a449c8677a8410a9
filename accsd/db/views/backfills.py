"""Backfills for people: how far each has come, and what one would do."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from accsd.db.pool import Database
from accsd.errors import NotFound


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillRow:
    """`done` of `total` occurrences were looked at; `failed` counts jobs of it that ended in error."""

    id: UUID
    schedule: str
    state: str
    total: int
    done: int
    started: int
    left_alone: int
    refused: int
    failed: int
    open_jobs: int
    parallel: int
    existing: str
    first: datetime
    last: datetime
    by: str | None
    reason: str | None
    created_at: datetime
    ended_at: datetime | None


async def schedule_of_backfill(db: Database, backfill_id: UUID) -> str:
    found = await db.fetchval(
        "SELECT s.name FROM accs.backfills b JOIN public.schedules s ON s.id = b.schedule_id WHERE b.id = $1",
        backfill_id,
        repeatable=True,
    )
    if found is None:
        raise NotFound(f"there is no backfill {backfill_id}", hint="`accsd backfills` lists them")
    return found


async def backfills(db: Database, *, schedule_id: UUID | None = None, limit: int = 20) -> list[BackfillRow]:
    """The newest first."""
    rows = await db.fetch(
        """SELECT b.id, s.name AS schedule, b.state, cardinality(b.nominals) AS total, b.pos - 1 AS done, b.started,
                  b.left_alone, b.refused, b.parallel, b.existing, b.by, b.reason, b.created_at, b.ended_at,
                  (SELECT min(n) FROM unnest(b.nominals) n) AS first,
                  (SELECT max(n) FROM unnest(b.nominals) n) AS last,
                  (SELECT count(*)::int FROM accs.open_runs o WHERE o.key = 'backfill:' || b.id) AS open_jobs,
                  (SELECT count(*)::int FROM public.firings f JOIN public.jobs j ON j.id = f.job_id
                    WHERE f.schedule_id = b.schedule_id AND f.nominal = ANY (b.nominals)
                      AND f.detail ->> 'backfill' = b.id::text AND j.status = 'error') AS failed
             FROM accs.backfills b JOIN public.schedules s ON s.id = b.schedule_id
            WHERE $1::uuid IS NULL OR b.schedule_id = $1 ORDER BY b.id DESC LIMIT $2""",
        schedule_id,
        limit,
        repeatable=True,
    )
    return [BackfillRow(**row) for row in rows]


async def backfill_ids_like(db: Database, text: str) -> list[UUID]:
    """Those whose id begins or ends with this."""
    rows = await db.fetch(
        """SELECT id FROM accs.backfills
            WHERE starts_with(id::text, $1) OR right(id::text, length($1)) = $1 ORDER BY id DESC LIMIT 2""",
        text,
        repeatable=True,
    )
    return [row[0] for row in rows]


@dataclass(frozen=True, slots=True)
class BackfillPlanRow:
    """What a backfill would do to an occurrence, as accs.preview_backfill has it: run it, or leave it because of what
    the ledger says."""

    nominal: datetime
    fold: int
    would: str
    outcome: str | None
    job_id: UUID | None


async def preview_backfill(
    db: Database, schedule_id: UUID, nominals: Sequence[datetime], folds: Sequence[int], existing: str
) -> list[BackfillPlanRow]:
    rows = await db.fetch(
        """SELECT u.nominal, u.fold,
                  CASE WHEN f.outcome IN ('fired', 'caught_up')
                            AND NOT ($4 = 'all' OR $4 = 'failed' AND j.status IN ('error', 'cancelled'))
                         OR f.outcome IN ('snoozed', 'merged') THEN 'leave' ELSE 'run' END AS would, f.outcome, f.job_id
             FROM unnest($2::timestamp[], $3::int[]) WITH ORDINALITY AS u (nominal, fold, n)
             LEFT JOIN public.firings f ON f.schedule_id = $1 AND f.nominal = u.nominal AND f.fold = u.fold
              AND f.cause_id = 0
             LEFT JOIN public.jobs j ON j.id = f.job_id ORDER BY u.n""",
        schedule_id,
        list(nominals),
        list(folds),
        existing,
        repeatable=True,
    )
    return [BackfillPlanRow(**row) for row in rows]
