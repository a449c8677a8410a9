"""What an agent may: the whole work of an attempt on its own nodes, and nothing past it (SECURITY.md)."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from accsd.db import (
    Database,
    Failed,
    Outlook,
    Submission,
    TaskEvent,
    TaskInput,
    adopt_tasks,
    agent_outlook,
    append_task_event,
    append_task_events,
    apply_workflow,
    claim_tasks,
    finish_tasks,
    heartbeat,
    mark_task_done,
    mark_task_running,
    node_leaves,
    record_task_artifact,
    release_tasks,
    require_schema,
    select_runnable,
    submit_job,
    task_inputs,
    update_task_progress,
    upsert_heartbeat,
)
from accsd.errors import ConfigError, InvalidValue, VerbRefused
from accsd.model import ArtifactKind, AwakeState, WorkflowDef
from tests.support.checker import check
from tests.support.cluster import Connection
from tests.support.library import opened
from tests.support.roles import As, callable_by, refused, refused_tables
from tests.support.roles import connect_as as connect_as
from tests.support.roles import roles as roles

pytestmark = [pytest.mark.usefixtures("roles"), pytest.mark.every_postgresql]

LEASE = timedelta(seconds=60)
CLIP = WorkflowDef.model_validate(
    {"name": "clip", "steps": [{"key": "a", "service": "x"}, {"key": "b", "service": "x", "depends_on": ["a"]}]}
)


async def test_an_agent_does_the_whole_work_of_an_attempt(connect_as: As, db_url: str, conn: Connection):
    async with opened(db_url) as owner:
        workflow = await apply_workflow(owner, CLIP)
        jobs = [await submit_job(owner, Submission(workflow)) for _ in range(3)]
    agent = await connect_as("accs_agent")
    await require_schema(agent)
    await upsert_heartbeat(agent, "n1", labels={"gpu": True})
    assert len(await select_runnable(agent, "x")) == 3
    assert await agent_outlook(agent, node="n1", services=["x", "y"]) == [
        Outlook("x", claimable=True, next_due=None),
        Outlook("y", claimable=False, next_due=None),
    ]
    first, second, third = await claim_tasks(agent, "x", owner="n1", node="n1", limit=3, lease=LEASE)
    assert len(await adopt_tasks(agent, owner="n1", node="n1", lease=LEASE)) == 3
    await mark_task_running(agent, first.fence, owner="n1")
    await heartbeat(agent, [first.fence], owner="n1", node="n1", lease=LEASE)
    await update_task_progress(agent, first.fence, 0.5, owner="n1", message="half")
    await append_task_event(agent, first.job_id, "said", job_task_id=first.task_id, source="service:x")
    recorded = await record_task_artifact(agent, first.fence, owner="n1", kind=ArtifactKind.OUTPUT, bucket="b", key="k")
    assert recorded.verdict == "accepted"
    said = await append_task_events(agent, [TaskEvent(first.fence, "one"), TaskEvent(first.fence, "two")], owner="n1")
    assert said == {first.fence: 2}
    assert await task_inputs(agent, first.fence, owner="n1") == []
    (await mark_task_done(agent, first.fence, owner="n1", results={"n": 1})).or_raise("finish")
    await finish_tasks(agent, [Failed(second.fence, "bad", permanent=True)], owner="n1")
    with pytest.raises(VerbRefused, match="already_finished"):
        await task_inputs(agent, first.fence, owner="n1")
    await release_tasks(agent, [third.fence], owner="n1", lost=True, reason="full", code="agent_disk")
    [after] = await claim_tasks(agent, "x", owner="n1", node="n1", limit=1, lease=LEASE)
    assert await task_inputs(agent, after.fence, owner="n1") == [
        TaskInput("a", ArtifactKind.OUTPUT, "b", "k", None, None, None)
    ]
    await release_tasks(agent, [after.fence], owner="n1")
    assert await conn.fetchval("SELECT error_code FROM job_tasks WHERE id = $1", third.task_id) == "agent_disk"
    assert await node_leaves(agent, "n1", AwakeState.SLEEP) == "accepted"
    assert await conn.fetch("SELECT status FROM jobs ORDER BY order_seq") == [("running",), ("error",), ("running",)]
    assert {task.job_id for task in await select_runnable(agent, "x")} == {jobs[0], jobs[2]}
    await check(conn)


async def test_an_agent_touches_no_table_itself(connect_as: As):
    await refused_tables(await connect_as("accs_agent"), but_reading=False)


async def test_an_agent_calls_neither_the_verbs_of_others_nor_the_inner_functions(connect_as: As, conn: Connection):
    agent = await connect_as("accs_agent")
    allowed = await callable_by("accs_agent", conn)
    assert allowed == {
        *("clock", "channel_prefix", "backoff_base", "register_node", "claim_tasks", "adopt_tasks", "start_tasks"),
        *("heartbeat", "report_progress", "finish_tasks", "release_tasks", "record_artifact"),
        *("append_events", "select_runnable", "append_task_events", "task_inputs", "node_leaves", "agent_outlook"),
        *("wake_demand", "wake_nodes", "note_awake", "take_orders", "answer_order"),
        *("node_quarantines", "note_probe", "note_obstacle", "emit_event", "note_daemon"),
    }
    for call in (
        "cancel_jobs('{}')",
        "skip_tasks('{}')",
        "forget_node('n1')",
        "submit('clip')",
        "redrive('{1}')",
        "reclaim_tasks()",
        "end_attempts('{}', 'error', '{}', '{}', '{}', 'me')",
        "count_down('{}', '{}', '{}')",
        "take('{1}', 1)",
        "make_months('events')",
        "repair()",
        "find_damage(1, '1 s')",
        "builder_outlook()",
        "claim_wake('n1', gen_random_uuid(), 'wol', NULL, NULL)",
        "ask_node(gen_random_uuid(), 'n1', 'sleep', NULL, 'me', '1 s')",
        "note_not_woken('{}', '{}', '{}', '{}', '1 s')",
        "quarantine('n1', 'render', 'why', '{}', '1 s')",
        "lift_quarantine('n1', NULL, 'why')",
    ):
        await refused(agent, f"SELECT * FROM accs.{call}")


async def test_an_agent_says_that_it_is_there_and_never_that_it_is_a_builder(connect_as: As, conn: Connection):
    agent = await connect_as("accs_agent")
    assert await agent.fetchval("SELECT accs.note_daemon('n1', '{agent}')") == "accepted"
    for parts in ("{builder}", "{agent,builder}", "{gateway}"):
        with pytest.raises(ConfigError, match="does not speak for a daemon"):
            await agent.fetch("SELECT accs.note_daemon('n1', $1::text::text[])", parts)
    await conn.execute("SELECT accs.register_node('n2')")
    await conn.execute("UPDATE nodes SET login = 'somebody' WHERE name = 'n2'")
    with pytest.raises(ConfigError, match="does not speak for a daemon"):
        await agent.fetch("SELECT accs.note_daemon('n2', '{agent}')")


async def test_an_agent_can_not_choose_what_the_control_host_runs(connect_as: As, conn: Connection):
    register = "SELECT script FROM accs.register_node('n1', '{}', '{}', 'script', NULL, NULL, $1)"
    agent, scheduler = await connect_as("accs_agent"), await connect_as("accs_scheduler")
    assert await agent.fetchval(register, "/sbin/poweroff") is None
    assert await scheduler.fetchval(register, "/etc/accsd/wake.d/n1") == "/etc/accsd/wake.d/n1"
    assert await agent.fetchval(register, "/sbin/poweroff") == "/etc/accsd/wake.d/n1", "what an operator named stays"
    assert await conn.fetchval(register, "/opt/wake") == "/opt/wake"


async def test_a_node_belongs_to_the_login_that_registered_it(connect_as: As, db_url: str, conn: Connection):
    """One compromised node can hurt itself only: not_your_node, whichever verb of an attempt is called."""
    async with other_agent(conn) as stranger_name, opened(db_url) as owner:
        workflow = await apply_workflow(owner, CLIP)
        for _ in range(2):
            await submit_job(owner, Submission(workflow))
        agent, stranger = await connect_as("accs_agent"), await connect_as(stranger_name)
        await upsert_heartbeat(agent, "n1", labels={"gpu": True}, mac="02:00:00:00:00:01")
        await upsert_heartbeat(stranger, "n2", labels={"gpu": True})
        [task] = await claim_tasks(agent, "x", owner="n1", node="n1", limit=1, lease=LEASE)
        ids, attempts = [task.task_id], [task.attempt_id]
        for verb, arguments in {
            "register_node('n1', '{}', '{}', NULL, '02:66:66:66:66:66')": [],
            "claim_tasks('x', 'n1', 'n1', 1, '1 min')": [],
            "claim_tasks('x', 'n1', 'n2', 1, '1 min')": [],
            "adopt_tasks('n1', 'n1', '1 min')": [],
            "start_tasks($1, $2, 'n1')": [ids, attempts],
            "heartbeat('n1', 'n1', $1, $2, '1 min')": [ids, attempts],
            "heartbeat('n2', 'n1', $1, $2, '1 min')": [ids, attempts],
            "report_progress($1, $2, 'n1', '{0.5}')": [ids, attempts],
            "finish_tasks($1, $2, 'n1')": [ids, attempts],
            "release_tasks($1, $2, 'n1')": [ids, attempts],
            "append_task_events('n1', $1, $2, '{info}', '{log}', '{x}', NULL)": [ids, attempts],
            "record_artifact($1, $2, 'n1', 'output', 'b', 'k')": [ids[0], attempts[0]],
            "task_inputs($1, $2, 'n1')": [ids[0], attempts[0]],
            "node_leaves('n1')": [],
            "note_awake('n1', 'why')": [],
            "take_orders('n1')": [],
            "answer_order(gen_random_uuid(), 'n1', true, '')": [],
            "note_probe('n1', 'x', NULL, '1 s')": [],
            "note_obstacle('n1', 'x', 'why')": [],
            "finish_tasks($1, $2, 'nobody')": [ids, attempts],
        }.items():
            with pytest.raises(ConfigError, match="not_your_node"):
                await stranger.fetch(f"SELECT * FROM accs.{verb}", *arguments)
        assert await conn.fetchval("SELECT mac FROM nodes WHERE name = 'n1'") == "02:00:00:00:00:01"
        assert (await heartbeat(agent, [task.fence], owner="n1", node="n1", lease=LEASE))[task.task_id].is_effective
        assert (await mark_task_running(agent, task.fence, owner="n1")).is_effective
        await upsert_heartbeat(await connect_as("accs_scheduler"), "n1")  # who speaks for all takes it from nobody
        assert await conn.fetchval("SELECT login FROM nodes WHERE name = 'n1'") == "accs_agent"
        await check(conn)


async def test_an_agent_writes_only_what_its_own_tasks_said(connect_as: As, db_url: str, conn: Connection):
    async with other_agent(conn) as stranger_name, opened(db_url) as owner:
        job = await submit_job(owner, Submission(await apply_workflow(owner, CLIP)))
        agent, stranger = await connect_as("accs_agent"), await connect_as(stranger_name)
        await upsert_heartbeat(agent, "n1")
        [task] = await claim_tasks(agent, "x", owner="n1", node="n1", limit=1, lease=LEASE)
        said: dict[str, Any] = {"job_task_id": task.task_id, "source": "service:x"}
        await append_task_event(agent, job, "mine", **said)
        forgeries: list[tuple[Database, dict[str, Any]]] = [
            (stranger, said),
            (agent, {**said, "source": "builder"}),
            (agent, {"job_task_id": None, "source": "service:x"}),
        ]
        for db, words in forgeries:
            with pytest.raises(ConfigError, match="of its own has held"):
                await append_task_event(db, job, "forged", **words)
        for forger in (agent, owner):  # not even the owner by this verb
            with pytest.raises(VerbRefused, match="written by the verbs"):
                await append_task_event(forger, job, "done → error", type="status", **said)
        await append_task_events(agent, [TaskEvent(task.fence, "done → error", type="status")], owner="n1")
        kept = await conn.fetch("SELECT type FROM task_events WHERE message = 'done → error'")
        assert kept == [("log",)], "what a task calls itself is a word of its log"
        await check(conn)


async def test_an_agents_calls_are_bounded(connect_as: As, db_url: str, conn: Connection):
    async with opened(db_url) as owner:
        await submit_job(owner, Submission(await apply_workflow(owner, CLIP)))
    agent = await connect_as("accs_agent")
    await upsert_heartbeat(agent, "n1")
    for lease in ("1000 years", "0", "-1 s", "infinity" if await has_infinite_intervals(conn) else "2 days"):
        with pytest.raises(InvalidValue, match="a lease of"):
            await agent.fetch(f"SELECT * FROM accs.claim_tasks('x', 'n1', 'n1', 1, '{lease}')")
        with pytest.raises(InvalidValue, match="a lease of"):
            await agent.fetch(f"SELECT * FROM accs.heartbeat('n1', 'n1', '{{}}', '{{}}', '{lease}')")
    many = [uuid4()] * 10001
    for call in ("finish_tasks($1, $2, 'n1')", "start_tasks($1, $2, 'n1')", "release_tasks($1, $2, 'n1')"):
        with pytest.raises(InvalidValue, match="10,000"):
            await agent.fetch(f"SELECT * FROM accs.{call}", many, [1] * len(many))
    with pytest.raises(InvalidValue, match="bounded"):
        await upsert_heartbeat(agent, "n1", labels={"x": "y" * 100_000})
    [task] = await claim_tasks(agent, "x", owner="n1", node="n1", limit=1, lease=LEASE)
    await append_task_events(agent, [TaskEvent(task.fence, "m" * 1_000_000)], owner="n1")
    await finish_tasks(agent, [Failed(task.fence, "bad", message="m" * 1_000_000, permanent=True)], owner="n1")
    assert await conn.fetchval("SELECT max(length(message)) FROM task_events") == 65536
    assert await conn.fetchval("SELECT length(error_message) FROM job_tasks WHERE id = $1", task.task_id) == 65536


async def has_infinite_intervals(conn: Connection) -> bool:
    return await conn.fetchval("SELECT current_setting('server_version_num')::int >= 170000")


@asynccontextmanager
async def other_agent(conn: Connection) -> AsyncGenerator[str]:
    """A second login in the role of an agent."""
    name = f"agent_{await conn.fetchval('SELECT current_database()')}"
    await conn.execute(f"CREATE ROLE {name} LOGIN IN ROLE accs_agent")
    try:
        yield name
    finally:
        await conn.execute(f"DROP ROLE {name}")
