"""Finished jobs leave when their time is over, with all that is theirs, and nothing that somebody needs."""

from datetime import timedelta
from typing import Any
from uuid import UUID

from tests.support.checker import check
from tests.support.cluster import Connection
from tests.support.factory import (
    allow_long_leases,
    cancel,
    chain,
    claim,
    done,
    fail,
    node,
    pass_time,
    started,
    step,
    submit,
    submit_to,
    workflow,
)
from tests.support.planted import past_the_guard

DAY = 86400
MONTH = timedelta(days=30)


async def prune(conn: Connection, age: timedelta | None = MONTH, **given: Any) -> list[dict[str, Any]]:
    ages: dict[str, timedelta | None] = given.get("workflows", {})
    rows = await conn.fetch(
        "SELECT * FROM accs.delete_finished_jobs($1, $2, $3, $4, $5, $6)",
        age,
        list(ages),
        list(ages.values()),
        given.get("after", 0),
        given.get("scan", 1000),
        given.get("dry_run", False),
    )
    return [dict(row) for row in rows]


async def ids(conn: Connection) -> set[UUID]:
    return {row["id"] for row in await conn.fetch("SELECT id FROM jobs")}


async def put_out(conn: Connection, claimed: Any, job: UUID, name: str) -> str:
    key = name if "/" in name else f"outputs/{job}/a/1/{name}"
    await conn.fetch(
        "SELECT * FROM accs.record_artifact($1, $2, 'owner-1', 'output', 'accs', $3, 7)",
        claimed["task_id"],
        claimed["attempt_id"],
        key,
    )
    return key


async def test_what_ended_long_ago_goes_with_all_that_is_its_own(conn: Connection):
    await node(conn)
    shape = await workflow(conn, *chain("a", "b"), name="media")
    old = await submit_to(conn, shape)
    (a,) = await started(conn)
    mine = await put_out(conn, a, old, "x.wav")
    await put_out(conn, a, old, "elsewhere/of/somebody")
    await conn.fetch("SELECT accs.finish_tasks($1, '{1}', 'owner-1')", [a["task_id"]])
    await done(conn)
    await pass_time(conn, 31 * DAY)
    fresh = await submit_to(conn, shape)
    await done(conn)
    await done(conn)

    found = await prune(conn, dry_run=True)
    assert found[0] == {
        "workflow": "media", "jobs": 1, "tasks": 2, "artifacts": 2, "bytes": 14, "kept": 0, "next_after": None,
    }  # fmt: skip
    assert await ids(conn) == {old, fresh}
    assert await prune(conn) == found
    assert await ids(conn) == {fresh}
    for table in ("job_tasks", "task_artifacts", "dead_letters"):
        assert await conn.fetchval(f"SELECT count(*) FROM {table} WHERE job_id = $1", old) == 0
    doomed = await conn.fetch("SELECT key FROM accs.doomed_objects")
    assert [row["key"] for row in doomed] == [mine]
    assert await conn.fetchval("SELECT count(*) FROM task_events WHERE job_id = $1", old) > 0
    assert [row["workflow"] for row in await prune(conn)] == [None]


async def test_what_somebody_still_has_to_do_with_is_kept(conn: Connection):
    await node(conn)
    dead, told, running, waiting = [await submit(conn, step("a", f"s{i}", max_attempts=1)) for i in range(4)]
    await fail(conn, *await claim(conn, service="s0"), permanent=True)
    await done(conn, service="s1")
    await allow_long_leases(conn)
    await claim(conn, service="s2", lease=timedelta(days=365))
    await conn.execute(
        "INSERT INTO outbox_events (job_id, payload, target, event) VALUES ($1, '{}', 't', 'job.done')", told
    )
    await pass_time(conn, 100 * DAY)
    answers = await prune(conn)
    assert sum(row["kept"] for row in answers) == 2
    assert await ids(conn) == {dead, told, running, waiting}

    await conn.execute("SELECT accs.dismiss(ARRAY(SELECT id FROM dead_letters))")
    await conn.execute("UPDATE outbox_events SET status = 'delivered'")
    await prune(conn)
    assert await ids(conn) == {running, waiting}
    await check(conn)


async def test_a_workflow_may_have_a_mind_of_its_own(conn: Connection):
    jobs: dict[str, UUID] = {}
    for name in ("long", "short", "usual"):
        jobs[name] = await submit_to(conn, await workflow(conn, name=name))
    await cancel(conn, *jobs.values())
    await pass_time(conn, 10 * DAY)
    ages = {"long": None, "short": timedelta(days=5)}
    await prune(conn, workflows=ages)
    assert await ids(conn) == {jobs["long"], jobs["usual"]}
    await pass_time(conn, 1000 * DAY)
    await prune(conn, workflows=ages)
    assert await ids(conn) == {jobs["long"]}
    assert await prune(conn, None) == [
        {"workflow": None, "jobs": 0, "tasks": 0, "artifacts": 0, "bytes": 0, "kept": 0, "next_after": None}
    ]


async def test_the_walk_goes_on_where_it_ended_and_stops_at_what_is_too_young(conn: Connection):
    shape = await workflow(conn)
    old = [await submit_to(conn, shape) for _ in range(5)]
    await cancel(conn, *old[:4])
    await pass_time(conn, 31 * DAY)
    young = [await submit_to(conn, shape) for _ in range(5)]
    after: int | None = 0
    calls = 0
    while after is not None:
        after = (await prune(conn, after=after, scan=2))[-1]["next_after"]
        calls += 1
    assert calls == 4
    assert await ids(conn) == {old[4], *young}


async def test_jobs_of_many_tasks_are_removed_a_few_at_a_time(conn: Connection):
    """A million rows in one call would never end in time, however often it is tried again."""
    shape = await workflow(conn)
    jobs = [await submit_to(conn, shape) for _ in range(4)]
    await cancel(conn, *jobs)
    await past_the_guard(conn, "UPDATE jobs SET task_count = 8000")  # so it believes
    await pass_time(conn, 31 * DAY)
    removed, after = list[int](), 0
    while after is not None:
        *counts, end = await prune(conn, after=after)
        removed += [row["jobs"] for row in counts]
        after = end["next_after"]
    assert removed == [3, 1]
    assert await ids(conn) == set()


async def test_a_job_from_the_future_does_not_end_the_walk(conn: Connection):
    shape = await workflow(conn)
    await conn.execute(
        "INSERT INTO jobs (workflow_id, created_at) VALUES ($1, accs.clock() + interval '9 years')", shape
    )
    old = [await submit_to(conn, shape) for _ in range(3)]
    await cancel(conn, *old)
    await pass_time(conn, 31 * DAY)
    after: int | None = 0
    while after is not None:
        after = (await prune(conn, after=after, scan=2))[-1]["next_after"]
    assert len(await ids(conn)) == 1


async def test_a_job_that_is_being_retried_stays(conn: Connection, connect: Any):
    job = await submit(conn)
    await cancel(conn, job)
    await pass_time(conn, 31 * DAY)
    other = await connect()
    async with other.transaction():
        await other.fetch("SELECT * FROM accs.retry_jobs($1)", [job])
        await prune(conn)
    assert await ids(conn) == {job}
    await prune(conn)
    assert await ids(conn) == {job}
