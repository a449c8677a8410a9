"""The library behind pgbouncer in transaction mode, where each statement may meet another server connection."""

import asyncio
from datetime import timedelta
from uuid import UUID

import pytest

from accsd.db import (
    Database,
    Pausable,
    Submission,
    adopt_tasks,
    append_task_event,
    apply_workflow,
    claim_tasks,
    close_jobs,
    heartbeat,
    install,
    mark_task_done,
    mark_task_error,
    mark_task_running,
    pause,
    reclaim_tasks,
    record_task_artifact,
    require_schema,
    resume,
    retry_jobs,
    select_runnable,
    submit_job,
    update_task_progress,
    upsert_heartbeat,
)
from accsd.db.pool import connect as connect_alone
from accsd.errors import DatabaseUnavailable
from accsd.model import ArtifactKind, WorkflowDef, WorkflowStep
from tests.support.checker import check
from tests.support.cluster import Connection, TestServer
from tests.support.cluster import server as server  # what stands above SQL, whichever PostgreSQL it is
from tests.support.library import opened, settings_of

CALLERS = 8
CALLS = 50
LEASE = timedelta(seconds=60)


async def test_a_pooler_is_noticed_and_a_direct_connection_too(bouncer_url: str, db_url: str):
    async with opened(bouncer_url) as behind, opened(db_url) as direct:
        assert behind.behind_pooler
        assert not direct.behind_pooler


async def test_the_setting_goes_before_what_is_noticed(bouncer_url: str, db_url: str):
    async with opened(db_url, pooler="transaction") as told:
        assert told.behind_pooler
    async with opened(bouncer_url, pooler="none") as told:
        assert not told.behind_pooler


async def test_eight_callers_of_all_verbs_meet_not_one_error(bouncer_url: str, conn: Connection):
    async with opened(bouncer_url, pool_size=CALLERS) as db:
        await require_schema(db)
        workflow = await apply_workflow(db, WorkflowDef(name="w", steps=[WorkflowStep(key="a", service="render")]))
        made = await asyncio.gather(*(work(db, f"n{i}", workflow) for i in range(CALLERS)))
        assert await conn.fetchval("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()") <= 5
    assert min(made) >= CALLS
    assert await conn.fetchval("SELECT count(*) FROM job_tasks WHERE status = 'done'") >= CALLERS
    await check(conn)


async def work(db: Database, node: str, workflow: UUID) -> int:
    """Calls verbs until it has made enough calls; how many."""
    calls = 1
    await upsert_heartbeat(db, node, max_concurrency={"render": 2})
    while calls < CALLS:
        job = await submit_job(db, Submission(workflow, options={"by": node}))
        await select_runnable(db, "render", 5, node=node)
        await claim_tasks(db, "render", owner=node, node=node, limit=1, lease=LEASE)
        held = await adopt_tasks(db, owner=node, node=node, lease=LEASE)
        await heartbeat(db, [task.fence for task in held], owner=node, node=node, lease=LEASE)
        for task in held:
            await mark_task_running(db, task.fence, owner=node)
            await update_task_progress(db, task.fence, 0.5, owner=node, message="half")
            await append_task_event(
                db, task.job_id, "said", job_task_id=task.task_id, source="service:render", data=[1]
            )
            await record_task_artifact(
                db, task.fence, owner=node, kind=ArtifactKind.LOG, bucket="b", key=f"{task.task_id}/{task.attempt_id}"
            )
            if task.attempt == 0 and calls % 3 == 0:
                await mark_task_error(db, task.fence, owner=node, code="boom", backoff_base=timedelta(0))
            else:
                (await mark_task_done(db, task.fence, owner=node, results={"n": calls})).or_raise("finish")
            calls += 5
        await close_jobs(db, [job])
        await retry_jobs(db, [job])
        await reclaim_tasks(db)
        await pause(db, Pausable.SERVICE, f"other-{node}")
        await resume(db, Pausable.SERVICE, f"other-{node}")
        calls += 10
    return calls


async def test_a_deadline_cancels_the_statement_behind_the_pooler(bouncer_url: str, conn: Connection):
    async with opened(bouncer_url, pool_size=1) as db:
        with pytest.raises(DatabaseUnavailable, match="in time"):
            await db.fetch("SELECT pg_sleep(60)", within=0.3)
        assert await db.fetchval("SELECT 1") == 1
        asleep = "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND query = 'SELECT pg_sleep(60)'"
        assert await conn.fetchval(asleep) == 0


async def test_the_schema_is_installed_through_a_pooler(server: TestServer, bouncer_url: str, conn: Connection):
    await conn.execute("DROP SCHEMA accs CASCADE; DROP SCHEMA public CASCADE; CREATE SCHEMA public")
    session = await connect_alone(settings_of(bouncer_url))
    try:
        assert await install(session)
        assert not await install(session)
    finally:
        await session.close()
