"""Finished jobs that have been kept long enough, and the objects that nobody's row knows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from accsd.db.pool import Database

_SCAN: Final = 1000


@dataclass(frozen=True, slots=True)
class Removed:
    """What the retention takes away of one workflow. `kept`: due, but somebody still has to do with them."""

    workflow: str
    jobs: int
    tasks: int
    artifacts: int
    bytes: int
    kept: int


@dataclass(frozen=True, slots=True)
class Page:
    removed: list[Removed]
    next_after: int | None  # where to go on; None at the end


async def delete_finished_jobs(
    db: Database,
    *,
    age: timedelta | None,
    workflows: Mapping[str, timedelta | None],
    after: int = 0,
    scan: int = _SCAN,
    dry_run: bool = False,
) -> Page:
    """Looks at `scan` jobs in the global order; None for an age is for ever. Repeatable: what is gone stays gone, and
    only the counts of a lost answer are lost."""
    rows = await db.fetch(
        "SELECT * FROM accs.delete_finished_jobs($1, $2, $3, $4, $5, $6)",
        age,
        list(workflows),
        list(workflows.values()),
        after,
        scan,
        dry_run,
        repeatable=True,
    )
    removed = [
        Removed(row["workflow"], row["jobs"], row["tasks"], row["artifacts"], row["bytes"], row["kept"])
        for row in rows[:-1]
    ]
    return Page(removed, rows[-1]["next_after"])


async def database_time(db: Database) -> datetime:
    """By the server's own clock, now."""
    return await db.fetchval("SELECT clock_timestamp()", repeatable=True)


async def doomed_objects(db: Database, bucket: str, *, limit: int) -> list[str]:
    """Keys of this bucket whose jobs were removed."""
    rows = await db.fetch(
        "SELECT key FROM accs.doomed_objects WHERE bucket = $1 ORDER BY key LIMIT $2", bucket, limit, repeatable=True
    )
    return [row[0] for row in rows]


async def forget_objects(db: Database, bucket: str, keys: Sequence[str]) -> int:
    return await db.fetchval("SELECT accs.forget_objects($1, $2)", bucket, list(keys), repeatable=True)


async def unknown_keys(db: Database, bucket: str, keys: Sequence[str]) -> list[str]:
    """Those that are neither an artifact, nor about to be removed anyway."""
    rows = await db.fetch(
        """SELECT k.key FROM unnest($2::text[]) AS k (key)
            WHERE NOT EXISTS (SELECT FROM public.task_artifacts a WHERE a.bucket = $1 AND a.key = k.key)
              AND NOT EXISTS (SELECT FROM accs.doomed_objects d WHERE d.bucket = $1 AND d.key = k.key)""",
        bucket,
        list(keys),
        repeatable=True,
    )
    return [row[0] for row in rows]


async def statuses_of(db: Database, job_ids: Sequence[UUID]) -> dict[UUID, str]:
    """Of those that exist."""
    rows = await db.fetch("SELECT id, status FROM public.jobs WHERE id = ANY ($1)", list(job_ids), repeatable=True)
    return {row["id"]: row["status"] for row in rows}
