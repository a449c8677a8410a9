"""A failure on a node that lacks what a service needs is the node's: no attempt is spent."""

import shutil
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from accsd.work.service import LocalService
from tests.support.attempts import Shop, shop
from tests.support.checker import check
from tests.support.cluster import Connection
from tests.support.eventually import eventually
from tests.support.factory import node, step, submit
from tests.support.library import opened

FAILS = "import sys; sys.exit(3)"
# What a task may remove: all of its attempt's folder, all of it while it speaks and goes on, its log alone.
VANDALS = {
    "all": "",
    "all, and speaks": "print('gone', flush=True); time.sleep(3)",
    "its log": "print('gone', flush=True)",
}


@asynccontextmanager
async def working(db_url: str, tmp_path: Path, conn: Connection) -> AsyncGenerator[Shop]:
    await node(conn)
    await submit(conn, step("a"))
    async with opened(db_url) as db, shop(db, tmp_path) as here:
        yield here
    await check(conn)


def probed(here: Shop, probe: Sequence[str] | None) -> LocalService:
    return replace(here.serving(FAILS), probe=probe)


async def ended(conn: Connection, here: Shop, served: LocalService) -> tuple[int, int, str, str]:
    await here.begin(served)
    await here.idle()
    found = await conn.fetchrow("SELECT attempt, lost, error_code, error_message FROM job_tasks")
    assert found is not None
    return tuple(found)


async def test_a_failure_while_the_probe_passes_is_the_tasks_own(db_url: str, conn: Connection, tmp_path: Path):
    async with working(db_url, tmp_path, conn) as here:
        assert (await ended(conn, here, probed(here, ["true"])))[:3] == (1, 0, "exit_nonzero")


async def test_a_failure_while_the_probe_fails_is_the_machines(db_url: str, conn: Connection, tmp_path: Path):
    async with working(db_url, tmp_path, conn) as here:
        spent, lost, code, message = await ended(conn, here, probed(here, ["ls", "/mnt/is/not/there"]))
        assert (spent, lost, code) == (0, 1, "node_unfit")
        assert "/mnt/is/not/there" in message
        assert "exit code 3" in message


async def test_a_probe_that_cannot_be_run_does_not_pass(db_url: str, conn: Connection, tmp_path: Path):
    async with working(db_url, tmp_path, conn) as here:
        assert (await ended(conn, here, probed(here, ["/no/such/probe"])))[:3] == (0, 1, "node_unfit")


@pytest.mark.parametrize("which", VANDALS)
async def test_a_task_that_removes_the_files_of_its_own_attempt_has_failed_by_itself(
    db_url: str, conn: Connection, tmp_path: Path, which: str
):
    away = "log" if which == "its log" else ""
    program = (
        f"import os, shutil, time; its = os.path.join(os.path.dirname(os.environ['ACC_TASK_FILE']), {away!r})\n"
        "while not os.path.exists(its): time.sleep(0.01)\n"  # the log is made after the start
        f"shutil.rmtree(its); {VANDALS[which]}"
    )
    async with working(db_url, tmp_path, conn) as here:
        spent, lost, code, message = await ended(conn, here, here.serving(program))
        assert (spent, lost, code) == (1, 0, "protocol_error"), message
        assert "the files of its own attempt" in message
        assert not list(here.context.attempts_folder.iterdir())


async def test_where_another_folder_lies_in_the_place_of_the_work_folder_a_mount_has_gone(
    db_url: str, conn: Connection, tmp_path: Path
):
    program = f"import os, time\nwhile not os.path.exists({str(tmp_path / 'go')!r}): time.sleep(0.01)"
    async with working(db_url, tmp_path, conn) as here:
        folder = here.context.attempts_folder
        await here.begin(here.serving(program))
        await eventually(lambda: list(folder.glob("*/command")), within=10)
        folder.rename(tmp_path / "unmounted")
        folder.mkdir()
        (tmp_path / "go").touch()
        await here.idle()
        assert await conn.fetch("SELECT attempt, lost, error_code FROM job_tasks") == [(0, 1, "node_unfit")]


async def test_where_the_work_folder_has_vanished_no_attempt_is_spent(db_url: str, conn: Connection, tmp_path: Path):
    async with working(db_url, tmp_path, conn) as here:
        shutil.rmtree(here.context.attempts_folder)
        served = probed(here, None)
        assert (await ended(conn, here, served))[:3] == (0, 1, "node_unfit")
        assert (await served.why_unfit(here.context) or "").endswith("is not there")
        assert here.context.disk_problem() is not None
        here.context.attempts_folder.mkdir()
        assert await served.why_unfit(here.context) is None
