"""Nobody moves a row but the verbs, and they only along the legal transitions.

The guard keeps the owner of the schema from accidents, and everybody else out, whatever the session has set.
"""

from collections.abc import Awaitable, Callable
from datetime import timedelta
from itertools import product
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from accsd.model import JOB_TRANSITIONS, TASK_TRANSITIONS, JobStatus, TaskStatus
from tests.support.cluster import Connection
from tests.support.factory import (
    cancel,
    chain,
    claim,
    clock,
    done,
    dump,
    fail,
    finish,
    job,
    node,
    start,
    step,
    submit,
    submit_to,
    task,
    workflow,
)
from tests.support.planted import VERB_PATH


async def make_tasks(conn: Connection) -> dict[TaskStatus, UUID]:
    """A task in every state, by the verbs."""
    await node(conn)
    of_job: dict[TaskStatus, UUID] = {}
    for status in TaskStatus:
        of_job[status] = await submit(conn, step("a", status.value))
    await done(conn, service="done")
    await fail(conn, *await claim(conn, service="error"), permanent=True)
    await claim(conn, service="starting")
    await start(conn, *await claim(conn, service="running"))
    await cancel(conn, of_job[TaskStatus.CANCELLED])
    made = {status: (await task(conn, of_job[status], "a"))["id"] for status in TaskStatus}
    await conn.fetch("SELECT * FROM accs.skip_tasks($1)", [made[TaskStatus.SKIPPED]])
    rows = await conn.fetch("SELECT id, status FROM job_tasks")
    assert {row["id"]: row["status"] for row in rows} == {made[s]: s.value for s in TaskStatus}
    return made


async def make_jobs(conn: Connection) -> dict[JobStatus, UUID]:
    await node(conn)
    made = {JobStatus.DONE: await submit(conn)}
    await done(conn)
    made[JobStatus.ERROR] = await submit(conn)
    await fail(conn, *await claim(conn), permanent=True)
    made[JobStatus.CANCELLED] = await submit(conn)
    await cancel(conn, made[JobStatus.CANCELLED])
    made[JobStatus.RUNNING] = await submit(conn)
    made[JobStatus.QUEUED] = await submit(conn, scheduled_at=await clock(conn) + timedelta(hours=1))
    return made


# The lease belongs to the state, and a CHECK holds that first; so a test of the guard writes both.
TASK_UPDATE = """
    UPDATE public.job_tasks SET status = $2, lease_owner = CASE WHEN $2 IN ('starting', 'running') THEN 'x' END,
           lease_until = CASE WHEN $2 IN ('starting', 'running') THEN now() END WHERE id = $1"""
# The one write that makes two transitions, with the events of both.
TWO_IN_ONE = (TaskStatus.QUEUED, TaskStatus.RUNNING)
JOB_UPDATE = "UPDATE public.jobs SET status = $2 WHERE id = $1"


async def refusal(work: Awaitable[Any]) -> asyncpg.PostgresError:
    with pytest.raises(asyncpg.PostgresError) as refused:
        await work
    return refused.value


async def test_no_task_moves_by_a_plain_update_along_a_legal_transition_or_any_other(conn: Connection):
    made = await make_tasks(conn)
    before = await dump(conn)
    verbs = {
        (row["from_status"], row["to_status"]): row["verb"]
        for row in await conn.fetch("SELECT * FROM accs.transitions WHERE entity = 'task'")
    }
    for old, new in product(TaskStatus, TaskStatus):
        error = await refusal(conn.execute(TASK_UPDATE, made[old], new.value))
        assert error.sqlstate == "AC002"
        if old == new:
            assert "must not be written by a plain UPDATE" in str(error)
        elif (old, new) in TASK_TRANSITIONS:
            assert f"{old} → {new} must not be written by a plain UPDATE" in str(error)
            assert verbs[old, new] in (error.hint or "")
        else:
            assert f"{old} → {new} is not a legal transition" in str(error)
    assert await dump(conn) == before


async def test_no_job_moves_by_a_plain_update_along_a_legal_transition_or_any_other(conn: Connection):
    made = await make_jobs(conn)
    before = await dump(conn)
    for old, new in product(JobStatus, JobStatus):
        error = await refusal(conn.execute(JOB_UPDATE, made[old], new.value))
        assert error.sqlstate == "AC002"
        if old != new:
            legal = (old, new) in JOB_TRANSITIONS
            assert ("must not be written by a plain UPDATE" if legal else "is not a legal transition") in str(error)
    assert await dump(conn) == before


@pytest.mark.parametrize(
    ("make", "update", "transitions"),
    [(make_tasks, TASK_UPDATE, TASK_TRANSITIONS), (make_jobs, JOB_UPDATE, JOB_TRANSITIONS)],
    ids=["task", "job"],
)
async def test_even_a_verb_cannot_make_an_illegal_transition(
    conn: Connection, make: Callable[[Connection], Awaitable[dict[Any, UUID]]], update: str, transitions: Any
):
    made = await make(conn)
    body = update.replace("$1", "p_id").replace("$2", "p_status")
    await conn.execute(
        f"CREATE FUNCTION accs.rogue(p_id uuid, p_status text) RETURNS void LANGUAGE plpgsql"
        f" SET search_path = {VERB_PATH} AS"
        f" $$ BEGIN {body}; END $$"
    )
    for old, new in product(made, made):
        if old == new:
            continue
        async with Rollback(conn):
            rogue = conn.execute("SELECT accs.rogue($1, $2)", made[old], new.value)
            if (old, new) in transitions or (old, new) == TWO_IN_ONE:
                await rogue
            else:
                assert "is not a legal transition" in str(await refusal(rogue))


class Rollback:
    """What happens inside is undone."""

    def __init__(self, conn: Connection) -> None:
        self._transaction = conn.transaction()

    async def __aenter__(self) -> None:
        await self._transaction.start()

    async def __aexit__(self, *_: object) -> None:
        await self._transaction.rollback()


async def test_no_column_of_the_state_machine_can_be_written_by_hand(conn: Connection):
    await node(conn)
    await submit(conn, *chain("a", "b"))
    await claim(conn)
    free = {"max_attempts", "params", "timeout_sec", "backoff", "updated_at"}
    for table, changeable in {
        "job_tasks": free,
        "jobs": {
            *("updated_at", "priority", "options", "scheduled_at", "idempotency_key", "created_by", "trace_id"),
            "no_cache",
        },
    }.items():
        columns = await conn.fetch(
            "SELECT column_name FROM information_schema.columns WHERE table_schema = 'public' AND table_name = $1",
            table,
        )
        for column in (row["column_name"] for row in columns):
            if column in changeable:
                continue
            error = await refusal(conn.execute(f"UPDATE {table} SET {column} = {column}"))
            assert "belongs to the state machine" in str(error), column


async def test_what_an_operator_may_want_to_change_of_a_task_can_be_changed(conn: Connection):
    made = await submit(conn)
    await conn.execute(
        "UPDATE job_tasks SET params = '{\"fps\": 50}', max_attempts = 9, timeout_sec = 5, backoff = '[1]'"
        " WHERE job_id = $1",
        made,
    )
    row = await task(conn, made, "a")
    assert (row["params"], row["max_attempts"], row["timeout_sec"], row["backoff"]) == ({"fps": 50}, 9, 5, [1])


async def test_tasks_are_not_inserted_and_nothing_is_deleted_or_truncated(conn: Connection):
    await submit(conn)
    before = await dump(conn)
    for statement, words in [
        (
            "INSERT INTO job_tasks (id, job_id, task_key, service_name, step_no, lane)"
            " SELECT gen_random_uuid(), id, 'x', 'render', 2, 1 FROM jobs",
            "tasks are made from the steps of a workflow",
        ),
        ("DELETE FROM job_tasks", "DELETE is refused"),
        ("DELETE FROM jobs", "DELETE is refused"),
        ("TRUNCATE job_tasks CASCADE", "TRUNCATE is refused"),
        ("TRUNCATE jobs CASCADE", "TRUNCATE is refused"),
    ]:
        error = await refusal(conn.execute(statement))
        assert error.sqlstate == "AC002"
        assert words in str(error)
    assert await dump(conn) == before


async def test_a_job_is_inserted_as_queued_with_nothing_done(conn: Connection):
    made = await workflow(conn)
    for column, value in {
        "status": "'running'",
        "progress": "0.5",
        "task_count": "1",
        "generation": "1",
        "task_progress": "1",
        "started_at": "now()",
        "finished_at": "now()",
        "error_code": "'boom'",
        "error_message": "'it broke'",
        "current_task_key": "'a'",
    }.items():
        error = await refusal(conn.execute(f"INSERT INTO jobs (workflow_id, {column}) VALUES ($1, {value})", made))
        assert "a job begins as queued, with nothing done" in str(error), column
    assert await conn.fetchval("SELECT count(*) FROM accs.pending_jobs") == 0


async def test_a_queued_job_can_be_changed_by_hand_and_its_due_time_follows(conn: Connection):
    made = await conn.fetchval("INSERT INTO jobs (workflow_id) VALUES ($1) RETURNING id", await workflow(conn))
    await conn.execute(
        "UPDATE jobs SET priority = 7, options = '{\"x\": 1}', scheduled_at = created_at + interval '1 hour'"
        " WHERE id = $1",
        made,
    )
    due = "SELECT p.due_at - j.created_at FROM accs.pending_jobs p JOIN jobs j ON j.id = p.job_id"
    assert (await conn.fetchval(due)).total_seconds() == 3600
    assert await conn.fetch("SELECT * FROM accs.instantiate_due_jobs()") == []

    await conn.execute("UPDATE jobs SET scheduled_at = NULL WHERE id = $1", made)
    assert (await conn.fetchval(due)).total_seconds() == 0
    await conn.execute("SELECT accs.instantiate_due_jobs()")
    assert ((await job(conn, made))["status"], (await task(conn, made, "a"))["priority"]) == ("running", 7)


@pytest.mark.parametrize("change", ["priority = 1", "options = '{}'", "scheduled_at = now()"])
async def test_a_job_that_has_begun_keeps_its_priority_options_and_due_time(conn: Connection, change: str):
    made = await make_jobs(conn)
    for status in set(JobStatus) - {JobStatus.QUEUED}:
        error = await refusal(conn.execute(f"UPDATE jobs SET {change} WHERE id = $1", made[status]))
        assert "are fixed once it has started" in str(error)


async def test_the_guard_is_closed_again_after_a_verb_in_the_same_transaction(conn: Connection):
    await node(conn)
    made = await submit_to(conn, await workflow(conn))
    async with conn.transaction():
        claimed = await claim(conn)
        await start(conn, *claimed)
        await finish(conn, *claimed)
        async with Rollback(conn):
            assert (await refusal(conn.execute("UPDATE jobs SET status = 'queued'"))).sqlstate == "AC002"
    assert (await job(conn, made))["status"] == "done"
