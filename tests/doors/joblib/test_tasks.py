"""Tasks over REST: submitted, claimed, changed, waited for (JB-18 to JB-26)."""

import asyncio
import time
from collections import Counter
from typing import Any

import pytest

from accsd.db.cancel import cancel_jobs
from tests.support.cluster import Connection, on_every_server
from tests.support.eventually import eventually
from tests.support.joblib import User, problem, refused_input

JOB = "lab:modifiers:Rotate"
MEMBERS = {
    "id", "job_name", "room_id", "status", "created_at", "started_at", "completed_at", "worker_id", "error", "payload",
    "queue_position",
}  # fmt: skip


@pytest.fixture
async def worker(ada: User) -> str:
    return await ada.register("Rotate")


async def claimed(user: User, worker: str) -> dict[str, Any]:
    task = await user.claim(worker)
    assert task is not None
    return task


async def test_a_submitted_task_is_accepted_and_waits(ada: User, worker: str):
    """JB-18."""
    made = await ada.post(f"/rooms/lab/tasks/{JOB}", {"payload": {"angle": 90}})
    assert made.status_code == 202
    task = made.json()
    assert made.headers["location"] == f"/v1/joblib/tasks/{task['id']}"
    assert made.headers["retry-after"] == "1"
    assert task.keys() >= MEMBERS
    assert (task["job_name"], task["room_id"], task["status"]) == (JOB, "lab", "pending")
    assert (task["payload"], task["queue_position"], task["worker_id"]) == ({"angle": 90}, 1, None)
    assert await ada.task(task["id"]) == task
    problem(await ada.post("/rooms/lab/tasks/lab:modifiers:none", {}), "job-not-found", 404)
    said = problem(await ada.post("/rooms/lab/tasks/Rotate", {}), "job-not-found", 404)
    assert "Invalid job name format" in said["detail"]
    refused_input(await ada.post(f"/rooms/lab/tasks/{JOB}", {"payload": 1}))


async def test_a_job_of_any_room_may_be_submitted_into_any_room(ada: User, bob: User, worker: str, conn: Connection):
    """JB-18, JB-19, JB-20: it is listed where it was submitted."""
    own = await ada.submit(JOB, room="lab")
    other = await bob.submit(JOB, room="other")
    everywhere = await bob.submit(JOB, room="@global")
    for room, task in (("lab", own), ("other", other), ("@global", everywhere)):
        for path in (f"/rooms/{room}/tasks", f"/rooms/{room}/jobs/{JOB}/tasks"):
            page = (await ada.get(path)).json()
            assert ([each["id"] for each in page["items"]], page["total"]) == ([task], 1)
    assert await conn.fetchval("SELECT created_by FROM jobs WHERE id = $1", other) == "bob"
    problem(await ada.get("/rooms/lab/jobs/lab:modifiers:none/tasks"), "job-not-found", 404)


@on_every_server
async def test_lists_filter_by_status_newest_first(ada: User, worker: str):
    """JB-5, JB-19."""
    tasks = [await ada.submit(JOB) for _ in range(5)]
    for status in ("completed", "failed", "running", "claimed"):
        task = await claimed(ada, worker)
        if status != "claimed":
            await ada.say(task["id"], "running")
        if status in ("completed", "failed"):
            await ada.say(task["id"], status)
    found = (await ada.get("/rooms/lab/tasks")).json()["items"]
    assert [each["id"] for each in found] == tasks[::-1]
    for status, task in zip(("completed", "failed", "running", "claimed", "pending"), tasks, strict=True):
        page = (await ada.get("/rooms/lab/tasks", params={"status": status})).json()
        assert ([each["id"] for each in page["items"]], page["total"]) == ([task], 1), status
    assert (await ada.get("/rooms/lab/tasks", params={"limit": 2, "offset": 4})).json()["total"] == 5


@on_every_server
async def test_the_queue_position_counts_the_pending_tasks_of_a_job_over_all_rooms(ada: User, worker: str):
    """1.4: from 1, the oldest first; null unless pending."""
    await ada.register("Other", worker=worker)
    tasks = [await ada.submit(JOB, room=room) for room in ("lab", "other", "lab")]
    await ada.submit("lab:modifiers:Other")
    assert [(await ada.task(each))["queue_position"] for each in tasks] == [1, 2, 3]
    page = (await ada.get("/rooms/lab/tasks")).json()["items"]
    assert [each["queue_position"] for each in page] == [1, 3, 1]
    await claimed(ada, worker)
    assert [(await ada.task(each))["queue_position"] for each in tasks] == [None, 1, 2]


async def test_a_claim_takes_the_oldest_task_of_all_jobs_of_a_worker(ada: User, worker: str):
    """JB-21."""
    await ada.register("Other", worker=worker)
    await ada.register("Foreign")
    wanted = [
        await ada.submit(JOB),
        await ada.submit("lab:modifiers:Other"),
        await ada.submit(JOB, room="elsewhere"),
        await ada.submit("lab:modifiers:Other"),
    ]
    await ada.submit("lab:modifiers:Foreign")
    got = [await claimed(ada, worker) for _ in wanted]
    assert [each["id"] for each in got] == wanted
    assert {(each["status"], each["worker_id"], each["started_at"]) for each in got} == {("claimed", worker, None)}
    assert await ada.claim(worker) is None
    assert await ada.claim(await ada.worker()) is None, "it serves nothing"


async def test_a_claim_is_for_ones_own_worker(ada: User, bob: User, root: User, worker: str):
    """JB-21: 404 before 403; an admin is no exception."""
    unknown = "019a0000-0000-7000-8000-000000000000"
    problem(await ada.post("/tasks/claim", {"worker_id": unknown}), "worker-not-found", 404)
    for other in (bob, root):
        problem(await other.post("/tasks/claim", {"worker_id": worker}), "forbidden", 403)


async def test_a_user_may_stand_for_all_its_workers(ada: User, bob: User):
    """1.11: the client of the first description has no id of a worker. It claims without a body, and heartbeats with
    the id of /v1/me; each of its registrations made a worker here."""
    me = (await ada.get("/v1/me")).json()["id"]
    problem(await ada.post("/tasks/claim"), "worker-not-found", 404)
    problem(await ada.patch(f"/workers/{me}"), "worker-not-found", 404)
    workers = [await ada.register(name) for name in ("Rotate", "Other")]
    tasks = [await ada.submit(f"lab:modifiers:{name}") for name in ("Rotate", "Other")]
    problem(await bob.post("/tasks/claim"), "worker-not-found", 404)
    problem(await bob.patch(f"/workers/{me}"), "worker-not-found", 404)
    got = [(await ada.post("/tasks/claim")).json()["task"] for _ in range(3)]
    assert {each["id"]: each["worker_id"] for each in got[:2]} == dict(zip(tasks, workers, strict=True))
    assert got[2] is None
    heard = await ada.patch(f"/workers/{me}")
    assert (heard.status_code, heard.json()["id"]) == (200, me)
    assert (await ada.say(tasks[0], "running")).status_code == 200
    assert (await ada.delete(f"/workers/{me}")).status_code == 204
    assert (await ada.get("/workers")).json()["total"] == 0


async def test_claims_at_once_share_the_tasks_and_miss_none(ada: User, worker: str):
    """JB-21: also claims of one and the same worker."""
    second = await ada.register("Rotate")
    tasks = [await ada.submit(JOB) for _ in range(11)]
    got = await asyncio.gather(*(ada.claim(each) for each in (worker, second) * 8))
    assert Counter(each["id"] for each in got if each) == Counter(tasks)
    assert got.count(None) == 16 - 11


async def test_a_task_runs_and_completes(ada: User, worker: str):
    """JB-24, JB-25: started_at when it runs, completed_at when it ends."""
    task = await ada.submit(JOB)
    await claimed(ada, worker)
    running = (await ada.say(task, "running")).json()
    assert (running["status"], running["worker_id"], running["completed_at"]) == ("running", worker, None)
    assert running["started_at"]
    done = (await ada.say(task, "completed", result={"angle": 1})).json()
    assert (done["status"], done["started_at"], done["error"]) == ("completed", running["started_at"], None)
    assert (bool(done["completed_at"]), done["result"]) == (True, {"angle": 1})
    assert await ada.task(task) == done


@pytest.mark.parametrize("from_status", ["claimed", "running"])
async def test_a_task_fails_with_its_error(ada: User, worker: str, conn: Connection, from_status: str):
    """JB-25; mismatch 2: its dead letter is dismissed in the same transaction."""
    task = await ada.submit(JOB)
    await claimed(ada, worker)
    if from_status == "running":
        await ada.say(task, "running")
    failed = (await ada.say(task, "failed", error="no such atom")).json()
    assert (failed["status"], failed["error"], bool(failed["completed_at"])) == ("failed", "no such atom", True)
    assert await conn.fetchval("SELECT count(*) FROM dead_letters WHERE dismissed_at IS NULL") == 0
    assert await conn.fetchval("SELECT count(*) FROM dead_letters") == 1


# Each status, how it is reached, and which may follow.
STATUSES = ("pending", "claimed", "running", "completed", "failed", "cancelled")
ALLOWED = {
    "pending": {"cancelled"},
    "claimed": {"running", "failed", "cancelled"},
    "running": {"completed", "failed", "cancelled"},
}
WAYS = {
    "pending": (),
    "claimed": (),
    "running": ("running",),
    "completed": ("running", "completed"),
    "failed": ("failed",),
    "cancelled": ("cancelled",),
}


async def test_only_the_transitions_of_the_table_are_allowed(root: User, conn: Connection):
    """JB-25: everything else is 409, leaves the task as it was and writes no event (mismatch 6)."""
    worker = await root.register("Rotate")
    for before in STATUSES:
        for after in STATUSES:
            task = await root.submit(JOB)
            if before != "pending":
                await claimed(root, worker)
            for step in WAYS[before]:
                assert (await root.say(task, step)).status_code == 200
            events = await conn.fetchval("SELECT count(*) FROM task_events WHERE job_id = $1", task)
            answer = await root.say(task, after)
            if after in ALLOWED.get(before, ()):
                assert (answer.status_code, answer.json()["status"]) == (200, after)
            else:
                problem(answer, "invalid-task-transition", 409)
                assert await root.status(task) == before
                assert await conn.fetchval("SELECT count(*) FROM task_events WHERE job_id = $1", task) == events
            if await root.status(task) not in ("completed", "failed", "cancelled"):
                await root.say(task, "cancelled")


async def test_a_task_is_changed_by_the_user_whose_worker_holds_it(ada: User, bob: User, root: User, worker: str):
    """JB-24: 404, then 403, then 409; what nobody holds only an admin may touch."""
    unknown = "019a0000-0000-7000-8000-000000000000"
    problem(await ada.say(unknown, "completed"), "task-not-found", 404)
    problem(await ada.get(f"/tasks/{unknown}"), "task-not-found", 404)
    task = await ada.submit(JOB)
    problem(await ada.say(task, "completed"), "forbidden", 403)
    await claimed(ada, worker)
    problem(await bob.say(task, "completed"), "forbidden", 403)
    problem(await ada.say(task, "completed"), "invalid-task-transition", 409)
    assert (await root.say(task, "running")).status_code == 200
    assert (await ada.say(task, "completed")).status_code == 200
    waiting = await ada.submit(JOB)
    assert (await root.say(waiting, "cancelled")).json()["status"] == "cancelled"


# Long-polls


async def test_a_long_poll_answers_as_soon_as_the_task_has_ended(ada: User, worker: str):
    """JB-23; 1.14: in milliseconds. G-7: more wait than there are connections to the database."""
    task = await ada.submit(JOB)
    asked = {"Prefer": "wait=30, respond-async"}
    waiting = [asyncio.create_task(ada.get(f"/tasks/{task}", headers=asked)) for _ in range(15)]
    await eventually(lambda: ada.gateway.context.hub.facts["waiters"] == 15)
    await claimed(ada, worker)
    await ada.say(task, "running")
    assert not any(each.done() for each in waiting)
    began = time.monotonic()
    await ada.say(task, "completed")
    answers = await asyncio.gather(*waiting)
    assert time.monotonic() - began < 5
    for answer in answers:
        assert (answer.json()["status"], answer.headers["preference-applied"]) == ("completed", "wait=30")


async def test_a_long_poll_hears_what_was_done_past_the_door(ada: User, worker: str, conn: Connection):
    """1.12: a cancel by a command is seen."""
    task = await ada.submit(JOB)
    waiting = asyncio.create_task(ada.get(f"/tasks/{task}", headers={"Prefer": "respond-async,wait=30"}))
    await eventually(lambda: ada.gateway.context.hub.facts["waiters"] == 1)
    await cancel_jobs(ada.gateway.context.verbs, [task], by="somebody", reason="not needed")  # type: ignore[list-item]
    answer = (await waiting).json()
    assert (answer["status"], answer["error"]) == ("cancelled", "not needed")


async def test_a_long_poll_ends_after_its_time_and_says_how_long_it_was(ada: User, worker: str):
    """JB-23."""
    task = await ada.submit(JOB)
    answer = await ada.get(f"/tasks/{task}", headers={"Prefer": "wait=1"})
    assert (answer.json()["status"], answer.headers["preference-applied"]) == ("pending", "wait=1")
    for prefer in ("wait=0", "wait=abc", "respond-async", "wait", "waiting=5"):
        answer = await ada.get(f"/tasks/{task}", headers={"Prefer": prefer})
        assert "preference-applied" not in answer.headers, prefer
    ended = await ada.submit(JOB)
    await claimed(ada, worker)
    await claimed(ada, worker)
    await ada.say(ended, "failed")
    answer = await ada.get(f"/tasks/{ended}", headers={"Prefer": "wait=30"})
    assert "preference-applied" not in answer.headers, "it has ended already"


async def test_a_claim_may_wait_for_a_task(ada: User, bob: User, worker: str):
    """1.14: the task wakes one of those who serve its job, and nobody else."""
    idle = await bob.register("Other")
    waits = {"Prefer": "wait=30"}
    waiting = [asyncio.create_task(ada.claim(worker, headers=waits)) for _ in range(3)]
    other = asyncio.create_task(bob.claim(idle, headers={"Prefer": "wait=2"}))
    await eventually(lambda: _desk(ada).claims.waiting == 4)
    for _ in range(3):
        task = await ada.submit(JOB)
        done, _ = await asyncio.wait(waiting, timeout=10, return_when=asyncio.FIRST_COMPLETED)
        (first,) = done
        assert (first.result() or {})["id"] == task
        waiting.remove(first)
    assert await other is None


async def test_a_claim_that_waits_takes_a_task_of_a_job_registered_meanwhile(ada: User, worker: str):
    """1.14."""
    waiting = asyncio.create_task(ada.claim(worker, headers={"Prefer": "wait=30"}))
    await eventually(lambda: _desk(ada).claims.waiting == 1)
    other = await ada.register("Other")
    task = await ada.submit("lab:modifiers:Other")
    await ada.register("Other", worker=worker)
    assert (await waiting or {})["id"] == task
    assert other != worker


async def test_a_client_that_has_gone_is_given_no_task(ada: User, worker: str):
    """1.14: what it had been given would be lost."""
    waiting = asyncio.create_task(ada.claim(worker, headers={"Prefer": "wait=30"}))
    await eventually(lambda: _desk(ada).claims.waiting == 1)
    waiting.cancel()
    await eventually(lambda: _desk(ada).claims.waiting == 0)
    task = await ada.submit(JOB)
    assert await ada.status(task) == "pending"


def _desk(user: User) -> Any:
    return user.gateway.context.doors[0].app._desk  # type: ignore[attr-defined]


# What is better than the original


async def test_the_same_idempotency_key_is_the_same_task(ada: User, bob: User, worker: str):
    """1.14."""
    key = {"Idempotency-Key": "once"}
    first = await ada.submit(JOB, payload={"a": 1}, headers=key)
    again = await ada.post(f"/rooms/lab/tasks/{JOB}", {"payload": {"a": 1}}, headers=key)
    assert (again.status_code, again.json()["id"], again.headers["idempotency-replayed"]) == (202, first, "true")
    for body, room in (({"payload": {"a": 2}}, "lab"), ({"payload": {"a": 1}}, "other")):
        other = await ada.post(f"/rooms/{room}/tasks/{JOB}", body, headers=key)
        problem(other, "idempotency-mismatch", 422)
    assert await bob.submit(JOB, payload={"a": 1}, headers=key) != first, "a key is its actor's"
    native = {"Idempotency-Key": "native"}
    await ada.post("/api/v1/jobs", {"workflow": JOB, "options": {"payload": {"a": 1}}}, headers=native)
    problem(await ada.post(f"/rooms/lab/tasks/{JOB}", {}, headers=native), "idempotency-mismatch", 422)


async def test_a_zombie_can_not_end_an_attempt_that_is_somebody_elses(ada: User, worker: str):
    """Mismatch 4: If-Match names the attempt of the claim."""
    await ada.register("Again", worker=worker, on_worker_loss="requeue")
    task = await ada.submit("lab:modifiers:Again")
    answer = await ada.post("/tasks/claim", {"worker_id": worker})
    old = answer.headers["etag"]
    assert old == f'"{answer.json()["task"]["attempt_id"]}"'
    heir = await ada.register("Again")
    assert (await ada.delete(f"/workers/{worker}")).status_code == 204
    assert (await claimed(ada, heir))["attempt_id"] == 2
    problem(await ada.patch(f"/tasks/{task}", {"status": "running"}, headers={"If-Match": old}), "stale-attempt", 409)
    problem(await ada.say(task, "failed", attempt_id=1), "stale-attempt", 409)
    problem(await ada.patch(f"/tasks/{task}", {"status": "failed"}, headers={"If-Match": "x"}), "stale-attempt", 409)
    assert await ada.status(task) == "claimed"
    now = {"If-Match": '"2"'}
    for _ in range(2):
        said = await ada.patch(f"/tasks/{task}", {"status": "running"}, headers=now)
        assert said.status_code == 200, "mismatch 5: with If-Match it may be said again"
    for _ in range(2):
        said = await ada.patch(f"/tasks/{task}", {"status": "completed"}, headers=now)
        assert (said.status_code, said.json()["status"]) == (200, "completed")


async def test_a_job_may_ask_for_more_attempts(ada: User, worker: str):
    """1.14: without that a failure is final (JB-25)."""
    await ada.register("Flaky", worker=worker, max_attempts=2, backoff=[0])
    task = await ada.submit("lab:modifiers:Flaky")
    await claimed(ada, worker)
    retried = (await ada.say(task, "failed", error="once")).json()
    assert (retried["status"], retried["attempt"], retried["completed_at"]) == ("pending", 1, None)
    again = await claimed(ada, worker)
    assert (again["id"], again["attempt_id"]) == (task, 2)
    assert (await ada.say(task, "failed", error="twice")).json()["status"] == "failed"


async def test_another_policy_is_another_version_and_no_conflict(ada: User, worker: str, conn: Connection):
    """1.14: a client that says nothing leaves it as it stands."""
    first = await ada.put("/rooms/lab/jobs", {"category": "modifiers", "name": "P", "worker_id": worker})
    body = {"category": "modifiers", "name": "P", "worker_id": worker, "max_attempts": 3, "timeout": 60}
    second = await ada.put("/rooms/lab/jobs", body)
    assert (second.status_code, second.json()["id"]) == (200, first.json()["id"])
    await ada.register("P", worker=worker)
    steps = await conn.fetchval(
        "SELECT steps FROM workflows WHERE name = 'lab:modifiers:P' ORDER BY version DESC LIMIT 1"
    )
    assert (steps[0]["max_attempts"], steps[0]["timeout"]) == (3, 60)
    assert await conn.fetchval("SELECT count(*) FROM workflows WHERE name = 'lab:modifiers:P'") == 2


async def test_a_worker_may_limit_how_many_tasks_it_holds(ada: User):
    """1.14: max_concurrency."""
    worker = await ada.register("Rotate", max_concurrency=1)
    for _ in range(2):
        await ada.submit(JOB)
    first = await claimed(ada, worker)
    assert await ada.claim(worker) is None
    await ada.say(first["id"], "failed")
    assert await ada.claim(worker) is not None


async def test_payloads_are_checked_where_that_is_asked_for(ada: User, conn: Connection):
    """1.14: 422 with every place; references of the schema still lead somewhere."""
    schema = {
        "type": "object",
        "$defs": {"Angle": {"type": "number", "maximum": 360}},
        "properties": {"angle": {"$ref": "#/$defs/Angle"}},
        "required": ["angle"],
    }
    await ada.register("Checked", schema_=schema, validate=True)
    wrong = await ada.post("/rooms/lab/tasks/lab:modifiers:Checked", {"payload": {"angle": 400}})
    (said,) = refused_input(wrong)
    assert said["loc"][-2:] == ["payload", "angle"]
    refused_input(await ada.post("/rooms/lab/tasks/lab:modifiers:Checked", {}))
    assert await conn.fetchval("SELECT count(*) FROM jobs") == 0
    assert await ada.submit("lab:modifiers:Checked", payload={"angle": 90})
    await ada.register("Plain", schema_=schema)
    assert await ada.submit("lab:modifiers:Plain", payload={"angle": "x"}), "never without being asked"


async def test_secrets_are_struck_out_but_for_whoever_does_the_task(ada: User, worker: str):
    task = await ada.submit(JOB, payload={"api_key": "k", "angle": 1})
    assert (await ada.task(task))["payload"] == {"api_key": "***", "angle": 1}
    assert (await claimed(ada, worker))["payload"] == {"api_key": "k", "angle": 1}
