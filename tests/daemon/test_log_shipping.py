"""The log of a task on its way to the store: part by part while it runs, all of it while the store takes anything, and
the truth about what could not be kept."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest

from accsd.errors import StorageUnavailable
from accsd.storage.base import StoredObject
from accsd.storage.file import FileStore
from accsd.work import execution, tasklog
from tests.support.attempts import Shop, shop
from tests.support.checker import check
from tests.support.cluster import Connection
from tests.support.eventually import eventually
from tests.support.factory import node, step, submit
from tests.support.library import opened
from tests.support.tasks import PREAMBLE

FLOOD = PREAMBLE + "for i in range(task['options']['lines']): print('line', i)\nsys.stdout.flush()\nuntil('go')\n"


@asynccontextmanager
async def flooding(
    db_url: str, conn: Connection, tmp_path: Path, lines: int, **values: Any
) -> AsyncGenerator[tuple[Shop, Path]]:
    """A task that has written so many lines and goes on when the file is there; afterwards all has ended well."""
    go = tmp_path / "go"
    await node(conn)
    async with opened(db_url) as db, shop(db, tmp_path, **values) as here:
        here.group.start_soon(here.context.reporter.serve)
        await submit(conn, step("a"), options={"go": str(go), "lines": lines})
        await here.begin(here.serving(FLOOD))
        yield here, go
        go.touch()
        await here.idle(within=60)
    assert await conn.fetchval("SELECT status FROM jobs") == "done"
    await check(conn)


async def parts(conn: Connection) -> int:
    """Of the log, of which the database knows."""
    return await conn.fetchval("SELECT count(*) FROM task_artifacts WHERE kind = 'log'")


def kept(tmp_path: Path) -> list[str]:
    files = sorted((tmp_path / "objects").glob("**/logs/**/*.jsonl"))
    return [json.loads(line)["message"] for file in files for line in file.read_text().splitlines()]


def lines(count: int) -> list[str]:
    return [f"line {number}" for number in range(count)]


async def last_words(conn: Connection, kind: str = "log") -> str | None:
    return await conn.fetchval("SELECT message FROM task_events WHERE type = $1 ORDER BY id DESC LIMIT 1", kind)


def nothing_is_due_by_age(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasklog, "AGES_SEC", (10_000.0,))
    monkeypatch.setattr(tasklog, "MUCH_AGE_SEC", 10_000.0)


async def test_each_part_of_a_flood_is_shipped_when_it_is_full_and_not_at_the_end(
    db_url: str, conn: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    nothing_is_due_by_age(monkeypatch)
    async with flooding(db_url, conn, tmp_path, 50_000):
        await eventually(lambda: _at_least(conn, 4), within=30)
        shown = kept(tmp_path)
        assert shown == lines(len(shown))
        assert len(shown) > 40_000
    assert kept(tmp_path) == lines(50_000)


async def _at_least(conn: Connection, count: int) -> bool:
    return await parts(conn) >= count


async def test_one_who_writes_much_is_followed_closely_although_no_part_is_full(
    db_url: str, conn: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    nothing_is_due_by_age(monkeypatch)
    monkeypatch.setattr(tasklog, "MUCH_AGE_SEC", 0.05)
    async with flooding(db_url, conn, tmp_path, 1000):  # much less than a full part, and more than a little
        await eventually(lambda: kept(tmp_path) == lines(1000), within=30)


async def test_a_store_that_is_slow_and_goes_on_taking_gets_all_of_it_however_long_it_takes(
    db_url: str, conn: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """All parts together take many times as long as the store may take for nothing."""
    nothing_is_due_by_age(monkeypatch)
    monkeypatch.setattr(tasklog, "SEGMENT_BYTES", 4096)
    put = FileStore.put_file

    async def slowly(self: FileStore, key: str, source: Path | int, **more: Any) -> StoredObject:
        await asyncio.sleep(0.05)
        return await put(self, key, source, **more)

    monkeypatch.setattr(FileStore, "put_file", slowly)
    async with flooding(db_url, conn, tmp_path, 20_000, patience=timedelta(seconds=0.2)) as (_, go):
        go.touch()
    assert kept(tmp_path) == lines(20_000)
    assert await parts(conn) > 16


@pytest.mark.parametrize(
    ("fault", "because"),
    [
        ("fails", "the bucket is on fire"),
        ("hangs", "the object store did not take a part of it within 0.2 s"),
    ],
)
async def test_what_a_store_does_not_take_is_said_to_be_missing_and_why(
    db_url: str, conn: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str, because: str
):
    async def refuse(*_: object, **__: object) -> StoredObject:
        if fault == "fails":
            raise StorageUnavailable("the bucket is on fire")
        await anyio.sleep_forever()
        raise AssertionError

    monkeypatch.setattr(FileStore, "put_file", refuse)
    monkeypatch.setattr(execution, "_LOG_PATIENCE", timedelta(seconds=0.2))
    async with flooding(db_url, conn, tmp_path, 10) as (_, go):
        go.touch()
    said = await last_words(conn, "truncated")
    assert said == f"the last part of the log could not be kept: {because}"


async def test_an_absence_of_the_database_is_not_taken_for_the_stores(
    db_url: str, conn: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The row of a part waits for longer than the store would be waited for."""
    nothing_is_due_by_age(monkeypatch)
    monkeypatch.setattr(execution, "_LOG_PATIENCE", timedelta(seconds=0.5))
    async with flooding(db_url, conn, tmp_path, 10) as (_, go):
        await eventually(lambda: last_words(conn), within=30)  # it has been heard
        async with conn.transaction():
            await conn.execute("LOCK TABLE task_artifacts IN ACCESS EXCLUSIVE MODE")
            go.touch()
            await eventually(lambda: kept(tmp_path), within=30)
            await asyncio.sleep(2)
    assert kept(tmp_path) == lines(10)
    assert await last_words(conn, "truncated") is None
