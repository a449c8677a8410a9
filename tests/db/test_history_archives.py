"""What the database does for its history: the chain of archives, the drop that is refused, old events in the net."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import asyncpg
import orjson
import pytest

from accsd.db.views.events import attempts_of, transitions_of
from tests.conftest import Connect
from tests.support.cluster import Connection
from tests.support.factory import clock, submit
from tests.support.library import opened
from tests.support.months import month, next_month, partitions

pytestmark = pytest.mark.every_postgresql

MANY = 4000
ROWS = "SELECT * FROM accs.archives ORDER BY id"


async def record(conn: Connection, partition: str, rows: int = 1, sha256: str = "s", **other: Any) -> int:
    previous = await conn.fetchval("SELECT coalesce((SELECT digest FROM accs.archives ORDER BY id DESC LIMIT 1), '')")
    return await conn.fetchval(
        "SELECT accs.record_archive($1, $2, $3, 10, $4, 'accs', $5, 5, 'i', $6, $6, $7)",
        partition,
        rows,
        other.get("mark_sum", 1),
        sha256,
        other.get("key", f"history/{sha256}"),
        str(uuid4()),
        other.get("previous", previous),
    )


async def check(conn: Connection, archive: int, rows: int = 1, sha256: str = "s") -> str | None:
    return await conn.fetchval("SELECT accs.check_archive($1, $2, 10, $3)", archive, rows, sha256)


async def drop(conn: Connection, archive: int) -> str | None:
    return await conn.fetchval("SELECT accs.drop_archived($1)", archive)


async def old_month(conn: Connection) -> str:
    """With one event in it, whose id is 1."""
    await submit(conn)
    name = await month(conn)
    await next_month(conn)
    return name


async def make_month(conn: Connection, *names: str) -> None:
    """Without events, long ago."""
    for name in names:
        first = datetime(int(name[12:16]), int(name[17:]), 1, tzinfo=UTC)
        await conn.execute(
            f"CREATE TABLE {name} PARTITION OF task_events FOR VALUES"
            f" FROM ('{first}') TO ('{(first + timedelta(days=32)).replace(day=1)}')"
        )


async def test_digests_are_chained_and_the_same_archive_is_recorded_once(conn: Connection):
    await make_month(conn, "task_events_2020_01", "task_events_2020_02", "task_events_2020_03")
    first = await record(conn, "task_events_2020_01", sha256="a")
    assert await record(conn, "task_events_2020_01", sha256="a", previous="outdated") == first
    second = await record(conn, "task_events_2020_02", sha256="b")
    one, two = await conn.fetch(ROWS)
    assert (one["id"], two["id"], one["previous"], two["previous"]) == (first, second, "", one["digest"])
    assert two["digest"] == await conn.fetchval(
        "SELECT encode(sha256(convert_to($1 || E'\\ntask_events_2020_02\\n1\\nb', 'UTF8')), 'hex')", one["digest"]
    )
    with pytest.raises(asyncpg.PostgresError, match="another archive was recorded meanwhile"):
        await record(conn, "task_events_2020_03", previous=one["digest"])


async def test_other_content_takes_the_place_of_what_was_not_dropped(conn: Connection):
    await make_month(conn, "task_events_2020_01")
    first = await record(conn, "task_events_2020_01", rows=1, sha256="a")
    second = await record(conn, "task_events_2020_01", rows=2, sha256="b")
    one, two = await conn.fetch(ROWS)
    assert (one["superseded_at"] is None, two["superseded_at"] is None) == (False, True)
    assert two["previous"] == one["digest"]
    await check(conn, first, sha256="a")
    assert await drop(conn, first) == "a newer archive has taken its place"
    assert await check(conn, second, 2, "b") is None


@pytest.mark.parametrize(
    "statement",
    ["UPDATE accs.archives SET sha256 = 'x'", "DELETE FROM accs.archives", "TRUNCATE accs.archives"],
)
async def test_nobody_changes_the_record_but_the_verbs(conn: Connection, statement: str):
    await make_month(conn, "task_events_2020_01")
    await record(conn, "task_events_2020_01")
    with pytest.raises(asyncpg.PostgresError, match="the record of what was archived") as refused:
        await conn.execute(statement)
    assert refused.value.sqlstate == "AC005"


async def test_a_month_is_dropped_only_when_its_archive_was_just_read_back_and_is_right(conn: Connection):
    name = await old_month(conn)
    archive = await record(conn, name)
    assert await drop(conn, archive) == "it was not read back within the last hour"
    assert await check(conn, archive, rows=2) == "it holds 2 rows, and 1 were archived"
    assert "it holds 2 rows" in str(await drop(conn, archive))
    assert "its checksum is t, and s was archived" in str(await check(conn, archive, sha256="t"))
    assert await check(conn, archive) is None
    await conn.execute("UPDATE accs.test_clock SET shift = shift + interval '61 min'")
    assert await drop(conn, archive) == "it was not read back within the last hour"
    assert name in await partitions(conn)
    await check(conn, archive)
    assert await drop(conn, archive) is None
    assert name not in await partitions(conn)
    assert await drop(conn, archive) is None
    assert (await conn.fetch(ROWS))[0]["dropped_at"] is not None


async def test_a_month_that_has_other_events_than_its_archive_stays(conn: Connection):
    name = await old_month(conn)
    archive = await record(conn, name, rows=3)
    await check(conn, archive, rows=3)
    assert await drop(conn, archive) == "the table has 1 rows, and 3 were archived"
    archive = await record(conn, name, sha256="t", mark_sum=77)
    await check(conn, archive, sha256="t")
    assert await drop(conn, archive) == "the table has other rows than were archived"
    assert name in await partitions(conn)


async def test_what_is_gone_is_not_archived_by_somebody_who_read_a_part_of_it(conn: Connection):
    with pytest.raises(asyncpg.PostgresError, match="is gone: another builder") as refused:
        await record(conn, "task_events_2020_01")
    assert refused.value.sqlstate == "AC004"


async def test_a_month_that_is_not_over_stays(conn: Connection):
    await submit(conn)
    archive = await record(conn, await month(conn))
    await check(conn, archive)
    assert await drop(conn, archive) == "its month has not been over for a day"


async def test_a_long_reader_does_not_make_others_wait_for_the_drop(conn: Connection, connect: Connect):
    name = await old_month(conn)
    archive = await record(conn, name)
    await check(conn, archive)
    reader = await connect()
    async with reader.transaction():
        await reader.fetch("SELECT * FROM task_events")
        assert "the next pass tries again" in str(await drop(conn, archive))
    assert (await conn.fetch(ROWS))[0]["dropped_at"] is None
    assert await drop(conn, archive) is None


async def test_events_of_past_months_in_the_net_get_a_partition_of_their_own(conn: Connection):
    now = await clock(conn)
    for ts in (now - timedelta(days=400), now + timedelta(days=4000)):
        await conn.execute(
            "INSERT INTO task_events (job_id, ts, source, type) VALUES ($1, $2, 'test', 'log')", uuid4(), ts
        )
    assert await conn.fetchval("SELECT count(*) FROM task_events_default") == 2
    made = [row[0] for row in await conn.fetch("SELECT accs.make_months('task_events')")]
    past = now - timedelta(days=400)
    assert made == [f"task_events_{past.year}_{past.month:02}"]
    assert await conn.fetchval(f"SELECT count(*) FROM {made[0]}") == 1
    assert await conn.fetchval("SELECT count(*) FROM task_events_default") == 1


async def test_archived_attempts_are_not_looked_for_line_by_line(conn: Connection, db_url: str):
    """For each of them through all lines, this would take far longer than a statement may."""
    job = await submit(conn)
    task = await conn.fetchval("SELECT id FROM job_tasks")
    moves = (
        ("status", "starting", None),
        ("status", "running", None),
        ("log", None, None),
        ("status", "queued", "lost"),
    )
    lines = [
        orjson.dumps(
            {
                "id": 4 * attempt + at,
                "job_id": str(job),
                "job_task_id": str(task),
                "ts": datetime(2020, 1, 1, tzinfo=UTC) + timedelta(seconds=4 * attempt + at),
                "type": kind,
                "attempt_id": attempt,
                "data": {"to": to, "outcome": outcome, "node": "n1"},
            }
        ).decode()
        for attempt in range(1, MANY + 1)
        for at, (kind, to, outcome) in enumerate(moves)
    ]
    async with opened(db_url, statement_timeout_sec=8) as db:
        found = await attempts_of(db, job, MANY - 1, lines)
        told = await transitions_of(db, job, lines, limit=4)
    assert [one.attempt_id for one in found] == list(range(2, MANY + 1))
    assert {(one.node, one.outcome, one.took) for one in found} == {("n1", "lost", timedelta(seconds=3))}
    assert [row.status for row in told] == ["starting", "running", "queued", "starting"]
