"""`accsd why`: the reason in words, and the next command."""

from datetime import timedelta
from uuid import UUID, uuid4

import pytest

from accsd.db import install
from accsd.explain.words import short
from tests.support.cli import Cli
from tests.support.cluster import SERVER_NAMES, Clusters, Connection, TestServer
from tests.support.factory import (
    claim,
    clock,
    done,
    fail,
    node,
    pass_time,
    started,
    step,
    submit,
    submit_to,
    task,
    workflow,
)
from tests.support.library import url_as


@pytest.fixture
def server(clusters: Clusters) -> TestServer:
    """One version: what differs between them is in tests/db/test_why.py."""
    return clusters.get(SERVER_NAMES[0])


async def pause(conn: Connection, kind: str, name: str) -> None:
    await conn.fetch("SELECT accs.pause($1, $2, 'maintenance', 'ann')", kind, name)


async def test_a_real_process_says_why_a_task_waits_and_what_to_do(cli: Cli, conn: Connection):
    await node(conn, render=1)
    job_id = await submit(conn, step("a"))
    await pause(conn, "service", "render")
    said = await cli.process("why", f"{short(job_id)}/a")
    said.ends(0, 'service "render" is paused by ann: maintenance', "→ `accsd services resume render`")


async def test_a_reader_may_ask(server: TestServer, db_url: str, conn: Connection):
    await install(conn, with_roles=True)
    job_id = await submit(conn, step("a"))
    reader = Cli(url_as(server, db_url, "accs_reader"))
    (await reader("why", short(job_id))).ends(0, "no node is registered")
    agent = Cli(url_as(server, db_url, "accs_agent"))
    assert (await agent("why", short(job_id))).code == 2


async def test_of_a_job_the_task_on_which_the_most_depends_comes_first(cli: Cli, conn: Connection):
    await node(conn, render=9)
    job_id = await submit(conn, step("x"), step("long"), step("y", after="long"), step("z", after="x y"))
    rows = (await cli("why", str(job_id), "-o", "json")).ends(0).json
    assert [(row["task_key"], row["is_critical"], row["blocker"]) for row in rows] == [
        (None, False, "running"),
        ("long", True, "unclaimed"),
        ("x", False, "unclaimed"),
    ]
    assert all(row["since"] for row in rows)


async def test_a_task_is_named_by_its_id_or_the_beginning_of_it(cli: Cli, conn: Connection):
    await node(conn, render=1)
    job_id = await submit(conn, step("a"), step("b", after="a"))
    task_id: UUID = (await task(conn, job_id, "b"))["id"]
    for name in (str(task_id), f"{job_id}/b"):
        assert (await cli("why", name, "-o", "name")).ends(0).out == "dependency\n"


async def test_what_nobody_knows_is_exit_code_3(cli: Cli, conn: Connection):
    (await cli.process("why", "ffffffff")).ends(3, "no job or task has an id", "→ `accsd jobs`")
    job_id = await submit(conn, step("render"))
    (await cli("why", f"{short(job_id)}/rendr")).ends(3, 'did you mean "render"?')


async def test_before_there_are_tasks(cli: Cli, conn: Connection):
    later = await submit(conn, scheduled_at=await clock(conn) + timedelta(hours=2))
    (await cli("why", short(later))).ends(0, "it is scheduled, and due in 1h59m")
    shape = await workflow(conn)
    overdue = await conn.fetchval("INSERT INTO jobs (workflow_id) VALUES ($1) RETURNING id", shape)
    (await cli("why", short(overdue))).ends(0, "no daemon is connected", "→ start one: `accsd --role builder`")


async def test_backoff_key_and_capacity_in_words(cli: Cli, conn: Connection):
    await node(conn, render=1, audio=9)
    failed = await submit(conn, step("a", backoff=[300]))
    await fail(conn, *await started(conn))
    said = await cli("why", short(failed))
    said.ends(
        0, "attempt 1 of 3 failed (boom: it broke); it may run again in 4m", f"accsd logs {short(failed)} --step a"
    )
    shape = await workflow(conn, step("a", "audio", concurrency_key="licence"))
    holder = await submit_to(conn, shape)
    await started(conn, service="audio")
    waits = await submit_to(conn, shape)
    (await cli("why", short(waits))).ends(0, f'concurrency key "licence" is taken: 1 of 1, by job {short(holder)}')
    busy = await submit(conn, step("a"))
    await claim(conn)
    full = await submit(conn, step("a"))
    words = f"node n1: 1 of 1 slots of render are in use, by job {short(busy)}"
    (await cli("why", short(full))).ends(0, words)


async def test_nodes_that_lack_something_in_words(cli: Cli, conn: Connection):
    unknown = await submit(conn, step("a", node="n9"))
    (await cli("why", short(unknown))).ends(0, 'only node "n9" may take it', "ACC_NODE_NAME=n9")
    nobody = await submit(conn, step("a", "audio"))
    (await cli("why", short(nobody))).ends(0, 'no node is registered that offers service "audio"')
    await node(conn, "n1", {"gpu": False}, render=1)
    labels = await submit(conn, step("a", requires={"gpu": True}))
    (await cli("why", short(labels))).ends(0, "the nearest, n1, lacks gpu=true (it has false)")
    await conn.fetch("SELECT accs.node_leaves('n1', 'sleep')")
    asleep = await submit(conn, step("a"))
    (await cli("why", short(asleep))).ends(0, "node n1 is asleep, and has no wake_method", "→ switch it on")
    await node(conn, "n1", {}, render=1)
    await pass_time(conn, 7200)
    (await cli("why", short(asleep))).ends(0, "node n1 was last seen 2h ago")
    await pause(conn, "node", "n1")
    (await cli("why", short(asleep))).ends(0, "node n1 is drained by ann: maintenance", "`accsd nodes resume n1`")


async def test_a_node_that_is_being_woken_in_words(cli: Cli, conn: Connection):
    await conn.fetch("SELECT * FROM accs.register_node('n1', '{}', '{\"render\": 1}', 'wol', '52:54:00:00:00:01')")
    await conn.fetch("SELECT accs.node_leaves('n1', 'sleep')")
    await conn.execute("UPDATE accs.power SET latency = '42 s'")
    job_id = await submit(conn, step("a"))
    (await cli("why", short(job_id))).ends(0, "node n1 is asleep  [", "→ `accsd nodes wake n1`")
    first, second = uuid4(), uuid4()
    seen = await conn.fetchval("SELECT last_seen FROM nodes")
    calls = "SELECT accs.claim_wake('n1', $1, $2, $3, $4)"
    await conn.fetch(calls, first, "wol", None, seen)
    (await cli("why", short(job_id))).ends(0, "the first call to it, by wol, is under way since ", " UTC")
    await conn.fetch("SELECT accs.record_wake('n1', $1, false, NULL, 'said', '{}')", first)
    (await cli("why", short(job_id))).ends(0, "node n1 is asleep: said")
    await conn.fetch(calls, second, "relay", first, seen)
    await conn.fetch("SELECT accs.record_wake('n1', $1, true, NULL, 'said', '{}')", second)
    said = await cli("why", short(job_id))
    said.ends(0, "the second call to it, by relay, got through at ", ", and it usually takes 42s")
    await conn.fetch("SELECT accs.note_not_woken('{n1}', ARRAY[$1::uuid], '{true}', '{it is dead}', '1 min')", second)
    (await cli("why", short(job_id))).ends(0, "node n1 is asleep, and waking it has failed: it is dead")


async def test_what_is_claimable_and_left_lying_points_at_the_agent(cli: Cli, conn: Connection):
    await node(conn, render=1)
    job_id = await submit(conn, step("a"))
    await pass_time(conn, 60)
    await node(conn, render=1)
    (await cli("why", short(job_id))).ends(0, "n1 could take it", "nobody has, for 1m", "look at the agent's log on n1")


async def test_live_and_ended_in_words(cli: Cli, conn: Connection):
    await node(conn, render=1)
    job_id = await submit(conn, step("a"), step("b", after="a", max_attempts=1), step("c", after="b"))
    await claim(conn)
    (await cli("why", f"{short(job_id)}/a")).ends(0, "node n1 is starting it, attempt 1 of 3; its lease ends in 5")
    held = await task(conn, job_id, "a")
    await conn.fetch("SELECT accs.start_tasks($1, $2, 'owner-1')", [held["id"]], [1])
    (await cli("why", f"{short(job_id)}/a")).ends(0, "it runs on node n1", f"`accsd logs -f {short(job_id)} --step a`")
    await conn.fetch("SELECT accs.finish_tasks($1, $2, 'owner-1')", [held["id"]], [1])
    (await cli("why", f"{short(job_id)}/a")).ends(0, "it is done")
    await fail(conn, *await started(conn), code="oom", message="it wanted 2 GiB")
    whole = await cli("why", short(job_id))
    whole.ends(0, "it failed after 1 of 1 attempts: oom (it used more memory than its limit): it wanted 2 GiB")
    whole.ends(0, "raise limits.memory of the service", f"accsd retry {short(job_id)}")
    (await cli("why", f"{short(job_id)}/c")).ends(0, 'because step "b" failed', f"`accsd why {short(job_id)}/b`")


async def test_a_chain_of_many_steps_is_no_problem(cli: Cli, conn: Connection):
    await node(conn, render=1)
    steps = [step("s0"), *(step(f"s{n}", after=f"s{n - 1}") for n in range(1, 3000)), step("alone")]
    job_id = await submit(conn, *steps)
    rows = (await cli("why", short(job_id), "-o", "json")).ends(0).json
    assert [row["task_key"] for row in rows] == [None, "s0", "alone"]
    await done(conn)
