"""Schedulers, people and ending jobs at the same moment: one of the legal orders happens, and nobody deadlocks."""

import asyncio
from datetime import timedelta
from uuid import UUID

import pytest

from tests.conftest import Connect
from tests.support.checker import check
from tests.support.cluster import Connection
from tests.support.conditions import condition
from tests.support.factory import finish, node, pass_time, started
from tests.support.race import Race
from tests.support.schedules import call, jobs_of, ledger, replan, row, schedule, settle, settle_all, told


async def test_a_second_scheduler_passes_by_what_the_first_has(conn: Connection, race: Race):
    """SQ4: it neither waits nor settles it again."""
    which = await schedule(conn, 60)
    await pass_time(conn, 60)
    a, b = await race.session(), await race.session()
    async with a.transaction():
        assert await settle(a) == [("fired", "on_time")]
        assert await asyncio.wait_for(settle(b), 5) == []
    assert await settle(b) == []
    assert len(await ledger(conn, which)) == len(await jobs_of(conn, which)) == 1
    await check(conn)


async def test_many_schedulers_settle_each_due_time_once(conn: Connection, connect: Connect):
    """SQ4: 300 schedules due at once, four sessions."""
    for _ in range(300):
        await schedule(conn, 60, plan=False, workflow="w")
    await conn.execute('INSERT INTO workflows (name, steps) VALUES (\'w\', \'[{"key": "a", "service": "render"}]\')')
    await replan(conn)
    await pass_time(conn, 60)

    async def work() -> int:
        mine, settled = await connect(), 0
        while found := await settle(mine, 20):
            settled += len(found)
        return settled

    assert sum(await asyncio.gather(*(work() for _ in range(4)))) == 300
    rows = await conn.fetch("SELECT count(*) AS n, count(DISTINCT job_id) AS jobs FROM firings")
    assert (rows[0]["n"], rows[0]["jobs"]) == (300, 300)
    assert await conn.fetchval("SELECT count(*) FROM jobs") == 300
    await check(conn)


async def test_an_edit_at_the_due_moment_waits_and_concerns_what_follows(conn: Connection, race: Race):
    """ED2."""
    which = await schedule(conn, 60, overlap="allow")
    await pass_time(conn, 60)
    edit = "UPDATE schedules SET schedule_expr = '600s' WHERE id = $1"
    settled, _ = await race.second_waits(settle, lambda b: b.execute(edit, which))
    assert settled == [("fired", "on_time")]
    assert [(each["outcome"], each["revision"]) for each in await ledger(conn, which)] == [("fired", 1)]
    assert (await row(conn, which))["runs"] == 1
    await check(conn)


async def test_a_scheduler_leaves_what_is_being_edited_and_the_edit_has_settled_it(conn: Connection, race: Race):
    which = await schedule(conn, 60, overlap="allow")
    await pass_time(conn, 60)
    a, b = await race.session(), await race.session()
    async with a.transaction():
        await a.execute("UPDATE schedules SET priority = 5 WHERE id = $1", which)
        assert await asyncio.wait_for(settle(b), 5) == []
    assert await settle_all(conn) == []
    assert [(each["outcome"], each["revision"]) for each in await ledger(conn, which)] == [("fired", 1)]
    assert [job["priority"] for job in await jobs_of(conn, which)] == [0]
    await check(conn)


async def test_a_pause_at_the_due_moment_comes_before_or_after(conn: Connection, race: Race):
    which = await schedule(conn, 60)
    await pass_time(conn, 60)
    settled, paused = await race.second_waits(settle, lambda b: call(b, "pause_schedule", str(which)))
    assert settled == [("fired", "on_time")]
    assert paused["answer"] == "accepted"
    await pass_time(conn, 60)
    a, b = await race.session(), await race.session()
    async with a.transaction():
        await call(a, "resume_schedule", str(which))
        assert await asyncio.wait_for(settle(b), 5) == []
    assert await told(conn, which) == [("fired", "on_time"), ("skipped", "paused")]
    await check(conn)


async def test_the_end_of_a_job_does_not_wait_for_a_run_key(conn: Connection, race: Race):
    """OV4: what could not be released at once, because somebody had the key, is released by the next scheduler."""
    which = await schedule(conn, 60, overlap="queue")
    for _ in range(2):
        await pass_time(conn, 60)
        await settle(conn)
    await node(conn)
    (task,) = await started(conn)
    a, b = await race.session(), await race.session()
    async with a.transaction():
        await a.execute("SELECT FROM accs.run_keys FOR UPDATE")
        await asyncio.wait_for(finish(b, task), 5)
    assert [job["status"] for job in await jobs_of(conn, which)] == ["done", "queued"]
    await check(conn)
    await settle(conn)
    await conn.fetch("SELECT * FROM accs.instantiate_due_jobs()")
    assert [job["status"] for job in await jobs_of(conn, which)] == ["done", "running"]
    await check(conn)


async def test_a_run_that_overtakes_meets_the_end_of_the_one_before_it(conn: Connection, race: Race):
    """OV3 cancel: the scheduler waits for the job's row, which comes before run keys in the lock order."""
    which = await schedule(conn, 60, overlap="cancel")
    await pass_time(conn, 60)
    await settle(conn)
    await pass_time(conn, 60)
    await node(conn)
    (task,) = await started(conn)
    _, settled = await race.second_waits(lambda a: finish(a, task), settle)
    assert settled == [("fired", "on_time")]
    assert [job["status"] for job in await jobs_of(conn, which)] == ["done", "running"]
    await check(conn)


async def test_the_same_run_by_hand_from_two_sessions_is_one_job(conn: Connection, race: Race):
    """RN4."""
    which = await schedule(conn, 3600, overlap="allow")
    ran, again = await race.second_waits(
        lambda a: call(a, "run_now", str(which), None, "k"), lambda b: call(b, "run_now", str(which), None, "k")
    )
    assert (ran["answer"], again["answer"]) == ("accepted", "repeated")
    assert ran["job_id"] == again["job_id"]


async def test_a_zombie_planner_writes_nothing(conn: Connection, race: Race):
    """SQ5: it has computed its plan before an edit, and writes it afterwards."""
    which = await schedule(conn, 60, plan=False)
    found = await row(conn, which)
    stale = {
        "id": str(which),
        "revision": found["revision"],
        "after": found["settled_until"],
        "nominals": ["2020-01-01T00:00:00"],
        "folds": [0],
        "dues": ["2020-01-01T00:00:00Z"],
        "zone_version": "2026a",
        "zone_digest": "d",
    }
    edit = "UPDATE schedules SET schedule_expr = '30s' WHERE id = $1"
    _, answer = await race.second_waits(lambda a: a.execute(edit, which), lambda b: call(b, "plan_schedules", [stale]))
    assert answer["reason"] == "stale"
    await replan(conn)
    assert await settle(conn) == []


async def test_what_was_settled_is_not_fired_again_where_its_instant_has_moved(conn: Connection):
    """TZ6: new zone rules put a nominal time that has its row behind the present; it is passed over."""
    which = await schedule(conn, 60, overlap="allow")
    await pass_time(conn, 60)
    await settle(conn)
    (fired,) = await ledger(conn, which)
    found = await row(conn, which)
    later = found["settled_until"] + timedelta(seconds=30)
    moved = {
        "id": str(which),
        "revision": 1,
        "after": found["settled_until"],
        "nominals": [fired["nominal"].isoformat(), (fired["nominal"] + timedelta(seconds=60)).isoformat()],
        "folds": [0, 0],
        "dues": [later, later + timedelta(seconds=60)],
        "zone_version": "2026b",
        "zone_digest": "e",
        "exhausted": "end_at",
    }
    await call(conn, "plan_schedules", [moved])
    await pass_time(conn, 100)
    assert await settle(conn) == [("fired", "on_time")]
    assert len(await ledger(conn, which)) == len(await jobs_of(conn, which)) == 2
    await check(conn)


async def overtaking(conn: Connection) -> UUID:
    """Two conditions of one name and two schedules by time, by pairs of the same run keys. The key "l" has an open job,
    which both its schedules would cancel; "k" has none. Returns that job."""
    for key in ("k", "l"):
        await condition(conn, {"above": 10, "fire_initially": True}, name=f"c-{key}", overlap="cancel", run_key=key)
    for key, policy in (("k", "skip"), ("l", "cancel")):
        await schedule(conn, 60, name=f"t-{key}", overlap=policy, run_key=key)
    await call(conn, "run_now", "t-l")
    await pass_time(conn, 60)
    (job,) = await conn.fetch("SELECT * FROM accs.open_runs")
    assert job["key"] == "l"
    return job["job_id"]


async def reported(conn: Connection) -> list[str]:
    rows = await conn.fetch("SELECT * FROM accs.report_sample('load', '99')")
    return [row["answer"] for row in rows]


@pytest.mark.parametrize("sample_first", [False, True])
async def test_a_sample_of_several_schedules_meets_a_batch_with_the_same_run_keys(
    conn: Connection, race: Race, sample_first: bool
):
    """Both cancel the job of one key and need the other key: jobs come before run keys, for all schedules at once."""
    job = await overtaking(conn)
    holder, sampling, settling = await race.session(), await race.session(), await race.session()
    async with holder.transaction():
        await holder.execute("SELECT FROM jobs WHERE id = $1 FOR UPDATE", job)
        works = [(settling, settle(settling)), (sampling, reported(sampling))]
        (one, first), (other, second) = reversed(works) if sample_first else works
        begun = await race.blocked(one, first, by=holder)
        following = await race.blocked(other, second, by=one)
    answers = {sample_first: await begun, not sample_first: await following}
    assert answers[True] == ["accepted", "accepted"]
    assert len(answers[False]) == 2
    assert await conn.fetchval("SELECT status FROM jobs WHERE id = $1", job) == "cancelled"
    await check(conn)


async def test_what_a_batch_settles_one_by_one_meets_a_batch_with_the_same_run_keys(conn: Connection, race: Race):
    """An occurrence takes the key "k"; then the end of a snooze cancels the job of "l"."""
    await schedule(conn, 60, name="a-k", overlap="skip", run_key="k")
    await schedule(conn, 60, name="b-l", overlap="cancel", run_key="l")
    await conn.execute("SELECT accs.snooze('b-l', '30 s')")
    await call(conn, "run_now", "b-l")
    job = await conn.fetchval("SELECT job_id FROM accs.open_runs")
    for key, policy in (("l", "cancel"), ("k", "skip")):
        await condition(conn, {"above": 10, "fire_initially": True}, name=f"c-{key}", overlap=policy, run_key=key)
    await pass_time(conn, 90)
    holder, sampling, settling = await race.session(), await race.session(), await race.session()
    async with holder.transaction():
        await holder.execute("SELECT FROM jobs WHERE id = $1 FOR UPDATE", job)
        sampled = await race.blocked(sampling, reported(sampling), by=holder)
        settled = await race.blocked(settling, settle(settling), by=sampling)
    assert await sampled == ["accepted", "accepted"]
    assert len(await settled) >= 2
    await check(conn)
