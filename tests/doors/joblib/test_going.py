"""Workers that go away, jobs that nobody serves any more, and the sweeper (JB-13, JB-30 to JB-33)."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from accsd.db.cancel import cancel_jobs
from accsd.gateway.joblib.sweeper import Sweeper
from tests.support.checker import check
from tests.support.cluster import Connection, on_every_server
from tests.support.eventually import eventually
from tests.support.gateway import serving
from tests.support.joblib import User, Users, problem

JOB = "lab:modifiers:Rotate"


@pytest.fixture
async def impatient(db_url: str) -> AsyncIterator[Users]:
    """A gateway that loses its workers soon."""
    settings = {"worker_timeout_seconds": 1, "sweeper_interval_seconds": 0.5}
    async with serving(db_url, works=True, hears=True, gateway={"joblib": settings}) as gateway:
        yield Users(gateway)


async def jobs(user: User, room: str = "lab") -> list[str]:
    return [each["full_name"] for each in (await user.get(f"/rooms/{room}/jobs")).json()["items"]]


@on_every_server
async def test_the_tasks_of_a_worker_that_is_removed_fail(ada: User, conn: Connection):
    """JB-13, JB-30, G-3: claimed and running ones; pending ones stay."""
    worker = await ada.register("Rotate")
    tasks = [await ada.submit(JOB) for _ in range(3)]
    for _ in range(2):
        await ada.claim(worker)
    await ada.say(tasks[1], "running")
    other = await ada.register("Rotate")
    await ada.delete(f"/workers/{worker}")
    for task in tasks[:2]:
        failed = await ada.task(task)
        assert (failed["status"], failed["error"]) == ("failed", "Worker disconnected")
        assert failed["completed_at"]
        problem(await ada.say(task, "completed"), "forbidden", 403)
    assert await ada.status(tasks[2]) == "pending"
    assert (await ada.get(f"/rooms/lab/jobs/{JOB}")).json()["workers"] == [other]
    problem(await ada.post("/tasks/claim", {"worker_id": worker}), "worker-not-found", 404)
    assert await conn.fetchval("SELECT count(*) FROM dead_letters WHERE dismissed_at IS NULL") == 0
    await check(conn)


async def test_a_job_goes_with_its_last_worker(ada: User):
    """JB-31: not listed, not found, not submitted; its tasks stay readable."""
    first, second = await ada.register("Rotate"), await ada.register("Rotate")
    task = await ada.submit(JOB)
    await ada.claim(first)
    await ada.delete(f"/workers/{second}")
    assert await jobs(ada) == [JOB]
    await ada.delete(f"/workers/{first}")
    assert await jobs(ada) == []
    for answer in (
        await ada.get(f"/rooms/lab/jobs/{JOB}"),
        await ada.get(f"/rooms/lab/jobs/{JOB}/tasks"),
        await ada.post(f"/rooms/lab/tasks/{JOB}", {}),
    ):
        problem(answer, "job-not-found", 404)
    assert (await ada.task(task))["job_name"] == JOB
    assert [each["id"] for each in (await ada.get("/rooms/lab/tasks")).json()["items"]] == [task]


async def test_a_job_that_somebody_waits_for_stays_until_nobody_does(ada: User, root: User):
    """JB-31, JB-26: it has no workers; it goes when its last pending task is cancelled."""
    worker = await ada.register("Rotate")
    tasks = [await ada.submit(JOB) for _ in range(2)]
    await ada.delete(f"/workers/{worker}")
    shown = (await ada.get(f"/rooms/lab/jobs/{JOB}")).json()
    assert (shown["full_name"], shown["workers"]) == (JOB, [])
    await root.say(tasks[0], "cancelled")
    assert await jobs(ada) == [JOB]
    await root.say(tasks[1], "cancelled")
    assert await jobs(ada) == []


async def test_a_job_comes_back_by_being_registered_again(ada: User):
    """JB-14: 201, also with another schema; the id stays."""
    body = {"category": "modifiers", "name": "Rotate", "schema_": {"v": 1}}
    first = (await ada.put("/rooms/lab/jobs", body)).json()
    await ada.delete(f"/workers/{first['worker_id']}")
    same = await ada.put("/rooms/lab/jobs", body)
    assert (same.status_code, same.json()["id"]) == (201, first["id"])
    await ada.delete(f"/workers/{same.json()['worker_id']}")
    other = await ada.put("/rooms/lab/jobs", body | {"schema_": {"v": 2}})
    assert (other.status_code, other.json()["id"]) == (201, first["id"])
    assert (await ada.get(f"/rooms/lab/jobs/{JOB}")).json()["schema"] == {"v": 2}
    assert await ada.submit(JOB)


async def test_a_task_that_waited_through_another_schema_is_still_claimed(ada: User, root: User):
    """1.12: the label has the name, and not the version."""
    body = {"category": "modifiers", "name": "Rotate", "schema_": {"v": 1}}
    first = (await ada.put("/rooms/lab/jobs", body)).json()["worker_id"]
    task = await ada.submit(JOB)
    await ada.put("/rooms/lab/jobs", body | {"worker_id": first, "max_attempts": 2})
    assert ((await ada.claim(first)) or {})["id"] == task
    assert (await root.task(task))["job_name"] == JOB


async def test_a_submission_and_the_end_of_a_job_do_not_slip_past_each_other(ada: User, conn: Connection):
    """1.12: either the job is gone for whoever submits, or the task keeps it."""
    for round_ in range(6):
        name = f"Race{round_}"
        worker = await ada.register(name)
        answers = await asyncio.gather(
            *(ada.post(f"/rooms/lab/tasks/lab:modifiers:{name}", {}) for _ in range(3)),
            ada.delete(f"/workers/{worker}"),
            *(ada.post(f"/rooms/lab/tasks/lab:modifiers:{name}", {}) for _ in range(3)),
        )
        submitted = [each.status_code for each in answers if each.status_code != 204]
        assert set(submitted) <= {202, 404}
        is_there = f"lab:modifiers:{name}" in await jobs(ada)
        assert is_there == (202 in submitted), submitted
    await check(conn)


async def test_a_claim_and_the_end_of_its_worker_do_not_slip_past_each_other(ada: User, conn: Connection):
    """JB-30: what a worker claimed while it was removed has failed, or was never claimed."""
    for round_ in range(6):
        name = f"Race{round_}"
        worker = await ada.register(name)
        tasks = [await ada.submit(f"lab:modifiers:{name}") for _ in range(4)]
        await asyncio.gather(
            *(ada.post("/tasks/claim", {"worker_id": worker}) for _ in range(3)), ada.delete(f"/workers/{worker}")
        )
        assert {await ada.status(task) for task in tasks} <= {"failed", "pending"}
        assert await conn.fetchval("SELECT count(*) FROM accs.live") == 0
        assert await conn.fetchval("SELECT count(*) FROM accs.slots WHERE node = $1", f"joblib/{worker}") == 0
    await check(conn)


async def test_a_silent_worker_is_removed(impatient: Users, conn: Connection):
    """JB-32: its tasks have failed long before its leases end; one that is heard stays."""
    ada = await impatient.user("ada")
    silent, alive = await ada.register("Rotate"), await ada.worker()
    task = await ada.submit(JOB)
    await ada.claim(silent)

    async def is_gone() -> bool:
        assert (await ada.patch(f"/workers/{alive}")).status_code == 200
        return await ada.status(task) == "failed"

    await eventually(is_gone, within=20)
    assert (await ada.task(task))["error"] == "Worker disconnected"
    assert [each["id"] for each in (await ada.get("/workers")).json()["items"]] == [alive]
    assert await jobs(ada) == []
    await check(conn)


async def test_a_heartbeat_keeps_what_a_worker_holds(ada: User, conn: Connection):
    """JB-12: its leases; 1.13 no. 1: the sweeper is quicker than their end."""
    worker = await ada.register("Rotate")
    await ada.submit(JOB)
    await ada.claim(worker)
    before, left = await conn.fetchrow("SELECT lease_until, lease_until - now() AS left FROM accs.live") or (None, None)
    assert left is not None
    assert timedelta(seconds=110) < left <= timedelta(seconds=121)
    await ada.patch(f"/workers/{worker}")
    assert await conn.fetchval("SELECT lease_until FROM accs.live") > before


async def test_a_job_may_ask_that_the_tasks_of_a_lost_worker_go_back(impatient: Users, conn: Connection):
    """1.13 no. 1: on_worker_loss; no attempt is spent."""
    ada = await impatient.user("ada")
    lost = await ada.register("Rotate", on_worker_loss="requeue")
    task = await ada.submit(JOB)
    await ada.claim(lost)
    await ada.say(task, "running")

    async def is_back() -> bool:
        return await ada.status(task) == "pending"

    await eventually(is_back, within=20)
    shown = await ada.task(task)
    assert (shown["worker_id"], shown["started_at"], shown["attempt"], shown["queue_position"]) == (None, None, 0, 1)
    heir = await ada.register("Rotate")
    assert ((await ada.claim(heir)) or {})["id"] == task
    await check(conn)


async def test_a_lease_that_has_run_out_is_reclaimed_and_its_worker_goes_all_the_same(ada: User, conn: Connection):
    """1.13 no. 7: the answer is the same 204; the task goes to somebody else."""
    worker = await ada.register("Rotate")
    task = await ada.submit(JOB)
    await ada.claim(worker)
    await conn.execute("SELECT FROM accs.heartbeat($1, $1, $2, $3, '1 ms')", f"joblib/{worker}",
                       [await conn.fetchval("SELECT task_id FROM accs.live")], [1])  # fmt: skip
    heir = await ada.register("Rotate")
    assert (await ada.delete(f"/workers/{worker}")).status_code == 204
    assert await ada.status(task) == "pending"
    assert ((await ada.claim(heir)) or {})["id"] == task
    await check(conn)


async def test_the_sweeper_finds_a_job_that_was_cancelled_past_the_door(ada: User):
    """JB-31: by a command the orphan rule is not run; the sweeper does it."""
    worker = await ada.register("Rotate")
    task = await ada.submit(JOB)
    await ada.delete(f"/workers/{worker}")
    await cancel_jobs(ada.gateway.context.verbs, [task])  # type: ignore[list-item]
    assert await jobs(ada) == [JOB]
    await sweep(ada)
    assert await jobs(ada) == []


async def test_a_task_that_was_claimed_and_never_begun_goes_back(db_url: str, conn: Connection):
    """1.13 no. 9: claimed_timeout_seconds."""
    async with serving(
        db_url, works=True, gateway={"joblib": {"claimed_timeout_seconds": 3, "sweeper_interval_seconds": 0.2}}
    ) as g:
        ada = await Users(g).user("ada")
        worker = await ada.register("Rotate")
        task, running = await ada.submit(JOB), await ada.submit(JOB)
        await ada.claim(worker)
        await ada.claim(worker)
        await ada.say(running, "running")
        await eventually(lambda: _is(ada, task, "pending"), within=20)
        assert await ada.status(running) == "running"
    await check(conn)


async def test_a_task_that_runs_longer_than_its_job_allows_fails(db_url: str):
    """1.14: timeout; nobody but the sweeper watches it."""
    async with serving(db_url, works=True, gateway={"joblib": {"sweeper_interval_seconds": 0.2}}) as gateway:
        ada = await Users(gateway).user("ada")
        worker = await ada.register("Rotate", timeout=0.3)
        task = await ada.submit(JOB)
        await ada.claim(worker)
        await ada.say(task, "running")
        await eventually(lambda: _is(ada, task, "failed"), within=20)
        assert (await ada.task(task))["error"] == "Task timeout"


async def test_failures_are_kept_for_whoever_wants_to_redrive_them(db_url: str, conn: Connection):
    """1.13 no. 2: dead_letters = "keep"."""
    async with serving(db_url, works=True, gateway={"joblib": {"dead_letters": "keep"}}) as gateway:
        ada = await Users(gateway).user("ada")
        worker = await ada.register("Rotate")
        task = await ada.submit(JOB)
        await ada.claim(worker)
        await ada.say(task, "failed", error="x")
        letter = await conn.fetchval("SELECT id FROM dead_letters WHERE dismissed_at IS NULL")
        await conn.execute("SELECT FROM accs.redrive($1)", [letter])
        assert await ada.status(task) == "pending"


async def test_a_task_for_a_job_without_workers_may_be_refused(db_url: str):
    """1.11: submit_without_workers."""
    async with serving(db_url, works=True, gateway={"joblib": {"submit_without_workers": "refuse"}}) as gateway:
        ada = await Users(gateway).user("ada")
        worker = await ada.register("Rotate")
        await ada.submit(JOB)
        await ada.delete(f"/workers/{worker}")
        problem(await ada.post(f"/rooms/lab/tasks/{JOB}", {}), "no-workers-available", 409)


async def sweep(user: User) -> None:
    await Sweeper(user.gateway.context.doors[0].app._desk).run_once()  # type: ignore[attr-defined]


async def _is(user: User, task: str, status: str) -> bool:
    return await user.status(task) == status
