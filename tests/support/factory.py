"""Workflows, jobs, nodes and attempts for the tests of the SQL verbs, in one line each.

    await node(conn)
    job = await submit(conn, step("a"), step("b", after="a"))
    (a,) = await started(conn)
    await finish(conn, a)
    assert (await task(conn, job, "b"))["status"] == "queued"

A claimed task is the row that accs.claim_tasks gave: task_id, attempt_id and so on. Every helper is one call
of one verb; none of them hides an answer.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import asyncpg

from tests.support.cluster import Connection

Row = asyncpg.Record
Claimed = asyncpg.Record | dict[str, Any]  # a test may alter one: {**claimed, "attempt_id": 7}

SERVICE = "render"
NODE = "n1"
OWNER = "owner-1"
LEASE = timedelta(seconds=60)


def step(key: str, service: str = SERVICE, /, *, after: str | Iterable[str] = (), **fields: Any) -> dict[str, Any]:
    """A step of a workflow; `after="a b"` are the keys that it depends on."""
    depends_on = after.split() if isinstance(after, str) else list(after)
    return {"key": key, "service": service, "depends_on": depends_on, **fields}


def chain(*keys: str, service: str = SERVICE) -> list[dict[str, Any]]:
    """Steps that run one after the other."""
    return [step(key, service, after=keys[max(0, i - 1) : i]) for i, key in enumerate(keys)]


def diamond(service: str = SERVICE) -> list[dict[str, Any]]:
    """top → left, right → bottom"""
    return [
        step("top", service),
        step("left", service, after="top"),
        step("right", service, after="top"),
        step("bottom", service, after="left right"),
    ]


async def workflow(conn: Connection, *steps: dict[str, Any], name: str | None = None, version: int = 1) -> UUID:
    return await conn.fetchval(
        "INSERT INTO workflows (name, version, steps) VALUES ($1, $2, $3) RETURNING id",
        name or f"w-{uuid4().hex[:12]}",
        version,
        list(steps) or [step("a")],
    )


async def submit_to(conn: Connection, workflow_id: UUID, **given: Any) -> UUID:
    """One job of a workflow that exists. given: options, priority, scheduled_at, key, job_id, no_cache."""
    return (await submission(conn, workflow_id, **given))["job_id"]


async def submission(
    conn: Connection,
    workflow_id: UUID,
    *,
    options: dict[str, Any] | None = None,
    priority: int | None = None,
    scheduled_at: datetime | None = None,
    key: str | None = None,
    job_id: UUID | None = None,
    no_cache: bool | None = None,
) -> Row:
    """The whole answer of accs.submit_jobs for one job."""
    row = await conn.fetchrow(
        "SELECT * FROM accs.submit_jobs($1, $2, $3, $4, $5, $6, p_no_cache => $7)",
        [workflow_id],
        [options],
        [priority],
        [scheduled_at],
        [key],
        [job_id],
        [no_cache],
    )
    assert row is not None
    return row


async def submit(conn: Connection, *steps: dict[str, Any], **given: Any) -> UUID:
    """A job of a workflow made for it."""
    return await submit_to(conn, await workflow(conn, *steps), **given)


async def allow_long_leases(conn: Connection) -> None:
    """For those who let months pass while a task is held."""
    await conn.execute(
        "CREATE OR REPLACE FUNCTION accs.longest_lease() RETURNS interval LANGUAGE sql IMMUTABLE AS"
        " $$ SELECT interval '9 years' $$"
    )


async def node(
    conn: Connection, name: str = NODE, labels: dict[str, Any] | None = None, **max_concurrency: int
) -> None:
    """A registered node; `render=2` limits that service, and none limits nothing."""
    await conn.fetch("SELECT * FROM accs.register_node($1, $2, $3)", name, labels or {}, max_concurrency)


async def claim(
    conn: Connection,
    n: int = 1,
    service: str = SERVICE,
    *,
    owner: str = OWNER,
    on: str = NODE,
    lease: timedelta = LEASE,
) -> list[Row]:
    return await conn.fetch("SELECT * FROM accs.claim_tasks($1, $2, $3, $4, $5)", service, owner, on, n, lease)


async def start(conn: Connection, *claimed: Claimed, owner: str = OWNER) -> list[Row]:
    return await conn.fetch("SELECT * FROM accs.start_tasks($1, $2, $3)", *_fence(claimed), owner)


async def started(conn: Connection, n: int = 1, service: str = SERVICE, **where: Any) -> list[Row]:
    """Claimed and started."""
    claimed = await claim(conn, n, service, **where)
    answers = await start(conn, *claimed, owner=where.get("owner", OWNER))
    assert [a["answer"] for a in answers] == ["accepted"] * len(claimed)
    return claimed


async def finish(
    conn: Connection, *claimed: Claimed, owner: str = OWNER, results: Sequence[dict[str, Any] | None] | None = None
) -> list[Row]:
    """Done."""
    return await conn.fetch(
        "SELECT * FROM accs.finish_tasks($1, $2, $3, p_results => $4)", *_fence(claimed), owner, results
    )


async def fail(
    conn: Connection,
    *claimed: Claimed,
    owner: str = OWNER,
    code: str | None = "boom",
    message: str | None = "it broke",
    permanent: bool = False,
    base: float | None = None,
) -> list[Row]:
    """Error, with whatever the retry policy makes of it."""
    return await conn.fetch(
        "SELECT * FROM accs.finish_tasks($1, $2, $3, $4, NULL, $5, $6, $7, $8)",
        *_fence(claimed),
        owner,
        ["error"] * len(claimed),
        [code] * len(claimed),
        [message] * len(claimed),
        [permanent] * len(claimed),
        base,
    )


async def done(conn: Connection, n: int = 1, service: str = SERVICE, **where: Any) -> list[Row]:
    """Claimed, started and finished; gives what was claimed."""
    claimed = await started(conn, n, service, **where)
    answers = await finish(conn, *claimed, owner=where.get("owner", OWNER))
    assert [a["answer"] for a in answers] == ["accepted"] * len(claimed)
    return claimed


async def release(conn: Connection, *claimed: Claimed, owner: str = OWNER, **given: Any) -> list[Row]:
    return await conn.fetch(
        "SELECT * FROM accs.release_tasks($1, $2, $3, $4, $5, $6)",
        *_fence(claimed),
        owner,
        given.get("reason"),
        given.get("lost", False),
        given.get("delay"),
    )


async def cancel(conn: Connection, *jobs: UUID, reason: str | None = None) -> list[Row]:
    return await conn.fetch("SELECT * FROM accs.cancel_jobs($1, $2)", list(jobs), reason)


async def task(conn: Connection, job_id: UUID, key: str = "a") -> Row:
    row = await conn.fetchrow("SELECT * FROM job_tasks WHERE job_id = $1 AND task_key = $2", job_id, key)
    assert row is not None
    return row


async def tasks(conn: Connection, job_id: UUID) -> dict[str, str]:
    """The status of each step."""
    rows = await conn.fetch("SELECT task_key, status FROM job_tasks WHERE job_id = $1 ORDER BY step_no", job_id)
    return {row["task_key"]: row["status"] for row in rows}


async def job(conn: Connection, job_id: UUID) -> Row:
    row = await conn.fetchrow("SELECT * FROM jobs WHERE id = $1", job_id)
    assert row is not None
    return row


async def dead_letters(conn: Connection, job_id: UUID) -> list[Row]:
    return await conn.fetch("SELECT * FROM dead_letters WHERE job_id = $1 ORDER BY id", job_id)


async def moves(conn: Connection, task_id: UUID) -> list[tuple[str, str]]:
    """The transitions of a task as its events tell them."""
    rows = await conn.fetch(
        "SELECT data ->> 'from' AS a, data ->> 'to' AS b FROM task_events"
        " WHERE job_task_id = $1 AND data ? 'to' ORDER BY id",
        task_id,
    )
    return [(row["a"], row["b"]) for row in rows]


async def job_moves(conn: Connection, job_id: UUID) -> list[tuple[str, str]]:
    rows = await conn.fetch(
        "SELECT data ->> 'from' AS a, data ->> 'to' AS b FROM task_events"
        " WHERE job_id = $1 AND job_task_id IS NULL AND data ? 'to' ORDER BY id",
        job_id,
    )
    return [(row["a"], row["b"]) for row in rows]


async def pass_time(conn: Connection, seconds: float) -> None:
    """Moves the database's clock forward, for every session."""
    await conn.execute("UPDATE accs.test_clock SET shift = shift + $1", timedelta(seconds=seconds))


async def stop_clock(conn: Connection) -> None:
    """From now on only `pass_time` moves the database's time, however slow the machine is."""
    await conn.execute(
        f"""CREATE OR REPLACE FUNCTION accs.clock() RETURNS timestamptz LANGUAGE sql STABLE AS
            $$ SELECT '{await conn.fetchval("SELECT now()")}'::timestamptz + (SELECT shift FROM accs.test_clock) $$"""
    )


async def clock(conn: Connection) -> datetime:
    return await conn.fetchval("SELECT accs.clock()")


async def dump(conn: Connection, *leave_out: str) -> dict[str, list[str]]:
    """Every row of every table of accsd as text, to see whether anything at all has changed."""
    names = await conn.fetch(
        "SELECT c.oid::regclass::text AS name FROM pg_class c WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition"
        " AND c.relnamespace IN ('public'::regnamespace, 'accs'::regnamespace) ORDER BY 1"
    )
    found: dict[str, list[str]] = {}
    for name in (row["name"] for row in names if row["name"] not in leave_out):
        rows = await conn.fetch(f"SELECT t::text AS row FROM {name} t ORDER BY 1")
        found[name] = [row["row"] for row in rows]
    return found


def _fence(claimed: Sequence[Claimed]) -> tuple[list[UUID], list[int]]:
    return [c["task_id"] for c in claimed], [c["attempt_id"] for c in claimed]
