"""settle_due: every due time gets one row in the ledger, and what is to run gets one job."""

from datetime import timedelta

from tests.support.checker import check
from tests.support.cluster import Connection
from tests.support.factory import finish, node, pass_time, started
from tests.support.schedules import call, jobs_of, ledger, outlook, replan, row, schedule, settle, settle_all, told


async def finish_all(conn: Connection) -> None:
    await node(conn)
    while claimed := await started(conn, 10):
        await finish(conn, *claimed)


async def test_what_is_due_fires_once_with_its_job_and_its_row(conn: Connection):
    """LG1, SQ1: the job is instantiated in the same transaction, so that an agent can claim it at once."""
    which = await schedule(conn, 60, options={"a": 1}, priority=3, created_by="eve")
    assert await settle(conn) == []
    await pass_time(conn, 60)
    assert await settle(conn) == [("fired", "on_time")]
    assert await settle(conn) == []
    (job,) = await jobs_of(conn, which)
    (fired,) = await ledger(conn, which)
    assert fired["job_id"] == job["id"]
    assert (job["status"], job["options"], job["priority"], job["created_by"]) == ("running", {"a": 1}, 3, "eve")
    assert job["trigger"]["schedule_id"] == str(which)
    assert job["trigger"]["nominal"] == fired["nominal"].replace(microsecond=0).isoformat()
    found = await row(conn, which)
    assert (found["runs"], found["last_job_id"], found["last_nominal"]) == (1, job["id"], fired["nominal"])
    await check(conn)


async def test_the_outlook_knows_the_next_due_time(conn: Connection):
    """SQ7."""
    await schedule(conn, 60)
    assert timedelta(seconds=58) < (await outlook(conn))["next_due"] <= timedelta(seconds=60)
    await pass_time(conn, 61)
    assert (await outlook(conn))["next_due"] == timedelta(0)


async def test_a_plan_is_filled_up_before_it_is_used_up(conn: Connection):
    await schedule(conn, 10, overlap="allow")
    for _ in range(30):
        await pass_time(conn, 10)
        await settle(conn)
    assert (await outlook(conn))["next_plan"] == timedelta(0)
    await replan(conn)
    assert (await outlook(conn))["next_plan"] is None
    for _ in range(10):
        await pass_time(conn, 10)
        assert await settle(conn) == [("fired", "on_time")]


async def test_one_runs_for_all_that_an_outage_missed(conn: Connection):
    """MI2, the default."""
    which = await schedule(conn, 60, overlap="allow")
    await pass_time(conn, 630)
    settled = await settle_all(conn)
    assert settled == [("merged", "catch_up")] * 8 + [("caught_up", "late"), ("fired", "on_time")]
    rows = await ledger(conn, which)
    caught = rows[8]
    assert {each["merged_into"] for each in rows[:8]} == {caught["nominal"]}
    job = next(job for job in await jobs_of(conn, which) if job["id"] == caught["job_id"])
    assert job["trigger"]["merged"] == {"count": 8}
    assert job["trigger"]["nominal"] == caught["nominal"].replace(microsecond=0).isoformat()
    await check(conn)


async def test_all_run_oldest_first_within_their_limits(conn: Connection):
    """MI2: at most catch_up_max of those not older than catch_up, of these the newest."""
    which = await schedule(conn, 60, missed="all", overlap="allow", catch_up=timedelta(minutes=9), catch_up_max=3)
    await pass_time(conn, 630)
    settled = await settle_all(conn)
    assert settled == [
        *[("missed", "too_old")] * 1,
        *[("missed", "over_limit")] * 5,
        *[("caught_up", "late")] * 3,
        ("fired", "on_time"),
    ]
    jobs = await jobs_of(conn, which)
    assert [job["trigger"]["nominal"] for job in jobs] == sorted(job["trigger"]["nominal"] for job in jobs)


async def test_what_was_missed_is_missed_under_skip(conn: Connection):
    await schedule(conn, 60, missed="skip", overlap="allow")
    await pass_time(conn, 330)
    assert await settle_all(conn) == [("missed", "down")] * 4 + [("fired", "on_time")]


async def test_the_latest_is_not_run_when_it_is_too_old(conn: Connection):
    await schedule(conn, 3600, catch_up=timedelta(minutes=10))
    await pass_time(conn, 3600 + 1200)
    assert await settle_all(conn) == [("missed", "too_old")]


async def test_a_long_outage_is_one_row_and_the_newest_thousand(conn: Connection):
    """LG5."""
    which = await schedule(conn, 60, overlap="allow")
    await pass_time(conn, 60 * 5000)
    settled = await settle_all(conn)
    assert settled.count(("caught_up", "late")) == 1
    first, *rest = await ledger(conn, which)
    assert (first["outcome"], first["reason"]) == ("merged", "catch_up")
    assert first["times"] + len(rest) == 5000
    assert first["until_nominal"] < rest[0]["nominal"]
    assert first["merged_into"] == max(each["nominal"] for each in rest if each["outcome"] == "caught_up")


async def test_a_run_that_still_goes_on_is_not_overtaken(conn: Connection):
    """OV1, OV3: the default; the row names the job that blocked."""
    which = await schedule(conn, 60)
    await pass_time(conn, 60)
    await settle(conn)
    await pass_time(conn, 60)
    assert await settle(conn) == [("skipped", "overlap")]
    (job,) = await jobs_of(conn, which)
    assert (await ledger(conn, which))[1]["detail"]["blocked_by"] == str(job["id"])
    await finish_all(conn)
    await pass_time(conn, 60)
    assert await settle(conn) == [("fired", "on_time")]
    await check(conn)


async def test_one_waits_for_the_run_before_it_and_later_ones_join_it(conn: Connection):
    """OV3 queue, OV4: the next is released in the transaction in which its blocker ends."""
    which = await schedule(conn, 60, overlap="queue")
    for _ in range(4):
        await pass_time(conn, 60)
        await settle(conn)
    assert await told(conn, which) == [
        ("fired", "on_time"),
        ("fired", "on_time"),
        ("merged", "overlap_queue"),
        ("merged", "overlap_queue"),
    ]
    rows = await ledger(conn, which)
    assert {each["merged_into"] for each in rows[2:]} == {rows[1]["nominal"]}
    assert [job["status"] for job in await jobs_of(conn, which)] == ["running", "queued"]
    assert await conn.fetch("SELECT * FROM accs.instantiate_due_jobs()") == []
    await node(conn)
    (task,) = await started(conn)
    await finish(conn, task)
    assert [row["answer"] for row in await conn.fetch("SELECT * FROM accs.instantiate_due_jobs()")] == ["accepted"]
    assert [job["status"] for job in await jobs_of(conn, which)] == ["done", "running"]
    await check(conn)


async def test_all_wait_in_order(conn: Connection):
    """OV3 queue_all."""
    which = await schedule(conn, 60, overlap="queue_all")
    for _ in range(3):
        await pass_time(conn, 60)
        await settle(conn)
    assert [job["status"] for job in await jobs_of(conn, which)] == ["running", "queued", "queued"]
    await node(conn)
    for statuses in (["done", "running", "queued"], ["done", "done", "running"], ["done", "done", "done"]):
        (task,) = await started(conn)
        await finish(conn, task)
        await conn.fetch("SELECT * FROM accs.instantiate_due_jobs()")
        assert [job["status"] for job in await jobs_of(conn, which)] == statuses
    await check(conn)


async def test_the_next_run_overtakes_the_one_before_it(conn: Connection):
    """OV3 cancel."""
    which = await schedule(conn, 60, overlap="cancel")
    await pass_time(conn, 60)
    await settle(conn)
    await pass_time(conn, 60)
    assert await settle(conn) == [("fired", "on_time")]
    assert [job["status"] for job in await jobs_of(conn, which)] == ["cancelled", "running"]
    await check(conn)


async def test_schedules_that_share_a_run_key_exclude_each_other(conn: Connection):
    """OV2, OV5."""
    first = await schedule(conn, 60, run_key="database")
    second = await schedule(conn, 60, run_key="database", overlap="queue_all")
    await pass_time(conn, 60)
    assert sorted(await settle(conn)) == [("fired", "on_time"), ("fired", "on_time")]
    statuses = [job["status"] for job in (*await jobs_of(conn, first), *await jobs_of(conn, second))]
    assert statuses == ["running", "queued"]
    assert await conn.fetchval("SELECT accs.set_run_limit('database', 2)") == "accepted"
    await conn.fetch("SELECT * FROM accs.instantiate_due_jobs()")
    assert [job["status"] for job in await jobs_of(conn, second)] == ["running"]


async def test_a_workflow_that_is_not_there_is_skipped_and_the_others_fire(conn: Connection):
    await schedule(conn, 60, workflow="nothing")
    await schedule(conn, 60)
    await pass_time(conn, 60)
    assert sorted(await settle(conn)) == [("fired", "on_time"), ("skipped", "workflow_inactive")]


async def test_a_schedule_ends_after_its_last_run(conn: Connection):
    """BO1, BO2."""
    which = await schedule(conn, 60, max_runs=2, overlap="allow")
    await pass_time(conn, 60 * 4)
    await settle_all(conn)
    found = await row(conn, which)
    assert (found["runs"], found["state"], found["state_reason"]) == (2, "ended", "max_runs")
    assert (await outlook(conn))["next_due"] is None
    await conn.execute("UPDATE schedules SET max_runs = 3 WHERE id = $1", which)
    await replan(conn)
    await pass_time(conn, 60)
    assert await settle(conn) == [("fired", "on_time")]
    assert (await row(conn, which))["state"] == "ended"


async def test_nothing_fires_while_all_are_held(conn: Connection):
    """PA4: when the hold is lifted, everything is as if all schedulers had been down."""
    await schedule(conn, 60, overlap="allow")
    assert await conn.fetchval("SELECT accs.hold_schedules('a fire', 'ops')") == "accepted"
    await pass_time(conn, 270)
    assert await settle(conn) == []
    assert (await outlook(conn))["hold"] == "a fire, by ops"
    assert await conn.fetchval("SELECT accs.hold_schedules(NULL, NULL, true)") == "accepted"
    assert await settle_all(conn) == [("merged", "catch_up")] * 2 + [("caught_up", "late"), ("fired", "on_time")]


async def test_what_raises_is_recorded_and_the_others_fire(conn: Connection):
    """SQ3, HE1: quarantined after three."""
    bad = await schedule(conn, 60, overlap="allow", priority=7)
    good = await schedule(conn, 60, overlap="allow")
    await conn.execute(
        "CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE EXCEPTION 'not today' USING ERRCODE = 'P0001'; END $$;"
        "CREATE TRIGGER refuse BEFORE INSERT ON jobs FOR EACH ROW WHEN (NEW.priority = 7) EXECUTE FUNCTION refuse()"
    )
    for _ in range(3):
        await pass_time(conn, 60)
        await settle_all(conn)
    assert await told(conn, good) == [("fired", "on_time")] * 3
    assert await told(conn, bad) == [("skipped", "broken")] * 3
    found = await row(conn, bad)
    assert (found["state"], found["state_reason"]) == ("broken", "not today")
    assert (await ledger(conn, bad))[0]["detail"] == {"problem": "not today"}


async def test_a_snoozed_occurrence_of_a_schedule_that_is_ended_does_not_stay_snoozed(conn: Connection):
    """LG2: snoozed is the only outcome that is not final."""
    which = await schedule(conn, 60, name="s")
    await call(conn, "snooze", "s", timedelta(days=1))
    await call(conn, "end_schedule", "s")
    assert await told(conn, which) == [("skipped", "requested")]
