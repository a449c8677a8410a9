"""Events: emitted in anybody's transaction, matched by equality, kept for a month; and those of accsd itself."""

from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from tests.support.checker import check
from tests.support.cluster import Connection
from tests.support.factory import done, fail, finish, node, pass_time, started, step, submit, workflow
from tests.support.schedules import call, jobs_of, ledger, row, schedule, settle_all, told
from tests.support.topics import emit, evaluate, inbox, settle_plain, subscription


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


async def test_a_burst_is_settled_in_steps_that_cost_what_they_settle(conn: Connection):
    """Also after the inbox was looked over while it was empty: a plan of that moment must not read all of it."""
    await subscription(conn, "upload")
    burst = "SELECT accs.emit_event('upload', '{}') FROM generate_series(1, $1)"
    await conn.execute(burst, 200)
    await settle_plain(conn, 200)
    await conn.execute("ANALYZE accs.inbox")
    await conn.execute(burst, 1000)
    read = "SELECT idx_tup_fetch FROM pg_stat_xact_all_tables WHERE relid = 'accs.inbox'::regclass"
    async with conn.transaction():
        before = await conn.fetchval(read)
        assert len(await settle_plain(conn, 50)) == 50
        assert await conn.fetchval(read) - before <= 3 * 50


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
