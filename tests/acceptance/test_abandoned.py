"""An attempt whose lease could not be kept is over: what it did is never repeated under the same attempt_id."""

import asyncio
import os
import signal
from pathlib import Path
from urllib.parse import urlsplit

from tests.support import daemon
from tests.support.cable import Cable
from tests.support.checker import check
from tests.support.cluster import Connection, TestServer
from tests.support.eventually import eventually
from tests.support.factory import step, submit
from tests.support.fleet import is_done
from tests.support.library import tcp_url
from tests.support.tasks import counted_service, executions, noted


def attempts(folder: Path) -> list[str]:
    return os.listdir(folder / "state" / "n1" / "attempts")


async def test_back_after_the_agent_gave_up_and_before_the_lease_has_ended(
    tmp_path: Path, server: TestServer, db_url: str, conn: Connection
):
    """The database still says "starting", owned by this node; but the command has run."""
    notes = tmp_path / "notes"
    direct = urlsplit(tcp_url(server, db_url))
    async with Cable.to(direct.hostname or "", direct.port or 5432) as cable:
        with daemon.running(
            tmp_path,
            cable.through(direct.geturl()),
            config=counted_service("render", notes, node="n1"),
            environ={"ACC_HEARTBEAT_TTL_SEC": "10", "ACC_DB_LISTEN_URL": db_url},
            ready=False,
        ) as accsd:
            await eventually(lambda: accsd.log("node_registered"), within=20)
            cable.fall_silent_at("start_tasks")
            job = await submit(conn, step("a"))
            await eventually(lambda: noted(notes, "end"), within=20)
            await eventually(lambda: accsd.log("lease_gone"), within=20)
            await eventually(lambda: accsd.log("abandoned"), within=5)
            cable.cut()  # what was on its way never arrives
            cable.flow_again()
            assert await conn.fetchval("SELECT status FROM job_tasks WHERE lease_until > accs.clock()") == "starting"
            await is_done(conn, job)
    assert set(executions(notes).values()) == {1}, executions(notes)
    await check(conn)


async def test_what_was_to_begin_when_the_machine_fell_asleep_never_begins_once_another_has_done_it(
    tmp_path: Path, server: TestServer, db_url: str, conn: Connection
):
    """Everything is ready but the command; when the machine wakes, the network takes longer to come back than it."""
    notes, lease = tmp_path / "notes", {"ACC_HEARTBEAT_TTL_SEC": "3"}
    direct = urlsplit(tcp_url(server, db_url))
    async with Cable.to(direct.hostname or "", direct.port or 5432) as cable:
        with daemon.running(
            tmp_path,
            cable.through(direct.geturl()),
            role="agent",
            config=counted_service("render", notes, node="n1"),
            environ={**lease, "ACC_FAILPOINTS": "prepared:pause"},
            ready=False,
        ) as sleeper:
            job = await submit(conn, step("a"))
            await eventually(lambda: sleeper.is_stopped, within=20)
            cable.fall_silent()
            there = counted_service("render", notes, node="n2")
            with daemon.running(tmp_path, db_url, node="n2", config=there, environ=lease):
                await is_done(conn, job)
                sleeper.signal(signal.SIGCONT)
                await eventually(lambda: sleeper.log("abandoned"), within=20)
                cable.cut()  # what was on its way never arrives
                cable.flow_again()
                await eventually(lambda: not attempts(tmp_path), within=20)
            assert await asyncio.to_thread(sleeper.stop) == 0
    assert [(line.node, line.attempt) for line in noted(notes, "begin")] == [("n2", 2)]
    await check(conn)


async def test_who_leaves_while_the_database_is_silent_does_not_wait_for_an_answer_to_his_goodbye(
    tmp_path: Path, server: TestServer, db_url: str, conn: Connection
):
    direct = urlsplit(tcp_url(server, db_url))
    environ = {"ACC_DB_STATEMENT_TIMEOUT_SEC": "300", "ACC_HEARTBEAT_TTL_SEC": "10", "ACC_DRAIN_SEC": "1"}
    async with Cable.to(direct.hostname or "", direct.port or 5432) as cable:
        config = counted_service("render", tmp_path / "notes", node="n1")
        url = cable.through(direct.geturl())
        with daemon.running(tmp_path, url, role="agent", config=config, environ=environ, ready=False) as accsd:
            await is_done(conn, await submit(conn, step("a")))
            cable.fall_silent()
            assert await asyncio.to_thread(accsd.stop, within=60) == 0
            assert accsd.log("left_unsaid")
            assert [line for line in accsd.log_file.read_bytes().splitlines() if not line.startswith(b"{")] == []
