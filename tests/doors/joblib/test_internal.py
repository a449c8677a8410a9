"""Jobs that the fleet does: @internal, and @global or a room without any worker of the door (1.8, 1.12, JB-33)."""

from datetime import timedelta
from uuid import UUID

from accsd.db import Database
from accsd.db.claim import ClaimedTask, claim_tasks
from accsd.db.finish import Done, finish_tasks
from accsd.db.lease import start_tasks
from accsd.db.nodes import upsert_heartbeat
from accsd.db.workflows import apply_workflow
from accsd.model import WorkflowDef
from tests.support.cluster import Connection
from tests.support.eventually import eventually
from tests.support.gateway import serving
from tests.support.joblib import User, Users, problem

JOB = "@internal:modifiers:Render"


async def applied(db: Database, name: str = JOB, *keys: str) -> None:
    steps = [
        {"key": key, "service": "renderer", "depends_on": [before] if before else []}
        for before, key in zip(("", *keys), keys or ("run",), strict=False)
    ]
    await apply_workflow(db, WorkflowDef.model_validate({"name": name, "steps": steps}))


class Fleet:
    """A machine that does what is asked of the service renderer."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def claim(self) -> ClaimedTask:
        await upsert_heartbeat(self._db, "gpu-1", max_concurrency={"renderer": 4})
        [task] = await claim_tasks(
            self._db, "renderer", owner="gpu-1", node="gpu-1", limit=1, lease=timedelta(minutes=1)
        )
        return task

    async def start(self, task: ClaimedTask) -> None:
        await start_tasks(self._db, [task.fence], owner="gpu-1")

    async def finish(self, task: ClaimedTask) -> None:
        await finish_tasks(self._db, [Done(task.fence, {"frames": 3})], owner="gpu-1")


async def test_what_was_only_registered_has_no_executor(ada: User, root: User, conn: Connection):
    """1.8: an admin may register it, everybody sees it, a submission is 503 and makes no task."""
    await root.register("Render", room="@internal")
    assert JOB in [each["full_name"] for each in (await ada.get("/rooms/lab/jobs")).json()["items"]]
    problem(await ada.post(f"/rooms/lab/tasks/{JOB}", {}), "internal-job-not-configured", 503)
    assert await conn.fetchval("SELECT count(*) FROM jobs") == 0


async def test_an_internal_job_is_never_an_orphan(ada: User, root: User):
    """JB-31."""
    worker = await root.register("Render", room="@internal")
    await root.delete(f"/workers/{worker}")
    assert JOB in [each["full_name"] for each in (await ada.get("/rooms/lab/jobs")).json()["items"]]


async def test_a_workflow_of_that_name_is_done_by_the_fleet(ada: User, root: User):
    """1.12: of several steps any that runs makes the task running; its worker is no worker of the door."""
    verbs = ada.gateway.context.verbs
    await applied(verbs, JOB, "render", "encode")
    fleet = Fleet(verbs)
    task = await ada.submit(JOB, room="lab", payload={"scene": "x"})
    assert await ada.status(task) == "pending"
    for _ in range(2):
        claimed = await fleet.claim()
        assert (claimed.job_id, claimed.options) == (UUID(task), {"room_id": "lab", "payload": {"scene": "x"}})
        await fleet.start(claimed)
        shown = await ada.task(task)
        assert (shown["status"], shown["worker_id"], shown["queue_position"]) == ("running", None, None)
        problem(await ada.say(task, "completed"), "forbidden", 403)
        problem(await root.say(task, "completed"), "invalid-task-transition", 409)
        await fleet.finish(claimed)
    done = await ada.task(task)
    assert (done["status"], done["result"], bool(done["started_at"])) == ("completed", {"frames": 3}, True)


async def test_the_fleet_serves_rooms_and_everybody_and_its_jobs_stay(ada: User, root: User):
    """1.12: the orphan rule leaves them alone; an admin cancels what they do."""
    verbs = ada.gateway.context.verbs
    for name in ("@global:modifiers:Render", "lab:modifiers:Render"):
        await applied(verbs, name)
        task = await ada.submit(name)
        cancelled = await root.say(task, "cancelled", error="not needed")
        assert (cancelled.json()["status"], cancelled.json()["error"]) == ("cancelled", "not needed")
        assert (await ada.get(f"/rooms/lab/jobs/{name}")).json()["workers"] == []


async def test_a_fleets_job_is_registered_only_with_the_same_schema(ada: User, root: User):
    """1.12: its schema is what its options say of the payload."""
    await applied(ada.gateway.context.verbs)
    body = {"category": "modifiers", "name": "Render"}
    assert (await root.put("/rooms/@internal/jobs", body)).status_code == 200
    problem(await root.put("/rooms/@internal/jobs", body | {"schema_": {"a": 1}}), "schema-conflict", 409)
    assert await ada.submit(JOB), "it is the fleet's as before"


async def test_an_internal_task_that_takes_too_long_fails(db_url: str, conn: Connection):
    """JB-33: from when it was begun; its machine is told at its next heartbeat."""
    settings = {"internal_task_timeout_seconds": 0.3, "sweeper_interval_seconds": 0.2}
    async with serving(db_url, works=True, hears=True, gateway={"joblib": settings}) as gateway:
        ada = await Users(gateway).user("ada")
        await applied(gateway.context.verbs, JOB, "render", "encode")
        task = await ada.submit(JOB)
        fleet = Fleet(gateway.context.verbs)
        claimed = await fleet.claim()
        await fleet.start(claimed)

        async def has_failed() -> bool:
            return await ada.status(task) == "failed"

        await eventually(has_failed, within=20)
        assert (await ada.task(task))["error"] == "Internal worker timeout"
        await fleet.finish(claimed)
        assert await ada.status(task) == "failed", "the fence holds"
        assert await conn.fetchval("SELECT count(*) FROM dead_letters WHERE dismissed_at IS NULL") == 0
