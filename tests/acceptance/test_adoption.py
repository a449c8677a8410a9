"""What the next daemon does with attempts that an earlier one left: it adopts, releases or removes them."""

import os
from datetime import timedelta
from pathlib import Path

from tests.support import daemon
from tests.support.checker import check
from tests.support.cluster import Connection
from tests.support.eventually import eventually
from tests.support.factory import NODE, claim, node, step, submit, task
from tests.support.fleet import task_is
from tests.support.tasks import (
    NOTE,
    WAIT,
    attempt_folders,
    process_of,
    toml_service,
    waiting,
)


async def test_what_belongs_to_a_service_that_is_served_no_longer_is_stopped_and_given_back(
    tmp_path: Path, db_url: str, conn: Connection
):
    with daemon.running(tmp_path, db_url, config=toml_service("render", WAIT)) as accsd:
        job = await submit(conn, step("a"), options=waiting(tmp_path))
        process = await process_of(tmp_path / "notes")
        accsd.kill()
    with daemon.running(tmp_path, db_url, config=toml_service("audio", NOTE)):
        await eventually(lambda: not process.exists(), within=15, what="the end of its process")
        await eventually(lambda: task_is(conn, job, "queued"), within=10)
        await eventually(lambda: not attempt_folders(tmp_path), within=10)
    assert (await task(conn, job))["attempt"] == 0
    await check(conn)


async def test_an_attempt_of_which_only_the_folder_is_left_is_given_back_and_its_folder_removed(
    tmp_path: Path, db_url: str, conn: Connection
):
    await node(conn)
    job = await submit(conn, step("a"), options=waiting(tmp_path))
    (claimed,) = await claim(conn, owner=NODE, lease=timedelta(minutes=2))
    left = tmp_path / "state" / "n1" / "attempts" / f"{claimed['task_id']}.{claimed['attempt_id']}"
    (left / "work").mkdir(parents=True)
    with daemon.running(tmp_path, db_url, config=toml_service("render", WAIT)):
        await process_of(tmp_path / "notes")
        assert (await task(conn, job))["attempt_id"] == 2
        assert not left.exists()


async def test_a_clock_that_was_put_forward_does_not_end_what_is_adopted(tmp_path: Path, db_url: str, conn: Connection):
    config = toml_service("render", WAIT, timeout="1h")
    with daemon.running(tmp_path, db_url, config=config) as accsd:
        job = await submit(conn, step("a"), options=waiting(tmp_path))
        await process_of(tmp_path / "notes")
        accsd.kill()
    (folder,) = attempt_folders(tmp_path)
    for path in folder.iterdir():  # as everything looks when the clock is two hours ahead since
        os.utime(path, (path.stat().st_atime - 7200, path.stat().st_mtime - 7200), follow_symlinks=False)
    with daemon.running(tmp_path, db_url, config=config) as accsd:
        accsd.wait_for("adopted")
        (tmp_path / "go").touch()
        await eventually(lambda: task_is(conn, job, "done"), within=10)
    assert (await task(conn, job))["attempt"] == 0
