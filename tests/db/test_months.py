"""Months: one mechanism for all tables that grow with time. They are made ahead, and leave only through the archive."""

import asyncio
import gzip
import json
from collections.abc import AsyncIterator
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from uuid import UUID

import asyncpg
import pytest

from accsd.builder.archive import Archiver
from accsd.db import Database
from accsd.db.history import archives, archives_with, lines_here
from accsd.db.months import EVENTS, FIRINGS, MONTHLY, Monthly, make_months, months_of, table_of
from accsd.history.archive import archive
from accsd.history.clocks import Clocks
from accsd.history.contents import lines_of
from accsd.metrics import Metrics
from accsd.settings import RetentionSettings
from accsd.supervisor import Pass
from tests.conftest import Connect
from tests.support.cluster import Connection
from tests.support.eventually import eventually
from tests.support.factory import clock, pass_time
from tests.support.library import opened
from tests.support.months import month, next_month, partitions, store_in
from tests.support.race import blocked
from tests.support.schedules import ledger, schedule, settle_all
from tests.support.topics import emit, settle_plain, subscription

pytestmark = pytest.mark.every_postgresql

DAY = 86_400
KEPT = RetentionSettings.model_validate({"ledger": "45d", "topics": "45d"})


@pytest.fixture
async def db(db_url: str) -> AsyncIterator[Database]:
    async with opened(db_url) as opening:
        yield opening


async def passed(db: Database, folder: Path) -> Pass:
    login = lambda: nullcontext(db)  # noqa: E731
    return await Archiver(login, store_in(folder), KEPT, metrics=Metrics(), clocks=Clocks()).run_once()


async def fired(conn: Connection) -> UUID:
    """A schedule with rows in the ledger of this month: fired ones, and one of a call."""
    which = await schedule(conn, overlap="allow")
    await pass_time(conn, 90)
    await settle_all(conn)
    await conn.execute("SELECT accs.run_now($1::text, p_reason => 'a \"quoted\" reason')", str(which))
    assert len(await ledger(conn, which)) >= 2
    return which


async def told(db: Database, folder: Path, table: Monthly, subject: str) -> list[str]:
    """The lines of a subject, from the store and from here."""
    lines: list[str] = []
    for one in await archives_with(db, table, subject):
        lines += await lines_of(store_in(folder), one, subject)
    return lines + await lines_here(db, table, subject)


@pytest.mark.parametrize("table", MONTHLY, ids=lambda table: table.name)
async def test_every_table_has_its_months_ahead_and_nobody_empties_one(conn: Connection, db: Database, table: Monthly):
    here = await months_of(db, table)
    assert len(here) == 4
    assert here[0] == await month(conn, table.name)
    assert {table_of(name) for name in here} == {table}
    for name in (*here, f"{table.name}_default", table.name):
        with pytest.raises(asyncpg.PostgresError) as refused:
            await conn.execute(f"TRUNCATE {name}")
        assert refused.value.sqlstate == "AC005"
    assert await make_months(db) == []
    assert len(await make_months(db, months_ahead=4)) == len(MONTHLY)


async def test_what_is_no_table_with_months_has_none(conn: Connection):
    with pytest.raises(asyncpg.InvalidParameterValueError, match='"jobs" is no table that has months'):
        await conn.execute("SELECT accs.make_months('jobs')")


async def test_what_fell_into_a_default_partition_is_moved_into_its_month(conn: Connection, db: Database):
    which = await fired(conn)
    await pass_time(conn, 200 * DAY)
    said = await emit(conn, "a")
    await conn.execute("SELECT accs.run_now($1::text)", str(which))
    for table in (EVENTS, FIRINGS):
        assert await conn.fetchval(f"SELECT count(*) FROM {table.name}_default") == 1
    rows = await ledger(conn, which)
    made = await make_months(db)
    assert await month(conn, "events") in made
    assert await month(conn, "firings") in made
    for table in (EVENTS, FIRINGS):
        assert await conn.fetchval(f"SELECT count(*) FROM {table.name}_default") == 0
    assert await conn.fetchval("SELECT id FROM events") == said["event_id"]
    assert await ledger(conn, which) == rows


async def test_a_month_of_the_ledger_is_read_from_the_store_as_it_was_here(
    conn: Connection, db: Database, tmp_path: Path
):
    """LG8"""
    which, other = await fired(conn), await fired(conn)
    name, count = await month(conn, "firings"), await conn.fetchval("SELECT count(*) FROM firings")
    before = await told(db, tmp_path, FIRINGS, str(which))
    assert len(before) == len(await ledger(conn, which))
    await next_month(conn, 3)
    did = await passed(db, tmp_path)
    assert did.obstacle is None
    assert f"{name} ({count} rows) is in history/{name}/" in str(did.did)
    assert name not in await partitions(conn, "firings")
    assert await ledger(conn, which) == []
    assert await told(db, tmp_path, FIRINGS, str(which)) == before
    assert {json.loads(line)["schedule_id"] for line in before} == {str(which)}
    assert await told(db, tmp_path, FIRINGS, str(other)) != []
    (recorded,) = await archives(db, partition=name)
    whole = gzip.decompress((tmp_path / "objects" / recorded.key).read_bytes())
    assert len(whole.splitlines()) == recorded.rows == count
    (called,) = [row for row in map(json.loads, before) if row["reason"] == "run_now"]
    assert called["detail"]["reason"] == 'a "quoted" reason'


async def test_a_month_of_events_is_read_from_the_store_by_its_topic(conn: Connection, db: Database, tmp_path: Path):
    """EV14"""
    for topic in ("shop.paid", "shop", "Shop.paid", "shop-x", "shop.paid"):
        await emit(conn, topic, {"topic": "shop.paid", "n": 1.50})
    name = await month(conn, "events")
    before = {topic: await told(db, tmp_path, EVENTS, topic) for topic in ("shop.paid", "shop", "Shop.paid", "none")}
    assert [len(lines) for lines in before.values()] == [2, 1, 1, 0]
    await next_month(conn, 3)
    assert (await passed(db, tmp_path)).obstacle is None
    assert name not in await partitions(conn, "events")
    assert await conn.fetchval("SELECT count(*) FROM events") == 0
    assert {topic: await told(db, tmp_path, EVENTS, topic) for topic in before} == before


async def test_a_month_whose_events_an_inbox_needs_stays_until_they_are_settled(
    conn: Connection, db: Database, tmp_path: Path
):
    await subscription(conn, "held")
    await emit(conn, "held")
    name = await month(conn, "events")
    await next_month(conn, 3)
    assert (await passed(db, tmp_path)).obstacle is None
    assert name in await partitions(conn, "events")
    refused = (await archive(db, store_in(tmp_path), name)).refused
    assert refused == "some of its rows are still needed; the next pass tries again"
    await settle_plain(conn)
    assert (await passed(db, tmp_path)).obstacle is None
    assert name not in await partitions(conn, "events")


async def test_a_replay_that_found_its_event_before_the_drop_keeps_the_month(
    conn: Connection, connect: Connect, db: Database, tmp_path: Path
):
    """The inbox is looked at when nobody can be reading the month any more."""
    await conn.execute("ALTER FUNCTION accs.drop_archived SET lock_timeout = '60s'")
    source = await conn.fetchval("SELECT pg_get_functiondef('accs.drop_archived'::regproc)")
    await conn.execute(source.replace("'200ms'", "'60s'"))  # it waits for the replay as long as that takes
    await subscription(conn, "a", name="late")
    said = await emit(conn, "a")
    await settle_plain(conn)
    name = await month(conn, "events")
    await next_month(conn, 3)
    replaying = await connect()
    async with replaying.transaction():
        await replaying.fetch("SELECT * FROM accs.replay_events($1, 'late')", [said["event_id"]])
        dropping = asyncio.ensure_future(archive(db, store_in(tmp_path), name))
        await eventually(lambda: blocks_somebody(conn, replaying))
    assert (await dropping).refused == "some of its rows are still needed; the next pass tries again"
    await settle_plain(conn)
    assert (await archive(db, store_in(tmp_path), name)).refused is None


async def blocks_somebody(conn: Connection, holder: Connection) -> bool:
    return await conn.fetchval(
        "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE $1 = ANY (pg_blocking_pids(pid)))", holder.get_server_pid()
    )


async def test_a_row_that_was_made_up_for_after_it_was_archived_is_archived_again(
    conn: Connection, db: Database, tmp_path: Path
):
    """The count stays the same; the mark of the row does not."""
    which = await schedule(conn, overlap="allow", missed="skip")
    await pass_time(conn, 300)
    await settle_all(conn)
    assert {row["outcome"] for row in await ledger(conn, which)} >= {"missed"}
    name = await month(conn, "firings")
    await next_month(conn, 3)
    first = (await archive(db, store_in(tmp_path), name, keep=True)).archive
    async with conn.transaction():
        await conn.execute("SET LOCAL search_path = pg_catalog, accs, pg_temp")
        await conn.execute(
            "UPDATE public.firings SET outcome = 'caught_up', reason = 'backfill' WHERE outcome = 'missed'"
        )
    assert (await archive(db, store_in(tmp_path), name)).refused is None
    old, new = await archives(db, partition=name)
    assert (old.id, old.superseded_at is not None) == (first.id, True)
    assert (new.rows, new.mark_sum == old.mark_sum) == (old.rows, False)
    assert all("caught_up" in line for line in await told(db, tmp_path, FIRINGS, str(which)) if "backfill" in line)


async def test_a_backfill_of_long_ago_stays_as_long_as_what_ran_on_time(conn: Connection, db: Database, tmp_path: Path):
    """Its nominal times are old, but a second backfill has to find that they have run."""
    which = await schedule(conn, overlap="allow")
    long_ago = (await clock(conn) - timedelta(days=900)).replace(tzinfo=None, microsecond=0)
    await conn.fetch(
        "SELECT * FROM accs.start_backfill($1::text, 1, $2, '{0}', $3)", str(which), [long_ago], [await clock(conn)]
    )
    await pass_time(conn, 2)
    await settle_all(conn)
    name = f"firings_{long_ago.year}_{long_ago.month:02}"
    await make_months(db)
    assert await conn.fetchval(f"SELECT nominal FROM {name}") == long_ago
    await passed(db, tmp_path)
    assert name in await partitions(conn, "firings")
    await next_month(conn, 3)
    await passed(db, tmp_path)
    assert name not in await partitions(conn, "firings")


async def test_months_are_made_while_somebody_writes_to_two_of_the_tables(conn: Connection, connect: Connect):
    """Each table has its own transaction: whoever holds one and waits for another is not waited for in a circle."""
    await pass_time(conn, 200 * DAY)
    writer, maker = await connect(), await connect()
    async with writer.transaction():
        await emit(writer, "a")
        making = asyncio.ensure_future(maker.fetch("SELECT accs.make_months('events')"))
        await blocked(maker, conn)
        await writer.execute("INSERT INTO task_events (job_id, source, type) VALUES (gen_random_uuid(), 't', 'log')")
    assert len(await making) == 4
    assert await conn.fetchval("SELECT count(*) FROM events_default") == 0
