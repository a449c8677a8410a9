"""A daemon that is told to stop while something else happens."""

import os
import shutil
import signal
from pathlib import Path

import pytest

from tests.conftest import Connect
from tests.support import daemon
from tests.support.checker import check
from tests.support.cluster import Connection
from tests.support.compose import why_no_plugin
from tests.support.eventually import eventually
from tests.support.factory import step, submit, task
from tests.support.tasks import (
    NOTE,
    WAIT,
    process_of,
    toml_service,
    waiting,
)


async def test_what_is_claimed_while_sigterm_comes_is_not_lost(
    tmp_path: Path, db_url: str, conn: Connection, connect: Connect
):
    other = await connect()
    with daemon.running(tmp_path, db_url, config=toml_service("render", WAIT)) as accsd:
        accsd.wait_for("node_registered")
        async with other.transaction():
            await other.execute("SELECT FROM accs.slots WHERE node = 'n1' AND service = 'render' FOR UPDATE")
            job = await submit(conn, step("a"), options=waiting(tmp_path))
            await eventually(lambda: waits_for_a_lock(conn), within=10)
            accsd.signal(signal.SIGTERM)
            accsd.wait_for("draining")
        # what was claimed may end within the grace, as anything that runs
        await process_of(tmp_path / "notes")
        (tmp_path / "go").touch()
        assert accsd.process.wait(timeout=20) == 0
    assert (await task(conn, job))["status"] == "done"
    await check(conn)


async def waits_for_a_lock(conn: Connection) -> bool:
    return await conn.fetchval("SELECT count(*) > 0 FROM pg_locks WHERE NOT granted AND locktype = 'transactionid'")


async def test_nothing_is_claimed_for_services_that_are_found_while_draining(
    tmp_path: Path, db_url: str, conn: Connection
):
    if reason := why_no_plugin():
        pytest.skip(reason)
    (tmp_path / "compose.yaml").write_text("services:\n  plain:\n    image: none\n")
    hold = slow_docker(tmp_path)
    environ = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "ACC_COMPOSE_FILE": str(tmp_path / "compose.yaml")}
    config = toml_service("render", WAIT)
    with daemon.running(tmp_path, db_url, config=config, environ=environ) as accsd:
        await submit(conn, step("a"), options=waiting(tmp_path))
        await process_of(tmp_path / "notes")
        hold.touch()
        accsd.config.write_text(config + toml_service("audio", NOTE))
        accsd.signal(signal.SIGHUP)
        await eventually((tmp_path / "asked").exists, within=10)
        late = await submit(conn, step("a", "audio"), options={"note": str(tmp_path / "late")})
        accsd.signal(signal.SIGTERM)
        accsd.wait_for("draining")
        hold.unlink()
        accsd.wait_for("pass", role="discovery", did="serving audio, render")
        (tmp_path / "go").touch()
        assert accsd.process.wait(timeout=20) == 0
    assert (await task(conn, late))["attempt_id"] == 0


def slow_docker(folder: Path) -> Path:
    """A docker command that waits for as long as the file is there, and says so."""
    hold, asked = folder / "hold", folder / "asked"
    script = folder / "docker"
    wait = (
        f'[ -e {hold} ] && touch {asked}\nwhile [ -e {hold} ]; do sleep 0.02; done\nexec {shutil.which("docker")} "$@"'
    )
    script.write_text(f"#!/bin/sh\n{wait}\n")
    script.chmod(0o755)
    return hold
