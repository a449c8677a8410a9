"""Evaluators, emitters and people at the same moment: an event is decided once for each subscription."""

import asyncio
from typing import Any

from tests.support.checker import check
from tests.support.factory import pass_time
from tests.support.race import Race
from tests.support.schedules import call, jobs_of, settle, told
from tests.support.topics import emit, inbox, settle_plain, subscription, verdict


async def asked(conn: Any) -> list[dict[str, Any]]:
    return [verdict(row) for row in await conn.fetch("SELECT * FROM accs.events_to_settle()")]


async def test_two_evaluators_of_one_inbox_settle_each_event_once(race: Race):
    """EV5: who deletes, decides."""
    first, second = await race.session(), await race.session()
    which = await subscription(first, "a", filter="true")
    for _ in range(5):
        await emit(first, "a")
    verdicts, same = await asked(first), await asked(second)
    async with first.transaction():
        assert len(await first.fetch("SELECT * FROM accs.settle_events($1)", verdicts)) == 5
        answers = await second.fetch("SELECT * FROM accs.settle_events($1)", same)  # waits for nobody
        assert {(each["answer"], each["reason"]) for each in answers} == {("refused", "locked")}
    answers = await second.fetch("SELECT * FROM accs.settle_events($1)", same)
    assert {each["answer"] for each in answers} == {"repeated"}
    assert await told(first, which) == [("fired", "event")] * 5
    assert len(await jobs_of(first, which)) == 5
    await check(first)


async def test_an_evaluator_that_is_gone_leaves_everything_as_it_was(race: Race):
    first, second = await race.session(), await race.session()
    which = await subscription(first, "a")
    await emit(first, "a")
    transaction = first.transaction()
    await transaction.start()
    assert len(await settle_plain(first)) == 1
    assert await settle_plain(second) == []
    await transaction.rollback()
    assert len(await settle_plain(second)) == 1
    assert await told(second, which) == [("fired", "event")]


async def test_many_evaluators_and_emitters_at_once(race: Race):
    """EV5, EV6: nothing is lost and nothing doubled, whoever is faster."""
    watcher = await race.session()
    plain, filtered = await subscription(watcher, "a"), await subscription(watcher, "a", filter="true")
    emitters, evaluators = [await race.session() for _ in range(2)], [await race.session() for _ in range(3)]
    emitted = list[int]()

    async def emits(conn: Any) -> None:
        for _ in range(30):
            emitted.append((await emit(conn, "a"))["event_id"])

    async def settles(conn: Any) -> None:
        while len(emitted) < 60 or await conn.fetchval("SELECT count(*) FROM accs.inbox") > 0:
            await settle_plain(conn, 7)
            await conn.fetch("SELECT * FROM accs.settle_events($1)", await asked(conn))

    await asyncio.wait_for(asyncio.gather(*map(emits, emitters), *map(settles, evaluators)), 60)
    for which in (plain, filtered):
        assert sorted(await told(watcher, which)) == [("fired", "event")] * 60
        causes = [job["trigger"]["event"]["id"] for job in await jobs_of(watcher, which)]
        assert sorted(causes) == sorted(emitted)
    await check(watcher)


async def test_the_same_key_twice_at_once_is_one_event(race: Race):
    """EV7: the second emission waits for the first, and for nobody else."""
    first, second = await race.session(), await race.session()
    async with first.transaction():
        one = await emit(first, "a", key="k")
        waiting = await race.blocked(second, emit(second, "a", key="k"), by=first)
        other = await race.session()
        assert (await emit(other, "a", key="l"))["answer"] == "accepted"
    two = await waiting
    assert (two["answer"], two["event_id"]) == ("repeated", one["event_id"])


async def test_the_same_key_is_free_again_when_the_first_was_rolled_back(race: Race):
    """EV1, EV7."""
    first, second = await race.session(), await race.session()
    transaction = first.transaction()
    await transaction.start()
    await emit(first, "a", key="k")
    waiting = await race.blocked(second, emit(second, "a", key="k"), by=first)
    await transaction.rollback()
    assert (await waiting)["answer"] == "accepted"


async def test_a_window_closes_while_an_event_joins(race: Race):
    """EV8: either order is legal, and no event is lost."""
    first, second = await race.session(), await race.session()
    which = await subscription(first, "a", gather={"quiet": "10s"})
    one = await emit(first, "a")
    await settle_plain(first)
    await pass_time(first, 11)
    two = await emit(first, "a")
    async with first.transaction():
        assert ("fired", "event") in await settle(first)
        assert await settle_plain(second) == []  # the schedule is locked: next time
    assert [each["outcome"] for each in await settle_plain(second)] == ["gathered"]
    await pass_time(first, 11)
    await settle(first)
    assert [job["trigger"]["event_ids"] for job in await jobs_of(first, which)] == [
        [one["event_id"]],
        [two["event_id"]],
    ]
    await check(first)


async def test_a_pause_waits_for_the_evaluator_and_decides_what_follows(race: Race):
    """EV13."""
    first, second = await race.session(), await race.session()
    which = await subscription(first, "a")
    await emit(first, "a")
    async with first.transaction():
        await settle_plain(first)
        waiting = await race.blocked(second, call(second, "pause_schedule", str(which)), by=first)
    assert (await waiting)["answer"] == "accepted"
    await pass_time(first, 1)
    await emit(first, "a")
    await settle_plain(first)
    assert await told(first, which) == [("fired", "event"), ("skipped", "paused")]
    assert await inbox(first, which) == []


async def test_runs_are_in_the_order_of_the_ids_among_what_was_committed_in_time(race: Race):
    """EV6: an event that is committed later than a younger one runs after it, for nobody could know of it."""
    late, conn = await race.session(), await race.session()
    which = await subscription(conn, "a")
    transaction = late.transaction()
    await transaction.start()
    first = (await emit(late, "a"))["event_id"]
    second, third = [(await emit(conn, "a"))["event_id"] for _ in range(2)]
    await settle_plain(conn)
    await transaction.commit()
    fourth = (await emit(conn, "a"))["event_id"]
    assert first < second < third < fourth
    await settle_plain(conn)
    jobs = sorted(await jobs_of(conn, which), key=lambda job: job["order_seq"])
    assert [job["trigger"]["event"]["id"] for job in jobs] == [second, third, first, fourth]
    await check(conn)
