"""SIGHUP: services come and go, a node's name stays."""

import signal
from pathlib import Path

from tests.support import daemon
from tests.support.cluster import Connection
from tests.support.eventually import eventually
from tests.support.factory import step, submit
from tests.support.fleet import task_is
from tests.support.tasks import NOTE, toml_service


async def test_a_service_that_was_taken_out_of_the_configuration_is_no_complaint(
    tmp_path: Path, db_url: str, conn: Connection
):
    both = toml_service("render", NOTE) + toml_service("audio", NOTE)
    with daemon.running(tmp_path, db_url, config=both, http=True) as accsd:
        accsd.wait_for("node_registered")
        await eventually(lambda: accsd.health()["status"] == "ok", within=10)
        accsd.config.write_text(toml_service("render", NOTE))
        accsd.signal(signal.SIGHUP)
        accsd.wait_for("node_registered", times=2)
        assert await conn.fetchval("SELECT max_concurrency FROM nodes") == {"render": 1}
        await eventually(lambda: "agent:audio" not in accsd.health()["roles"], within=5)
        assert accsd.health()["reasons"] == []
        # and again, while the name is known
        accsd.config.write_text(both)
        accsd.signal(signal.SIGHUP)
        job = await submit(conn, step("a", "audio"), options={"note": str(tmp_path / "notes")})
        await eventually(lambda: task_is(conn, job, "done"), within=10)
        assert accsd.health()["reasons"] == []


async def test_a_node_keeps_its_name_for_as_long_as_it_runs(tmp_path: Path, db_url: str, conn: Connection):
    services = toml_service("render", NOTE)
    config = f'[node]\nname = "n1"\n{services}'
    with daemon.running(tmp_path, db_url, config=config, environ={"ACC_NODE_NAME": ""}) as accsd:
        accsd.wait_for("node_registered")
        accsd.config.write_text(config.replace("n1", "n2"))
        accsd.signal(signal.SIGHUP)
        accsd.wait_for("reload_failed")
        job = await submit(conn, step("a"), options={"note": str(tmp_path / "notes")})
        await eventually(lambda: task_is(conn, job, "done"), within=10)
        assert accsd.stop() == 0
    assert await conn.fetch("SELECT name, awake_state FROM nodes") == [("n1", "unknown")]
