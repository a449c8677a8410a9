"""Gateways and workers that are killed, stopped and lost, and the history that they leave (JB-13, JB-21, JB-30)."""

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from accsd.db import Database
from accsd.db.access import create_token
from accsd.db.install import install
from accsd.model.access import Scope
from accsd.settings import DatabaseSettings
from tests.support import daemon
from tests.support.checker import check
from tests.support.cluster import Connection, TestServer
from tests.support.daemon import Daemon, free_port
from tests.support.eventually import eventually, eventually_sync
from tests.support.library import url_as

EXAMPLE = Path(__file__).parents[3] / "examples" / "joblib"
JOB = "lab:modifiers:Rotate"
# A worker that is as slow as it is told to be, and says so when it begins.
SLOW = """
import sys, threading
from tests.support.joblib_client import Rotate, manager
begun = threading.Event()
def execute(task):
    print("begun", task.task_id, flush=True)
    begun.wait(task.extension.angle)
ours = manager(sys.argv[1], sys.argv[2], execute=execute, polling_interval=0.1, heartbeat_interval=0.3)
ours.register(Rotate, room="lab")
print("worker", ours.worker_id, flush=True)
ours.wait()
"""


class Client:
    def __init__(self, url: str, token: str) -> None:
        self.url = url
        self.token = token
        self.http = httpx.Client(base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=30)

    def submit(self, angle: float) -> str:
        return self.http.post(f"/v1/joblib/rooms/lab/tasks/{JOB}", json={"payload": {"angle": angle}}).json()["id"]

    def task(self, task: str, wait: int = 0) -> dict[str, Any]:
        headers = {"Prefer": f"wait={wait}"} if wait else {}
        return self.http.get(f"/v1/joblib/tasks/{task}", headers=headers, timeout=wait + 30).json()

    def register(self, **more: Any) -> str:
        body = {"category": "modifiers", "name": "Rotate", **more}
        return self.http.put("/v1/joblib/rooms/lab/jobs", json=body).json()["worker_id"]

    def claim(self, worker: str) -> dict[str, Any] | None:
        return self.http.post("/v1/joblib/tasks/claim", json={"worker_id": worker}).json()["task"]

    def say(self, task: str, status: str) -> httpx.Response:
        return self.http.patch(f"/v1/joblib/tasks/{task}", json={"status": status})

    @property
    def workers(self) -> int:
        return self.http.get("/v1/joblib/workers").json()["total"]


@pytest.fixture
async def token(db_url: str) -> str:
    db = await Database.open(DatabaseSettings.model_validate({"url": db_url, "pool_size": 1}))
    try:
        return (await create_token(db, "ada", [Scope.SUBMIT], lives=timedelta(days=1))).token
    finally:
        await db.close()


@contextmanager
def gateway(
    folder: Path, db_url: str, *, node: str = "g1", listen: str | None = None, door: str = "", **environ: str
) -> Generator[tuple[Daemon, str]]:
    address = listen or f"127.0.0.1:{free_port()}"
    limits = "[gateway.limits]\nreads_per_second = 100000\nwrites_per_second = 100000\n"
    config = f'[gateway]\nlisten = "{address}"\n[gateway.joblib]\n{door}\n{limits}'
    with daemon.running(folder, db_url, role="gateway", node=node, config=config, environ=environ) as accsd:
        eventually_sync(lambda: _answers(address), within=20)
        yield accsd, f"http://{address}"


def _answers(address: str) -> bool:
    try:
        return httpx.get(f"http://{address}/health").status_code == 200
    except httpx.TransportError:
        return False


@contextmanager
def process(*argv: str, folder: Path, **environ: str) -> Generator[tuple[subprocess.Popen[bytes], Path]]:
    said = folder / f"said-{free_port()}"
    with said.open("wb") as log:
        child = subprocess.Popen([sys.executable, "-u", *argv], stdout=log, stderr=log, env={**os.environ, **environ})
    try:
        yield child, said
    finally:
        child.kill()
        child.wait(timeout=10)


def has_said(said: Path, pattern: str) -> bool:
    return re.search(pattern, said.read_text()) is not None


async def test_the_example_works_and_its_worker_goes_when_it_is_told_to(
    db_url: str, tmp_path: Path, token: str, conn: Connection
):
    """examples/joblib; 1.6: SIGTERM is a goodbye."""
    with gateway(tmp_path, db_url) as (_, url):
        client = Client(url, token)
        environ = {"GATEWAY": url, "ACC_TOKEN": token}
        with process(str(EXAMPLE / "worker.py"), folder=tmp_path, **environ) as (worker, said):
            eventually_sync(lambda: has_said(said, f"serves {JOB}"), within=30)
            with process(str(EXAMPLE / "submit.py"), "45", folder=tmp_path, **environ) as (submit, shown):
                assert await asyncio.to_thread(submit.wait, 60) == 0, shown.read_text()
            assert "completed" in shown.read_text()
            eventually_sync(lambda: has_said(said, "benzene is turned by 45 degrees"), within=10)
            worker.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(worker.wait, 40) == 0, said.read_text()
        assert client.workers == 0
        assert client.http.get("/v1/joblib/rooms/lab/jobs").json()["total"] == 0
    await check(conn)


async def test_the_task_of_a_worker_that_is_killed_fails_and_the_others_are_done(
    db_url: str, tmp_path: Path, token: str, conn: Connection
):
    """JB-30, JB-32: long before its lease ends; nothing is done twice."""
    door = "worker_timeout_seconds = 2\nsweeper_interval_seconds = 1"
    with gateway(tmp_path, db_url, door=door) as (_, url):
        client = Client(url, token)
        with process("-c", SLOW, url, token, folder=tmp_path) as (worker, said):
            eventually_sync(lambda: has_said(said, "worker"), within=30)
            lost = client.submit(600)
            waiting = [client.submit(0) for _ in range(3)]
            eventually_sync(lambda: has_said(said, f"begun {lost}"), within=20)
            worker.kill()
            shown = await asyncio.to_thread(client.task, lost, 60)
            assert (shown["status"], shown["error"]) == ("failed", "Worker disconnected")
        with process("-c", SLOW, url, token, folder=tmp_path) as (_, said):
            for task in waiting:
                assert (await asyncio.to_thread(client.task, task, 60))["status"] == "completed"
    await check(conn)
    assert await conn.fetchval("SELECT count(*) FROM task_events WHERE data ->> 'to' = 'starting'") == 4


async def test_a_gateway_that_is_killed_between_claim_and_answer_loses_no_task(
    db_url: str, tmp_path: Path, token: str, conn: Connection
):
    """JB-21, 1.13 no. 9: what nobody was told of goes back, by claimed_timeout_seconds; the worker lives on."""
    listen = f"127.0.0.1:{free_port()}"
    door = "claimed_timeout_seconds = 1\nsweeper_interval_seconds = 0.5"
    with gateway(tmp_path, db_url, listen=listen, door=door, ACC_FAILPOINTS="joblib.claimed:kill") as (accsd, url):
        client = Client(url, token)
        worker = client.register()
        task = client.submit(0)
        with pytest.raises(httpx.TransportError):
            client.claim(worker)
        accsd.process.wait(timeout=10)
    assert await conn.fetchval("SELECT status FROM job_tasks") == "starting"
    with gateway(tmp_path, db_url, listen=listen, door=door) as (_, url):
        client = Client(url, token)
        claimed: list[dict[str, Any]] = []

        def is_given_again() -> bool:
            assert client.http.patch(f"/v1/joblib/workers/{worker}").status_code == 200
            claimed.extend(filter(None, [client.claim(worker)]))
            return bool(claimed)

        eventually_sync(is_given_again, within=30)
        assert (claimed[0]["id"], claimed[0]["attempt_id"]) == (task, 2)
        assert client.say(task, "running").status_code == 200
        assert client.say(task, "completed").json()["status"] == "completed"
    await check(conn)


async def test_two_gateways_serve_one_database(
    server: TestServer, db_url: str, tmp_path: Path, token: str, conn: Connection
):
    """G-8, G-11, JB-21: as accs_gateway; what was submitted to one is done at the other; claims at both share."""
    if server.launched is None:
        pytest.skip("roles belong to the whole cluster, and the one of ACC_TEST_DB_URL is not ours")
    await install(conn, with_roles=True)
    as_gateway = url_as(server, db_url, "accs_gateway")
    with gateway(tmp_path, as_gateway, node="g1") as (one, url), gateway(tmp_path, as_gateway, node="g2") as (_, other):
        first, second = Client(url, token), Client(other, token)
        workers = [first.register(), second.register()]
        tasks = [(first, second)[n % 2].submit(n) for n in range(20)]
        got = await asyncio.gather(
            *(asyncio.to_thread((first, second)[n % 2].claim, workers[n // 2 % 2]) for n in range(24))
        )
        assert sorted(each["id"] for each in got if each) == sorted(tasks)
        waiting = asyncio.create_task(asyncio.to_thread(second.task, tasks[0], 60))
        assert first.say(tasks[0], "running").status_code == 200
        one.kill()
        assert second.say(tasks[0], "completed").status_code == 200
        assert (await waiting)["status"] == "completed"
        for worker in workers:
            assert second.http.delete(f"/v1/joblib/workers/{worker}").status_code == 204
        assert {second.task(each)["status"] for each in tasks[1:]} == {"failed"}
        assert second.http.put("/v1/joblib/rooms/lab/providers", json={"category": "f", "name": "n"}).status_code == 201
        await eventually(lambda: second.workers == 1)
    await check(conn)
