"""`accsd history`; and `accsd job` and `accsd logs`, which find what has left the database by themselves."""

import os
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from accsd.db.history import Archive
from accsd.history import clocks, contents
from accsd.storage import ObjectStore
from tests.support.cli import Cli, Said
from tests.support.cluster import Connection
from tests.support.factory import cancel, pass_time, submit, submit_to, workflow
from tests.support.months import eventful_job, month, next_month, partitions, store_in
from tests.support.schedules import schedule, settle_all
from tests.support.topics import emit

Asked = Callable[..., Awaitable[Said]]


@pytest.fixture
def asked(db_url: str, tmp_path: Path) -> Asked:
    config = tmp_path / "accsd.toml"
    config.write_text(
        f'[storage]\nurl = "file://{tmp_path}/objects"\n[retention]\nevents = "60d"\njobs = "400d"\n'
        '[retention.workflows.short]\njobs = "10d"\n'
    )
    run = Cli(db_url)

    async def ask(*arguments: str, **given: str) -> Said:
        return await run("--config", str(config), *arguments, **given)

    return ask


async def test_a_timeline_is_the_same_to_the_byte_before_and_after_it_was_archived(
    asked: Asked, conn: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    job = str(await eventful_job(conn))
    others = [await eventful_job(conn) for _ in range(3)]
    name = await month(conn)
    await next_month(conn, 4)

    async def told() -> list[Any]:
        document = (await asked("job", job, "-o", "json")).ends(0).json
        shown = (await asked("job", job, "--events", "100")).ends(0).out
        logs = (await asked("logs", job, "--task", "a", "--attempt", "1", "-o", "jsonl")).ends(0).out
        raw = (await asked("history", "show", job)).ends(0).out
        return [document["events"], document["attempts"], shown[shown.index("attempts") :], logs, raw]

    before = await told()
    assert len(before[0]) > 10
    assert len(before[1]) == 3
    assert "two" in before[3]
    (await asked("history", "archive")).ends(0, name, "and dropped here")
    assert name not in await partitions(conn)
    assert await conn.fetchval("SELECT count(*) FROM task_events") == 0
    assert await told() == before
    reads: list[str] = []
    real = contents.lines_of

    async def counted(store: ObjectStore, archive: Archive, subject: str) -> list[str]:
        reads.append(subject)
        return await real(store, archive, subject)

    monkeypatch.setattr(contents, "lines_of", counted)
    monkeypatch.setattr(import_module("accsd.cli.logs"), "_AT_ONCE", 1)  # as if each had 200 others beside it
    assert "two" in (await asked("logs", job, "--attempt", "1")).ends(0).out
    assert len(reads) == 1, "once, however many attempts it has"
    assert len((await asked("job", str(others[0]), "-o", "json")).json["events"]) == len(before[0])

    await conn.fetch("SELECT * FROM accs.retry_jobs($1)", [job])  # and it goes on: some there, some here
    after = (await asked("job", job, "-o", "json")).json
    assert after["events"][: len(before[0])] == before[0]
    assert len(after["events"]) > len(before[0])

    (await asked("history", "verify")).ends(0, "archives are well")
    kept = next((tmp_path / "objects" / "history" / name).glob("*.gz"))
    kept.write_bytes(kept.read_bytes()[:-1])
    (await asked("history", "verify")).ends(1, f"({name}): {kept.relative_to(tmp_path / 'objects')}")
    (await asked("history", "list")).ends(0, "NOT WELL")
    (await asked("job", job)).ends(0, "the history is not whole", "not those that were written")


async def test_the_ledger_and_the_events_of_old_months_are_shown_from_the_store(asked: Asked, conn: Connection):
    await schedule(conn, name="nightly")
    await pass_time(conn, 90)
    await settle_all(conn)
    await emit(conn, "shop.paid", {"n": 1})
    names = [await month(conn, table) for table in ("firings", "events")]

    async def told() -> list[str]:
        asks = (("--schedule", "nightly"), ("--topic", "shop.paid"))
        return [(await asked("history", "show", *each)).ends(0).out for each in asks]

    before = await told()
    assert "nightly" not in before[0]
    assert '"outcome":"fired"' in before[0]
    assert '"payload":{"n": 1}' in before[1]
    await next_month(conn, 4)
    (await asked("history", "list")).ends(0, *names)
    for name in names:
        (await asked("history", "archive", name)).ends(0, name, "and dropped here")
    assert await told() == before
    (await asked("history", "verify")).ends(0, "2 archives are well")
    (await asked("history", "show")).ends(2, "name one job, or one of --schedule and --topic")


async def test_a_damaged_archive_is_not_dropped_until_it_is_written_again(
    asked: Asked, conn: Connection, tmp_path: Path
):
    await eventful_job(conn)
    name = await month(conn)
    (await asked("history", "archive", name)).ends(1, "its month has not been over for a day")
    await next_month(conn, 4)
    (await asked("history", "archive", name, "--keep")).ends(0, "is in history/")
    kept = next((tmp_path / "objects" / "history" / name).glob("*.gz"))
    kept.write_bytes(b"\0" * kept.stat().st_size)
    (await asked("history", "archive", name)).ends(1, "is not dropped", "not those that were written", "--again")
    assert name in await partitions(conn)
    (await asked("history", "list")).ends(0, "archived, still in the database; NOT WELL")
    (await asked("history", "archive", name.removeprefix("task_events_"), "--again")).ends(0, "and dropped here")
    assert name not in await partitions(conn)
    (await asked("history", "archive", "2020_01")).ends(3, "there is no month 2020_01 in the database")


async def test_finished_jobs_are_counted_first_and_removed_when_one_agrees(
    asked: Asked, conn: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    old = await submit_to(conn, await workflow(conn, name="short"))
    kept = await submit(conn)
    await cancel(conn, old, kept)
    await conn.execute(
        "INSERT INTO task_artifacts (job_id, kind, bucket, key, size_bytes) VALUES ($1, 'input', 'accs', $2, 3)",
        old,
        f"inputs/{old}/a/in",
    )
    await store_in(tmp_path).put_bytes(f"inputs/{old}/a/in", b"abc")
    await next_month(conn)
    (said,) = (await asked("history", "prune", "--dry-run", "-o", "json")).json
    assert said | {"workflow": "short", "jobs": 1, "tasks": 1, "artifacts": 1, "bytes": 3, "kept": 0} == said
    (await asked("history", "prune", stdin="n\n")).ends(1)
    with monkeypatch.context() as wrong:
        wrong.setattr(clocks, "MAY_BE_AHEAD", timedelta(days=-1))  # the same clock is a day too far ahead
        (await asked("history", "prune", "--yes")).ends(1, "nothing is removed: the database's clock is")
        (await asked("history", "archive")).ends(1, "nothing is removed: the database's clock is")
    assert await conn.fetchval("SELECT count(*) FROM jobs") == 2
    (await asked("history", "prune", stdin="y\n")).ends(0, "removed 1 jobs and 1 objects")
    assert [row["id"] for row in await conn.fetch("SELECT id FROM jobs")] == [kept]
    assert not (tmp_path / "objects" / "inputs").exists()
    (await asked("history", "show", str(old))).ends(0, str(old))
    (await asked("history", "prune", "--yes")).ends(0, "nothing is old enough")


async def test_objects_without_a_row_are_listed_and_removed_only_if_they_are_old_and_ours(
    asked: Asked, conn: Connection, tmp_path: Path
):
    ended, running = await submit(conn), await submit(conn)
    await cancel(conn, ended)
    store = store_in(tmp_path)
    long_ago = time.time() - 90000
    keys = {
        "ours": f"outputs/{ended}/a/1/lost.wav",
        "foreign": f"outputs/{uuid4()}/a/1/x",
        "running": f"logs/{running}/a/1/x",
        "young": f"outputs/{ended}/a/1/young",
        "known": f"outputs/{ended}/a/1/known",
        "month": "history/task_events_2020_01/x.jsonl.gz",
    }
    for name, key in keys.items():
        await store.put_bytes(key, b"12")
        if name != "young":
            os.utime(tmp_path / "objects" / key, (long_ago, long_ago))
    await conn.execute(
        "INSERT INTO task_artifacts (job_id, kind, bucket, key) VALUES ($1, 'output', 'accs', $2)", ended, keys["known"]
    )
    found = (await asked("history", "orphans", "-o", "json")).json
    assert {one["key"]: one["is_of_known_job"] for one in found} == {
        keys["ours"]: True,
        keys["foreign"]: False,
        keys["month"]: False,
    }
    (await asked("history", "orphans", "--foreign")).ends(2, "--foreign goes with --remove")
    (await asked("history", "orphans", "--remove")).ends(0, "removed 1 of 3")
    assert not (tmp_path / "objects" / keys["ours"]).exists()
    (await asked("history", "orphans", "--remove", "--foreign")).ends(0, "removed 2 of 2")
    assert {name for name, key in keys.items() if (tmp_path / "objects" / key).exists()} == {
        "running",
        "young",
        "known",
    }


async def test_a_machine_that_knows_no_store_neither_archives_nor_removes(
    db_url: str, conn: Connection, tmp_path: Path
):
    await eventful_job(conn)
    name = await month(conn)
    await next_month(conn, 4)
    config = tmp_path / "accsd.toml"
    config.write_text(f'[node]\nstate_dir = "{tmp_path}/state"\n[retention]\nevents = "60d"\njobs = "10d"\n')
    for command in (("archive",), ("archive", name), ("prune", "--yes"), ("verify",)):
        said = await Cli(db_url)("--config", str(config), "history", *command)
        said.ends(2, "no storage is configured", "ACC_STORAGE_URL")
    assert name in await partitions(conn)
    assert await conn.fetchval("SELECT count(*) FROM jobs") == 1


async def test_without_a_retention_nothing_is_removed(db_url: str):
    (await Cli(db_url)("history", "prune")).ends(2, "jobs are kept for ever")
    (await Cli(db_url)("history", "archive")).ends(2, "all months are kept for ever")
