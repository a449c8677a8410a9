"""Outgoing events (D9): made in the transaction of what they tell, claimed, settled, given up, redriven."""

import asyncio
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest

from tests.conftest import Connect
from tests.support.cluster import Connection
from tests.support.eventually import eventually
from tests.support.factory import (
    Row,
    cancel,
    chain,
    done,
    fail,
    node,
    pass_time,
    started,
    step,
    submit,
    submit_to,
    workflow,
)

pytestmark = pytest.mark.every_postgresql

OUTCOMES = ["job.done", "job.error", "job.cancelled"]
EVERYTHING = [
    *("job.submitted", "job.started", "job.retried", *OUTCOMES),
    *("task.done", "task.error", "task.skipped", "task.cancelled"),
]
LEASE = timedelta(seconds=30)


async def target(
    conn: Connection, name: str = "studio", events: list[str] = OUTCOMES, workflows: list[str] | None = None
) -> str:
    return await conn.fetchval("SELECT accs.register_outbox_target($1, 'https://x', $2, $3)", name, events, workflows)


async def told(conn: Connection, job: UUID, name: str = "studio") -> list[str]:
    rows = await conn.fetch("SELECT event FROM outbox_events WHERE job_id = $1 AND target = $2 ORDER BY id", job, name)
    return [row["event"] for row in rows]


async def claim(conn: Connection, jobs: int = 10, each: int = 10, *, of: str = "studio") -> tuple[UUID, list[Row]]:
    mine = uuid4()
    return mine, await conn.fetch("SELECT * FROM accs.claim_outbox($1, $2, $3, $4, $5)", of, mine, LEASE, jobs, each)


async def settle(conn: Connection, claimed: tuple[UUID, list[Row]], *outcomes: str, delay: float = 60) -> list[str]:
    """The answer for each; a single outcome is that of all."""
    mine, rows = claimed
    said = list(outcomes) * len(rows) if len(outcomes) == 1 else list(outcomes)
    answers = await conn.fetch(
        "SELECT * FROM accs.settle_outbox('studio', $1, $2, $3, $4, $5, 3, '10 s', '1 min')",
        mine,
        [row["id"] for row in rows],
        said,
        [timedelta(seconds=delay) if outcome in ("failed", "returned") else None for outcome in said],
        ["no" if outcome in ("failed", "dead") else None for outcome in said],
    )
    by_id = {answer["id"]: answer["reason"] or answer["answer"] for answer in answers}
    return [by_id[row["id"]] for row in rows]


async def finished(conn: Connection, count: int = 1) -> list[UUID]:
    jobs = [await submit(conn, step("a")) for _ in range(count)]
    await done(conn, count)
    return jobs


@pytest.fixture(autouse=True)
async def machine(conn: Connection) -> None:
    await node(conn)


# What becomes an event


async def test_every_outcome_is_told_once_to_each_target_that_wants_it(conn: Connection):
    await target(conn)
    await target(conn, "errors", ["job.error"])
    good = await submit(conn, step("a"))
    await done(conn)
    bad = await submit(conn, step("a"), step("b", after="a"))
    await fail(conn, *await started(conn), permanent=True)
    gone = await submit(conn, step("a"))
    await cancel(conn, gone)
    assert [await told(conn, job) for job in (good, bad, gone)] == [["job.done"], ["job.error"], ["job.cancelled"]]
    assert [await told(conn, job, "errors") for job in (good, bad, gone)] == [[], ["job.error"], []]


async def test_the_payload_says_which_job_of_which_workflow_ended_how(conn: Connection):
    await target(conn)
    media = await workflow(conn, step("a"), name="media")
    job = await submit_to(conn, media, key="order-7")
    await fail(conn, *await started(conn), permanent=True)
    payload: dict[str, Any] = await conn.fetchval("SELECT payload FROM outbox_events")
    assert payload["version"] == 1
    assert payload["event"] == "job.error"
    assert payload["workflow"] == {"name": "media", "version": 1}
    assert UUID(payload["id"])
    told_of = payload["job"]
    assert told_of["id"] == str(job)
    assert (told_of["status"], told_of["error_code"], told_of["idempotency_key"]) == ("error", "boom", "order-7")
    assert told_of["finished_at"]


async def test_who_wants_everything_hears_of_each_step_in_order(conn: Connection):
    await target(conn, events=EVERYTHING)
    job = await submit(conn, *chain("a", "b", "c"))
    await done(conn)
    await fail(conn, *await started(conn), permanent=True)
    assert await told(conn, job) == [
        *("job.submitted", "job.started", "task.done"),
        *("task.error", "task.skipped", "job.error"),
    ]
    await conn.fetch("SELECT * FROM accs.retry_jobs($1)", [job])
    await cancel(conn, job)
    assert sorted((await told(conn, job))[6:]) == ["job.cancelled", "job.retried", "task.cancelled", "task.cancelled"]


async def test_a_job_that_is_inserted_plainly_and_can_not_start_is_told_too(conn: Connection):
    await target(conn, events=["job.submitted", "job.error"])
    idle = await workflow(conn, step("a"))
    job = await conn.fetchval("INSERT INTO jobs (workflow_id) VALUES ($1) RETURNING id", idle)
    await conn.execute("UPDATE workflows SET is_active = false WHERE id = $1", idle)
    await conn.fetch("SELECT * FROM accs.instantiate_due_jobs()")
    assert await told(conn, job) == ["job.submitted", "job.error"]


async def test_a_target_may_be_for_some_workflows_only(conn: Connection):
    await target(conn, workflows=["media", "audio"])
    jobs = [await submit_to(conn, await workflow(conn, step("a"), name=name)) for name in ("media", "other")]
    await done(conn, 2)
    assert [await told(conn, job) for job in jobs] == [["job.done"], []]


async def test_what_is_rolled_back_was_never_told(conn: Connection):
    await target(conn, events=EVERYTHING)
    transaction = conn.transaction()
    await transaction.start()
    await submit(conn, step("a"))
    assert await conn.fetchval("SELECT count(*) FROM outbox_events") == 2
    await transaction.rollback()
    assert await conn.fetchval("SELECT count(*) FROM outbox_events") == 0


async def test_without_a_target_the_triggers_are_off(conn: Connection):
    """So they cost nothing: a disabled trigger is not even asked."""

    async def enabled() -> set[str]:
        rows = await conn.fetch("SELECT tgname FROM pg_trigger WHERE tgname LIKE 'announce%' AND tgenabled <> 'D'")
        return {row["tgname"] for row in rows}

    assert await enabled() == set()
    assert await target(conn) == "accepted"
    assert await target(conn) == "repeated"
    assert await enabled() == {"announce_outcome"}
    await target(conn, "all", EVERYTHING)
    assert await enabled() == {"announce_outcome", "announce_submitted", "announce_task"}
    for name in ("all", "studio"):
        assert await conn.fetchval("SELECT accs.forget_outbox_target($1)", name) == "accepted"
    assert await enabled() == set()
    assert await conn.fetchval("SELECT accs.forget_outbox_target('studio')") == "refused"
    with pytest.raises(asyncpg.CheckViolationError):
        await target(conn, events=["job.exploded"])


async def test_to_register_a_target_behind_a_long_writer_keeps_nobody_waiting_for_long(
    conn: Connection, connect: Connect
):
    shape = await workflow(conn, step("a"))
    writer, builder = await connect(), await connect()
    async with writer.transaction():
        await submit_to(writer, shape)
        registering = asyncio.create_task(target(builder))
        await eventually(lambda: waits_for_a_lock(conn))
        async with asyncio.timeout(1.5):
            await submit_to(conn, shape)
        with pytest.raises(asyncpg.LockNotAvailableError):
            await registering
    assert await target(builder) == "accepted"


async def waits_for_a_lock(conn: Connection) -> bool:
    return await conn.fetchval(
        "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND mode = 'ShareRowExclusiveLock')"
    )


async def test_an_event_of_ones_own_has_an_object_to_send(conn: Connection):
    """Anything else would crash whoever is to send it, again and again."""
    with pytest.raises(asyncpg.CheckViolationError):
        await conn.execute("INSERT INTO outbox_events (target, event, payload) VALUES ('studio', 'x', '[]')")


# Claims


async def test_a_claim_holds_until_its_lease_has_run_out_and_then_the_late_one_learns_so(conn: Connection):
    await target(conn)
    await finished(conn)
    first = await claim(conn)
    assert len(first[1]) == 1
    assert (await claim(conn))[1] == []
    await pass_time(conn, 31)
    second = await claim(conn)
    assert [row["id"] for row in second[1]] == [row["id"] for row in first[1]]
    assert await settle(conn, first, "delivered") == ["stale_claim"]
    assert await settle(conn, second, "delivered") == ["accepted"]
    assert await settle(conn, second, "delivered") == ["repeated"]
    row = await conn.fetchrow("SELECT * FROM outbox_events")
    assert row is not None
    assert (row["status"], row["attempts"]) == ("delivered", 1)
    assert row["dispatched_at"]


async def test_the_next_event_of_a_job_waits_for_the_one_before_it(conn: Connection):
    await target(conn, events=["job.submitted", "job.started", "job.done"])
    (job,) = await finished(conn)
    first = await claim(conn, each=1)
    assert [row["event"] for row in first[1]] == ["job.submitted"]
    assert (await claim(conn))[1] == [], "its successors are due, and wait"
    await settle(conn, first, "failed", delay=60)
    assert (await claim(conn))[1] == []
    outlook = await conn.fetchval("SELECT accs.outbox_outlook('studio')")
    assert timedelta(seconds=50) < outlook <= timedelta(seconds=60)
    await pass_time(conn, 61)
    together = await claim(conn)
    assert [row["event"] for row in together[1]] == ["job.submitted", "job.started", "job.done"]
    assert {row["job_id"] for row in together[1]} == {job}
    await settle(conn, together, "delivered", "failed", "returned")
    rows = await conn.fetch("SELECT attempts, status FROM outbox_events ORDER BY id")
    assert [tuple(row) for row in rows] == [(2, "delivered"), (1, "pending"), (0, "pending")]


async def test_two_claims_at_once_share_the_jobs(conn: Connection, connect: Connect):
    await target(conn)
    await finished(conn, 4)
    other = await connect()
    mine, theirs = await claim(conn, jobs=2), await claim(other, jobs=10)
    assert (len(mine[1]), len(theirs[1])) == (2, 2)
    assert {row["id"] for row in mine[1]}.isdisjoint({row["id"] for row in theirs[1]})


async def test_one_that_is_given_up_lets_its_successors_go_until_it_is_redriven(conn: Connection):
    await target(conn, events=["job.submitted", "job.done"])
    await finished(conn)
    await settle(conn, await claim(conn, each=1), "dead")
    rest = await claim(conn)
    assert [row["event"] for row in rest[1]] == ["job.done"]
    await settle(conn, rest, "delivered")
    answers = await conn.fetch("SELECT * FROM accs.redrive_outbox()")
    assert [answer["answer"] for answer in answers] == ["accepted"]
    again = await claim(conn)
    assert [(row["event"], row["attempts"]) for row in again[1]] == [("job.submitted", 0)]
    assert again[1][0]["age"] < timedelta(seconds=1), "it has all its time again"


async def test_a_delivered_event_can_be_sent_again_and_one_under_way_stays_so(conn: Connection):
    await target(conn)
    await finished(conn, 2)
    sent, under_way = await claim(conn, jobs=1), await claim(conn)
    await settle(conn, sent, "delivered")
    ids = [sent[1][0]["id"], under_way[1][0]["id"], 999]
    answers = {row["id"]: row["answer"] for row in await conn.fetch("SELECT * FROM accs.redrive_outbox($1)", ids)}
    assert [answers[each] for each in ids] == ["accepted", "repeated", "refused"]
    assert [row["id"] for row in (await claim(conn))[1]] == [ids[0]]


async def test_who_is_redriven_does_not_take_along_what_somebody_sends_at_this_moment(conn: Connection):
    await target(conn, events=["job.submitted", "job.started", "job.done"])
    await finished(conn)
    await settle(conn, await claim(conn, each=1), "dead")
    under_way = await claim(conn, each=1)
    await conn.fetch("SELECT * FROM accs.redrive_outbox()")
    assert [row["event"] for row in (await claim(conn))[1]] == ["job.submitted"]
    assert await settle(conn, under_way, "delivered") == ["accepted"]


# The breaker


async def test_after_failures_in_a_row_a_target_rests_then_one_event_asks_for_all(conn: Connection):
    await target(conn)
    await finished(conn, 6)
    for _ in range(3):
        await settle(conn, await claim(conn, jobs=1), "failed", delay=3600)
    assert (await claim(conn))[1] == []
    await pass_time(conn, 9)
    assert (await claim(conn))[1] == []
    await pass_time(conn, 2)
    probe = await claim(conn)
    assert len(probe[1]) == 1
    assert (await claim(conn))[1] == [], "one asks"
    await settle(conn, probe, "failed", delay=3600)
    await pass_time(conn, 11)
    assert (await claim(conn))[1] == [], "the second rest is twice as long"
    await pass_time(conn, 10)
    await settle(conn, await claim(conn), "delivered")
    assert len((await claim(conn))[1]) == 5, "what failed while it was away need not wait for its hour"


async def test_failures_between_deliveries_do_not_open_it_and_a_probe_that_was_not_sent_asks_again(conn: Connection):
    await target(conn)
    await finished(conn, 9)
    for outcome in ("failed", "failed", "delivered", "failed", "failed", "delivered"):
        await settle(conn, await claim(conn, jobs=1), outcome)
    assert await conn.fetchval("SELECT open_until IS NULL FROM accs.outbox_targets")
    await settle(conn, await claim(conn), "failed")
    assert (await claim(conn))[1] == []
    await pass_time(conn, 11)
    await finished(conn)
    await settle(conn, await claim(conn), "returned", delay=0)
    assert len((await claim(conn))[1]) == 1


# Retention


async def test_what_was_settled_long_ago_is_removed_and_what_waits_never(conn: Connection):
    await target(conn)
    await finished(conn, 3)
    for outcome in ("delivered", "dead", "failed"):
        await settle(conn, await claim(conn, jobs=1), outcome, delay=0)
    prune = "SELECT accs.prune_outbox('7 d', '90 d')"
    assert await conn.fetchval(prune) == 0
    await pass_time(conn, 8 * 86400)
    assert await conn.fetchval(prune) == 1
    await pass_time(conn, 90 * 86400)
    assert await conn.fetchval(prune) == 1
    assert len((await claim(conn))[1]) == 1
    await conn.execute("SELECT accs.forget_outbox_target('studio')")
    assert await conn.fetchval(prune) == 1, "nobody will send it"
