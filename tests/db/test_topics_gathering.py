"""One run for many events: windows that gather, and cooldowns."""

from datetime import timedelta

from tests.support.checker import check
from tests.support.cluster import Connection
from tests.support.factory import done, node, pass_time
from tests.support.schedules import jobs_of, ledger, row, settle, told
from tests.support.topics import emit, evaluate, inbox, settle_plain, subscription


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
