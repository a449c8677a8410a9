"""What a workflow's `notify` names becomes an outgoing event too (D9), and those of others pay nothing for it."""

from typing import Any
from uuid import UUID

import asyncpg
import pytest

from accsd.values.names import OUTGOING_EVENTS
from tests.support.cluster import Connection
from tests.support.factory import cancel, chain, claim, done, fail, node, pass_time, started, step, submit_to

OUTCOMES = ["job.done", "job.error", "job.cancelled"]
BY_DEFAULT = [*OUTCOMES, "notify"]


@pytest.fixture(autouse=True)
async def machine(conn: Connection) -> None:
    await node(conn)


async def target(
    conn: Connection, events: list[str], *, name: str = "studio", workflows: list[str] | None = None
) -> None:
    await conn.execute("SELECT accs.register_outbox_target($1, 'https://x', $2, $3)", name, events, workflows)


async def subscriber(conn: Connection, *notify: str, steps: list[dict[str, Any]], name: str = "media") -> UUID:
    query = "INSERT INTO workflows (name, steps, notify) VALUES ($1, $2, $3) RETURNING id"
    return await conn.fetchval(query, name, steps, list(notify))


async def told(conn: Connection, job: UUID, name: str = "studio") -> list[str]:
    rows = await conn.fetch("SELECT event FROM outbox_events WHERE job_id = $1 AND target = $2 ORDER BY id", job, name)
    return [row["event"] for row in rows]


async def test_a_workflow_is_told_of_what_it_names_beside_what_the_target_wants_of_all(conn: Connection):
    await target(conn, BY_DEFAULT)
    await target(conn, ["job.error"], name="pager")
    await target(conn, BY_DEFAULT, name="others", workflows=["audio"])
    media = await subscriber(conn, "task.error", "task.skipped", "job.retried", steps=chain("a", "b", "c"))
    plain = await subscriber(conn, steps=chain("a", "b"), name="plain")
    job, other = await submit_to(conn, media), await submit_to(conn, plain)
    await done(conn, 2)
    await fail(conn, *await started(conn, 2), permanent=True)
    assert await told(conn, job) == ["task.error", "task.skipped", "job.error"]
    assert await told(conn, other) == ["job.error"]
    assert await told(conn, job, "pager") == ["job.error"], "who names his events gets those and no others"
    assert await told(conn, job, "others") == []
    await conn.fetch("SELECT * FROM accs.retry_jobs($1)", [job])
    assert (await told(conn, job))[3:] == ["job.retried"]


async def test_whichever_verb_makes_the_transition_it_is_told(conn: Connection):
    """Beside finish_tasks: skipped and cancelled by hand, lost too often, and a job that was inserted plainly."""
    await target(conn, BY_DEFAULT)
    media = await subscriber(conn, *OUTGOING_EVENTS, steps=[step("a"), step("b")])
    job = await conn.fetchval("INSERT INTO jobs (workflow_id) VALUES ($1) RETURNING id", media)
    await conn.fetch("SELECT * FROM accs.instantiate_due_jobs()")
    first = await conn.fetchval("SELECT id FROM job_tasks WHERE task_key = 'a'")
    await conn.fetch("SELECT * FROM accs.skip_tasks($1)", [first])
    while await claim(conn):
        await pass_time(conn, 120)
        await conn.fetch("SELECT * FROM accs.reclaim_tasks()")
    assert await told(conn, job) == ["job.submitted", "job.started", "task.skipped", "task.error", "job.error"]
    at_once = await submit_to(conn, media)
    await cancel(conn, at_once)
    events = await told(conn, at_once)
    assert events[:2] == ["job.submitted", "job.started"]
    assert sorted(events[2:]) == ["job.cancelled", "task.cancelled", "task.cancelled"]


@pytest.mark.parametrize("wanted", [["task.done"], ["job.submitted", "job.started"], list(OUTGOING_EVENTS)])
async def test_nothing_is_told_twice_where_one_target_wants_it_of_all_workflows(conn: Connection, wanted: list[str]):
    await target(conn, BY_DEFAULT)
    await target(conn, [*wanted, "notify"], name="both")
    media = await subscriber(conn, "job.submitted", "job.started", "task.done", steps=[step("a")])
    job = await submit_to(conn, media)
    await done(conn)
    everything = ["job.submitted", "job.started", "task.done", "job.done"]
    assert await told(conn, job) == everything
    assert await told(conn, job, "both") == [each for each in everything if each != "job.done" or each in wanted]


async def test_what_is_rolled_back_was_not_told_and_what_is_done_again_is_told_once(conn: Connection):
    await target(conn, BY_DEFAULT)
    job = await submit_to(conn, await subscriber(conn, "task.done", "task.error", steps=chain("a", "b")))
    (attempt,) = await started(conn)
    transaction = conn.transaction()
    await transaction.start()
    await fail(conn, attempt, permanent=True)
    assert await told(conn, job) == ["task.error", "job.error"]
    await transaction.rollback()
    assert await told(conn, job) == []
    await fail(conn, attempt, permanent=True)
    assert await told(conn, job) == ["task.error", "job.error"]


async def test_tasks_of_a_workflow_that_subscribes_to_nothing_call_nothing(conn: Connection):
    await target(conn, ["notify"])
    await subscriber(conn, "task.done", steps=[step("a")])
    plain = await subscriber(conn, steps=chain("a", "b"), name="plain")
    await conn.execute("SET track_functions = 'all'")
    async with conn.transaction():
        await submit_to(conn, plain)
        await done(conn)
        calls = await conn.fetch(
            "SELECT proname, pg_stat_get_xact_function_calls(oid) AS n FROM pg_proc WHERE proname LIKE 'announce%'"
        )
    assert {row["proname"]: row["n"] for row in calls if row["n"]} == {}


async def test_an_event_that_does_not_exist_is_refused_with_those_that_do(conn: Connection):
    with pytest.raises(
        asyncpg.PostgresError, match=r'"media": notify: "job\.dead" is no event; there are job\.submitted'
    ):
        await subscriber(conn, "task.done", "job.dead", steps=[step("a")])
    assert await conn.fetchval("SELECT accs.outgoing_events()") == list(OUTGOING_EVENTS)


async def test_a_subscription_that_is_changed_counts_for_jobs_that_begin_then(conn: Connection):
    await target(conn, BY_DEFAULT)
    media = await subscriber(conn, steps=[step("a")])
    await conn.execute("UPDATE workflows SET notify = '{task.done}'")
    job = await submit_to(conn, media)
    await done(conn)
    assert await told(conn, job) == ["task.done", "job.done"]
