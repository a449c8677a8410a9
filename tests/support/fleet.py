"""Jobs in numbers, and when things happened to them by the database's clock."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from tests.support.cluster import Connection
from tests.support.eventually import eventually
from tests.support.factory import submit_to, task, workflow


async def submit_many(
    conn: Connection, count: int, *steps: dict[str, Any], options: dict[str, Any] | None = None
) -> list[UUID]:
    """So many jobs of one workflow."""
    flow = await workflow(conn, *steps)
    return [await submit_to(conn, flow, options=options) for _ in range(count)]


async def all_are(conn: Connection, jobs: Sequence[UUID], wanted: str, *, within: float = 30) -> None:
    async def there() -> bool:
        rows = await conn.fetch(
            "SELECT status, count(*) FROM jobs WHERE id = ANY ($1) GROUP BY status ORDER BY status", list(jobs)
        )
        assert {row["status"]: row["count"] for row in rows} == {wanted: len(jobs)}
        return True

    await eventually(there, within=within, interval=0.05)


async def reaches(conn: Connection, job: UUID, wanted: str, *, within: float = 30) -> None:
    await all_are(conn, [job], wanted, within=within)


async def task_is(conn: Connection, job: UUID, wanted: str, key: str = "a") -> bool:
    return (await task(conn, job, key))["status"] == wanted


async def is_done(conn: Connection, job: UUID, *, within: float = 30) -> None:
    await all_are(conn, [job], "done", within=within)


async def claims(conn: Connection, job: UUID, key: str = "a") -> list[tuple[datetime, str]]:
    """When a task was claimed and by whom, each time."""
    rows = await conn.fetch(
        "SELECT e.ts, e.data ->> 'owner' AS owner FROM task_events e JOIN job_tasks t ON t.id = e.job_task_id"
        " WHERE t.job_id = $1 AND t.task_key = $2 AND e.data ->> 'to' = 'starting' ORDER BY e.id",
        job,
        key,
    )
    return [(row["ts"], row["owner"]) for row in rows]


async def pickup(conn: Connection, job: UUID) -> float:
    """Seconds from its submission to the first claim of step "a"."""
    created: datetime = await conn.fetchval("SELECT created_at FROM jobs WHERE id = $1", job)
    return ((await claims(conn, job))[0][0] - created).total_seconds()


async def clock(conn: Connection) -> datetime:
    """The time in the database, not that of the transaction."""
    return await conn.fetchval("SELECT clock_timestamp()")
