"""Archive: months leave the database only when the store has them, and the database stays as small as was promised."""

import gzip
import hashlib
import json
import secrets
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest

from accsd.builder.archive import Archiver
from accsd.db import Database
from accsd.db.history import archives
from accsd.errors import StorageUnavailable
from accsd.history.archive import archive
from accsd.history.clocks import Clocks
from accsd.history.contents import broken_links, contents
from accsd.metrics import Metrics
from accsd.settings import RetentionSettings
from accsd.storage import StoredObject
from accsd.storage.file import FileStore
from tests.conftest import Connect
from tests.support.cluster import Connection
from tests.support.eventually import eventually
from tests.support.factory import done, node, started, step, submit_to, workflow
from tests.support.library import opened
from tests.support.months import eventful_job, month, next_month, partitions, store_in
from tests.support.planted import past_the_guard

TWO_MONTHS = RetentionSettings.model_validate({"events": "45d", "topics": "forever"})


@pytest.fixture
async def db(db_url: str) -> AsyncIterator[Database]:
    async with opened(db_url) as opening:
        yield opening


async def passed(
    db: Database,
    folder: Path,
    kept: RetentionSettings = TWO_MONTHS,
    *,
    store: FileStore | None = None,
    metrics: Metrics | None = None,
) -> Any:
    archiver = Archiver(
        lambda: nullcontext(db), store or store_in(folder), kept, metrics=metrics or Metrics(), clocks=Clocks()
    )
    return await archiver.run_once()


async def old_month(conn: Connection, *, months: int = 3) -> str:
    await eventful_job(conn)
    name = await month(conn)
    await next_month(conn, months)
    return name


async def test_a_month_that_is_old_enough_is_in_the_store_and_no_longer_here(
    db: Database, conn: Connection, tmp_path: Path
):
    name = await old_month(conn)
    metrics = Metrics()
    before = await conn.fetch(f"SELECT * FROM {name} ORDER BY job_id, ts, id")
    did = await passed(db, tmp_path, metrics=metrics)
    assert f"{name} ({len(before)} rows) is in history/" in did.did
    assert did.obstacle is None
    assert name not in await partitions(conn)
    assert (
        await conn.fetchval("SELECT count(*) FROM task_events WHERE id = ANY($1)", [row["id"] for row in before]) == 0
    )

    (recorded,) = await archives(db, partition=name)
    lines = gzip.decompress((tmp_path / "objects" / recorded.key).read_bytes())
    assert (recorded.rows, recorded.bytes) == (len(before), len(lines))
    assert recorded.sha256 == hashlib.sha256(lines).hexdigest()
    assert [json.loads(line)["id"] for line in lines.splitlines()] == [row["id"] for row in before]
    assert recorded.verified_at is not None
    assert recorded.dropped_at is not None
    assert (await passed(db, tmp_path)).did is None
    assert counted(metrics, 'archive_passes_total{outcome="done"}') == 1
    assert counted(metrics, "archived_bytes_total") >= recorded.size_bytes
    assert 0 <= counted(metrics, "archive_last_success_age_seconds") < 60


def counted(metrics: Metrics, series: str) -> float:
    lines = metrics.render().decode().splitlines()
    return next(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"accsd_{series} "))


async def test_nothing_leaves_while_the_database_is_ahead_of_this_host(db: Database, conn: Connection, tmp_path: Path):
    name = await old_month(conn)
    metrics, hosts = Metrics(), [datetime.now(UTC) - timedelta(days=800), datetime.now(UTC)]
    role = Archiver(
        lambda: nullcontext(db), store_in(tmp_path), TWO_MONTHS, metrics=metrics, clocks=Clocks(here=lambda: hosts[0])
    )
    refused = await role.run_once()
    assert refused.obstacle == "nothing leaves the database: the database's clock is 800 days ahead of this host's"
    assert counted(metrics, 'archive_passes_total{outcome="clock"}') == 1
    assert name in await partitions(conn)
    hosts.pop(0)
    assert (await role.run_once()).obstacle is None
    assert name not in await partitions(conn)


async def test_nothing_leaves_when_a_clock_that_both_share_has_jumped(db: Database, conn: Connection, tmp_path: Path):
    """As the database sees it, an hour has passed since the last pass; as this host's counter does, much less."""
    seconds = [3600.0]
    clocks = Clocks(passed=lambda: seconds[0])
    role = Archiver(lambda: nullcontext(db), store_in(tmp_path), TWO_MONTHS, metrics=Metrics(), clocks=clocks)
    assert (await role.run_once()).obstacle is None
    name = await old_month(conn)
    seconds[0] = 0.0
    # other settings, or a crash
    renewed = Archiver(lambda: nullcontext(db), store_in(tmp_path), TWO_MONTHS, metrics=Metrics(), clocks=clocks)
    for each in (role, renewed):
        refused = await each.run_once()
        assert "the database's clock has jumped ahead by 60 minutes since" in (refused.obstacle or "")
    assert name in await partitions(conn)
    seconds[0] = 3600.0  # set right
    assert (await role.run_once()).obstacle is None
    assert name not in await partitions(conn)


async def test_a_clock_that_was_behind_for_a_while_is_trusted_when_it_is_right_again(db: Database, tmp_path: Path):
    passed_here = iter([0.0, 3600.0, 0.0, 0.0])  # the second time the database is an hour behind
    clocks = Clocks(passed=lambda: next(passed_here))
    role = Archiver(lambda: nullcontext(db), store_in(tmp_path), TWO_MONTHS, metrics=Metrics(), clocks=clocks)
    assert [(await role.run_once()).obstacle for _ in range(4)] == [None] * 4


async def test_what_is_not_old_enough_stays(db: Database, conn: Connection, tmp_path: Path):
    name = await old_month(conn, months=1)
    assert (await passed(db, tmp_path)).did is None
    assert (await passed(db, tmp_path, RetentionSettings())).did is None
    assert name in await partitions(conn)


async def test_a_damaged_object_keeps_its_month_here_and_says_why(db: Database, conn: Connection, tmp_path: Path):
    name = await old_month(conn)
    outcome = await archive(db, store_in(tmp_path), name, keep=True)
    kept = tmp_path / "objects" / outcome.archive.key
    good = kept.read_bytes()
    kept.write_bytes(good[:-9] + bytes([good[-9] ^ 1]) + good[-8:])
    did = await passed(db, tmp_path)
    assert f"{name} ({outcome.archive.rows} rows) is not dropped: history/{name}/" in did.obstacle
    assert "are not those that were written" in did.obstacle
    assert name in await partitions(conn)
    (recorded,) = await archives(db, partition=name)
    assert "are not those that were written" in (recorded.refused or "")

    kept.unlink()
    assert "is not in the store" in (await passed(db, tmp_path)).obstacle
    kept.write_bytes(good + b"more")
    assert "does not have the" in (await passed(db, tmp_path)).obstacle
    (tmp_path / "objects" / recorded.index_key).write_bytes(b"{}")
    assert "is not the one that was written" in (await passed(db, tmp_path)).obstacle
    assert name in await partitions(conn)

    healed = await archive(db, store_in(tmp_path), name, again=True)
    assert healed.refused is None
    assert name not in await partitions(conn)
    assert [(one.id, one.refused) for one in await archives(db, partition=name)] == [(recorded.id, None)]


async def test_events_that_came_after_the_archive_was_written_are_archived_too(
    db: Database, conn: Connection, tmp_path: Path
):
    name = await old_month(conn)
    first = (await archive(db, store_in(tmp_path), name, keep=True)).archive
    await conn.execute(
        f"INSERT INTO task_events (job_id, ts, source, type) SELECT job_id, ts, 'late', 'log' FROM {name} LIMIT 1"
    )
    assert (await passed(db, tmp_path)).obstacle is None
    assert name not in await partitions(conn)
    old, new = await archives(db, partition=name)
    assert (old.superseded_at is not None, new.rows) == (True, first.rows + 1)
    assert broken_links(await archives(db)) == []


async def test_a_month_that_waits_in_one_bucket_is_written_to_the_next_one(
    db: Database, conn: Connection, tmp_path: Path
):
    name = await old_month(conn)
    await archive(db, FileStore(tmp_path / "before", "before"), name, keep=True)
    assert (await passed(db, tmp_path)).obstacle is None
    assert name not in await partitions(conn)
    before, now = await archives(db, partition=name)
    assert (before.superseded_at is not None, now.bucket) == (True, "accs")
    assert broken_links(await archives(db)) == []


async def test_the_drop_of_a_large_month_may_take_longer_than_other_statements(
    db_url: str, conn: Connection, connect: Connect, tmp_path: Path
):
    name = await old_month(conn)
    await conn.execute(
        "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET statement_timeout = 500', current_database()); END $$"
    )
    writer = await connect()
    async with opened(db_url) as db, anyio.create_task_group() as group, writer.transaction():
        await writer.execute(f"LOCK TABLE {name} IN ROW EXCLUSIVE MODE")  # as one that is counted for a while
        group.start_soon(passed, db, tmp_path)
        await eventually(lambda: drops_for_long(conn), within=10)
    assert name not in await partitions(conn)


async def drops_for_long(conn: Connection) -> bool:
    return await conn.fetchval(
        """SELECT EXISTS (SELECT FROM pg_stat_activity WHERE query LIKE '%drop_archived%' AND wait_event_type = 'Lock'
                             AND clock_timestamp() - query_start > interval '600 ms')"""
    )


class Breaking(FileStore):
    """Goes away after the archive, before its index."""

    async def put_bytes(self, key: str, data: bytes, *, content_type: str | None = None) -> StoredObject:
        raise StorageUnavailable(f"gone before {key}")


async def test_a_crash_in_the_middle_is_made_good_by_the_next_pass(db: Database, conn: Connection, tmp_path: Path):
    name = await old_month(conn)
    did = await passed(db, tmp_path, store=Breaking(tmp_path / "objects", "accs"))
    assert "gone before" in (did.obstacle or "")
    assert did.next_due == timedelta(minutes=5)
    assert name in await partitions(conn)
    left = list((tmp_path / "objects" / "history" / name).iterdir())
    assert len(left) == 1
    assert (await passed(db, tmp_path)).obstacle is None
    assert name not in await partitions(conn)
    assert len(list((tmp_path / "objects" / "history" / name).iterdir())) == 2
    assert left[0].exists()


async def test_two_that_archive_at_once_leave_one_archive(db: Database, conn: Connection, tmp_path: Path):
    name = await old_month(conn)
    async with anyio.create_task_group() as group:
        for _ in range(2):
            group.start_soon(passed, db, tmp_path)
    await passed(db, tmp_path)
    assert name not in await partitions(conn)
    recorded = [one for one in await archives(db) if one.superseded_at is None and one.partition == name]
    assert len(recorded) == 1


class Slow(FileStore):
    """Another builder does the same meanwhile: while the archive is on its way, or its index."""

    def __init__(self, folder: Path, meanwhile: Callable[[], Awaitable[Any]], *, at_index: bool = False) -> None:
        super().__init__(folder / "objects", "accs")
        self._meanwhile = meanwhile
        self._at_index = at_index

    async def put_file(
        self, key: str, source: Path | int, *, content_type: str | None = None, limit: int | None = None
    ) -> StoredObject:
        stored = await super().put_file(key, source, content_type=content_type, limit=limit)
        if not self._at_index:
            await self._meanwhile()
        return stored

    async def put_bytes(self, key: str, data: bytes, *, content_type: str | None = None) -> StoredObject:
        if self._at_index:
            await self._meanwhile()
        return await super().put_bytes(key, data, content_type=content_type)


async def test_who_comes_after_the_drop_leaves_the_archive_that_is_on_record_readable(
    db: Database, conn: Connection, tmp_path: Path
):
    name = await old_month(conn)
    late = Slow(tmp_path, lambda: passed(db, tmp_path))
    did = await passed(db, tmp_path, store=late)
    assert "is gone: another builder" in (did.obstacle or "")
    (recorded,) = await archives(db, partition=name)
    assert recorded.dropped_at is not None
    assert (await contents(store_in(tmp_path), recorded)).rows == recorded.rows


async def test_who_was_overtaken_on_the_chain_does_not_replace_the_index_that_is_on_record(
    db: Database, conn: Connection, tmp_path: Path
):
    first = await old_month(conn, months=1)
    second = await old_month(conn)

    async def meanwhile() -> None:
        await archive(db, store_in(tmp_path), first)
        await archive(db, store_in(tmp_path), second, keep=True)

    outcome = await archive(db, Slow(tmp_path, meanwhile, at_index=True), second)
    assert outcome.refused is None
    assert outcome.archive.dropped_at is not None
    assert broken_links(await archives(db)) == []
    for recorded in await archives(db):
        assert (await contents(store_in(tmp_path), recorded)).rows == recorded.rows


async def test_a_disk_without_room_keeps_the_month_here_and_the_role_goes_on(
    db: Database, conn: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    name = await old_month(conn)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    did = await passed(db, tmp_path)
    assert f"{name}: [Errno 2] No such file" in did.obstacle
    assert did.next_due == timedelta(minutes=5)


async def test_a_key_that_no_object_can_have_does_not_keep_the_others_in_the_store(
    db: Database, conn: Connection, tmp_path: Path
):
    await store_in(tmp_path).put_bytes("outputs/x/good", b"x")
    await conn.execute(
        "INSERT INTO accs.doomed_objects VALUES ('accs', 'outputs/x/../../y'), ('accs', 'outputs/x/good')"
    )
    assert (await passed(db, tmp_path)).did == "2 objects removed"
    assert not (tmp_path / "objects" / "outputs").exists()


# 200 lines of a kilobyte that can't be packed
SAY_MUCH = """SELECT accs.append_task_events('owner-1', array_fill($1::uuid, ARRAY[200]), array_fill(1, ARRAY[200]),
    array_fill(NULL::text, ARRAY[200]), array_fill(NULL::text, ARRAY[200]),
    ARRAY(SELECT string_agg(md5(random()::text), '') FROM generate_series(1, 200) i, generate_series(1, 32) GROUP BY i),
    array_fill(NULL::jsonb, ARRAY[200]))"""


async def size_of(conn: Connection) -> int:
    """Of all tables with their indexes, in bytes, after what autovacuum does."""
    await conn.execute("VACUUM")
    return await conn.fetchval(
        """SELECT sum(pg_total_relation_size(oid))::bigint FROM pg_class
            WHERE relkind = 'r' AND relnamespace IN ('public'::regnamespace, 'accs'::regnamespace)"""
    )


async def test_in_a_year_the_database_stays_the_size_that_the_retention_promises(
    db: Database, conn: Connection, tmp_path: Path
):
    kept = RetentionSettings.model_validate({"events": "60d", "jobs": "90d"})
    await node(conn)
    shape = await workflow(conn, step("a"), step("b"))
    sizes: list[int] = []
    for _ in range(12):
        for _ in range(3):
            job = await submit_to(conn, shape, options={"words": secrets.token_hex(50_000)})
            a, b = await started(conn, 2)
            key = f"outputs/{job}/a/1/out"
            await store_in(tmp_path).put_bytes(key, b"x")
            await conn.fetch(
                "SELECT * FROM accs.record_artifact($1, 1, 'owner-1', 'output', 'accs', $2)", a["task_id"], key
            )
            await conn.execute(SAY_MUCH, a["task_id"])
            await conn.fetch("SELECT accs.finish_tasks($1, $2, 'owner-1')", [a["task_id"], b["task_id"]], [1, 1])
        await next_month(conn)
        assert (await passed(db, tmp_path, kept)).obstacle is None
        sizes.append(await size_of(conn))
        # the month that runs, two that are kept, one that is not over for 60 days yet; three ahead, and the net
        assert len(await partitions(conn)) <= 1 + 3 + 3 + 1
        assert await conn.fetchval("SELECT count(*) FROM jobs") <= 3 * 4
        assert await conn.fetchval("SELECT count(*) FROM accs.doomed_objects") == 0
    # full after four months; from then on what comes takes the place of what has left
    assert sizes[1] > 1.2 * sizes[0], "a month is seen in it"
    assert max(sizes[3:]) < 1.15 * sizes[3], sizes
    here = await conn.fetchval("SELECT count(*) FROM task_events")
    written = await conn.fetchval("SELECT last_value FROM task_events_id_seq")
    all_of_them = await archives(db)
    assert here + sum(one.rows for one in all_of_them) == written
    assert here < written / 3
    assert broken_links(all_of_them) == []
    outputs = list((tmp_path / "objects" / "outputs").rglob("out"))
    assert len(outputs) == await conn.fetchval("SELECT count(*) FROM jobs")
    assert await done(conn) == []


async def test_a_chain_that_was_changed_shows_it(db: Database, conn: Connection, tmp_path: Path):
    for _ in range(3):
        await eventful_job(conn)
        await next_month(conn)
    await next_month(conn, 3)
    await passed(db, tmp_path)
    found = await archives(db)
    assert len(found) >= 3
    assert broken_links(found) == []
    assert len(broken_links([found[0], *found[2:]])) == 1
    await past_the_guard(conn, f"UPDATE accs.archives SET rows = rows + 1 WHERE id = {found[1].id}")
    assert broken_links(await archives(db)) == [
        f"archive {found[1].id} ({found[1].partition}) has a digest that is not its own"
    ]
