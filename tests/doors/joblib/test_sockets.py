"""Socket.IO, with python-socketio's own client (1.10)."""

import asyncio
import time
from collections.abc import AsyncIterator
from datetime import datetime

import pytest
import socketio
from socketio.exceptions import ConnectionError as Refused

from accsd.db.access import revoke_token
from accsd.db.cancel import cancel_jobs
from tests.support.cluster import Connection
from tests.support.eventually import eventually
from tests.support.gateway import serving
from tests.support.joblib import User, Users
from tests.support.sockets import Listening, connected

JOB = "lab:modifiers:Rotate"


@pytest.fixture
async def viewer(bob: User) -> AsyncIterator[Listening]:
    """Looks at the room lab."""
    async with connected(bob) as listening:
        await listening.emit("room_join", room_id="lab")
        yield listening


async def test_only_a_valid_token_connects(users: Users, ada: User):
    """1.10, G-5. Whoever says goodbye, by whatever transport, is let go at once."""
    for auth in (None, {}, {"token": "x"}, {"token": await users.gateway.expired()}, {"token": 7}, "text"):
        client = socketio.AsyncClient(reconnection=False)
        with pytest.raises(Refused):
            await client.connect(users.gateway.url, auth=auth, transports=["websocket"])
        await client.shutdown()
    elsewhere = await users.user("elsewhere", limits={"door": "mcp"})
    with pytest.raises(Refused):
        async with connected(elsewhere):
            pass
    for transports in (("websocket",), ("polling",), ("polling", "websocket")):
        async with connected(ada, transports=transports) as listening:
            assert listening.client.connected
            goodbye = time.monotonic()
        assert time.monotonic() - goodbye < 5, transports


async def test_a_page_of_another_origin_does_not_get_in(ada: User):
    """1.10: ours does; a program says nothing of where it is from."""
    where = {"url": f"{ada.gateway.url}/socket.io/?EIO=4&transport=polling"}
    assert (await ada.gateway.client.get(where["url"], headers={"Origin": ada.gateway.url})).status_code == 200
    assert (await ada.gateway.client.get(where["url"])).status_code == 200
    assert (await ada.gateway.client.get(where["url"], headers={"Origin": "https://evil.example"})).status_code == 400


async def test_viewers_of_a_room_are_told_every_step_of_its_tasks(ada: User, viewer: Listening):
    """task_status_event at submit, claim and every PATCH, with the words of the contract."""
    worker = await ada.register("Rotate")
    task = await ada.submit(JOB)
    pending = await viewer.awaits("task_status_event", id=task, status="pending")
    assert pending.keys() == {
        "id", "name", "room_id", "status", "created_at", "started_at", "completed_at", "queue_position", "worker_id",
        "error",
    }  # fmt: skip
    assert (pending["name"], pending["room_id"], pending["worker_id"]) == (JOB, "lab", None)
    assert datetime.fromisoformat(pending["created_at"]).tzinfo is not None
    await ada.claim(worker)
    claimed = await viewer.awaits("task_status_event", id=task, status="claimed")
    assert (claimed["worker_id"], claimed["started_at"]) == (worker, None)
    await ada.say(task, "running")
    running = await viewer.awaits("task_status_event", id=task, status="running")
    assert running["started_at"]
    await ada.say(task, "failed", error="no")
    failed = await viewer.awaits("task_status_event", id=task, status="failed")
    assert (failed["error"], bool(failed["completed_at"])) == ("no", True)
    assert [each["status"] for each in viewer.of("task_status_event")] == ["pending", "claimed", "running", "failed"]
    assert not viewer.of("task_available"), "that is for workers"


async def test_who_looks_at_another_room_is_told_nothing(ada: User, viewer: Listening):
    """1.10: to the room that the task was submitted into."""
    await ada.register("Rotate")
    await ada.submit(JOB, room="other")
    await viewer.emit("room_leave", room_id="lab")
    await ada.submit(JOB, room="lab")
    async with connected(ada) as other:
        await other.emit("room_join", room_id="lab")
        last = await ada.submit(JOB, room="lab")
        await other.awaits("task_status_event", id=last)
    assert viewer.of("task_status_event") == []


async def test_workers_of_a_job_hear_of_new_tasks(ada: User, root: User):
    """task_available to jobs:{full_name}; not for @internal, and not after leaving."""
    worker = await ada.register("Rotate")
    async with connected(ada) as listening:
        await listening.emit("join_job_room", job_name=JOB, worker_id=worker)
        first = await ada.submit(JOB, room="elsewhere")
        said = await listening.awaits("task_available", task_id=first)
        assert said == {"job_name": JOB, "room_id": "elsewhere", "task_id": first}
        await listening.emit("room_join", room_id="elsewhere")
        await listening.emit("leave_job_room", job_name=JOB, worker_id=worker)
        second = await ada.submit(JOB, room="elsewhere")
        await listening.awaits("task_status_event", id=second)
        assert [each["task_id"] for each in listening.of("task_available")] == [first]


async def test_what_was_done_past_the_door_is_told_too(ada: User, viewer: Listening):
    """G-8: a cancel by a command."""
    await ada.register("Rotate")
    task = await ada.submit(JOB)
    await cancel_jobs(ada.gateway.context.verbs, [task], reason="by hand")  # type: ignore[list-item]
    assert (await viewer.awaits("task_status_event", id=task, status="cancelled"))["error"] == "by hand"


async def test_jobs_are_invalidated_when_they_come_and_go(ada: User, viewer: Listening):
    """jobs_invalidate: each registration, a worker gone (if others remain, too), an orphan gone."""
    first = await ada.register("Rotate")
    await eventually(lambda: len(viewer.of("jobs_invalidate")) == 1)
    await ada.register("Rotate")
    await eventually(lambda: len(viewer.of("jobs_invalidate")) == 2)
    await ada.delete(f"/workers/{first}")
    await eventually(lambda: len(viewer.of("jobs_invalidate")) == 3)
    assert viewer.of("jobs_invalidate") == [{}] * 3


async def test_a_worker_is_lost_with_its_last_socket(ada: User, viewer: Listening):
    """1.10, JB-30: not with the first one; its running task fails, and that is told."""
    worker = await ada.register("Rotate")
    task = await ada.submit(JOB)
    await ada.claim(worker)
    async with connected(ada) as kept:
        await kept.emit("join_job_room", job_name=JOB, worker_id=worker)
        async with connected(ada) as first:
            await first.emit("join_job_room", job_name=JOB, worker_id=worker)
        other = await ada.submit(JOB)
        await kept.awaits("task_available", task_id=other)
        assert await ada.status(task) == "claimed"
    said = await viewer.awaits("task_status_event", id=task, status="failed")
    assert said["error"] == "Worker disconnected"
    assert (await ada.get("/workers")).json()["total"] == 0


async def test_nobody_can_have_a_strangers_worker_removed(ada: User, bob: User):
    """1.10: a join needs a worker of one's own."""
    worker = await ada.register("Rotate")
    async with connected(bob) as stranger:
        await stranger.emit("join_job_room", job_name=JOB, worker_id=worker)
        await stranger.emit("join_provider_room", provider_name="lab:files:x", worker_id=worker)
        for wrong in ("no uuid", "", None, 7):
            await stranger.emit("join_job_room", job_name=JOB, worker_id=wrong)
        await stranger.client.call("join_job_room", "no object", timeout=10)
        await stranger.emit("room_join", room_id="lab")
        task = await ada.submit(JOB)
        await stranger.awaits("task_status_event", id=task)
        assert stranger.of("task_available") == []
    async with connected(bob) as again:  # the first socket is gone for sure
        assert again.client.connected
    assert (await ada.patch(f"/workers/{worker}")).status_code == 200


async def test_a_worker_may_come_back_within_the_grace(db_url: str):
    """1.10: disconnect_grace_seconds."""
    async with serving(
        db_url, works=True, hears=True, gateway={"joblib": {"disconnect_grace_seconds": 1.0}}
    ) as gateway:
        ada = await Users(gateway).user("ada")
        worker = await ada.register("Rotate")
        async with connected(ada) as first:
            await first.emit("join_job_room", job_name=JOB, worker_id=worker)
        async with connected(ada) as second:
            await second.emit("join_job_room", job_name=JOB, worker_id=worker)
            leaving = gateway.context.doors[0].app._desk.sockets._leaving  # type: ignore[attr-defined]
            await eventually(lambda: not leaving, within=10)
            assert (await ada.patch(f"/workers/{worker}")).status_code == 200

        async def is_gone() -> bool:
            return (await ada.patch(f"/workers/{worker}")).status_code == 404

        await eventually(is_gone, within=10)


async def test_a_worker_that_vanishes_is_lost_like_one_that_says_goodbye(ada: User):
    """1.10: its connection is cut."""
    worker = await ada.register("Rotate")
    task = await ada.submit(JOB)
    await ada.claim(worker)
    async with connected(ada) as listening:
        await listening.emit("join_job_room", job_name=JOB, worker_id=worker)
        listening.client.eio.ws._conn.transport.abort()

        async def has_failed() -> bool:
            return (await ada.task(task))["error"] == "Worker disconnected"

        await eventually(has_failed, within=10)


async def test_a_gateway_that_stops_loses_no_worker(db_url: str, conn: Connection):
    """1.10, G-7: its sockets are gone, the workers are not. It waits for none of those who wait, and they come back."""
    clients = [socketio.AsyncClient(reconnection_delay=60) for _ in range(2)]
    async with serving(db_url, works=True, hears=True, gateway={"joblib": {}}) as gateway:
        ada = await Users(gateway).user("ada")
        worker = await ada.register("Rotate")
        task = await ada.submit(JOB)
        await ada.claim(worker)
        for client, transport in zip(clients, ("websocket", "polling"), strict=True):
            await client.connect(gateway.url, auth={"token": ada.token}, transports=[transport])
            await client.call("join_job_room", {"job_name": JOB, "worker_id": worker}, timeout=10)
        claim = asyncio.create_task(ada.claim(worker, headers={"Prefer": "wait=60"}))
        look = asyncio.create_task(ada.get(f"/tasks/{task}", headers={"Prefer": "wait=60"}))
        await ada.put("/rooms/lab/providers", {"category": "files", "name": "local", "worker_id": worker})
        read = asyncio.create_task(ada.get("/rooms/lab/providers/lab:files:local", headers={"Prefer": "wait=30"}))
        desk = gateway.context.doors[0].app._desk  # type: ignore[attr-defined]
        await eventually(lambda: desk.claims.waiting == 1 and gateway.context.hub.facts["waiters"] == 1, within=10)
        await eventually(lambda: bool(desk.board._waiting), within=10)
        stopped_at = time.monotonic()
    assert time.monotonic() - stopped_at < 2
    assert (await claim, (await look).json()["status"], (await read).status_code) == (None, "claimed", 504)
    for client in clients:
        await eventually(lambda client=client: not client.connected, within=10)
        assert client._reconnect_task is not None, "the end of a gateway is no goodbye"
        await client.shutdown()
    assert await conn.fetchval("SELECT count(*) FROM nodes WHERE name = $1", f"joblib/{worker}") == 1


async def test_a_socket_ends_with_its_token(users: Users, ada: User):
    """As streams do, a socket asks from time to time whether it may still look."""
    short = await users.user("short")
    sockets = users.gateway.context.doors[0].app._desk.sockets  # type: ignore[attr-defined]
    async with connected(short) as listening, connected(ada) as other:
        await revoke_token(users.gateway.context.verbs, short.token.split("_")[1])
        await sockets.check()
        await eventually(lambda: not listening.client.connected, within=10)
        assert other.client.connected


async def test_a_token_with_limits_is_told_of_its_jobs_only(users: Users, ada: User):
    """limits.workflows, for sockets too."""
    await ada.register("Rotate")
    await ada.register("Hidden", room="secret")
    narrow = await users.user("narrow", limits={"workflows": ["lab:*"]})
    async with connected(narrow) as listening:
        await listening.emit("room_join", room_id="lab")
        hidden = await ada.submit("secret:modifiers:Hidden", room="lab")
        shown = await ada.submit(JOB, room="lab")
        await listening.awaits("task_status_event", id=shown)
        assert hidden not in [each["id"] for each in listening.of("task_status_event")]


async def test_a_socket_lives_longer_than_a_request_may_take(ada: User):
    """The server's deadlines for heads and bodies of requests are not for what was upgraded."""
    async with connected(ada) as listening:
        assert listening.client.eio.transport() == "websocket"
        deadlines = [
            timer
            for timer in getattr(asyncio.get_running_loop(), "_scheduled", [])
            if getattr(timer._callback, "__name__", "") == "_too_slow" and not timer.cancelled()
        ]
        assert deadlines == []
