"""The client of zndraw-joblib 0.1.7, as it is, against a real gateway (1.6)."""

import asyncio
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import socketio
from zndraw_joblib.client import JobManager
from zndraw_joblib.models import TaskStatus
from zndraw_socketio import SyncClientWrapper

from tests.support.eventually import eventually
from tests.support.joblib import User
from tests.support.joblib_client import Files, Rotate, manager

aside = asyncio.to_thread  # the client blocks; the gateway is in this process
JOB = "lab:modifiers:Rotate"


@asynccontextmanager
async def worker(user: User, **named: Any) -> AsyncGenerator[JobManager]:
    made = manager(user.gateway.url, user.token, **named)
    try:
        yield made
    finally:
        await aside(made.disconnect)


@asynccontextmanager
async def with_sockets(user: User, *transports: str, **named: Any) -> AsyncGenerator[JobManager]:
    client = socketio.Client()
    async with worker(user, tsio=SyncClientWrapper(client), **named) as made:
        await aside(lambda: client.connect(user.gateway.url, auth={"token": user.token}, transports=list(transports)))
        try:
            yield made
            await aside(made.disconnect)
        finally:
            await aside(client.disconnect)


async def test_a_worker_registers_claims_and_says_how_it_went(ada: User):
    """1.6: register, submit, claim, start, complete, fail, cancel, heartbeat, disconnect."""
    async with worker(ada) as ours:
        await aside(ours.register, Rotate, room="lab")
        first = ours.worker_id
        await aside(ours.register, Rotate, room="other")
        assert ours.worker_id == first, "one worker for all its jobs"
        assert set(ours) == {JOB, "other:modifiers:Rotate"}
        shown = (await ada.get(f"/rooms/lab/jobs/{JOB}")).json()
        assert shown["schema"] == Rotate.model_json_schema()
        assert shown["workers"] == [str(first)]
        ends = {"completed": ours.complete, "cancelled": ours.cancel}
        for status, end in ends.items():
            task = await aside(ours.submit, Rotate(angle=45), "lab", job_room="lab")
            claimed = await aside(ours.claim)
            assert claimed is not None
            assert (claimed.task_id, claimed.room_id, claimed.extension) == (task, "lab", Rotate(angle=45))
            await aside(ours.start, claimed)
            await aside(end, claimed)
            assert await ada.status(task) == status
        task = await aside(ours.submit, Rotate(), "lab", job_room="lab")
        await aside(ours.claim)
        await aside(ours.fail_by_id, task, "no")
        assert (await ada.task(task))["error"] == "no"
        assert await aside(ours.claim) is None
        await aside(ours.heartbeat)
    assert (await ada.get("/workers")).json()["total"] == 0, "disconnect removes it"


async def test_a_worker_listens_until_it_is_stopped(ada: User):
    """1.6: listen()."""
    async with worker(ada) as ours:
        await aside(ours.register, Rotate, room="lab")
        wanted = [await ada.submit(JOB, payload={"angle": n}) for n in range(3)]
        stop, got = threading.Event(), list[str]()

        def listen() -> None:
            for claimed in ours.listen(polling_interval=0.05, stop_event=stop):
                got.append(claimed.task_id)
                ours.start(claimed)
                ours.complete(claimed)
                if len(got) == 3:
                    stop.set()

        await aside(listen)
        assert got == wanted
        assert {await ada.status(each) for each in wanted} == {"completed"}


async def test_a_worker_executes_tasks_in_the_background(ada: User):
    """1.6: what its callback raises is the error of the task; it heartbeats by itself."""
    async with worker(
        ada, execute=lambda task: task.extension.run(None), polling_interval=0.1, heartbeat_interval=0.1
    ) as ours:
        await aside(ours.register, Rotate, room="lab")
        good, bad = await ada.submit(JOB, payload={"angle": 1}), await ada.submit(JOB, payload={"angle": -1})
        answer = await ada.get(f"/tasks/{bad}", headers={"Prefer": "wait=20"})
        assert (answer.json()["status"], answer.json()["error"]) == ("failed", "-1.0 is no angle")
        assert await ada.status(good) == "completed"
        heard = (await ada.get("/workers")).json()["items"][0]["last_heartbeat"]

        async def is_heard() -> bool:
            return (await ada.get("/workers")).json()["items"][0]["last_heartbeat"] > heard

        await eventually(is_heard, within=10)


async def test_a_worker_whose_registration_is_lost_stops(ada: User):
    """1.6: 404 on a claim or a heartbeat ends it."""
    async with worker(ada, execute=lambda _: None, polling_interval=0.1) as ours:
        await aside(ours.register, Rotate, room="lab")
        await ada.delete(f"/workers/{ours.worker_id}")
        await aside(ours._stop.wait, 10)
        assert ours._stop.is_set()


async def test_errors_are_of_the_kinds_that_the_client_knows(ada: User, bob: User):
    """1.6, JB-2: KeyError, PermissionError, ValueError."""
    async with worker(ada) as ours, worker(bob) as theirs:
        with pytest.raises(KeyError):
            await aside(ours.submit, Rotate(), "lab", job_room="lab")
        with pytest.raises(PermissionError):
            await aside(ours.register, Rotate)  # @global is an admin's
        await aside(ours.register, Rotate, room="lab")
        await aside(theirs.create_worker)
        task = await ada.submit(JOB)
        await aside(ours.claim)
        with pytest.raises(PermissionError):
            await aside(theirs.fail_by_id, task, "x")
        with pytest.raises(ValueError, match="Cannot transition"):
            await aside(ours._update_task, task, TaskStatus.COMPLETED)


async def test_everybodys_jobs_are_registered_by_an_admin(ada: User, root: User):
    """1.6: the client's default room is @global."""
    async with worker(root) as ours:
        await aside(ours.register, Rotate)
        theirs = manager(ada.gateway.url, ada.token)
        task = await aside(theirs.submit, Rotate(angle=5), "lab")
        claimed = await aside(ours.claim)
        assert claimed is not None
        assert (claimed.task_id, claimed.job_name) == (task, "@global:modifiers:Rotate")


async def test_news_by_socket_wake_a_worker_that_polls_seldom(ada: User):
    """1.6, 1.10: task_available."""
    execute: Any = lambda task: task.extension.run(None)  # noqa: E731
    async with with_sockets(ada, "websocket", execute=execute, polling_interval=600) as ours:
        await aside(ours.register, Rotate, room="lab")
        manager_ = ada.gateway.context.doors[0].app._desk.sockets._server.manager  # type: ignore[attr-defined]
        await eventually(lambda: f"jobs:{JOB}" in manager_.rooms.get("/", {}), within=10)
        for angle in range(3):
            task = await ada.submit(JOB, payload={"angle": angle})
            answer = await ada.get(f"/tasks/{task}", headers={"Prefer": "wait=20"})
            assert answer.json()["status"] == "completed"


async def test_a_provider_of_the_client_answers_reads(ada: User):
    """1.9 with the client's own provider: asked by socket, answered over HTTP; what fails times out."""
    async with with_sockets(ada, "polling") as ours:
        handler = {"/data": ["a.xyz", "b.xyz"]}
        await aside(lambda: ours.register_provider(Files, name="local", handler=handler, room="lab"))
        rooms = ada.gateway.context.doors[0].app._desk.sockets._server.manager.rooms  # type: ignore[attr-defined]
        await eventually(lambda: "providers:lab:files:local" in rooms.get("/", {}), within=10)
        read = "/rooms/lab/providers/lab:files:local"
        answer = await ada.get(f"{read}?path=/data", headers={"Prefer": "wait=20"})
        assert (answer.status_code, answer.json()) == (200, ["a.xyz", "b.xyz"])
        failed = await ada.get(f"{read}?path=/none", headers={"Prefer": "wait=1"})
        assert failed.status_code == 504
        info = (await ada.get(f"{read}/info")).json()
        assert (info["schema"], info["worker_id"]) == (Files.model_json_schema(), str(ours.worker_id))
        await aside(ours.unregister_provider, "lab:files:local")
        assert (await ada.get("/rooms/lab/providers")).json()["total"] == 0
