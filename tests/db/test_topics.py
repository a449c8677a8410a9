"""Events: emitted in anybody's transaction, matched by equality, settled once for each subscription."""

from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from tests.support.checker import check
from tests.support.cluster import Connection
from tests.support.factory import done, fail, finish, node, pass_time, started, step, submit, workflow
from tests.support.schedules import call, jobs_of, ledger, row, schedule, settle, settle_all, told
from tests.support.topics import emit, evaluate, inbox, settle_plain, subscription, verdict


async def choose(conn: Connection) -> list[str]:
    return await conn.fetchval("SELECT accs.choose_outcomes()")


async def test_a_rollback_takes_an_event_back_and_a_commit_keeps_it(conn: Connection):
    """EV1, EV6."""
    which = await subscription(conn, "shop.order")
    transaction = conn.transaction()
    await transaction.start()
    assert (await emit(conn, "shop.order", {"n": 1}))["matched"] == 1
    await transaction.rollback()
    assert await settle_plain(conn) == []
    async with conn.transaction():
        said = await emit(conn, "shop.order", {"n": 2}, source="shop")
    assert (said["answer"], said["matched"]) == ("accepted", 1)
    [settled] = await settle_plain(conn)
    assert (settled["outcome"], settled["reason"], settled["event_id"]) == ("fired", "event", said["event_id"])
    [job] = await jobs_of(conn, which)
    assert job["trigger"]["cause"] == "event"
    assert job["trigger"]["event"] == {
        "id": said["event_id"],
        "topic": "shop.order",
        "payload": {"n": 2},
        "source": "shop",
        "at": job["trigger"]["event"]["at"],
    }
    assert (job["trigger"]["depth"], job["trigger"]["timezone"]) == (1, "UTC")
    [fired] = await ledger(conn, which)
    assert (fired["cause_id"], fired["job_id"], fired["settled_by"]) == (said["event_id"], job["id"], "test")
    assert (await row(conn, which))["runs"] == 1
    await check(conn)


@pytest.mark.parametrize(
    "topic",
    ["", ".", "a.", ".a", "a..b", "a b", "ä", "a.*", "**", ".".join("abcdefghijk"), "x" * 201, "a\n", None],
)
async def test_a_topic_is_segments_joined_by_dots(conn: Connection, topic: str | None):
    """EV2."""
    with pytest.raises(asyncpg.InvalidParameterValueError, match="can't have the topic"):
        await conn.fetch("SELECT * FROM accs.emit_event($1)", topic)


@pytest.mark.parametrize("topic", ["a", "alerta.critica", "A-b_9.c", ".".join("abcdefghij"), "x" * 200])
async def test_what_a_topic_may_be(conn: Connection, topic: str):
    """EV2."""
    assert (await emit(conn, topic))["answer"] == "accepted"


async def test_accsd_keeps_its_own_topics_to_itself(conn: Connection):
    """EV2, EV12."""
    for topic in ("accs", "accs.job.done"):
        with pytest.raises(asyncpg.PostgresError, match="accsd's own") as refused:
            await emit(conn, topic)
        assert refused.value.sqlstate == "AC006"
    assert (await emit(conn, "accsd.job"))["answer"] == "accepted"


async def test_a_payload_is_an_object_of_limited_size(conn: Connection):
    """EV2."""
    for payload in ([1], "x", None):
        with pytest.raises(asyncpg.InvalidParameterValueError, match="JSON object"):
            await conn.fetch("SELECT * FROM accs.emit_event('a', $1)", payload)
    with pytest.raises(asyncpg.InvalidParameterValueError, match="256 KiB"):
        await emit(conn, "a", {"x": [str(i) for i in range(60_000)]})


async def test_events_are_written_by_their_verb_only(conn: Connection):
    await emit(conn, "a")
    for statement in (
        "INSERT INTO events (topic) VALUES ('b')",
        "UPDATE events SET topic = 'b'",
        "DELETE FROM events",
        "TRUNCATE events",
        "TRUNCATE events_default",
    ):
        with pytest.raises(asyncpg.PostgresError) as refused:
            await conn.execute(statement)
        assert refused.value.sqlstate == "AC005"


@pytest.mark.parametrize(
    ("pattern", "met", "not_met"),
    [
        ("github.push", ["github.push"], ["github.push.main", "github", "Github.push"]),
        ("github.*", ["github.push", "github.pull"], ["github", "github.push.main", "gitlab.push"]),
        ("github.**", ["github.push", "github.push.main.x"], ["github", "gitlab.push"]),
        ("*", ["github"], ["github.push"]),
        ("**", ["github", "github.push.main"], []),
        ("a.b.c.d.e.f.g.h.i.*", ["a.b.c.d.e.f.g.h.i.j"], ["a.b.c.d.e.f.g.h.i"]),
    ],
)
async def test_a_wildcard_stands_last(conn: Connection, pattern: str, met: list[str], not_met: list[str]):
    """EV3."""
    await subscription(conn, pattern)
    assert [(await emit(conn, topic))["matched"] for topic in met] == [1] * len(met)
    assert [(await emit(conn, topic))["matched"] for topic in not_met] == [0] * len(not_met)


async def test_a_topic_is_looked_up_by_as_many_patterns_as_it_has_segments_and_two(conn: Connection):
    """EV3."""
    assert await conn.fetchval("SELECT accs.patterns_of('a.b.c')") == ["a.b.c", "a.b.*", "**", "a.**", "a.b.**"]
    for depth in range(1, 11):
        topic = ".".join("x" * depth)
        assert len(await conn.fetchval("SELECT accs.patterns_of($1)", topic)) == depth + 2


async def test_an_emission_looks_at_no_more_subscriptions_than_it_meets(conn: Connection):
    """EV3: the cost does not depend on how many there are."""
    await subscription(conn, "a.*")
    await conn.execute(
        "INSERT INTO accs.subscriptions SELECT gen_random_uuid(), 'b.' || n, true FROM generate_series(1, 5000) n"
    )
    await emit(conn, "a.b", {}, key="k")
    async with conn.transaction():
        assert (await emit(conn, "a.b", {}, key="l"))["matched"] == 1
        for table in ("accs.subscriptions", "accs.event_keys"):
            looked_at = "SELECT pg_stat_get_xact_tuples_returned($1::text::regclass)"
            assert await conn.fetchval(looked_at, table) == 0, table


@pytest.mark.parametrize("pattern", ["a.*.b", "*.a", "a.***", "a.", "a b", "a*"])
async def test_what_is_no_pattern_listens_to_nothing(conn: Connection, pattern: str):
    """EV3: the planner says what is wrong with it."""
    await subscription(conn, pattern)
    assert await conn.fetch("SELECT * FROM accs.subscriptions") == []


async def test_a_subscription_follows_its_schedule(conn: Connection):
    which = await subscription(conn, "a.b")

    async def heard() -> list[str]:
        return [topic for topic in ("a.b", "c") if (await emit(conn, topic))["matched"]]

    assert await heard() == ["a.b"]
    await conn.execute("UPDATE schedules SET schedule_expr = 'c' WHERE id = $1", which)
    assert await heard() == ["c"]
    await call(conn, "pause_schedule", str(which))
    assert await heard() == ["c"]
    await call(conn, "end_schedule", str(which))
    assert await heard() == []
    await conn.execute("UPDATE schedules SET schedule_expr = 'a.b' WHERE id = $1", which)
    assert await heard() == ["a.b"]
    await conn.execute("UPDATE schedules SET schedule_kind = 'interval', schedule_expr = '60s' WHERE id = $1", which)
    assert await heard() == []


async def test_every_event_of_one_moment_has_its_run_in_the_order_of_the_ids(conn: Connection):
    """EV5, EV6."""
    which, other = await subscription(conn, "a"), await subscription(conn, "*")
    async with conn.transaction():
        ids = [(await emit(conn, "a", {"n": n}))["event_id"] for n in range(20)]
    assert len(await settle_plain(conn, 13)) == 13
    assert len(await settle_plain(conn)) == 27
    for each in (which, other):
        jobs = await jobs_of(conn, each)
        assert [job["trigger"]["event"]["id"] for job in jobs] == ids
        assert [fired["cause_id"] for fired in await ledger(conn, each)] == ids
        assert await inbox(conn, each) == []
    await check(conn)


async def test_what_nobody_listens_to_is_kept_all_the_same(conn: Connection):
    said = await emit(conn, "a", {"n": 1})
    assert said["matched"] == 0
    assert await conn.fetchval("SELECT payload FROM events WHERE id = $1", said["event_id"]) == {"n": 1}


async def test_the_same_key_within_its_window_is_the_same_event(conn: Connection):
    """EV7."""
    await subscription(conn, "a")
    first = await emit(conn, "a", {"n": 1}, key="k")
    again = await emit(conn, "a", {"n": 2}, key="k")
    assert (again["event_id"], again["answer"], again["matched"]) == (first["event_id"], "repeated", 1)
    assert (await emit(conn, "b", key="k"))["answer"] == "accepted"
    assert (await emit(conn, "a", key="l"))["answer"] == "accepted"
    await pass_time(conn, 86_399)
    assert (await emit(conn, "a", key="k"))["answer"] == "repeated"
    await pass_time(conn, 2)
    later = await emit(conn, "a", key="k")
    assert later["answer"] == "accepted"
    assert later["event_id"] > first["event_id"]
    assert (await emit(conn, "a", key="s", window=timedelta(seconds=5)))["answer"] == "accepted"
    await pass_time(conn, 6)
    assert (await emit(conn, "a", key="s"))["answer"] == "accepted"


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


async def test_a_cooldown_counts_from_the_event_that_ran(conn: Connection):
    """EV9."""
    which = await subscription(conn, "a", cooldown=timedelta(seconds=60))
    for seconds in (0, 30, 31, 20):
        await pass_time(conn, seconds)
        await emit(conn, "a")
    await settle_plain(conn)  # late, and all at once: it is the same
    assert await told(conn, which) == [
        ("fired", "event"),
        ("skipped", "cooldown"),
        ("fired", "event"),
        ("skipped", "cooldown"),
    ]


async def test_a_trailing_cooldown_gathers_into_one_run_at_its_end(conn: Connection):
    """EV9."""
    which = await subscription(conn, "a", cooldown=timedelta(seconds=60), cooldown_trailing=True)
    await emit(conn, "a")
    await settle_plain(conn)
    ids = [(await emit(conn, "a"))["event_id"] for _ in range(3)]
    assert [each["outcome"] for each in await settle_plain(conn)] == ["gathered"] * 3
    await pass_time(conn, 59)
    assert await settle(conn) == []
    await pass_time(conn, 2)
    assert sorted(await settle(conn)) == [("fired", "event")] + [("merged", "gathered")] * 3
    jobs = await jobs_of(conn, which)
    assert len(jobs) == 2
    assert jobs[1]["trigger"]["event_ids"] == ids
    await emit(conn, "a")
    assert [each["outcome"] for each in await settle_plain(conn)] == ["gathered"]


async def test_events_are_gathered_until_it_is_quiet(conn: Connection):
    """EV8: all of them are kept, each with its row."""
    which = await subscription(conn, "a", gather={"quiet": "10s", "at_most": "1m"})
    ids = list[int]()
    for n in range(3):
        ids.append((await emit(conn, "a", {"n": n}))["event_id"])
        await settle_plain(conn)
        await pass_time(conn, 8)
        assert await settle(conn) == []
    await pass_time(conn, 3)
    assert sorted(await settle(conn)) == [("fired", "event")] + [("merged", "gathered")] * 3
    [job] = await jobs_of(conn, which)
    assert job["trigger"]["gathered"]["count"] == 3
    assert job["trigger"]["event_ids"] == ids
    assert [each["payload"] for each in job["trigger"]["events"]] == [{"n": n} for n in range(3)]
    assert job["trigger"]["event"]["id"] == ids[-1]
    rows = await ledger(conn, which)
    [run] = [each for each in rows if each["outcome"] == "fired"]
    assert run["job_id"] == job["id"]
    merged = [each for each in rows if each["outcome"] == "merged"]
    assert [each["cause_id"] for each in merged] == ids
    assert {each["merged_into"] for each in merged} == {run["nominal"]}
    assert await inbox(conn, which) == []
    assert (await row(conn, which))["runs"] == 1
    await check(conn)


async def test_a_window_is_open_for_at_most_so_long_and_for_at_most_so_many(conn: Connection):
    """EV8."""
    which = await subscription(conn, "a", gather={"quiet": "10s", "at_most": "15s"})
    for _ in range(3):
        await emit(conn, "a")
        await settle_plain(conn)
        await pass_time(conn, 8)
    assert ("fired", "event") in await settle(conn)
    assert (await jobs_of(conn, which))[0]["trigger"]["gathered"]["count"] == 3
    full = await subscription(conn, "b", gather={"quiet": 3600, "size": 5})
    for _ in range(5):
        await emit(conn, "b")
    await settle_plain(conn)
    assert ("fired", "event") in await settle(conn)
    assert (await jobs_of(conn, full))[0]["trigger"]["gathered"]["count"] == 5


async def test_events_of_different_keys_are_gathered_apart(conn: Connection):
    """EV8: with the options of the newest event of each window."""
    options = {"n": "${event.payload.n}"}
    which = await subscription(conn, "a", gather={"by": "event.payload.user", "quiet": "10s"}, options=options)
    for n, user in enumerate("xyxxy"):
        await emit(conn, "a", {"n": n, "user": user})
    await evaluate(
        conn, lambda each: {"gathering": f'"{each["payload"]["user"]}"', "options": {"n": each["payload"]["n"]}}
    )
    await pass_time(conn, 11)
    assert (await settle(conn)).count(("fired", "event")) == 2
    jobs = {job["trigger"]["gathered"]["by"]: job for job in await jobs_of(conn, which)}
    assert {by: (job["trigger"]["gathered"]["count"], job["options"]) for by, job in jobs.items()} == {
        '"x"': (3, {"n": 3}),
        '"y"': (2, {"n": 4}),
    }


async def test_a_window_that_cannot_start_stays_open(conn: Connection):
    """EV8."""
    which = await subscription(conn, "a", gather={"quiet": "10s"}, overlap="skip")
    await emit(conn, "a")
    await settle_plain(conn)
    await pass_time(conn, 11)
    await settle(conn)
    ids = [(await emit(conn, "a"))["event_id"]]
    await settle_plain(conn)
    await pass_time(conn, 11)
    assert await settle(conn) == []
    ids.append((await emit(conn, "a"))["event_id"])
    await settle_plain(conn)
    await node(conn)
    await done(conn)
    await pass_time(conn, 11)
    await settle(conn)
    assert [job["trigger"]["event_ids"] for job in await jobs_of(conn, which)][1:] == [ids]
    assert ("skipped", "overlap") not in await told(conn, which)
    await check(conn)


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


async def test_keys_whose_time_is_over_are_forgotten(conn: Connection):
    await emit(conn, "a", key="k")
    assert await conn.fetchval("SELECT accs.forget_event_keys()") == 0
    await pass_time(conn, 2 * 86_400)
    assert await conn.fetchval("SELECT accs.forget_event_keys()") == 1


async def test_one_workflow_follows_another(conn: Connection):
    """EV12: told in the transaction that ends the job, with the results of its last steps."""
    await node(conn)
    await submit(conn, step("a"))
    await done(conn)
    assert await conn.fetchval("SELECT count(*) FROM events") == 0
    which = await subscription(conn, "accs.job.done", filter="event.payload.workflow == 'first'")
    assert await choose(conn) == ["+emit_outcome"]
    assert await choose(conn) == []
    await workflow(conn, step("x"), step("y", after="x"), name="first")
    await conn.fetchval("SELECT accs.submit('first')")
    for result in ({"n": 1}, {"n": 2}):
        await finish(conn, *await started(conn), results=[result])
    [asked] = await conn.fetch("SELECT * FROM accs.events_to_settle()")
    assert asked["topic"] == "accs.job.done"
    assert (asked["payload"]["workflow"], asked["payload"]["results"]) == ("first", {"y": {"n": 2}})
    await evaluate(conn, lambda _: {})
    [job] = await jobs_of(conn, which)
    await done(conn)  # the run of the subscription ends, too: its own event does not start it again
    await evaluate(conn, lambda _: {})
    assert await told(conn, which) == [("fired", "event"), ("skipped", "loop")]
    assert job["trigger"]["event"]["job_id"] == asked["payload"]["job_id"]
    await call(conn, "end_schedule", str(which))
    assert await choose(conn) == ["-emit_outcome"]


async def test_what_else_accsd_tells_of_itself(conn: Connection):
    """EV12."""
    await subscription(conn, "accs.**", name="all", overlap="skip")
    assert len(await choose(conn)) == 5
    await node(conn)
    await submit(conn, step("a", max_attempts=1))
    await fail(conn, *await started(conn))
    await conn.fetch("SELECT * FROM accs.cancel_jobs($1)", [await submit(conn, step("a"))])
    await schedule(conn, 60, missed="skip", name="timed")
    await pass_time(conn, 130)
    await settle_all(conn)
    broken = await row(conn, await subscription(conn, "x", name="odd"))
    await conn.execute("UPDATE schedules SET filter = '(' WHERE name = 'odd'")
    plan = {"id": str(broken["id"]), "revision": 2, "after": broken["settled_until"], "problem": "no"}
    await conn.fetch("SELECT * FROM accs.plan_schedules($1)", [plan])
    await conn.execute("UPDATE accs.power SET state = 'failed', because = 'silent'")
    told_of = await conn.fetch("SELECT topic, payload FROM events ORDER BY id")
    assert {each["topic"] for each in told_of} == {
        "accs.task.dead",
        "accs.job.error",
        "accs.job.cancelled",
        "accs.schedule.missed",
        "accs.schedule.broken",
        "accs.node.failed",
    }
    assert {"accs.schedule.broken": "no"}.items() <= {e["topic"]: e["payload"].get("problem") for e in told_of}.items()


async def own_events(conn: Connection, topic: str) -> list[dict[str, Any]]:
    rows = await conn.fetch("SELECT payload FROM events WHERE topic = $1 ORDER BY id", topic)
    return [each["payload"] for each in rows]


async def test_a_node_that_does_not_wake_is_told_once_by_the_verb_of_the_waker(conn: Connection):
    """EV12."""
    await subscription(conn, "accs.node.failed")
    assert await choose(conn) == ["+emit_failed"]
    await node(conn)
    await pass_time(conn, 600)
    for because in ("silent", "still silent"):
        query = "SELECT accs.note_not_woken('{n1}', '{NULL}', '{true}', ARRAY[$1], '1 min')"
        assert await conn.fetchval(query, because) == 1
    assert await own_events(conn, "accs.node.failed") == [{"node": "n1", "because": "silent"}]


async def test_a_task_that_is_given_up_is_told_with_its_dead_letter(conn: Connection):
    """EV12."""
    await subscription(conn, "accs.task.dead")
    assert await choose(conn) == ["+emit_dead"]
    await node(conn)
    job = await submit(conn, step("a", max_attempts=1), step("b", after="a"))
    await fail(conn, *await started(conn))
    [said] = await own_events(conn, "accs.task.dead")
    letter = await conn.fetchval("SELECT id FROM dead_letters")
    assert (said["job_id"], said["step"], said["dead_letter"]) == (str(job), "a", letter)
    assert said["reason"] == "attempts_exhausted"


async def test_what_was_missed_is_told_also_in_a_month_that_was_made_after_somebody_subscribed(conn: Connection):
    """EV12."""
    await subscription(conn, "accs.schedule.missed")
    assert await choose(conn) == ["+emit_missed"]
    await pass_time(conn, 300 * 86_400)
    await conn.fetch("SELECT accs.make_months('firings')")
    await schedule(conn, 60, missed="skip", name="nightly")
    await pass_time(conn, 185)
    await settle_all(conn)
    told_of = await own_events(conn, "accs.schedule.missed")
    assert [(each["schedule"], each["reason"]) for each in told_of] == [("nightly", "down")] * 2


async def test_a_schedule_whose_firings_fail_three_times_is_told_to_be_broken_once(conn: Connection):
    """EV12, SQ3."""
    await subscription(conn, "accs.schedule.broken")
    assert await choose(conn) == ["+emit_broken"]
    await conn.execute(
        """CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'not today'; END $$;
           CREATE TRIGGER refuse BEFORE INSERT ON jobs FOR EACH ROW WHEN (NEW.options ? 'bad')
             EXECUTE FUNCTION public.refuse()"""
    )
    await schedule(conn, 60, options={"bad": 1}, name="nightly")
    for _ in range(5):
        await pass_time(conn, 61)
        await settle_all(conn)
    [said] = await own_events(conn, "accs.schedule.broken")
    assert (said["schedule"], said["problem"]) == ("nightly", "not today")


async def test_what_nobody_subscribes_to_is_not_stored(conn: Connection):
    """EV12."""
    await subscription(conn, "accs.job.error")
    await choose(conn)
    await node(conn)
    await submit(conn, step("a"))
    await done(conn)
    assert await conn.fetchval("SELECT count(*) FROM events") == 0


async def test_emitting_waits_for_nobody_who_holds_a_schedule(conn: Connection, connect: Any):
    """EV5: only INSERTs."""
    which = await subscription(conn, "a")
    other = await connect()
    async with other.transaction():
        await other.execute("SELECT FROM schedules WHERE id = $1 FOR UPDATE", which)
        await conn.execute("SET lock_timeout = '1s'")
        assert (await emit(conn, "a"))["matched"] == 1
        assert await settle_plain(conn) == []
    assert len(await settle_plain(conn)) == 1
