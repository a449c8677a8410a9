"""Each event is settled once for each subscription: filters, mappings, overlap, pauses, holds, loops, replays."""

from typing import Any

from tests.support.checker import check
from tests.support.cluster import Connection
from tests.support.factory import pass_time, workflow
from tests.support.schedules import call, jobs_of, ledger, row, schedule, settle, told
from tests.support.topics import emit, evaluate, inbox, settle_plain, subscription, verdict


async def test_what_a_filter_leaves_out_is_counted_and_has_no_row(conn: Connection):
    """EV4, EV5."""
    which = await subscription(conn, "a", filter="event.payload.n > 1")
    for n in range(4):
        await emit(conn, "a", {"n": n})
    assert await settle_plain(conn) == []
    settled = await evaluate(conn, lambda each: {} if each["payload"]["n"] > 1 else {"verdict": "filtered"})
    assert [each["outcome"] for each in settled].count("filtered") == 2
    assert await told(conn, which) == [("fired", "event")] * 2
    tally = await conn.fetchrow("SELECT * FROM accs.event_tallies WHERE schedule_id = $1", which)
    assert tally is not None
    assert (tally["filtered"], tally["last_filtered"]["payload"]) == (2, {"n": 1})


async def test_an_error_in_filter_or_mapping_is_a_row_and_no_run(conn: Connection):
    """EV4, EV10."""
    which = await subscription(conn, "a", filter="event.payload.n > 1")
    for found in ({"verdict": "filter_error", "message": "there is no n"}, {"verdict": "refused", "message": "at x"}):
        await emit(conn, "a")
        await evaluate(conn, lambda _, found=found: found)
    assert await told(conn, which) == [("skipped", "filter_error"), ("skipped", "refused")]
    assert [each["detail"]["problem"] for each in await ledger(conn, which)] == ["there is no n", "at x"]
    assert await jobs_of(conn, which) == []


async def test_mapped_options_are_the_jobs(conn: Connection):
    """EV10."""
    which = await subscription(conn, "a", options={"n": "${event.payload.n}"})
    await emit(conn, "a", {"n": 7})
    assert await settle_plain(conn) == []
    await evaluate(conn, lambda each: {"options": {"n": each["payload"]["n"]}})
    assert [job["options"] for job in await jobs_of(conn, which)] == [{"n": 7}]


async def test_a_large_payload_stays_out_of_the_trigger(conn: Connection):
    """EV10."""
    which = await subscription(conn, "a")
    said = await emit(conn, "a", {"x": [str(i) for i in range(12_000)]})
    await settle_plain(conn)
    [job] = await jobs_of(conn, which)
    assert job["trigger"]["event"]["id"] == said["event_id"]
    assert job["trigger"]["event"]["payload_omitted"]
    assert "payload" not in job["trigger"]["event"]


async def test_a_verdict_for_an_older_revision_is_refused(conn: Connection):
    which = await subscription(conn, "a", filter="true")
    await emit(conn, "a")
    [asked] = await conn.fetch("SELECT * FROM accs.events_to_settle()")
    await conn.execute("UPDATE schedules SET filter = 'false' WHERE id = $1", which)
    [said] = await conn.fetch("SELECT * FROM accs.settle_events($1)", [verdict(asked)])
    assert (said["answer"], said["reason"]) == ("refused", "stale")
    assert len(await inbox(conn, which)) == 1
    await evaluate(conn, lambda _: {"verdict": "filtered"})
    assert await inbox(conn, which) == []


async def test_a_filter_that_comes_later_is_heeded(conn: Connection):
    which = await subscription(conn, "a")
    await emit(conn, "a")
    await conn.execute("UPDATE schedules SET filter = 'false' WHERE id = $1", which)
    assert await settle_plain(conn) == []
    await evaluate(conn, lambda _: {"verdict": "filtered"})
    assert await ledger(conn, which) == []


async def test_an_event_keeps_to_the_overlap_of_its_schedule(conn: Connection):
    """OV1, OV3."""
    which = await subscription(conn, "a", overlap="skip")
    await emit(conn, "a")
    await emit(conn, "a")
    await settle_plain(conn)
    assert await told(conn, which) == [("fired", "event"), ("skipped", "overlap")]
    queue = await subscription(conn, "b", overlap="queue_all")
    for _ in range(3):
        await emit(conn, "b")
    await settle_plain(conn)
    assert await told(conn, queue) == [("fired", "event")] * 3
    assert [job["status"] for job in await jobs_of(conn, queue)] == ["running", "queued", "queued"]
    await check(conn)


async def test_put_schedule_gives_every_event_its_run(conn: Connection):
    """EV5: the overlap of a schedule that was put without one."""
    await workflow(conn, name="w")
    definition = {"name": "s", "schedule_kind": "event", "schedule_expr": "a", "workflow": "w"}
    assert (await call(conn, "put_schedule", definition))["answer"] == "accepted"
    assert (await call(conn, "put_schedule", definition))["answer"] == "repeated"
    assert await conn.fetchval("SELECT overlap FROM schedules") == "allow"
    await call(conn, "put_schedule", {**definition, "name": "t", "overlap": "skip"})
    assert await conn.fetchval("SELECT overlap FROM schedules WHERE name = 't'") == "skip"


async def test_an_event_of_a_job_knows_how_deep_it_is(conn: Connection):
    """EV11: no deeper than 16 runs."""
    which = await subscription(conn, "a", reenter=True)
    await emit(conn, "a")
    for depth in range(1, 17):
        await settle_plain(conn)
        job = (await jobs_of(conn, which))[-1]
        assert job["trigger"]["depth"] == depth
        await emit(conn, "a", job=job["id"])
    assert [(each["outcome"], each["reason"]) for each in await settle_plain(conn)] == [("skipped", "loop")]
    assert (await ledger(conn, which))[-1]["detail"]["depth"] == 16


async def test_a_schedule_is_not_started_by_what_it_started(conn: Connection):
    """EV11."""
    first, second = await subscription(conn, "a"), await subscription(conn, "b")
    await emit(conn, "a")
    await settle_plain(conn)
    [job] = await jobs_of(conn, first)
    await emit(conn, "b", job=job["id"])
    await settle_plain(conn)
    [job] = await jobs_of(conn, second)
    assert job["trigger"]["chain"] == [str(first), str(second)]
    await emit(conn, "a", job=job["id"])
    await settle_plain(conn)
    assert await told(conn, first) == [("fired", "event"), ("skipped", "loop")]


async def test_what_comes_while_paused_is_skipped_and_may_be_made_up_for(conn: Connection):
    """EV13, PA1, PA2."""
    which = await subscription(conn, "a")
    before = await emit(conn, "a", {"n": 0})
    await pass_time(conn, 1)
    await call(conn, "pause_schedule", str(which))
    await emit(conn, "a", {"n": 1})
    await settle_plain(conn)
    assert await told(conn, which) == [("fired", "event"), ("skipped", "paused")]
    assert (await jobs_of(conn, which))[0]["trigger"]["event"]["id"] == before["event_id"]
    await emit(conn, "a", {"n": 2})  # nobody has looked at it when the pause ends
    await pass_time(conn, 1)
    said = await call(conn, "resume_schedule", str(which), "all")
    assert (said["answer"], said["recovered"]) == ("accepted", 2)
    await emit(conn, "a", {"n": 3})
    await settle_plain(conn)
    assert await told(conn, which) == [
        ("fired", "event"),
        ("caught_up", "resumed"),
        ("caught_up", "resumed"),
        ("fired", "event"),
    ]
    assert [job["trigger"]["event"]["payload"]["n"] for job in await jobs_of(conn, which)] == [0, 1, 2, 3]
    await check(conn)


async def test_a_resume_makes_up_for_nothing_unless_it_is_asked_to(conn: Connection):
    """EV13, PA2."""
    which = await subscription(conn, "a")
    await call(conn, "pause_schedule", str(which))
    await pass_time(conn, 1)
    for n in range(3):
        await emit(conn, "a", {"n": n})
    await call(conn, "resume_schedule", str(which), "one")
    await settle_plain(conn)
    assert await told(conn, which) == [("skipped", "paused")] * 2 + [("caught_up", "resumed")]
    await call(conn, "pause_schedule", str(which))
    await pass_time(conn, 1)
    await emit(conn, "a", {"n": 3})
    await call(conn, "resume_schedule", str(which))
    await settle_plain(conn)
    assert (await told(conn, which))[3:] == [("skipped", "paused")]


async def test_what_may_not_start_after_a_pause_stays_skipped(conn: Connection):
    """EV13, PA2, OV3: one may wait, the others are not merged into it afterwards."""
    which = await subscription(conn, "a", overlap="queue")
    await call(conn, "pause_schedule", str(which))
    await pass_time(conn, 1)
    for _ in range(4):
        await emit(conn, "a")
    await settle_plain(conn)
    assert await told(conn, which) == [("skipped", "paused")] * 4
    await call(conn, "resume_schedule", str(which), "all")
    await settle_plain(conn)
    assert await told(conn, which) == [("caught_up", "resumed")] * 2 + [("skipped", "paused")] * 2
    assert await inbox(conn, which) == []
    await check(conn)


async def test_held_events_wait_and_too_many_are_missed(conn: Connection):
    """EV13, PA4."""
    which = await subscription(conn, "a")
    await conn.execute("CREATE OR REPLACE FUNCTION accs.most_inbox() RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT 3'")
    await conn.fetchval("SELECT accs.hold_schedules('a fire')")
    ids = [(await emit(conn, "a"))["event_id"] for _ in range(5)]
    assert await settle_plain(conn) == []
    assert await conn.fetchval("SELECT accs.trim_inbox('test')") == 2
    assert await told(conn, which) == [("missed", "over_limit")] * 2
    await conn.fetchval("SELECT accs.hold_schedules(p_lift => true)")
    await settle_plain(conn)
    fired = [each["cause_id"] for each in await ledger(conn, which) if each["outcome"] == "fired"]
    assert fired == ids[:3]


async def test_what_an_ended_schedule_leaves_does_not_run(conn: Connection):
    which = await subscription(conn, "a", gather={"quiet": "10s"})
    await emit(conn, "a")
    await settle_plain(conn)
    await emit(conn, "a")
    await call(conn, "end_schedule", str(which))
    await pass_time(conn, 11)
    assert await settle(conn) == []
    await settle_plain(conn)
    assert await told(conn, which) == [("skipped", "requested")] * 2
    assert await inbox(conn, which) == []


async def test_the_last_run_ends_a_schedule(conn: Connection):
    which = await subscription(conn, "a", max_runs=2)
    for _ in range(3):
        await emit(conn, "a")
    await settle_plain(conn)
    assert await told(conn, which) == [("fired", "event")] * 2 + [("skipped", "requested")]
    assert ((await row(conn, which))["state"], (await row(conn, which))["state_reason"]) == ("ended", "max_runs")


async def test_a_schedule_that_can_not_start_does_not_stop_the_others(conn: Connection):
    """SQ3: three that raise an error in a row break it; an edit mends it."""
    bad, good = await subscription(conn, "a", filter="true"), await subscription(conn, "a", filter="true")
    deep: Any = 1
    for _ in range(80):
        deep = [deep, "x" * 10]
    for _ in range(4):
        await emit(conn, "a")
        await evaluate(conn, lambda each: {"options": {"x": deep}} if each["schedule_id"] == bad else {})
    assert await told(conn, good) == [("fired", "event")] * 4
    assert await told(conn, bad) == [("skipped", "broken")] * 4
    assert (await row(conn, bad))["state"] == "broken"
    await conn.execute("UPDATE schedules SET options = '{\"a\": 1}' WHERE id = $1", bad)
    await emit(conn, "a")
    await evaluate(conn, lambda _: {})
    assert (await told(conn, bad))[-1] == ("fired", "event")


async def test_a_workflow_that_is_not_active_and_an_owner_who_is_disabled(conn: Connection):
    """PA5, AG."""
    gone, bob = await subscription(conn, "a", workflow="nothing"), await subscription(conn, "a", created_by="bob")
    await conn.fetchval("SELECT accs.put_actor('bob', p_disabled => true)")
    await emit(conn, "a")
    await settle_plain(conn)
    assert await told(conn, gone) == [("skipped", "workflow_inactive")]
    assert await told(conn, bob) == [("skipped", "owner_disabled")]


async def test_an_event_is_replayed_to_one_subscription(conn: Connection):
    """EV14: it has a row of its own."""
    which, other = await subscription(conn, "a", name="s"), await subscription(conn, "a")
    said = await emit(conn, "a", {"n": 1})
    await settle_plain(conn)
    await pass_time(conn, 60)
    answers = await conn.fetch("SELECT * FROM accs.replay_events($1, 's', 'eve')", [said["event_id"], 999_999])
    assert [(each["answer"], each["reason"]) for each in answers] == [("accepted", None), ("refused", "not_found")]
    [again] = await conn.fetch("SELECT * FROM accs.replay_events($1, 's')", [said["event_id"]])
    assert again["answer"] == "repeated"
    await settle_plain(conn)
    assert await told(conn, which) == [("fired", "event"), ("fired", "backfill")]
    assert await told(conn, other) == [("fired", "event")]
    assert {each["cause_id"] for each in await ledger(conn, which)} == {said["event_id"]}
    assert len({job["id"] for job in await jobs_of(conn, which)}) == 2
    await schedule(conn, name="timed")
    [refused] = await conn.fetch("SELECT * FROM accs.replay_events($1, 'timed')", [said["event_id"]])
    assert refused["reason"] == "not_by_event"
    await check(conn)
