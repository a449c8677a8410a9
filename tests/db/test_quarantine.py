"""accs.conclusions, quarantines, step_health: what is kept of failures, and what a quarantine keeps from a node."""

from datetime import timedelta
from typing import Any
from uuid import UUID

import asyncpg

from tests.support.cluster import Connection
from tests.support.factory import (
    claim,
    done,
    fail,
    finish,
    node,
    pass_time,
    release,
    started,
    step,
    submit_to,
    workflow,
)

SHUT = "SELECT accs.quarantine($1, 'render', 'it is ill', '{}', '30 s')"


async def two_nodes(conn: Connection) -> UUID:
    """n1 and n2 with four slots each, and 20 jobs of one step."""
    await node(conn, "n1", render=4)
    await node(conn, "n2", render=4)
    flow = await workflow(conn, step("a", backoff=[0]))
    for _ in range(20):
        await submit_to(conn, flow)
    return flow


async def conclusions(conn: Connection) -> list[tuple[str, bool]]:
    return [(row["node"], row["passed"]) for row in await conn.fetch("SELECT * FROM accs.conclusions ORDER BY id")]


async def why(conn: Connection) -> list[asyncpg.Record]:
    task = await conn.fetchval("SELECT task_id FROM accs.waiting ORDER BY order_seq LIMIT 1")
    return await conn.fetch("SELECT * FROM accs.why($1)", task)


async def probe(conn: Connection, problem: str | None = None) -> str:
    return await conn.fetchval("SELECT accs.note_probe('n1', 'render', $1, '60 s')", problem)


async def slots(conn: Connection) -> dict[str, Any]:
    rows = await conn.fetch("SELECT name, max_concurrency FROM accs.wake_nodes()")
    return {row["name"]: row["max_concurrency"]["render"] for row in rows}


async def claimable(conn: Connection, name: str = "n1") -> bool:
    return await conn.fetchval("SELECT claimable FROM accs.agent_outlook($1, '{render}')", name)


async def test_nothing_is_kept_while_nothing_fails(conn: Connection):
    await two_nodes(conn)
    await done(conn, 4)
    assert await conclusions(conn) == []


async def test_failures_are_kept_with_their_node_and_then_the_passes_of_that_step(conn: Connection):
    await two_nodes(conn)
    await fail(conn, *await started(conn, 1))
    await done(conn, 2, on="n2")
    assert await conclusions(conn) == [("n1", False), ("n2", True), ("n2", True)]


async def test_of_passes_no_more_are_kept_than_tell_something(conn: Connection):
    flow = await two_nodes(conn)
    await fail(conn, *await started(conn, 1))
    for _ in range(10):
        await submit_to(conn, flow)
    await node(conn, "n2", render=100)
    await done(conn, 4, on="n2")
    await done(conn, 22, on="n2")  # in one call
    await done(conn, 2, on="n2")
    assert len(await conclusions(conn)) == 21


async def test_what_was_given_back_or_lost_with_its_agent_says_nothing_of_the_service(conn: Connection):
    await two_nodes(conn)
    await release(conn, *await started(conn, 1))
    await release(conn, *await started(conn, 1), lost=True)
    await started(conn, 1)
    await pass_time(conn, 100)
    assert len(await conn.fetch("SELECT * FROM accs.reclaim_tasks()")) == 1
    assert await conclusions(conn) == []


async def test_a_shut_service_takes_nothing_on_that_node_and_everybody_agrees(conn: Connection):
    await two_nodes(conn)
    assert await claimable(conn)
    assert await conn.fetchval(SHUT, "n1") == "accepted"
    assert await conn.fetchval(SHUT, "n1") == "repeated"
    assert await claim(conn, 4) == []
    assert not await claimable(conn)
    assert await slots(conn) == {"n1": 0, "n2": 4}
    assert len(await claim(conn, 4, on="n2")) == 4
    await conn.execute("UPDATE nodes SET last_seen = accs.clock(), awake_state = 'awake'")
    reasons = {row["blocker"]: row["detail"] for row in await why(conn)}
    assert reasons["node_quarantined"]["quarantine"]["reason"] == "it is ill"
    assert "node_full" in reasons


async def test_an_unknown_node_is_not_shut(conn: Connection):
    assert await conn.fetchval(SHUT, "nobody") == "repeated"


async def test_a_probe_that_passes_lets_in_one_task_at_a_time(conn: Connection):
    await two_nodes(conn)
    await conn.fetchval(SHUT, "n1")
    assert await probe(conn) == "repeated"  # too early
    await pass_time(conn, 31)
    assert await probe(conn, "the mount is gone") == "accepted"
    assert await claim(conn, 4) == []
    await pass_time(conn, 61)
    assert await probe(conn) == "accepted"
    assert await claimable(conn)
    assert await slots(conn) == {"n1": 1, "n2": 4}
    assert len(await claim(conn, 4)) == 1
    assert await claim(conn, 4) == []
    assert not await claimable(conn)


async def test_a_sleeping_node_is_worth_waking_once_its_probe_is_due(conn: Connection):
    await two_nodes(conn)
    await conn.fetchval(SHUT, "n1")
    await conn.execute("UPDATE nodes SET awake_state = 'sleep' WHERE name = 'n1'")
    assert (await slots(conn))["n1"] == 0
    await pass_time(conn, 31)
    assert (await slots(conn))["n1"] == 1


async def test_a_trial_is_noted_even_of_a_step_that_never_failed(conn: Connection):
    await two_nodes(conn)
    await fail(conn, *await started(conn, 1))
    await conn.fetchval(SHUT, "n1")
    await pass_time(conn, 31)
    await probe(conn)
    await submit_to(conn, await workflow(conn, step("another")), priority=9)
    await done(conn, 1)
    evidence = await conn.fetch("SELECT * FROM accs.health_evidence('1 h')")
    assert [(row["task_key"], row["passed"], row["is_trial"]) for row in evidence] == [
        ("a", False, False),
        ("another", True, True),
    ]


async def test_lifting_forgets_what_was_held_against_the_node(conn: Connection):
    await two_nodes(conn)
    await fail(conn, *await started(conn, 3))
    await conn.fetchval(SHUT, "n1")
    lifted = await conn.fetch("SELECT * FROM accs.lift_quarantine('n1', NULL, 'resumed', 'ops')")
    assert [tuple(row) for row in lifted] == [("n1", "render")]
    assert await conclusions(conn) == []
    assert len(await claim(conn, 4)) == 4
    said = await conn.fetch("SELECT state FROM accs.node_history WHERE node = 'n1' AND state <> 'ready' ORDER BY id")
    assert [row["state"] for row in said] == ["quarantined", "resumed"]


async def test_a_step_that_fails_everywhere_is_named_by_why(conn: Connection):
    flow = await two_nodes(conn)
    await conn.fetch("SELECT * FROM accs.mark_steps($1, '{a}', '{it is broken}')", [flow])
    failing = [row for row in await why(conn) if row["blocker"] == "step_failing"]
    assert [row["detail"] for row in failing] == [{"reason": "it is broken"}]
    (ended,) = await started(conn, 1)
    await fail(conn, ended, permanent=True)
    (row,) = await conn.fetch("SELECT * FROM accs.why($1)", ended["task_id"])
    assert row["detail"]["fails_everywhere"] == "it is broken"
    news = await conn.fetch("SELECT * FROM accs.mark_steps('{}', '{}', '{}')")
    assert [row["failing"] for row in news] == [False]


async def test_old_conclusions_go_but_for_those_of_a_quarantine(conn: Connection):
    await two_nodes(conn)
    await fail(conn, *await started(conn, 2))
    await fail(conn, *await started(conn, 3, on="n2"))
    await conn.fetchval(SHUT, "n1")
    await pass_time(conn, 7200)
    assert await conn.fetchval("SELECT accs.prune_conclusions($1, 100)", timedelta(hours=1)) == 3
    assert await conclusions(conn) == [("n1", False)] * 2
    assert await conn.fetchval("SELECT accs.prune_conclusions($1, 1)", timedelta(hours=1)) == 1


async def test_a_finish_that_is_refused_is_no_pass(conn: Connection):
    await two_nodes(conn)
    running = await started(conn, 2)
    await fail(conn, running[0])
    await pass_time(conn, 100)  # its lease has run out
    assert [row["answer"] for row in await finish(conn, running[1])] == ["refused"]
    assert await conclusions(conn) == [("n1", False)]


async def on_trial(conn: Connection) -> None:
    await conn.fetchval(SHUT, "n1")
    await pass_time(conn, 31)
    assert await probe(conn) == "accepted"


async def trials(conn: Connection) -> list[bool]:
    evidence = await conn.fetch("SELECT * FROM accs.health_evidence('1 h')")
    return [row["passed"] for row in evidence if row["is_trial"]]


async def test_a_trial_is_noted_when_nothing_is_held_against_the_node_any_more(conn: Connection):
    await two_nodes(conn)
    await on_trial(conn)
    await done(conn, 1)
    assert await trials(conn) == [True]


async def test_a_trial_is_noted_however_often_its_step_has_passed_there_before(conn: Connection):
    flow = await two_nodes(conn)
    await node(conn, "n1", render=100)
    for _ in range(10):
        await submit_to(conn, flow)
    await fail(conn, *await started(conn, 1))
    await done(conn, 25)  # what ran while it was shut
    await on_trial(conn)
    await done(conn, 1)
    assert await trials(conn) == [True]


async def test_who_claims_by_himself_has_no_agent_that_probes_and_is_tried_when_he_asks(conn: Connection):
    """Of the pull mode: claim and start in one."""
    await two_nodes(conn)
    await conn.fetchval(SHUT, "n1")
    pull = "SELECT * FROM accs.claim_tasks('render', 'owner-1', 'n1', 4, '1 min', true)"
    assert await conn.fetch(pull) == [], "its time has not come"
    await pass_time(conn, 31)
    assert await claim(conn, 4) == [], "an agent probes first"
    assert len(await conn.fetch(pull)) == 1
    assert await conn.fetchval("SELECT state FROM accs.quarantines") == "trial"
    assert await conn.fetch(pull) == []


async def test_a_claim_of_nothing_is_no_probe(conn: Connection):
    await two_nodes(conn)
    await conn.execute(SHUT, "n1")
    await pass_time(conn, 31)
    await conn.fetch("SELECT * FROM accs.claim_tasks('render', 'o', 'n1', 0, '60 s', true)")
    assert await conn.fetchval("SELECT state FROM accs.quarantines") == "shut"


async def test_another_reason_for_a_failing_step_is_no_news(conn: Connection):
    flow = await two_nodes(conn)
    mark = "SELECT failing FROM accs.mark_steps($1, '{a}', $2)"
    assert await conn.fetchval(mark, [flow], ["3 tasks"]) is True
    assert await conn.fetch(mark, [flow], ["4 tasks"]) == []
    assert await conn.fetchval("SELECT reason FROM accs.step_health") == "4 tasks"


async def test_a_step_that_is_named_twice_is_marked_once(conn: Connection):
    shape = await workflow(conn)
    rows = await conn.fetch("SELECT * FROM accs.mark_steps(ARRAY[$1, $1]::uuid[], '{a,a}', '{x,y}')", shape)
    assert [(row["task_key"], row["failing"]) for row in rows] == [("a", True)]
