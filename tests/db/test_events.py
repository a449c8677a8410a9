"""task_events: append-only, complete, and partitioned by month whatever happens at midnight."""

import asyncio
from datetime import datetime, timedelta
from uuid import UUID, uuid4

import asyncpg
import pytest

from tests.conftest import Connect
from tests.support.cluster import Connection
from tests.support.factory import (
    Row,
    allow_long_leases,
    cancel,
    chain,
    claim,
    clock,
    done,
    fail,
    job_moves,
    moves,
    node,
    pass_time,
    release,
    started,
    step,
    submit,
    submit_to,
    task,
    workflow,
)
from tests.support.race import blocked

DAY = 86400


async def partitions(conn: Connection) -> list[str]:
    rows = await conn.fetch(
        "SELECT inhrelid::regclass::text AS name FROM pg_inherits WHERE inhparent = 'task_events'::regclass ORDER BY 1"
    )
    return [row["name"] for row in rows]


async def ensure(conn: Connection, ahead: int = 3) -> list[str]:
    rows = await conn.fetch("SELECT * FROM accs.make_months('task_events', $1)", ahead)
    return [row[0] for row in rows]


def months(first: datetime, count: int) -> list[str]:
    return [
        f"task_events_{first.year + (first.month - 1 + n) // 12}_{(first.month - 1 + n) % 12 + 1:02}"
        for n in range(count)
    ]


async def write_event(conn: Connection, ts: datetime) -> None:
    await conn.execute("INSERT INTO task_events (job_id, ts, source, type) VALUES ($1, $2, 'test', 'log')", uuid4(), ts)


async def test_no_event_is_changed_deleted_or_truncated_in_any_partition(conn: Connection):
    await submit(conn)
    await write_event(conn, await clock(conn) + timedelta(days=5 * 366))  # into the default partition
    before = await conn.fetch("SELECT * FROM task_events ORDER BY id")
    assert len(before) == 2
    now = await clock(conn)
    for table in ("task_events", *months(now, 1), "task_events_default"):
        for statement in (
            f"UPDATE {table} SET message = 'x'",
            f"DELETE FROM {table}",
            f"TRUNCATE {table}",
            f"UPDATE {table} SET ts = ts + interval '1 month'",
        ):
            with pytest.raises(asyncpg.PostgresError, match="task_events is append-only") as refused:
                await conn.execute(statement)
            assert refused.value.sqlstate == "AC005"
    assert await conn.fetch("SELECT * FROM task_events ORDER BY id") == before


async def test_every_transition_has_its_event_and_they_chain_from_the_first_state_to_the_last(conn: Connection):
    await node(conn)
    shape = await workflow(
        conn, step("a", backoff=[0]), step("b", after="a"), step("c", after="a"), step("d", after="b")
    )
    first, second = await submit_to(conn, shape), await submit_to(conn, shape)
    await release(conn, *await claim(conn))
    await fail(conn, *await started(conn))
    await done(conn)
    b, _ = await started(conn, 2)
    await fail(conn, b, permanent=True)
    await pass_time(conn, 100)
    await conn.fetch("SELECT * FROM accs.reclaim_tasks()")
    await conn.fetch("SELECT * FROM accs.skip_tasks($1)", [(await task(conn, second, "c"))["id"]])
    await cancel(conn, second)
    await conn.fetch("SELECT * FROM accs.retry_jobs($1)", [second])
    while await done(conn, 5):
        pass
    await conn.fetch("SELECT * FROM accs.retry_jobs($1)", [first])

    for row in await conn.fetch("SELECT id, status FROM job_tasks"):
        path = await moves(conn, row["id"])
        assert [a for a, _ in path] == ["queued", *[b for _, b in path[:-1]]]
        assert path[-1][1] if path else row["status"] == "queued"
    for made in (first, second):
        path = await job_moves(conn, made)
        assert [a for a, _ in path] == ["queued", *[b for _, b in path[:-1]]]
    wanted = await conn.fetch("SELECT from_status, to_status FROM accs.transitions WHERE via IS NULL")
    legal = {tuple(row) for row in wanted}
    seen = await conn.fetch("SELECT DISTINCT data ->> 'from', data ->> 'to' FROM task_events WHERE data ? 'to'")
    assert {tuple(row) for row in seen} <= legal
    assert len(seen) > 10


async def test_the_partitions_of_the_coming_months_exist(conn: Connection):
    now = await clock(conn)
    assert await partitions(conn) == [*months(now, 4), "task_events_default"]
    assert await ensure(conn) == []
    assert await ensure(conn, 5) == months(now, 6)[4:]
    await submit(conn)
    assert await conn.fetchval(f"SELECT count(*) FROM {months(now, 1)[0]}") == 1
    assert await conn.fetchval("SELECT count(*) FROM task_events_default") == 0


async def test_an_event_of_a_month_without_a_partition_falls_into_the_net_and_is_moved_later(conn: Connection):
    await pass_time(conn, 200 * DAY)
    await node(conn)
    made = await submit(conn, *chain("a", "b"))
    await done(conn)
    kept = await conn.fetch("SELECT * FROM task_events ORDER BY id")
    assert await conn.fetchval("SELECT count(*) FROM task_events_default") == len(kept) == 4
    far = await clock(conn) + timedelta(days=3000)
    await write_event(conn, far)
    await conn.execute("CREATE PUBLICATION history FOR TABLE task_events")  # a replica wants to know which rows go

    now = await clock(conn)
    assert await ensure(conn) == months(now, 4)
    await conn.execute("DROP PUBLICATION history")
    assert await conn.fetch("SELECT * FROM task_events WHERE job_id = $1 ORDER BY id", made) == kept
    assert await conn.fetchval(f"SELECT count(*) FROM {months(now, 1)[0]}") == 4
    assert await conn.fetchval("SELECT count(*) FROM task_events_default") == 1
    await done(conn)
    with pytest.raises(asyncpg.PostgresError, match="append-only"):
        await conn.execute(f"DELETE FROM {months(now, 1)[0]}")
    with pytest.raises(asyncpg.PostgresError, match="append-only"):
        await conn.execute(f"TRUNCATE {months(now, 1)[0]}")


async def test_a_month_turns_under_load_without_an_error_or_a_lost_event(conn: Connection, connect: Connect):
    """Workers go on through four months; the partitions are made while the net already holds rows."""
    await node(conn)
    await allow_long_leases(conn)
    shape = await workflow(conn, *chain("a", "b", "c"))
    jobs = 60
    await conn.fetch("SELECT * FROM accs.submit_jobs($1)", [shape] * jobs)
    finished = 0
    turning = asyncio.Event()

    async def work(session: Connection, owner: str) -> None:
        nonlocal finished
        while finished < jobs * 3:
            lease = timedelta(days=3000)
            batch = await done(session, 3, owner=owner, lease=lease)
            finished += len(batch)
            if not batch:
                await asyncio.sleep(0.002)
            if finished > 10:
                turning.set()

    async def turn(session: Connection) -> None:
        await turning.wait()
        for _ in range(4):
            await pass_time(conn, 150 * DAY)
            await asyncio.sleep(0.05)
            await ensure(session)

    workers = [await connect() for _ in range(3)]
    await asyncio.gather(*(work(s, f"owner-{i}") for i, s in enumerate(workers)), turn(await connect()))
    assert await conn.fetchval("SELECT count(*) FROM jobs WHERE status = 'done'") == jobs
    # queued → starting → running → done for each task; running and done for each job
    assert await conn.fetchval("SELECT count(*) FROM task_events") == jobs * 3 * 3 + jobs * 2
    assert await conn.fetchval("SELECT count(DISTINCT tableoid) FROM task_events") > 1
    await ensure(conn)
    assert await conn.fetchval("SELECT count(*) FROM task_events_default") == 0


async def test_a_long_reader_makes_it_give_up_in_time_and_the_next_pass_succeeds(conn: Connection, connect: Connect):
    await conn.execute("ALTER FUNCTION accs.make_months SET lock_timeout = '100ms'")
    await pass_time(conn, 200 * DAY)
    reader = await connect()
    async with reader.transaction():
        await reader.fetch("SELECT * FROM task_events")
        with pytest.raises(asyncpg.LockNotAvailableError):
            await ensure(conn)
    assert len(await ensure(conn)) == 4


async def test_two_that_make_partitions_at_once_do_not_disturb_each_other(conn: Connection, connect: Connect):
    await pass_time(conn, 200 * DAY)
    other = await connect()
    async with conn.transaction():
        made = await ensure(conn)
        late = asyncio.ensure_future(ensure(other))
        await blocked(other, conn)
    assert len(made) == 4
    assert await late == []


async def test_an_event_that_comes_between_the_look_and_the_lock_is_moved_too(conn: Connection, connect: Connect):
    await pass_time(conn, 200 * DAY)
    writer, maker = await connect(), await connect()
    async with writer.transaction():
        await write_event(writer, await clock(conn))  # not visible to the maker yet
        late = asyncio.ensure_future(ensure(maker))
        await blocked(maker, conn)
    assert len(await late) == 4
    assert await conn.fetchval("SELECT count(*) FROM task_events_default") == 0


async def test_events_are_appended_in_batches(conn: Connection):
    made = await submit(conn)
    a = (await task(conn, made, "a"))["id"]
    ids = await conn.fetch(
        "SELECT * FROM accs.append_events($1, $2, $3, $4, $5, $6, $7)",
        [made, made, uuid4()],
        [a, None, None],
        ["service:render", "agent:render", "builder"],
        ["debug", None, "warn"],
        ["log", "heartbeat", "refused"],
        ["frame 1", None, "n1"],
        [{"frame": 1}, None, {"method": "wol"}],
    )
    assert len(ids) == 3
    rows = await conn.fetch("SELECT * FROM task_events WHERE id = ANY($1) ORDER BY id", [row[0] for row in ids])
    assert [(r["job_task_id"], r["source"], r["level"], r["type"], r["message"], r["data"]) for r in rows] == [
        (a, "service:render", "debug", "log", "frame 1", {"frame": 1}),
        (None, "agent:render", "info", "heartbeat", None, None),
        (None, "builder", "warn", "refused", "n1", {"method": "wol"}),
    ]
    with pytest.raises(asyncpg.CheckViolationError):
        await conn.execute(
            "SELECT accs.append_events($1, '{null}', '{x}', '{loud}', '{log}', '{null}', '{null}')", [made]
        )


async def say(conn: Connection, *lines: tuple[Row, str], owner: str = "owner-1") -> dict[tuple[UUID, int], int]:
    rows = await conn.fetch(
        "SELECT * FROM accs.append_task_events($1, $2, $3, $4, $5, $6, $7)",
        owner,
        [who["task_id"] for who, _ in lines],
        [who["attempt_id"] for who, _ in lines],
        [None] * len(lines),
        [None] * len(lines),
        [line for _, line in lines],
        [{"line": line} for _, line in lines],
    )
    return {(row["task_id"], row["attempt_id"]): row["accepted"] for row in rows}


async def test_attempts_say_things_in_order_and_with_their_source(conn: Connection):
    await node(conn)
    made = await submit(conn, step("a"), step("b"))
    a, b = await started(conn, 2)
    said = await say(conn, (a, "a1"), (b, "b1"), (a, "a2"))
    assert said == {(a["task_id"], 1): 2, (b["task_id"], 1): 1}
    rows = await conn.fetch("SELECT * FROM task_events WHERE type = 'log' ORDER BY id")
    assert [(row["job_task_id"], row["message"]) for row in rows] == [
        (a["task_id"], "a1"),
        (b["task_id"], "b1"),
        (a["task_id"], "a2"),
    ]
    assert {(row["job_id"], row["source"], row["level"], row["attempt_id"]) for row in rows} == {
        (made, "service:render", "info", 1)
    }
    assert rows[0]["data"] == {"line": "a1"}


async def test_the_words_of_an_attempt_without_its_lease_are_dropped(conn: Connection):
    await node(conn)
    await submit(conn, *(step(key) for key in "abcd"))
    old, ended, late, alive = await started(conn, 4)
    await release(conn, old)
    (new,) = await claim(conn)
    await conn.fetch("SELECT accs.finish_tasks($1, '{1}', 'owner-1')", [ended["task_id"]])
    assert await say(conn, (old, "x"), (ended, "x"), (new, "y"), (alive, "y"), (old, "x")) == {
        (old["task_id"], 1): 0,
        (ended["task_id"], 1): 0,
        (new["task_id"], 2): 1,
        (alive["task_id"], 1): 1,
    }
    assert await say(conn, (alive, "x"), owner="thief") == {(alive["task_id"], 1): 0}
    await pass_time(conn, 61)
    assert await say(conn, (late, "x")) == {(late["task_id"], 1): 0}
    said = await conn.fetch("SELECT message FROM task_events WHERE type = 'log'")
    assert [row["message"] for row in said] == ["y", "y"]


async def test_partitions_are_made_for_ten_years_and_no_more(conn: Connection):
    with pytest.raises(asyncpg.InvalidParameterValueError, match="120 months"):
        await conn.execute("SELECT accs.make_months('task_events', 1000000)")
