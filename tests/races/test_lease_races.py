"""The lease runs out while another verb holds the row: whoever comes first wins, and nobody else writes."""

from collections.abc import Sequence
from datetime import timedelta

import pytest

from tests.support.checker import check
from tests.support.cluster import Connection
from tests.support.factory import (
    Row,
    cancel,
    claim,
    finish,
    job,
    moves,
    node,
    pass_time,
    release,
    start,
    started,
    step,
    submit,
    task,
    tasks,
)
from tests.support.race import (
    ACCEPTED,
    Race,
    answered,
    heartbeat,
    reclaim,
)

# The lease runs out in between


async def test_a_finish_that_waits_for_a_reclaim_is_refused(conn: Connection, race: Race) -> None:
    await node(conn)
    job_id = await submit(conn, step("a"))
    (claimed,) = await started(conn)
    await pass_time(conn, 120)
    before, finishing = await race.second_waits(reclaim, lambda b: finish(b, claimed))
    assert answered(before) == ACCEPTED
    assert answered(finishing) == [("refused", "not_in_expected_state")]
    row = await task(conn, job_id, "a")
    assert (row["status"], row["attempt"], row["lost"]) == ("queued", 0, 1)
    await check(conn)


async def test_a_finish_that_began_within_its_lease_still_loses_to_the_reclaim_before_it(
    conn: Connection, race: Race
) -> None:
    """Its time is the time when it began: only the row itself can tell."""
    await node(conn)
    await submit(conn, step("a"))
    (claimed,) = await started(conn)
    a, b = await race.session(), await race.session()
    late = b.transaction(isolation="read_committed")
    await late.start()
    await b.execute("SELECT accs.clock()")
    await pass_time(conn, 120)
    async with a.transaction():
        await reclaim(a)
        finishing = await race.blocked(b, finish(b, claimed), by=a)
    assert answered(await finishing) == [("refused", "not_in_expected_state")]
    await late.commit()
    (again,) = await claim(conn, owner="other")
    assert again["attempt_id"] == 2
    assert answered(await finish(conn, claimed)) == [("refused", "stale_attempt")]
    await check(conn)


async def test_a_reclaim_that_waits_for_a_finish_leaves_it_alone(conn: Connection, race: Race) -> None:
    await node(conn)
    job_id = await submit(conn, step("a"))
    (claimed,) = await started(conn)
    a, b = await race.session(), await race.session()
    async with a.transaction():
        assert answered(await finish(a, claimed)) == ACCEPTED
        await pass_time(conn, 120)
        reclaiming = await race.blocked(b, reclaim(b), by=a)
    assert answered(await reclaiming) == [("refused", "done_or_stale")]
    assert (await job(conn, job_id))["status"] == "done"
    await check(conn)


async def test_a_reclaim_that_waits_for_a_heartbeat_leaves_it_alone(conn: Connection, race: Race) -> None:
    await node(conn)
    job_id = await submit(conn, step("a"))
    (claimed,) = await started(conn)
    a, b = await race.session(), await race.session()
    async with a.transaction():
        assert answered(await heartbeat(a, claimed, timedelta(hours=1))) == ACCEPTED
        await pass_time(conn, 120)
        reclaiming = await race.blocked(b, reclaim(b), by=a)
    assert answered(await reclaiming) == [("refused", "lease_still_valid")]
    assert await tasks(conn, job_id) == {"a": "running"}
    await check(conn, timedelta(0))


async def test_a_heartbeat_that_waits_for_a_reclaim_learns_that_it_lost(conn: Connection, race: Race) -> None:
    await node(conn)
    await submit(conn, step("a"))
    (claimed,) = await started(conn)
    a, b = await race.session(), await race.session()
    early = b.transaction()
    await early.start()
    await b.execute("SELECT accs.clock()")
    await pass_time(conn, 120)
    async with a.transaction():
        await reclaim(a)
        beating = await race.blocked(b, _heartbeat_as_of(b, claimed), by=a)
    assert answered(await beating) == [("refused", "not_in_expected_state")]
    await early.commit()
    await check(conn)


async def _heartbeat_as_of(conn: Connection, claimed: Row) -> Sequence[Row]:
    # moving the clock back for this transaction alone: its lease has not run out as far as it knows
    await conn.execute("UPDATE accs.test_clock SET shift = shift - interval '120 s'")
    return await heartbeat(conn, claimed)


@pytest.mark.parametrize("first", ["start", "reclaim"])
async def test_a_start_and_a_reclaim_have_one_winner(conn: Connection, race: Race, first: str) -> None:
    await node(conn)
    job_id = await submit(conn, step("a"))
    (claimed,) = await claim(conn)
    a, b = await race.session(), await race.session()
    async with a.transaction():
        if first == "start":
            assert answered(await start(a, claimed)) == ACCEPTED
            await pass_time(conn, 120)
            waiting = await race.blocked(b, reclaim(b), by=a)
        else:
            await pass_time(conn, 120)
            assert answered(await reclaim(a)) == ACCEPTED
            await pass_time(conn, -120)
            waiting = await race.blocked(b, start(b, claimed), by=a)
    expected = ACCEPTED if first == "start" else [("refused", "not_in_expected_state")]
    assert answered(await waiting) == expected
    assert await tasks(conn, job_id) == {"a": "queued"}
    came_from = "running" if first == "start" else "starting"
    assert (await moves(conn, claimed["task_id"]))[-1] == (came_from, "queued")
    await check(conn)


async def test_two_reclaimers_count_a_loss_once(conn: Connection, race: Race) -> None:
    await node(conn)
    job_id = await submit(conn, step("a"))
    await started(conn)
    await pass_time(conn, 120)
    _, reclaiming = await race.second_waits(reclaim, reclaim)
    assert answered(reclaiming) == [("refused", "done_or_stale")]
    assert (await task(conn, job_id, "a"))["lost"] == 1
    await check(conn)


@pytest.mark.parametrize("first", ["release", "cancel"])
async def test_a_release_and_a_cancel_end_cancelled(conn: Connection, race: Race, first: str) -> None:
    await node(conn)
    job_id = await submit(conn, step("a"))
    (claimed,) = await started(conn)
    a, b = await race.session(), await race.session()
    async with a.transaction():
        if first == "release":
            assert answered(await release(a, claimed)) == ACCEPTED
            waiting = await race.blocked(b, cancel(b, job_id), by=a)
        else:
            await cancel(a, job_id)
            waiting = await race.blocked(b, release(b, claimed), by=a)
    assert answered(await waiting) == (ACCEPTED if first == "release" else [("refused", "already_finished")])
    assert await tasks(conn, job_id) == {"a": "cancelled"}
    assert await claim(conn) == []
    await check(conn)
