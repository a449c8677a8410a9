"""The gateway is killed at every point of a deployment: nothing is lost, nothing is done twice (SP-12, SP-32, S1)."""

import signal
import subprocess
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import pytest

from accsd.db.access import create_token
from accsd.model.access import Scope
from tests.support import daemon
from tests.support.applications import Application
from tests.support.checker import check
from tests.support.cluster import Connection
from tests.support.deployments import SECRET, jobs_of, judged, samples
from tests.support.eventually import eventually
from tests.support.factory import pass_time
from tests.support.library import opened

LEASE = {"ACC_HEARTBEAT_TTL_SEC": "3", "ACC_POLL_SEC": "0.5"}  # the second: nobody notifies of the end of a lease


class Installation:
    """A builder and gateways that come and go, each with a fault of its own."""

    def __init__(self, folder: Path, db_url: str, app: Application) -> None:
        self.folder = folder
        self.db_url = db_url
        self.port = daemon.free_port()
        self.config = f"""
[gateway]
listen = "127.0.0.1:{self.port}"
limits.writes_per_second = 1000
[gateway.seqpulse.projects.shop]
endpoint = "{app.metrics_url}"
hmac_secret = "{SECRET}"
allow_private = true
window_minutes = 2
delay_minutes = 2
"""

    def gateway(self, point: str | None = None) -> Any:
        environ = {**LEASE, **({} if point is None else {"ACC_FAILPOINTS": f"{point}:kill"})}
        return daemon.running(
            self.folder,
            self.db_url,
            role="gateway",
            node="gw",
            config=self.config,
            environ=environ,
            ready=point is None,
        )

    def builder(self) -> Any:
        return daemon.running(self.folder, self.db_url, role="builder", node="control", config="", environ=LEASE)

    async def token(self) -> str:
        async with opened(self.db_url) as db:
            return (await create_token(db, "ci", [Scope.SUBMIT], limits={"project": "shop"})).token

    async def ask(self, token: str, path: str, **body: str) -> dict[str, Any] | None:
        """The answer; None: the gateway died over it."""
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{self.port}", timeout=15) as client:
            await eventually(lambda: _listens(client), within=30)
            try:
                answer = await client.post(f"/deployments/{path}", json=body, headers={"X-API-Key": token})
            except httpx.TransportError:
                return None
        assert answer.status_code == 200, answer.text
        return answer.json()


async def _listens(client: httpx.AsyncClient) -> bool:
    try:
        return (await client.get("/health")).status_code == 200
    except httpx.TransportError:
        return False


@pytest.fixture
def installation(tmp_path: Path, db_url: str, app: Application) -> Installation:
    return Installation(tmp_path, db_url, app)


def dies(child: subprocess.Popen[bytes]) -> None:
    assert child.wait(timeout=40) == -signal.SIGKILL


async def test_killed_while_a_deployment_is_announced(installation: Installation, conn: Connection):
    """SP-11, SP-12: before the verb nothing has happened; after it everything has, although nobody was told. What the
    client sends again is answered with what is there."""
    token = await installation.token()
    begin = {"env": "prod", "idempotency_key": "gha-1-1"}
    for point, there in (("deployment.asked", 0), ("deployment.begun", 1)):
        with installation.gateway(point) as gateway:
            assert await installation.ask(token, "trigger", **begin) is None
            dies(gateway.process)
        assert await conn.fetchval("SELECT count(*) FROM accs.seqpulse_deployments") == there, point
    made = await conn.fetchval("SELECT id FROM accs.seqpulse_deployments")
    end = {"deployment_id": str(made), "result": "success"}
    for point, jobs in (("deployment.asked", 1), ("deployment.finished", 4)):
        with installation.gateway(point) as gateway:
            assert await installation.ask(token, "finish", **end) is None
            dies(gateway.process)
        assert len(await jobs_of(conn, made)) == jobs, point
    with installation.gateway():
        again = await installation.ask(token, "trigger", **begin)
        assert again is not None
        assert (again["deployment_id"], again["status"]) == (str(made), "existing")
        ended = await installation.ask(token, "finish", **end)
        assert ended is not None
        assert ended["status"] == "ignored"
    assert len(await jobs_of(conn, made)) == 4
    await check(conn)


async def test_killed_while_it_works_and_started_again(installation: Installation, conn: Connection):
    """SP-32, S1: a gateway dies with a sample in its hands, the next one with it told but not answered, and so on to
    the verdict: each is taken and told once, the analysis is not lost and not done twice."""
    token = await installation.token()
    with installation.builder():
        with installation.gateway("sample.taken") as gateway:
            begun = await installation.ask(token, "trigger", env="prod")
            assert begun is not None
            made = UUID(begun["deployment_id"])
            dies(gateway.process)
        with installation.gateway() as gateway:
            await eventually(lambda: samples(conn, made, "pre", 1), within=30)
            assert await installation.ask(token, "finish", deployment_id=str(made), result="success")
            await eventually(lambda: samples(conn, made, "post", 1), within=30)
            gateway.kill()
        await pass_time(conn, 150)
        for point in ("finish.sent", "verdict.made", "finish.committed"):
            with installation.gateway(point) as gateway:
                dies(gateway.process)
        with installation.gateway() as gateway:
            await judged(conn, made)
            await eventually(lambda: all_done(conn, made), within=30)
            assert gateway.stop() == 0
    assert await conn.fetchval("SELECT count(*) FROM metric_samples WHERE phase = 'post'") == 2
    ends = (
        "SELECT count(*) FROM task_events WHERE data ->> 'to' = 'done' AND job_task_id IS NOT NULL GROUP BY job_task_id"
    )
    assert [row[0] for row in await conn.fetch(ends)] == [1, 1, 1, 1]
    await check(conn)


async def all_done(conn: Connection, deployment: UUID) -> bool:
    return all(job["status"] == "completed" for job in await jobs_of(conn, deployment))
