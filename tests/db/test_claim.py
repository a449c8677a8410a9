"""claim_tasks: the global order, capacity, labels, and what is passed over. Also adopt_tasks."""

import asyncio
from datetime import timedelta
from random import Random
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from tests.conftest import Connect
from tests.support.cluster import Connection
from tests.support.factory import (
    LEASE,
    chain,
    claim,
    clock,
    done,
    fail,
    moves,
    node,
    pass_time,
    release,
    started,
    step,
    submit,
    submit_to,
    task,
    workflow,
)
from tests.support.race import blocked


async def expected_order(conn: Connection, service: str, n: int) -> list[UUID]:
    """SPEC, "One system", from the tables that people read."""
    rows = await conn.fetch(
        "SELECT t.id FROM job_tasks t JOIN jobs j ON j.id = t.job_id WHERE t.service_name = $1 AND t.status = 'queued'"
        " AND t.remaining = 0 ORDER BY j.priority DESC, j.order_seq, t.created_at, t.id LIMIT $2",
        service,
        n,
    )
    return [row["id"] for row in rows]


async def test_every_service_follows_the_same_global_order_of_jobs(conn: Connection):
    await node(conn)
    shape = await workflow(conn, *(step(f"{s}{i}", s) for i in range(2) for s in ("audio", "render")))
    jobs = [await submit_to(conn, shape) for _ in range(5)]

    for service in ("render", "audio"):
        wanted = await expected_order(conn, service, 10)
        claimed = [row for n in (1, 3, 2, 9) for row in await claim(conn, n, service)]
        assert [row["task_id"] for row in claimed] == wanted
        assert [(row["job_id"], row["task_key"]) for row in claimed] == [
            (made, f"{service}{i}") for made in jobs for i in range(2)
        ]


async def test_a_higher_priority_goes_first_and_equals_keep_their_order(conn: Connection):
    await node(conn)
    shape = await workflow(conn, step("a"))
    jobs = {p: [await submit_to(conn, shape, priority=p) for _ in range(2)] for p in (0, 10, -5, 10**9)}

    claimed = await claim(conn, 100)
    assert [row["job_id"] for row in claimed] == [made for p in (10**9, 10, 0, -5) for made in jobs[p]]


async def test_several_lanes_are_merged_into_the_one_order(conn: Connection):
    """Tasks that any node may take, that need a label, or that are bound to this node: one order among all."""
    await node(conn, labels={"gpu": True, "zone": "eu"})
    random = Random(11)
    shapes = [
        await workflow(conn, step("a")),
        await workflow(conn, step("a", requires={"gpu": True})),
        await workflow(conn, step("a", requires={"zone": "eu"})),
        await workflow(conn, step("a", node="n1")),
        await workflow(conn, step("a", requires={"gpu": True}, node="n1")),
    ]
    for _ in range(60):
        await submit_to(conn, random.choice(shapes), priority=random.choice([0, 0, 5]))
    wanted = await expected_order(conn, "render", 60)

    claimed: list[UUID] = []
    while batch := await claim(conn, random.choice([1, 3, 10])):
        claimed += [row["task_id"] for row in batch]
    assert claimed == wanted


async def test_a_node_gets_only_what_its_labels_and_its_name_allow(conn: Connection):
    await node(conn, "plain")
    await node(conn, "gpu", {"gpu": True, "zone": "eu"})
    await node(conn, "other", {"gpu": False, "zone": "us"})
    anywhere = await submit(conn, step("a"))
    with_gpu = await submit(conn, step("a", requires={"gpu": True}))
    in_europe = await submit(conn, step("a", requires={"gpu": True, "zone": "eu"}))
    bound = await submit(conn, step("a", node="plain"))
    assert (await task(conn, bound, "a"))["assigned_node"] == "plain"

    assert [row["job_id"] for row in await claim(conn, 9, on="other")] == [anywhere]
    assert [row["job_id"] for row in await claim(conn, 9, on="plain")] == [bound]
    assert [row["job_id"] for row in await claim(conn, 9, on="gpu")] == [with_gpu, in_europe]


async def test_a_label_that_is_given_to_a_node_later_counts_at_its_next_claim(conn: Connection):
    await node(conn)
    await submit(conn, step("a", requires={"gpu": True}))
    assert await claim(conn) == []
    await node(conn, labels={"gpu": True})
    assert len(await claim(conn)) == 1


@pytest.mark.parametrize("n", [0, -1, None])
async def test_a_claim_of_nothing_takes_nothing_and_leaves_no_trace(conn: Connection, n: int | None):
    """It is there to have the statements planned."""
    await node(conn)
    made = await submit(conn, step("a"), step("b", requires={"gpu": True}))
    before = await conn.fetch("SELECT (t.*)::text FROM job_tasks t ORDER BY id")
    events = await conn.fetchval("SELECT count(*) FROM task_events")

    assert await conn.fetch("SELECT * FROM accs.claim_tasks($1, 'o', 'n1', $2, $3, true)", "render", n, LEASE) == []

    assert await conn.fetch("SELECT (t.*)::text FROM job_tasks t ORDER BY id") == before
    assert await conn.fetchval("SELECT count(*) FROM task_events") == events
    assert await conn.fetchval("SELECT count(*) FROM accs.live") == 0
    assert [row["job_id"] for row in await claim(conn, 5)] == [made]


async def test_capacity_is_what_the_node_allows_less_what_it_runs(conn: Connection):
    await node(conn, render=3)
    await node(conn, "n2", render=3)
    shape = await workflow(conn, step("a"), step("b", "audio"))
    for _ in range(6):
        await submit_to(conn, shape)

    first = await claim(conn, 2)
    assert len(first) == 2
    assert len(await claim(conn, 10)) == 1
    assert await claim(conn, 10) == []
    assert len(await claim(conn, 10, "audio")) == 6  # no limit was given for it
    assert len(await claim(conn, 10, on="n2")) == 3
    await release(conn, first[0])
    assert len(await claim(conn, 10)) == 1
    await node(conn, render=1)  # less than what runs already
    assert await claim(conn, 10) == []
    await node(conn, render=0)
    assert await claim(conn, 10) == []


async def test_two_claims_at_once_do_not_both_take_the_last_slot(conn: Connection, connect: Connect):
    await node(conn, render=1)
    shape = await workflow(conn, step("a"))
    await submit_to(conn, shape)
    await submit_to(conn, shape)
    other = await connect()

    async with conn.transaction():
        assert len(await claim(conn)) == 1
        late = asyncio.ensure_future(claim(other, owner="owner-2"))
        await blocked(other, conn)
    assert await late == []


async def test_rows_that_another_claim_has_locked_are_passed_over_and_taken_by_nobody_else(
    conn: Connection, connect: Connect
):
    await node(conn, labels={"gpu": True})
    plain, gpu = await workflow(conn, step("a")), await workflow(conn, step("a", requires={"gpu": True}))
    for shape in (plain, gpu, plain, gpu, plain, gpu):
        await submit_to(conn, shape)
    wanted = await expected_order(conn, "render", 6)
    other = await connect()

    async with conn.transaction():
        mine = await claim(conn, 3)
        theirs = await claim(other, 2, owner="owner-2")
    assert [row["task_id"] for row in mine] == wanted[:3]
    assert [row["task_id"] for row in theirs] == wanted[3:5]


async def test_a_locked_head_is_passed_over_by_a_claim_of_one_lane(conn: Connection, connect: Connect):
    await node(conn)
    shape = await workflow(conn, step("a"))
    jobs = [await submit_to(conn, shape) for _ in range(3)]
    other = await connect()
    async with conn.transaction():
        assert [row["job_id"] for row in await claim(conn)] == jobs[:1]
        assert [row["job_id"] for row in await claim(other, 1)] == jobs[1:2]


async def test_claiming_one_service_locks_nothing_of_another(conn: Connection, connect: Connect):
    """Locking the job's row would let two services skip each other's jobs."""
    await node(conn)
    made = await submit(conn, step("a", "audio"), step("b", "render"))
    other = await connect()
    async with conn.transaction():
        await claim(conn, 1, "audio")
        assert [row["job_id"] for row in await claim(other, 1, "render")] == [made]


async def test_a_claim_that_is_rolled_back_leaves_the_task_claimable(conn: Connection):
    await node(conn)
    await submit(conn)
    transaction = conn.transaction()
    await transaction.start()
    assert len(await claim(conn)) == 1
    await transaction.rollback()
    assert [row["attempt_id"] for row in await claim(conn)] == [1]


async def test_a_task_is_not_claimable_before_all_that_it_depends_on(conn: Connection):
    await node(conn)
    await submit(conn, step("a"), step("b"), step("c", after="a b"))
    assert [row["task_key"] for row in await claim(conn, 9)] == ["a", "b"]
    assert await claim(conn, 9) == []


async def test_a_due_retry_is_claimable_without_anybodys_help_and_in_its_old_place(conn: Connection):
    await node(conn)
    shape = await workflow(conn, step("a", backoff=[30]))
    first = await submit_to(conn, shape)
    await fail(conn, *await started(conn))
    second = await submit_to(conn, shape)

    assert [row["job_id"] for row in await claim(conn)] == [second]
    await submit_to(conn, shape)
    await pass_time(conn, 29)
    assert (await claim(conn))[0]["job_id"] != first
    await submit_to(conn, shape)
    await pass_time(conn, 2)
    (again,) = await claim(conn)
    assert (again["job_id"], again["attempt_id"], again["attempt"]) == (first, 2, 1)
    assert (await task(conn, first, "a"))["next_attempt_at"] is None


async def test_a_claim_hands_over_what_the_attempt_needs_and_writes_down_who_has_it(conn: Connection):
    await node(conn)
    made = await submit(
        conn, step("a", default_params={"fps": 25}, timeout=9, max_attempts=4), options={"quality": "high"}
    )
    now = await clock(conn)
    (row,) = await claim(conn, lease=timedelta(seconds=33))

    assert {**row} == {
        "task_id": (await task(conn, made, "a"))["id"],
        "job_id": made,
        "task_key": "a",
        "service_name": "render",
        "attempt_id": 1,
        "attempt": 0,
        "max_attempts": 4,
        "status": "starting",
        "params": {"fps": 25},
        "options": {"quality": "high"},
        "given": None,
        "timeout_sec": 9,
        "lease_until": row["lease_until"],
        "trace_id": None,
        "trigger": None,
        "output_schema": None,
    }
    kept = await task(conn, made, "a")
    assert timedelta(seconds=33) <= kept["lease_until"] - now < timedelta(seconds=40)
    assert (kept["status"], kept["claimed_by"], kept["lease_owner"]) == ("starting", "owner-1", "owner-1")
    assert kept["claimed_at"] + timedelta(seconds=33) < kept["lease_until"] == row["lease_until"]
    assert await moves(conn, row["task_id"]) == [("queued", "starting")]
    live: Any = await conn.fetchrow("SELECT task_id, node, owner, service, attempt_id FROM accs.live")
    assert live == (row["task_id"], "n1", "owner-1", "render", 1)
    assert await conn.fetchval("SELECT count(*) FROM accs.waiting") == 0


async def test_an_attempt_is_given_the_results_of_the_steps_it_depends_on(conn: Connection):
    await node(conn)
    await submit(conn, step("a"), step("b"), step("c"), step("d", after="a b"))
    a, b, _ = await started(conn, 3)
    await conn.fetch(
        "SELECT * FROM accs.finish_tasks($1, $2, $3, p_results => $4)",
        [a["task_id"], b["task_id"]],
        [1, 1],
        "owner-1",
        [{"frames": 240}, None],
    )
    (d,) = await claim(conn)
    assert d["given"] == {"inputs": {"a": {"frames": 240}, "b": {}}}


async def test_results_too_large_to_hand_over_are_left_out_with_a_note(conn: Connection):
    await node(conn)
    await submit(conn, *(step(f"a{i}") for i in range(70)), step("z", after=[f"a{i}" for i in range(70)]))
    claimed = await started(conn, 70)
    # Of each result only the size matters; what cannot be compressed stays large.
    text = "".join(Random(3).choices("abcdefghijklmnopqrstuvwxyz0123456789", k=255_000))
    for row in claimed:
        await conn.fetch(
            "SELECT * FROM accs.finish_tasks($1, $2, $3, p_results => $4)",
            [row["task_id"]],
            [row["attempt_id"]],
            "owner-1",
            [{"text": text}],
        )
    (z,) = await claim(conn)
    assert z["given"] == {"inputs": {}, "omitted": [f"a{i}" for i in range(70)]}


async def test_a_node_that_is_not_registered_is_told_so(conn: Connection):
    await submit(conn)
    with pytest.raises(asyncpg.PostgresError, match='node "stranger" is not registered') as refused:
        await claim(conn, on="stranger")
    assert refused.value.sqlstate == "AC004"


async def test_nothing_is_claimed_of_a_service_that_has_nothing(conn: Connection):
    await node(conn)
    await submit(conn, *chain("a", "b"))
    assert await claim(conn, 5, "audio") == []
    assert await claim(conn, 0) == []


async def test_the_fence_grows_at_every_claim_and_is_never_reused(conn: Connection):
    await node(conn)
    made = await submit(conn)
    fences: list[int] = []
    for _ in range(3):
        (row,) = await claim(conn)
        fences.append(row["attempt_id"])
        await release(conn, row)
    await done(conn)
    await conn.fetch("SELECT * FROM accs.retry_jobs($1, $2)", [made], ["a"])
    (row,) = await claim(conn)
    assert [*fences, row["attempt_id"]] == [1, 2, 3, 5]


async def test_an_owner_finds_what_it_holds_and_its_leases_are_extended(conn: Connection):
    await node(conn)
    await node(conn, "n2")
    shape = await workflow(conn, step("a", timeout=7))
    for _ in range(4):
        await submit_to(conn, shape)
    (a,) = await claim(conn)
    (b,) = await started(conn)
    await claim(conn, owner="somebody else")
    await claim(conn, on="n2")
    await pass_time(conn, 30)

    adopted = await conn.fetch("SELECT * FROM accs.adopt_tasks('owner-1', 'n1', $1)", LEASE)
    assert [(row["task_id"], row["status"]) for row in adopted] == [
        (a["task_id"], "starting"),
        (b["task_id"], "running"),
    ]
    assert adopted[0]["lease_until"] > a["lease_until"]
    assert {**adopted[0], "lease_until": None} == {**a, "lease_until": None}
    assert await conn.fetchval(
        "SELECT bool_and(l.lease_until = t.lease_until) FROM accs.live l JOIN job_tasks t ON t.id = l.task_id"
    )


async def test_a_lease_that_has_run_out_cannot_be_adopted(conn: Connection):
    await node(conn)
    await submit(conn)
    await claim(conn)
    await pass_time(conn, 61)
    assert await conn.fetch("SELECT * FROM accs.adopt_tasks('owner-1', 'n1', $1)", LEASE) == []


async def test_what_a_claim_would_give_can_be_looked_at_without_taking_it(conn: Connection):
    await node(conn, labels={"zone": "eu"})
    plain = await workflow(conn, step("a", backoff=[5]))
    zone = await workflow(conn, step("a", requires={"zone": "eu"}))
    gpu = await workflow(conn, step("a", requires={"gpu": True}))
    first = await submit_to(conn, plain)
    await fail(conn, *await started(conn))
    jobs = [await submit_to(conn, shape) for shape in (zone, gpu, plain)]

    async def runnable(on: str | None) -> list[UUID]:
        rows = await conn.fetch("SELECT * FROM accs.select_runnable('render', 10, $1)", on)
        return [row["job_id"] for row in rows]

    assert await runnable(None) == jobs
    assert await runnable("n1") == [jobs[0], jobs[2]]
    await pass_time(conn, 6)
    assert await runnable("n1") == [first, jobs[0], jobs[2]]
    assert [row["job_id"] for row in await claim(conn, 9)] == [first, jobs[0], jobs[2]]


async def test_a_claim_that_starts_writes_the_row_once_and_both_events(conn: Connection):
    await node(conn)
    await submit(conn)
    (claimed,) = await conn.fetch("SELECT * FROM accs.claim_tasks('render', 'n1', 'n1', 5, $1, true)", LEASE)

    row = await task(conn, claimed["job_id"], claimed["task_key"])
    assert (claimed["status"], row["status"], row["attempt_id"]) == ("running", "running", 1)
    assert row["started_at"] == row["claimed_at"]
    assert await moves(conn, claimed["task_id"]) == [("queued", "starting"), ("starting", "running")]
    (again,) = await conn.fetch("SELECT * FROM accs.start_tasks($1, $2, 'n1')", [claimed["task_id"]], [1])
    assert again["answer"] == "repeated"


async def test_a_lease_counts_from_the_end_of_the_wait_for_it(conn: Connection, connect: Connect):
    """A claim that waits for a key's lock for longer than its lease would get one that is over."""
    await node(conn)
    await submit(conn, step("a", concurrency_key="disk"))
    claimer = await connect()
    lease, longer = timedelta(milliseconds=300), timedelta(milliseconds=400)
    async with conn.transaction():
        await conn.execute("SELECT FROM accs.concurrency_keys FOR UPDATE")
        claiming = asyncio.ensure_future(claim(claimer, lease=lease))
        await blocked(claimer, conn)
        await asyncio.sleep(longer.total_seconds())
    (row,) = await claiming
    waited = await conn.fetchval("SELECT lease_until - claimed_at FROM job_tasks")
    assert waited >= longer + lease
    assert row["lease_until"] == await conn.fetchval("SELECT lease_until FROM accs.live")


async def test_two_claims_of_one_node_wait_for_each_other_at_a_row_that_only_the_owner_can_lock(
    conn: Connection, connect: Connect
):
    await node(conn, render=1)
    for _ in range(2):
        await submit(conn)
    first, second = await connect(), await connect()
    async with first.transaction():
        assert len(await claim(first)) == 1
        claiming = asyncio.ensure_future(claim(second))
        await blocked(second, conn)
    assert await claiming == []


async def test_a_claim_that_finds_nothing_writes_nothing(conn: Connection):
    """It would cost an fsync each time that an idle agent looks."""
    await node(conn, render=1)
    await submit(conn, step("a", "other"))
    async with conn.transaction():
        assert await claim(conn) == []
        assert await conn.fetchval("SELECT pg_current_xact_id_if_assigned()") is None
