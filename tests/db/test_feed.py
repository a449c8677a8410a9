"""The feed: events by id, those that are missing, and the rows that messages tell of."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from accsd.db import feed as module
from accsd.db.feed import Feed
from accsd.db.pool import Database
from tests.support.cluster import Connection
from tests.support.factory import finish, node, started, step, submit
from tests.support.library import opened

_FILL = """INSERT INTO public.task_events (job_id, source, type, message)
           SELECT '00000000-0000-0000-0000-000000000001', 'test', 'log', repeat('x', 100) FROM generate_series(1, $1)"""
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


@pytest.fixture
async def db(db_url: str) -> AsyncIterator[Database]:
    async with opened(db_url) as database:
        yield database


async def head(conn: Connection) -> int:
    return await conn.fetchval("SELECT accs.feed_head()")


async def test_events_come_by_id_after_the_last_one_that_was_read(db: Database, conn: Connection) -> None:
    await conn.execute(_FILL, 10)
    last = await head(conn)
    now = datetime.now(UTC)
    events = await Feed(db).after(last - 3, now)
    assert [event.id for event in events] == [last - 2, last - 1, last]
    assert await Feed(db).after(last, now) == []
    assert [event.id for event in await Feed(db).after(last - 9, now, upto=last - 7)] == [last - 8, last - 7]


async def test_an_id_that_commits_later_is_found_among_the_missing(db: Database, connect: Any) -> None:
    early, late = await connect(), await connect()
    under_way = late.transaction()
    await under_way.start()
    await late.execute(_FILL, 2)
    await early.execute(_FILL, 1)
    last = await head(early)
    feed, now = Feed(db), datetime.now(UTC)
    assert [event.id for event in await feed.after(last - 3, now)] == [last]
    horizon = await feed.horizon()
    assert await feed.missing([(last - 2, last - 1)], now) == []
    await under_way.commit()
    assert [event.id for event in await feed.missing([(last - 2, last - 1)], now)] == [last - 2, last - 1]
    after = await feed.horizon()
    assert after.ended > horizon.ended  # what was under way is over


async def test_many_missing_ids_are_looked_for_by_a_few_ranges_and_no_other_event_comes(
    db: Database, conn: Connection
) -> None:
    await conn.execute(_FILL, 500)
    last = await head(conn)
    holes = [(n, n) for n in range(last - 400, last, 4)]
    events = await Feed(db).missing(holes, datetime.now(UTC))
    assert [event.id for event in events] == [n for n, _ in holes]


async def test_a_reader_begins_before_ids_that_are_still_under_way(db: Database, connect: Any) -> None:
    conn, other = await connect(), await connect()
    await conn.execute(_FILL, 3000)
    under_way = other.transaction()
    await under_way.start()
    await other.execute(_FILL, 1)
    theirs = await head(conn)
    await conn.execute(_FILL, 20)
    found = await Feed(db).head()
    assert found.last == theirs + 20
    assert found.last - module.BATCH <= found.recent < theirs
    await under_way.rollback()


async def test_long_texts_are_cut_and_long_data_is_left_out(db: Database, conn: Connection) -> None:
    await conn.execute(
        """INSERT INTO task_events (job_id, source, type, message, data)
           VALUES (gen_random_uuid(), 'x', 'log', repeat('x', 60000),
                   (SELECT jsonb_agg(gen_random_uuid()) FROM generate_series(1, 1000)))"""
    )
    (event,) = await Feed(db).after(await head(conn) - 1, datetime.now(UTC))
    assert event.message is not None
    assert len(event.message) == 4096
    assert event.data == {"omitted": "more than 8 KiB"}


@pytest.mark.parametrize("ts", ["infinity", "-infinity", "200000-01-01Z"])
async def test_an_event_of_an_impossible_time_does_not_hide_the_others(db: Database, conn: Connection, ts: str) -> None:
    await conn.execute(
        f"INSERT INTO task_events (job_id, source, type, ts) VALUES (gen_random_uuid(), 'x', 'x', '{ts}')"
    )
    await conn.execute(_FILL, 1)
    last = await head(conn)
    assert [event.id for event in await Feed(db).after(last - 2, LONG_AGO)][-1] == last


async def test_jobs_tasks_and_counts_are_told_as_they_are_now(db: Database, conn: Connection) -> None:
    await node(conn)
    job = await submit(conn, step("a"), step("b", after="a"))
    await submit(conn, step("a"))
    (first, _) = await started(conn, 2)
    feed = Feed(db)
    assert (await feed.counts())["services"] == {"render": {"live": 2}}
    await finish(conn, first)
    state = (await feed.jobs([job, uuid4()]))[job]
    assert (state.status, state.open_tasks, state.task_count, state.progress) == ("running", 1, 2, 0.5)
    tasks = await feed.tasks(await _tasks(conn, job))
    assert {(t.task_key, t.status, t.hold) for t in tasks.values()} == {("a", "done", None), ("b", "queued", None)}
    counts = await feed.counts()
    assert counts["services"] == {"render": {"claimable": 1, "live": 1}}
    assert (counts["waiting"], counts["live"], counts["dead"]) == (1, 1, {"open": 0, "newest": None})


async def _tasks(conn: Connection, job: UUID) -> list[UUID]:
    return [row["id"] for row in await conn.fetch("SELECT id FROM job_tasks WHERE job_id = $1", job)]


async def test_the_feed_reads_on_a_connection_that_may_only_read(conn: Connection) -> None:
    await conn.execute(_FILL, 5)
    async with conn.transaction(readonly=True):
        feed = Feed(Database.over(conn))
        found = await feed.head()
        assert len(await feed.after(found.last - 5, found.clock)) == 5
        await feed.horizon()
        await feed.missing([(1, 2)], found.clock)
        await feed.jobs([uuid4()])
        await feed.tasks([uuid4()])
        await feed.counts()
        await feed.nodes()


def _scans(plan: dict[str, Any]) -> list[tuple[str, str]]:
    here = [(plan["Node Type"], plan["Relation Name"])] if "Relation Name" in plan else []
    return here + [scan for below in plan.get("Plans", ()) for scan in _scans(below)]


async def _explained(conn: Connection, sql: str, *arguments: object) -> list[tuple[str, str]]:
    (answer,) = await conn.fetchval(f"EXPLAIN (ANALYZE, TIMING off, SUMMARY off, FORMAT json) {sql}", *arguments)
    return _scans(answer["Plan"])


async def test_no_read_of_the_feed_looks_at_the_whole_history(conn: Connection) -> None:
    """The statements themselves, in a table that is full: the tail by BRIN(id), whatever was analysed when."""
    await conn.execute(_FILL, 60_000)
    await conn.execute("VACUUM ANALYZE task_events")
    await conn.execute(_FILL, 5_000)  # not summarised yet, and unknown to the statistics
    last, since = await head(conn), datetime.now(UTC) - timedelta(days=1)
    wanted = {
        module._AFTER: (last - 100, 2**63 - 1, since, 5000),
        module._MISSING: (
            [last - 50, last - 20],
            [last - 45, last - 20],
            f"{{[{last - 50},{last - 45}]}}",
            since,
            5000,
        ),
        module._HEAD: (5000, timedelta(minutes=2), 1000),
        module._AFTER_OF_JOBS: (last - 100, 2**63 - 1, since, 5000, [uuid4()]),
    }
    full = await conn.fetchval("SELECT tableoid::regclass::text FROM task_events ORDER BY ts DESC LIMIT 1")
    for sql, arguments in wanted.items():
        scans = [kind for kind, table in await _explained(conn, sql, *arguments) if table == full]
        assert scans
        assert set(scans) <= {"Bitmap Heap Scan", "Index Scan"}, sql
    # where no id was given since, nothing is scanned
    plan = await conn.fetch(f"EXPLAIN (ANALYZE, TIMING off, SUMMARY off) {module._AFTER}", last, 2**63 - 1, since, 5000)
    assert [row[0] for row in plan if "Scan" in row[0] and "never executed" not in row[0]] == []
