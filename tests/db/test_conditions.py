"""Conditions: samples are judged under the schedule's lock, and a value that crosses its threshold starts one job."""

import asyncio
from datetime import timedelta

import asyncpg
import pytest

from tests.conftest import Connect
from tests.support.checker import check
from tests.support.cluster import Connection
from tests.support.conditions import condition, planned, report, samples, standing
from tests.support.factory import clock, pass_time, workflow
from tests.support.schedules import call, jobs_of, ledger, outlook, row, settle, told

PROBE = {"source": {"sql": "SELECT 1"}, "every": "10s"}


async def series(conn: Connection, *values: object, apart: float = 10) -> list[str]:
    """Reports values, some seconds apart; the state after each."""
    states: list[str] = []
    for value in values:
        await pass_time(conn, apart)
        states.append((await report(conn, value))["state"])
    return states


async def test_one_crossing_fires_once(conn: Connection):
    """CO2: the ledger's row has the value and the streak; the job's trigger has the sample."""
    which = await condition(conn, {"above": 100}, options={"a": 1})
    assert await series(conn, 50, 101, 150, 99, 120) == ["clear", "raised", "raised", "clear", "raised"]
    assert await told(conn, which) == [("fired", "condition")] * 2
    first = (await ledger(conn, which))[0]
    assert (first["detail"]["value"], first["detail"]["streak"]) == (101, 1)
    job = (await jobs_of(conn, which))[0]
    assert (job["id"], job["options"]) == (first["job_id"], {"a": 1})
    assert (job["trigger"]["cause"], job["trigger"]["condition"]) == ("condition", "load")
    assert (job["trigger"]["sample"]["value"], job["trigger"]["sample"]["id"]) == (101, first["cause_id"])
    found = await row(conn, which)
    assert (found["runs"], found["last_job_id"]) == (2, (await jobs_of(conn, which))[1]["id"])
    await check(conn)


async def test_the_answer_says_what_the_sample_led_to(conn: Connection):
    await condition(conn, {"above": 100})
    await report(conn, 1)
    said = await report(conn, 101)
    assert (said["answer"], said["state"], said["outcome"], said["outcome_reason"]) == (
        "accepted", "raised", "fired", "condition",
    )  # fmt: skip
    assert said["job_id"] is not None
    assert (await report(conn, 102))["outcome"] is None


async def test_the_first_sample_decides_without_firing(conn: Connection):
    """CO7."""
    which = await condition(conn, {"above": 100, "samples": 3})
    assert await series(conn, 200, 200) == ["raised", "raised"]
    assert await told(conn, which) == []


async def test_the_first_sample_fires_where_it_is_wanted(conn: Connection):
    """CO7: fire_initially. The streak that is asked for is needed all the same."""
    which = await condition(conn, {"above": 100, "samples": 2, "fire_initially": True})
    assert await series(conn, 200, 200) == ["rising", "raised"]
    assert await told(conn, which) == [("fired", "condition")]


async def test_a_streak_needs_its_samples_and_its_time(conn: Connection):
    """CO2: samples and for."""
    which = await condition(conn, {"above": 100, "samples": 3, "for": "30s"})
    assert await series(conn, 1, 101, 101, 101, 101) == ["clear", "rising", "rising", "rising", "raised"]
    (fired,) = await ledger(conn, which)
    assert fired["detail"]["streak"] == 4
    assert await series(conn, 1, 101, 1, 101) == ["clear", "rising", "clear", "rising"]


async def test_below_and_is_are_thresholds_too(conn: Connection):
    await condition(conn, {"below": 10, "clear_above": 20})
    assert await series(conn, 15, 9, 15, 21) == ["clear", "raised", "raised", "clear"]
    await condition(conn, {"is": True}, expr="door")
    assert [(await report(conn, each, name="door"))["state"] for each in (False, True, False)] == [
        "clear", "raised", "clear",
    ]  # fmt: skip


async def test_between_the_thresholds_the_state_stays_what_it_was(conn: Connection):
    """CO4: hysteresis. A value in between also ends a streak, which is of samples in a row."""
    which = await condition(conn, {"above": 100, "clear_below": 80, "samples": 2, "clear_samples": 2})
    assert await series(conn, 90, 101, 90, 101, 101, 90) == ["clear", "rising", "clear", "rising", "raised", "raised"]
    assert await series(conn, 70, 90, 70, 70, 90) == ["falling", "raised", "falling", "clear", "clear"]
    assert await told(conn, which) == [("fired", "condition")]


async def test_the_state_is_a_row_that_no_process_holds(conn: Connection, db_url: str):
    """CO3: another session goes on with the streak."""
    which = await condition(conn, {"above": 100, "samples": 2})
    assert await series(conn, 1, 101) == ["clear", "rising"]
    other = await asyncpg.connect(db_url)
    try:
        said = await other.fetchrow("SELECT * FROM accs.report_sample('load', '101')")
        assert said is not None
        assert said["state"] == "raised"
    finally:
        await other.close()
    assert len(await jobs_of(conn, which)) == 1


async def test_many_reporters_at_once_cross_once(conn: Connection, connect: Connect):
    """CO3: one verb, under the schedule's lock."""
    which = await condition(conn, {"above": 100})
    await report(conn, 1)
    sessions = [await connect() for _ in range(6)]
    said = await asyncio.gather(*(report(each, 101) for each in sessions))
    assert sorted(str(each["outcome"]) for each in said) == ["None"] * 5 + ["fired"]
    assert len(await jobs_of(conn, which)) == 1
    await check(conn)


async def test_an_unknown_sample_neither_feeds_nor_breaks_a_streak(conn: Connection):
    """CO5."""
    which = await condition(conn, {"above": 100, "samples": 2, "stale": "60s"})
    assert await series(conn, 1, 101, None) == ["clear", "rising", "rising"]
    assert (await standing(conn, which))["last_error"] == "it has no value"
    assert await series(conn, 101) == ["raised"]
    assert (await standing(conn, which))["last_error"] is None
    assert [each["verdict"] for each in await samples(conn, which)] == ["judged", "judged", "unknown", "judged"]


async def test_without_a_value_for_too_long_it_is_unknown(conn: Connection):
    """CO5: noticed without any sample. What it was is kept: the same level again is no crossing."""
    which = await condition(conn, {"above": 100, "stale": "30s"})
    assert await series(conn, 1, 101) == ["clear", "raised"]
    assert timedelta(0) < (await outlook(conn))["next_due"] <= timedelta(seconds=30)
    await pass_time(conn, 31)
    assert (await outlook(conn))["next_due"] == timedelta(0)
    await settle(conn)
    await settle(conn)
    found = await standing(conn, which)
    assert (found["state"], found["level"]) == ("unknown", "raised")
    assert (await outlook(conn))["next_due"] is None
    assert await series(conn, 101) == ["raised"]
    assert await told(conn, which) == [("fired", "condition")]
    assert (await outlook(conn))["next_due"] is not None


async def test_an_error_that_lasts_is_unknown_too(conn: Connection):
    """CO5: samples without a value don't keep it known."""
    which = await condition(conn, {"above": 100, "stale": "30s"})
    await series(conn, 1, None, None, None)
    await pass_time(conn, 1)
    await settle(conn)
    assert (await standing(conn, which))["state"] == "unknown"


@pytest.mark.parametrize(
    ("act", "state", "fires"), [("raise", "raised", [("fired", "condition")]), ("clear", "clear", [])]
)
async def test_what_unknown_means_is_the_owners_choice(conn: Connection, act: str, state: str, fires: list[object]):
    """CO5: on_unknown."""
    which = await condition(conn, {"above": 100, "stale": "30s", "on_unknown": act})
    await report(conn, 1)
    await pass_time(conn, 31)
    await settle(conn)
    await pass_time(conn, 100)
    await settle(conn)
    assert (await standing(conn, which))["state"] == state
    assert await told(conn, which) == fires
    if fires:
        assert (await ledger(conn, which))[0]["detail"]["unknown"] is True
    await report(conn, 1)
    assert (await standing(conn, which))["state"] == "clear"


async def test_a_condition_that_never_had_a_sample_is_noticed(conn: Connection):
    """CO5."""
    which = await condition(conn, {"above": 100, "stale": "30s", "on_unknown": "raise"})
    await pass_time(conn, 31)
    await settle(conn)
    assert await told(conn, which) == [("fired", "condition")]


async def test_an_older_sample_is_recorded_and_ignored(conn: Connection):
    """CO6."""
    which = await condition(conn, {"above": 100})
    await series(conn, 1)
    said = await report(conn, 200, at=await clock(conn) - timedelta(seconds=60))
    assert (said["answer"], said["reason"], said["state"]) == ("refused", "older", "clear")
    assert [each["verdict"] for each in await samples(conn, which)] == ["judged", "ignored"]
    assert await told(conn, which) == []


async def test_the_same_key_again_is_repeated(conn: Connection):
    """CO6."""
    which = await condition(conn, {"above": 100})
    await report(conn, 1, key="a")
    first = await report(conn, 200, key="b")
    again = await report(conn, 200, key="b")
    assert (again["answer"], again["sample_id"]) == ("repeated", first["sample_id"])
    assert len(await samples(conn, which)) == 2


async def test_a_gap_restarts_the_streak(conn: Connection):
    """CO6, whether somebody noticed the gap meanwhile or not."""
    which = await condition(conn, {"above": 100, "samples": 2, "stale": "30s"})
    assert await series(conn, 1, 101) == ["clear", "rising"]
    assert await series(conn, 101, apart=31) == ["rising"]
    assert (await standing(conn, which))["streak"] == 1
    assert await series(conn, 101) == ["raised"]


async def test_a_time_that_has_not_come_is_refused(conn: Connection):
    """A wrong clock must not make every later sample an old one."""
    await condition(conn, {"above": 100})
    said = await report(conn, 1, at=await clock(conn) + timedelta(hours=1))
    assert (said["answer"], said["reason"]) == ("refused", "in_the_future")


@pytest.mark.parametrize(
    ("value", "reason"), [("many", "not_a_value"), ([1], "not_a_value"), (True, "not_a_number"), (10**120, "too_long")]
)
async def test_what_is_no_value_is_refused(conn: Connection, value: object, reason: str):
    """CO1: values are numbers, true or false."""
    which = await condition(conn, {"above": 100})
    (said,) = await conn.fetch("SELECT * FROM accs.report_sample('load', $1::text::jsonb)", _json(value))
    assert (said["answer"], said["reason"]) == ("refused", reason)
    assert await samples(conn, which) == []


def _json(value: object) -> str:
    return {"many": '"many"', "[1]": "[1]", "True": "true"}.get(str(value), str(value))


async def test_between_two_firings_there_is_a_cooldown(conn: Connection):
    """CO2."""
    which = await condition(conn, {"above": 100}, cooldown=timedelta(seconds=60))
    await series(conn, 1, 101, 1, 101)
    assert await told(conn, which) == [("fired", "condition"), ("skipped", "cooldown")]
    await series(conn, 1, apart=60)
    await series(conn, 101)
    assert (await told(conn, which))[-1] == ("fired", "condition")


async def test_it_fires_again_while_it_is_raised_where_that_is_wanted(conn: Connection):
    """CO2: repeat."""
    which = await condition(conn, {"above": 100, "repeat": "25s"})
    await series(conn, 1, 101, 101, 101, 101, 101, 101)
    rows = await ledger(conn, which)
    assert [each["detail"].get("repeat", False) for each in rows] == [False, True]
    assert rows[1]["due_at"] - rows[0]["due_at"] > timedelta(seconds=25)


async def test_while_paused_samples_are_recorded_and_crossings_skipped(conn: Connection):
    """CO10."""
    which = await condition(conn, {"above": 100})
    await report(conn, 1)
    name = (await row(conn, which))["name"]
    await call(conn, "pause_schedule", name)
    assert await series(conn, 101, 1, 101) == ["raised", "clear", "raised"]
    assert await told(conn, which) == [("skipped", "paused")] * 2
    assert len(await samples(conn, which)) == 4
    assert (await call(conn, "resume_schedule", name, "one"))["recovered"] == 1
    assert sorted(await told(conn, which)) == [("caught_up", "resumed"), ("skipped", "paused")]
    (job,) = await jobs_of(conn, which)
    assert (job["trigger"]["cause"], job["trigger"]["sample"]["value"]) == ("condition", 101)
    await check(conn)


async def test_a_pause_stops_its_probe(conn: Connection):
    """CO10: and it is no reason to act on what is unknown meanwhile."""
    which = await condition(conn, {**PROBE, "above": 100, "on_unknown": "raise"})
    await call(conn, "pause_schedule", (await row(conn, which))["name"])
    await pass_time(conn, 60)
    assert await conn.fetch("SELECT * FROM accs.take_probes()") == []
    assert timedelta(0) < (await outlook(conn))["next_probe"] <= timedelta(seconds=10)
    await settle(conn)
    assert (await standing(conn, which))["state"] == "unknown"
    assert await told(conn, which) == []


async def test_samples_wait_for_the_end_of_a_hold(conn: Connection):
    """PA4: then everything is as if all schedulers had been down."""
    which = await condition(conn, {"above": 100, "samples": 2})
    await report(conn, 1)
    await conn.execute("SELECT accs.hold_schedules('inventory')")
    assert await series(conn, 101, 101) == ["clear", "clear"]
    assert await settle(conn) == []
    await conn.execute("SELECT accs.hold_schedules(p_lift => true)")
    assert await settle(conn) == [("fired", "condition")]
    assert (await standing(conn, which))["state"] == "raised"
    assert {each["verdict"] for each in await samples(conn, which)} == {"judged"}


async def test_a_sample_after_a_hold_comes_after_those_that_waited(conn: Connection):
    await condition(conn, {"above": 100, "samples": 2})
    await report(conn, 1)
    await conn.execute("SELECT accs.hold_schedules('inventory')")
    await series(conn, 101)
    await conn.execute("SELECT accs.hold_schedules(p_lift => true)")
    assert await series(conn, 101) == ["raised"]


async def test_an_overlap_is_skipped(conn: Connection):
    """OV3."""
    which = await condition(conn, {"above": 100}, overlap="skip")
    await series(conn, 1, 101, 1, 101)
    assert await told(conn, which) == [("fired", "condition"), ("skipped", "overlap")]


async def test_the_owner_the_workflow_and_the_start_have_a_say(conn: Connection):
    which = await condition(conn, {"above": 100}, start_at=await clock(conn) + timedelta(hours=1), created_by="eve")
    await series(conn, 1, 101, 1)
    await pass_time(conn, 3600)
    await conn.execute("SELECT accs.put_actor('eve', p_disabled => true)")
    await series(conn, 101, 1)
    await conn.execute("SELECT accs.put_actor('eve')")
    await conn.execute("UPDATE workflows SET is_active = false")
    await series(conn, 101)
    assert await told(conn, which) == [
        ("skipped", "excluded"), ("skipped", "owner_disabled"), ("skipped", "workflow_inactive"),
    ]  # fmt: skip


async def test_it_ends_with_its_last_run_or_its_end(conn: Connection):
    which = await condition(conn, {**PROBE, "above": 100}, max_runs=1)
    for value in (1, 101):
        await pass_time(conn, 10)
        (taken,) = await conn.fetch("SELECT * FROM accs.take_probes()")
        await call(conn, "record_probe", which, taken["revision"], value, None, taken["taken_at"])
    assert ((await row(conn, which))["state"], (await row(conn, which))["state_reason"]) == ("ended", "max_runs")
    assert (await outlook(conn))["next_probe"] is None
    other = await condition(conn, {"above": 1}, expr="other", end_at=await clock(conn) + timedelta(seconds=5))
    await pass_time(conn, 6)
    assert (await report(conn, 1, name="other"))["reason"] == "ended"
    assert (await row(conn, other))["state_reason"] == "end_at"


async def test_a_firing_that_raises_is_on_record_and_three_break_the_schedule(conn: Connection):
    """SQ3: the reporter is told nothing of it, and the sample stays."""
    which = await condition(conn, {"above": 100})
    await conn.execute(
        "CREATE FUNCTION public.poison() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE ''poison''; END';"
        "CREATE TRIGGER poison BEFORE INSERT ON jobs FOR EACH ROW EXECUTE FUNCTION public.poison()"
    )
    await series(conn, 1, 101, 1, 101, 1, 101)
    assert await told(conn, which) == [("skipped", "broken")] * 3
    assert ((await row(conn, which))["state"], (await row(conn, which))["state_reason"]) == ("broken", "poison")
    assert (await report(conn, 1))["reason"] == "broken"


async def test_one_report_is_for_every_schedule_with_that_condition(conn: Connection):
    await condition(conn, {"above": 80}, name="warn")
    await condition(conn, {"above": 95}, name="page")
    await condition(conn, {**PROBE, "above": 95}, name="own")
    await conn.fetch("SELECT * FROM accs.report_sample('load', '1')")
    said = await conn.fetch("SELECT * FROM accs.report_sample('load', '90')")
    assert {each["schedule"]: (each["answer"], each["reason"], each["state"]) for each in said} == {
        "warn": ("accepted", None, "raised"),
        "page": ("accepted", None, "clear"),
        "own": ("refused", "has_a_probe", "unknown"),
    }


async def test_a_condition_that_is_not_there_is_said(conn: Connection):
    with pytest.raises(asyncpg.PostgresError, match='no condition "load"'):
        await report(conn, 1)


async def test_an_edit_of_the_condition_begins_anew_and_other_edits_do_not(conn: Connection):
    which = await condition(conn, {"above": 100})
    await series(conn, 1, 101)
    await conn.execute("UPDATE schedules SET priority = 5 WHERE id = $1", which)
    assert (await standing(conn, which))["state"] == "raised"
    await conn.execute("UPDATE schedules SET condition = '{\"above\": 50}' WHERE id = $1", which)
    assert (await standing(conn, which))["state"] == "unknown"
    assert await series(conn, 60) == ["raised"]
    assert len(await told(conn, which)) == 1


@pytest.mark.parametrize("how", [{}, {"above": "much"}, {"above": 1, "below": 2}, {"above": 1, "for": "soon"}])
async def test_what_can_not_be_judged_is_not_written(conn: Connection, how: dict[str, object]):
    with pytest.raises(asyncpg.InvalidParameterValueError, match="condition"):
        await condition(conn, how)


async def test_only_the_last_samples_are_kept(conn: Connection):
    which = await condition(conn, {"above": 100})
    for i in range(220):
        await report(conn, i % 7)
    assert len(await samples(conn, which)) == 200


async def test_a_probe_is_moved_on_before_it_runs(conn: Connection):
    """CO8: whoever takes it has it alone; the phase stays; what it found is as of when it was taken."""
    which = await condition(conn, {**PROBE, "above": 100})
    first = (await outlook(conn))["next_probe"]
    assert timedelta(0) <= first <= timedelta(seconds=10)
    await pass_time(conn, 35)
    (taken,) = await conn.fetch("SELECT * FROM accs.take_probes()")
    assert (taken["schedule_id"], taken["condition"]["source"]) == (which, {"sql": "SELECT 1"})
    assert await conn.fetch("SELECT * FROM accs.take_probes()") == []
    assert timedelta(0) < (await outlook(conn))["next_probe"] <= timedelta(seconds=10)
    said = await call(conn, "record_probe", which, 1, 5, None, taken["taken_at"])
    assert (said["answer"], said["state"]) == ("accepted", "clear")
    again = await call(conn, "record_probe", which, 1, 5, None, taken["taken_at"])
    assert again["answer"] == "repeated"


async def test_the_answer_of_a_slow_probe_does_not_overtake_a_younger_one(conn: Connection):
    """CO6, CO8."""
    which = await condition(conn, {**PROBE, "above": 100})
    await pass_time(conn, 10)
    (slow,) = await conn.fetch("SELECT * FROM accs.take_probes()")
    await pass_time(conn, 10)
    (quick,) = await conn.fetch("SELECT * FROM accs.take_probes()")
    await call(conn, "record_probe", which, 1, 5, None, quick["taken_at"])
    said = await call(conn, "record_probe", which, 1, 500, None, slow["taken_at"])
    assert (said["answer"], said["reason"]) == ("refused", "older")


async def test_what_a_probe_found_for_another_definition_is_refused(conn: Connection):
    which = await condition(conn, {**PROBE, "above": 100})
    await pass_time(conn, 10)
    (taken,) = await conn.fetch("SELECT * FROM accs.take_probes()")
    await conn.execute("UPDATE schedules SET condition = condition || '{\"above\": 1}' WHERE id = $1", which)
    said = await call(conn, "record_probe", which, taken["revision"], 500, None, taken["taken_at"])
    assert (said["answer"], said["reason"]) == ("refused", "stale")
    await planned(conn)
    assert (await outlook(conn))["next_probe"] is not None


async def test_a_probe_that_failed_says_why(conn: Connection):
    """CO5."""
    which = await condition(conn, {**PROBE, "above": 100})
    await call(conn, "record_probe", which, 1, None, "timed out", await clock(conn))
    assert (await standing(conn, which))["last_error"] == "timed out"
    assert (await standing(conn, which))["state"] == "unknown"


async def test_accsd_measures_what_it_knows(conn: Connection):
    """CO1: builtin."""
    flow = await workflow(conn)
    for _ in range(3):
        await conn.execute("SELECT accs.submit_jobs(ARRAY[$1]::uuid[])", flow)
    await pass_time(conn, 30)
    assert await conn.fetchval("SELECT accs.measure('waiting', 'render')") == 3
    assert 30 <= await conn.fetchval("SELECT accs.measure('oldest_wait', 'render')") < 40
    assert await conn.fetchval("SELECT accs.measure('waiting', 'other')") == 0
    assert await conn.fetchval("SELECT accs.measure('oldest_wait', 'other')") == 0
    assert await conn.fetchval("SELECT accs.measure('dead_letters')") == 0
    await conn.execute("SELECT accs.register_node('n9', '{}', '{}')")
    assert await conn.fetchval("SELECT accs.measure('node_away', 'n9')") is False
    await pass_time(conn, 61)
    assert await conn.fetchval("SELECT accs.measure('node_away', 'n9')") is True
    with pytest.raises(asyncpg.PostgresError, match='no node "nobody"'):
        await conn.fetchval("SELECT accs.measure('node_away', 'nobody')")
