"""What keeps a daemon from starting is one clear message and an exit code; what may pass by itself is waited for."""

import signal
import subprocess
from pathlib import Path

from tests.support import daemon
from tests.support.cluster import Connection, TestServer
from tests.support.eventually import eventually
from tests.support.library import empty_database, tcp_url
from tests.support.tasks import (
    NOTE,
    toml_service,
)

USAGE = 2


def refused(folder: Path, url: str, *, code: int, role: str = "all", node: str = "n1") -> str:
    """All that a daemon said that did not start."""
    with daemon.running(folder / "refused", url, role=role, node=node, ready=False) as accsd:
        try:
            assert accsd.process.wait(timeout=20) == code, accsd.tail()
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it did not end: {accsd.tail()}") from None
        return accsd.tail()


def is_one_message(said: str) -> bool:
    """What, and where it helps what to do; nothing else."""
    what, *what_to_do = said.splitlines()
    return what.startswith("accsd: ") and all(line.startswith("  → ") for line in what_to_do[:1]) and not what_to_do[1:]


async def test_a_second_agent_of_the_same_node_is_refused(tmp_path: Path, db_url: str):
    with daemon.running(tmp_path, db_url, node="n1") as first:
        state = {"ACC_STATE_DIR": str(tmp_path / "state")}
        with daemon.running(tmp_path / "second", db_url, node="n1", environ=state, ready=False) as second:
            assert second.process.wait(timeout=20) == USAGE
        assert is_one_message(second.tail()), second.tail()
        assert 'an agent runs as node "n1" on this machine already' in second.tail()
        assert "ACC_NODE_NAME" in second.tail()
        with daemon.running(tmp_path, db_url, node="n2"):
            pass
        assert first.process.poll() is None
        assert first.stop() == 0
    with daemon.running(tmp_path, db_url, node="n1") as after:
        assert after.stop() == 0


async def test_a_builder_needs_no_node_of_its_own_and_each_process_says_that_it_is_there(
    tmp_path: Path, db_url: str, conn: Connection
):
    async def are_known() -> bool:
        rows = await conn.fetch("SELECT roles, hearing, problems FROM accs.daemons WHERE name = 'n1' ORDER BY roles")
        return [tuple(row) for row in rows] == [([role], "listening", {}) for role in ("agent", "builder", "gateway")]

    gateway = {"ACC_GATEWAY_LISTEN": f"127.0.0.1:{daemon.free_port()}"}
    with (
        daemon.running(tmp_path, db_url, role="agent"),
        daemon.running(tmp_path, db_url, role="gateway", environ=gateway),
        daemon.running(tmp_path, db_url, role="builder") as builder,
    ):
        await eventually(are_known, within=15)
        assert builder.stop() == 0


async def test_a_process_that_is_all_says_so(tmp_path: Path, db_url: str, conn: Connection):
    gateway = {"ACC_GATEWAY_LISTEN": f"127.0.0.1:{daemon.free_port()}"}
    with daemon.running(tmp_path, db_url, role="all", environ=gateway):
        await eventually(
            lambda: conn.fetchval("SELECT roles = '{agent,builder,gateway}' FROM accs.daemons WHERE name = 'n1'"),
            within=15,
        )


async def test_no_database_url_is_said_at_once(tmp_path: Path):
    said = refused(tmp_path, "", code=USAGE)
    assert is_one_message(said), said
    assert "no database is configured" in said
    assert "ACC_DB_URL" in said


async def test_a_url_that_is_none_is_said_at_once(tmp_path: Path):
    said = refused(tmp_path, "mysql://somewhere:sesame@host/x", code=USAGE)
    assert is_one_message(said), said
    assert "sesame" not in said


async def test_a_database_that_does_not_exist_is_said_at_once(tmp_path: Path, server: TestServer):
    said = refused(tmp_path, server.url_of("no_such_database"), code=USAGE)
    assert is_one_message(said), said
    assert 'database "no_such_database" does not exist' in said
    assert "createdb" in said


async def test_a_wrong_password_is_said_at_once_and_not_shown(tmp_path: Path, server: TestServer, db_url: str):
    assert server.launched is not None
    url = tcp_url(server, db_url).replace(server.launched.password, "open-sesame")
    said = refused(tmp_path, url, code=USAGE)
    assert is_one_message(said), said
    assert "refuses this user" in said
    assert "open-sesame" not in said


async def test_a_database_without_the_schema_says_what_to_do(tmp_path: Path, server: TestServer):
    async with empty_database(server) as url:
        for role in ("builder", "agent"):
            said = refused(tmp_path / role, url, code=1, role=role)
            assert is_one_message(said), said
            assert "the database holds no accsd schema" in said
            assert "run `accsd db install`" in said


async def test_a_schema_of_another_version_says_what_to_do(tmp_path: Path, db_url: str, conn: Connection):
    await conn.execute("INSERT INTO accs.schema_versions (version) SELECT max(version) + 1 FROM accs.schema_versions")
    said = refused(tmp_path, db_url, code=1)
    assert is_one_message(said), said
    assert "upgrade accsd on this machine" in said


async def test_a_server_that_is_not_there_is_waited_for_and_told_each_time(tmp_path: Path):
    nobody = f"postgresql://accsd:open-sesame@127.0.0.1:{daemon.free_port()}/x"
    with daemon.running(tmp_path, nobody, ready=False) as accsd:
        said = accsd.wait_for("waiting_for_database", times=2)
        assert "can't be reached" in said["error"]
        assert said["hint"] == "start PostgreSQL, or correct ACC_DB_URL"
        assert accsd.stop(within=10) in (0, -signal.SIGTERM), "it can be stopped meanwhile, and holds nothing yet"
        assert "open-sesame" not in accsd.tail()


async def test_one_node_has_one_agent_on_a_machine(tmp_path: Path, db_url: str):
    config = toml_service("render", NOTE)
    with daemon.running(tmp_path, db_url, config=config) as first:
        with daemon.running(tmp_path, db_url, role="agent", config=config, ready=False) as second:
            assert second.process.wait(timeout=20) != 0
            assert 'an agent runs as node "n1" on this machine already' in second.tail()
        first.kill()
    with daemon.running(tmp_path, db_url, role="agent", config=config):
        pass  # the kernel frees the lock of whoever was killed
