"""The verbs as the race tests call them, and how they answer."""

from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID

from tests.support.cluster import Connection
from tests.support.factory import LEASE, OWNER, Row, diamond, done, started, submit


def answered(rows: Sequence[Row]) -> list[tuple[str, str | None]]:
    return [(row["answer"], row["reason"]) for row in rows]


ACCEPTED = [("accepted", None)]
REPEATED = [("repeated", None)]


async def reclaim(conn: Connection) -> Sequence[Row]:
    return await conn.fetch("SELECT * FROM accs.reclaim_tasks()")


async def skip(conn: Connection, *task_ids: UUID) -> Sequence[Row]:
    return await conn.fetch("SELECT * FROM accs.skip_tasks($1)", list(task_ids))


async def redrive(conn: Connection, *letters: int) -> Sequence[Row]:
    return await conn.fetch("SELECT * FROM accs.redrive($1)", list(letters))


async def retry(conn: Connection, job_id: UUID) -> Sequence[Row]:
    return await conn.fetch("SELECT * FROM accs.retry_jobs($1)", [job_id])


async def heartbeat(conn: Connection, claimed: Row, lease: timedelta = LEASE) -> Sequence[Row]:
    return await conn.fetch(
        "SELECT * FROM accs.heartbeat('n1', $1, $2, $3, $4)",
        OWNER,
        [claimed["task_id"]],
        [claimed["attempt_id"]],
        lease,
    )


async def progress(conn: Connection, claimed: Row, value: float) -> Sequence[Row]:
    return await conn.fetch(
        "SELECT * FROM accs.report_progress($1, $2, $3, ARRAY[$4::numeric])",
        [claimed["task_id"]],
        [claimed["attempt_id"]],
        OWNER,
        value,
    )


async def instantiate(conn: Connection, *job_ids: UUID) -> Sequence[Row]:
    return await conn.fetch("SELECT * FROM accs.instantiate_due_jobs(100, $1)", list(job_ids) or None)


async def insert_job(conn: Connection, flow: UUID) -> UUID:
    return await conn.fetchval("INSERT INTO jobs (workflow_id) VALUES ($1) RETURNING id", flow)


async def both_sides(conn: Connection) -> tuple[UUID, Row, Row]:
    job_id = await submit(conn, *diamond())
    await done(conn)
    left, right = await started(conn, 2)
    return job_id, left, right
