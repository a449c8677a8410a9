"""Schedules as rows: written by any client, edited, paused, snoozed, skipped, run by hand, backfilled, planned."""

from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from tests.support.checker import check
from tests.support.cluster import Connection
from tests.support.factory import fail, finish, node, pass_time, started, workflow
from tests.support.schedules import (
    call,
    jobs_of,
    ledger,
    outlook,
    replan,
    row,
    schedule,
    settle,
    settle_all,
    told,
    utc,
)

pytestmark = pytest.mark.every_postgresql


async def history(conn: Connection, which: object) -> list[str]:
    rows = await conn.fetch("SELECT what FROM accs.schedule_history WHERE schedule_id = $1 ORDER BY id", which)
    return [each["what"] for each in rows]


# A definition


async def test_a_plain_insert_makes_a_schedule_that_asks_for_its_plan(conn: Connection):
    """SQ10."""
    await workflow(conn, name="backup")
    await conn.execute(
        "INSERT INTO schedules (name, schedule_kind, schedule_expr, timezone, workflow)"
        " VALUES ('nightly', 'cron', '0 2 * * *', 'Europe/Berlin', 'backup')"
    )
    assert (await outlook(conn))["next_plan"] == timedelta(0)
    (asked,) = await conn.fetch("SELECT * FROM accs.schedules_to_plan()")
    assert (asked["schedule_expr"], asked["timezone"], asked["revision"]) == ("0 2 * * *", "Europe/Berlin", 1)
    assert await history(conn, asked["id"]) == ["created"]
    assert (await row(conn, asked["id"]))["created_by"] == await conn.fetchval("SELECT session_user::text")


async def test_the_state_of_a_schedule_is_not_written_by_hand(conn: Connection):
    which = await schedule(conn)
    for sql in (
        "UPDATE schedules SET state = 'ended' WHERE id = $1",
        "UPDATE schedules SET runs = 5 WHERE id = $1",
        "DELETE FROM schedules WHERE id = $1",
        "INSERT INTO schedules (name, schedule_kind, schedule_expr, workflow, state)"
        " SELECT 'other', 'cron', '* * * * *', 'w', 'paused' WHERE $1::uuid IS NOT NULL",
        "UPDATE firings SET outcome = 'fired' WHERE schedule_id = $1",
        "INSERT INTO firings (schedule_id, nominal, outcome, reason, due_at, settled_at, late, revision)"
        " VALUES ($1, now(), 'fired', 'on_time', now(), now(), '0', 1)",
    ):
        if "UPDATE firings" in sql:
            await pass_time(conn, 60)
            await settle(conn)
        with pytest.raises(asyncpg.PostgresError) as refused:
            await conn.execute(sql, which)
        assert refused.value.sqlstate in ("AC002", "AC005"), sql


@pytest.mark.parametrize(
    "wrong",
    [
        {"missed": "perhaps"},
        {"overlap": "never"},
        {"schedule_kind": "fortnightly"},
        {"catch_up_max": 0},
        {"grace": timedelta(seconds=-1)},
        {"overlap": "allow", "run_key": "k"},
        {"run_key": "schedule:x"},
        {"options": []},
        {"name": "x" * 201},
        {"pause_after": 0},
    ],
)
async def test_a_definition_that_means_nothing_is_refused(conn: Connection, wrong: dict[str, Any]):
    with pytest.raises(asyncpg.CheckViolationError):
        await schedule(conn, plan=False, **wrong)


async def test_a_name_that_looks_like_an_id_is_refused_whatever_writes_it(conn: Connection):
    """Verbs and addresses take either: whoever may make schedules could let deeds run into one of his own."""
    meant = await schedule(conn, name="nightly")
    name = str(meant).upper()
    written = {"name": str(meant), "schedule_kind": "cron", "schedule_expr": "0 5 * * *", "workflow": "w"}
    for sql, given in (
        (
            "INSERT INTO schedules (name, schedule_kind, schedule_expr, workflow) VALUES ($1, 'cron', '@daily', 'w')",
            name,
        ),
        ("UPDATE schedules SET name = $1", name),
        ("SELECT accs.put_schedule($1)", written),
    ):
        with pytest.raises(asyncpg.InvalidParameterValueError, match="looks like the id of one") as refused:
            await conn.execute(sql, given)
        assert refused.value.hint == "Give it a name that is no UUID."


async def test_a_verb_writes_a_schedule_and_the_same_again_changes_nothing(conn: Connection):
    """ED3, ED5."""
    await workflow(conn, name="w")
    definition = {"name": "s", "schedule_kind": "interval", "schedule_expr": "60s", "workflow": "w", "missed": "all"}
    made = await call(conn, "put_schedule", definition, "eve", "first")
    assert (made["answer"], made["revision"]) == ("accepted", 1)
    assert (await row(conn, made["id"]))["created_by"] == "eve"
    assert (await call(conn, "put_schedule", definition, "ada"))["answer"] == "repeated"
    edited = await call(conn, "put_schedule", {"name": "s", "priority": 4}, "ada", "urgent", 1)
    assert (edited["answer"], edited["revision"]) == ("accepted", 2)
    found = await row(conn, made["id"])
    assert (found["priority"], found["missed"], found["created_by"]) == (4, "all", "eve")
    late = await call(conn, "put_schedule", {"name": "s", "priority": 5}, "bob", None, 1)
    assert (late["answer"], late["reason"], late["revision"]) == ("refused", "conflict", 2)
    last = await conn.fetchrow("SELECT * FROM accs.schedule_history ORDER BY id DESC LIMIT 1")
    assert last is not None
    assert (last["by"], last["reason"], last["before"], last["after"]) == (
        "ada",
        "urgent",
        {"priority": 0},
        {"priority": 4},
    )
    with pytest.raises(asyncpg.PostgresError, match='has no "colour"'):
        await call(conn, "put_schedule", {"name": "s", "colour": "red"})


async def test_an_edit_settles_what_is_due_and_concerns_what_follows(conn: Connection):
    """ED1, ED2: under the old revision, in the same transaction."""
    which = await schedule(conn, 60, overlap="allow")
    await pass_time(conn, 90)
    await conn.execute("UPDATE schedules SET schedule_expr = '600s' WHERE id = $1", which)
    (fired,) = await ledger(conn, which)
    assert (fired["outcome"], fired["revision"]) == ("fired", 1)
    found = await row(conn, which)
    assert (found["revision"], found["runs"]) == (2, 1)
    assert (await outlook(conn))["next_due"] is None
    await replan(conn)
    assert (await outlook(conn))["next_due"] > timedelta(seconds=590)
    assert await settle(conn) == []


async def test_an_edit_of_a_policy_keeps_the_plan(conn: Connection):
    """ED4."""
    which = await schedule(conn, 60)
    await conn.execute("UPDATE schedules SET missed = 'skip', title = 'a title' WHERE id = $1", which)
    assert (await outlook(conn))["next_plan"] is None
    await conn.execute("UPDATE schedules SET missed = 'skip' WHERE id = $1", which)
    assert (await row(conn, which))["revision"] == 2


async def test_a_stale_plan_is_refused(conn: Connection):
    """SQ5: a planner that slept for a minute writes nothing."""
    which = await schedule(conn, 60, plan=False)
    (asked,) = await conn.fetch("SELECT * FROM accs.schedules_to_plan()")
    await conn.execute("UPDATE schedules SET schedule_expr = '10s' WHERE id = $1", which)
    plan = {
        "id": str(which),
        "revision": asked["revision"],
        "after": asked["settled_until"],
        "nominals": [],
        "dues": [],
    }
    assert (await call(conn, "plan_schedules", [plan]))["reason"] == "stale"
    assert [each["answer"] for each in await replan(conn)] == ["accepted"]


async def test_a_rule_that_cannot_be_planned_leaves_its_schedule_broken_and_an_edit_mends_it(conn: Connection):
    """SQ10."""
    which = await schedule(conn, 60, plan=False)
    found = await row(conn, which)
    plan = {"id": str(which), "revision": 1, "after": found["settled_until"], "problem": "minute 70 is out of range"}
    await call(conn, "plan_schedules", [plan])
    found = await row(conn, which)
    assert (found["state"], found["state_reason"]) == ("broken", "minute 70 is out of range")
    await conn.execute("UPDATE schedules SET schedule_expr = '30s' WHERE id = $1", which)
    assert (await row(conn, which))["state"] == "active"
    await replan(conn)
    await pass_time(conn, 30)
    assert await settle(conn) == [("fired", "on_time")]


async def test_an_actor_has_its_limits(conn: Connection):
    """AG3, AG4."""
    await conn.fetchval("SELECT accs.put_actor('bot', 'assistant', $1)", {"schedules": 1, "max_priority": 2})
    which = await schedule(conn, created_by="bot", priority=2)
    with pytest.raises(asyncpg.PostgresError, match="1 schedules already"):
        await schedule(conn, created_by="bot")
    with pytest.raises(asyncpg.PostgresError, match="priority of 2 at most"):
        await conn.execute("UPDATE schedules SET priority = 3 WHERE id = $1", which)
    await conn.fetchval("SELECT accs.put_actor('bot', 'assistant', '{}', true)")
    await pass_time(conn, 60)
    assert await settle(conn) == [("skipped", "owner_disabled")]


# Pause and resume


async def test_what_comes_due_in_a_pause_is_skipped_in_batches(conn: Connection):
    """PA1: at most 60 s after it was due."""
    which = await schedule(conn, 10, overlap="allow")
    assert (await call(conn, "pause_schedule", str(which), "quiet", "ops"))["answer"] == "accepted"
    assert (await call(conn, "pause_schedule", str(which), "quiet", "ops"))["answer"] == "repeated"
    await pass_time(conn, 45)
    await settle_all(conn)
    await pass_time(conn, 65)
    assert set(await settle_all(conn)) == {("skipped", "paused")}
    assert len(await ledger(conn, which)) >= 10
    assert await jobs_of(conn, which) == []
    assert (await call(conn, "resume_schedule", str(which)))["answer"] == "accepted"
    await settle_all(conn)
    assert {outcome for outcome, _ in await told(conn, which)} == {"skipped"}
    await pass_time(conn, 10)
    assert await settle_all(conn) == [("fired", "on_time")]


@pytest.mark.parametrize(("recover", "runs"), [("none", 0), ("one", 1), ("all", 4)])
async def test_a_resume_chooses_what_runs_of_what_was_skipped(conn: Connection, recover: str, runs: int):
    """PA2."""
    which = await schedule(conn, 60, overlap="allow")
    await call(conn, "pause_schedule", str(which))
    await pass_time(conn, 270)
    answer = await call(conn, "resume_schedule", str(which), recover)
    assert (answer["answer"], answer["recovered"]) == ("accepted", runs)
    expected = [("skipped", "paused")] * (4 - runs) + [("caught_up", "resumed")] * runs
    assert await told(conn, which) == expected
    assert (await row(conn, which))["runs"] == runs
    await check(conn)


async def test_a_pause_ends_by_itself(conn: Connection):
    which = await schedule(conn, 3600)
    until = await conn.fetchval("SELECT accs.clock() + interval '90 s'")
    await call(conn, "pause_schedule", str(which), "lunch", "ops", until)
    await pass_time(conn, 91)
    await settle(conn)
    found = await row(conn, which)
    assert (found["state"], found["paused_until"]) == ("active", None)
    assert await history(conn, which) == ["created", "paused", "resumed"]


async def test_failures_in_a_row_pause_a_schedule(conn: Connection):
    """PA3: with the ids of the jobs in its history."""
    which = await schedule(conn, 60, pause_after=2, overlap="allow")
    await node(conn)
    for _ in range(2):
        await pass_time(conn, 60)
        await settle_all(conn)
        await fail(conn, *await started(conn), permanent=True)
    await settle_all(conn)
    found = await row(conn, which)
    assert (found["state"], found["state_reason"], found["failures_in_row"]) == ("paused", "its last 2 jobs failed", 2)
    jobs = [str(job["id"]) for job in await jobs_of(conn, which)]
    last = await conn.fetchrow("SELECT * FROM accs.schedule_history ORDER BY id DESC LIMIT 1")
    assert last is not None
    assert (last["by"], sorted(last["after"]["jobs"])) == ("accsd", sorted(jobs))


# One occurrence


async def test_a_snooze_moves_the_next_occurrence_and_no_other(conn: Connection):
    """SN1, SN2: its row is there at once; overlap decides when it meets its successor."""
    which = await schedule(conn, 60, overlap="allow")
    answer = await call(conn, "snooze", str(which), timedelta(seconds=90), None, "later", "eve")
    assert answer["answer"] == "accepted"
    assert await told(conn, which) == [("snoozed", "requested")]
    await pass_time(conn, 60)
    assert await settle(conn) == []
    await pass_time(conn, 60)
    assert await settle(conn) == [("fired", "on_time")]
    await pass_time(conn, 30)
    assert await settle(conn) == [("fired", "released")]
    assert await told(conn, which) == [("fired", "released"), ("fired", "on_time")]
    assert (await row(conn, which))["runs"] == 2
    await check(conn)


async def test_a_snooze_is_repeated_from_the_due_time_that_it_has_and_taken_back(conn: Connection):
    """SN1, SN3."""
    which = await schedule(conn, 600)
    first = await call(conn, "snooze", str(which), timedelta(seconds=60))
    second = await call(conn, "snooze", str(which), timedelta(seconds=60))
    assert second["due_at"] - first["due_at"] == timedelta(seconds=60)
    assert second["nominal"] == first["nominal"]
    assert (await call(conn, "unsnooze", str(which)))["answer"] == "accepted"
    await pass_time(conn, 601)
    assert await settle(conn) == [("fired", "released")]
    refused = await call(conn, "snooze", str(which), timedelta(days=32))
    assert (refused["answer"], refused["reason"]) == ("refused", "too_long")


async def test_a_skipped_occurrence_is_skipped_when_it_is_due(conn: Connection):
    """SK1."""
    which = await schedule(conn, 60, overlap="allow")
    nominals = await conn.fetchval("SELECT nominals FROM accs.plan_of WHERE schedule_id = $1", which)
    assert (await call(conn, "skip_occurrence", str(which), nominals[1], 0, "a holiday", "eve"))["answer"] == "accepted"
    odd = nominals[1] + timedelta(seconds=1)
    assert (await call(conn, "skip_occurrence", str(which), odd))["reason"] == "not_an_occurrence"
    for _ in range(3):
        await pass_time(conn, 60)
        await settle(conn)
    assert await told(conn, which) == [("fired", "on_time"), ("skipped", "requested"), ("fired", "on_time")]
    assert (await ledger(conn, which))[1]["detail"]["reason"] == "a holiday"
    assert (await call(conn, "skip_occurrence", str(which), nominals[0]))["reason"] == "already_settled"


async def test_a_run_now_moves_no_due_time(conn: Connection):
    """RN1–RN4."""
    which = await schedule(conn, 60, options={"a": 1, "b": 2})
    ran = await call(conn, "run_now", str(which), {"b": 3}, "once", False, "curious", "eve")
    assert (ran["answer"], ran["state"]) == ("accepted", "active")
    again = await call(conn, "run_now", str(which), {"b": 3}, "once")
    assert (again["answer"], again["job_id"]) == ("repeated", ran["job_id"])
    blocked = await call(conn, "run_now", str(which))
    assert (blocked["answer"], blocked["reason"]) == ("refused", "overlap")
    assert blocked["detail"]["blocked_by"] == str(ran["job_id"])
    forced = await call(conn, "run_now", str(which), None, None, True)
    assert forced["answer"] == "accepted"
    first, _ = await jobs_of(conn, which)
    assert first["options"] == {"a": 1, "b": 3}
    assert first["trigger"]["cause"] == "run_now"
    assert await told(conn, which) == [("fired", "run_now"), ("skipped", "overlap"), ("fired", "run_now")]
    assert (await row(conn, which))["runs"] == 0
    await pass_time(conn, 60)
    assert await settle(conn) == [("skipped", "overlap")]
    await call(conn, "pause_schedule", str(which))
    assert (await call(conn, "run_now", str(which), None, None, True))["state"] == "paused"
    await check(conn)


async def test_an_ended_schedule_stays_with_its_ledger_and_its_jobs_run_on(conn: Connection):
    """ED8."""
    which = await schedule(conn, 60)
    await pass_time(conn, 60)
    await settle(conn)
    ended = await call(conn, "end_schedule", str(which), "eve", "enough")
    assert (ended["answer"], ended["cancelled"]) == ("accepted", 0)
    assert (await call(conn, "end_schedule", str(which)))["answer"] == "repeated"
    assert (await outlook(conn))["next_due"] is None
    assert [job["status"] for job in await jobs_of(conn, which)] == ["running"]
    assert (await call(conn, "end_schedule", str(which), "eve", "all of it", True))["cancelled"] == 1
    assert [job["status"] for job in await jobs_of(conn, which)] == ["cancelled"]


# Backfill


async def behind(
    conn: Connection, which: object, count: int, every: int = 60
) -> tuple[list[datetime], list[int], list[datetime]]:
    now = await utc(conn)
    nominals = [now - timedelta(seconds=every * (i + 1)) for i in reversed(range(count))]
    return nominals, [0] * count, [each.replace(tzinfo=UTC) for each in nominals]


async def test_a_backfill_runs_what_lies_behind_as_many_at_once_as_it_may(conn: Connection):
    """BF1, BF2, BF4, BF6."""
    which = await schedule(conn, 3600)
    times = await behind(conn, which, 3)
    made = await call(conn, "start_backfill", str(which), 1, *times, 2)
    assert (made["answer"], made["would_run"]) == ("accepted", 3)
    await settle(conn)
    assert [job["status"] for job in await jobs_of(conn, which)] == ["running", "running"]
    await node(conn)
    for _ in range(3):
        await finish(conn, *await started(conn, 5))
        await pass_time(conn, 2)
        await settle(conn)
    assert [job["status"] for job in await jobs_of(conn, which)] == ["done"] * 3
    fill = await conn.fetchrow("SELECT * FROM accs.backfills")
    assert fill is not None
    assert (fill["state"], fill["started"], fill["left_alone"]) == ("done", 3, 0)
    assert await told(conn, which) == [("fired", "backfill")] * 3
    assert {job["priority"] for job in await jobs_of(conn, which)} == {-1}
    assert (await row(conn, which))["runs"] == 0
    await check(conn)


async def test_a_backfill_leaves_what_has_run_and_makes_up_for_what_was_missed(conn: Connection):
    which = await schedule(conn, 60, missed="skip", overlap="allow")
    await pass_time(conn, 210)
    await settle_all(conn)
    rows = await ledger(conn, which)
    assert [each["outcome"] for each in rows] == ["missed", "missed", "fired"]
    times = [each["nominal"] for each in rows], [0, 0, 0], [each["due_at"] for each in rows]
    dry = await call(conn, "start_backfill", str(which), 1, *times, 10, "none", None, None, False, True)
    assert (dry["reason"], dry["would_run"], dry["would_leave"]) == ("dry_run", 2, 1)
    await call(conn, "start_backfill", str(which), 1, *times, 10, "none", None, None, False, False, dry["token"])
    await settle(conn)
    assert await told(conn, which) == [("caught_up", "backfill"), ("caught_up", "backfill"), ("fired", "on_time")]
    changed = await call(
        conn, "start_backfill", str(which), 1, *times, 10, "none", None, None, False, False, dry["token"]
    )
    assert (changed["answer"], changed["reason"]) == ("refused", "plan_changed")


async def test_a_backfill_can_be_cancelled(conn: Connection):
    which = await schedule(conn, 3600)
    made = await call(conn, "start_backfill", str(which), 1, *await behind(conn, which, 5))
    await settle(conn)
    assert (await call(conn, "cancel_backfill", made["id"], True))["answer"] == "accepted"
    assert [job["status"] for job in await jobs_of(conn, which)] == ["cancelled"]
    await pass_time(conn, 5)
    assert await settle(conn) == []
    assert await conn.fetchval("SELECT count(*) FROM accs.agenda WHERE what = 'backfill'") == 0


# Zones and calendars


async def test_a_planner_with_older_rules_of_a_zone_plans_nothing_there(conn: Connection):
    """TZ5: newer rules replan the schedules of the zones that differ, and only those."""
    berlin = await schedule(conn, 60, timezone="Europe/Berlin")
    await schedule(conn, 60, timezone="UTC")
    zones = ["Europe/Berlin", "UTC"]

    async def note(version: str, *digests: str) -> list[str]:
        rows = await conn.fetch("SELECT * FROM accs.note_zones($1, $2, $3)", zones, version, list(digests))
        return [each["answer"] for each in rows]

    assert await note("2025b", "old", "same") == ["accepted", "accepted"]
    assert await note("2026f", "new", "same") == ["accepted", "repeated"]
    assert [each["id"] for each in await conn.fetch("SELECT * FROM accs.schedules_to_plan()")] == [berlin]
    assert await note("2025b", "old", "same") == ["older", "repeated"]


async def test_the_same_rules_in_another_year_are_no_older_ones(conn: Connection):
    """A digest begins with the present year: a planner that starts in January has another one of the same version."""
    berlin = await schedule(conn, 60, timezone="Europe/Berlin")
    for digest in ("of 2026", "of 2027"):
        (row,) = await conn.fetch("SELECT * FROM accs.note_zones('{Europe/Berlin}', '2026f', $1)", [digest])
        assert row["answer"] in ("accepted", "repeated")
    assert await conn.fetch("SELECT * FROM accs.schedules_to_plan()") == []
    assert await conn.fetchval("SELECT digest FROM accs.zones") == "of 2027"
    assert (await conn.fetchrow("SELECT * FROM schedules WHERE id = $1", berlin)) is not None


async def test_a_plan_by_other_rules_than_those_on_record_is_refused(conn: Connection):
    """TZ5: also where its planner has spoken of the zone before somebody brought newer ones."""
    which = await schedule(conn, 60, timezone="Europe/Berlin")
    await conn.execute("SELECT * FROM accs.note_zones('{Europe/Berlin}', '2026f', '{newer}')")
    row = await conn.fetchrow("SELECT revision, settled_until FROM schedules WHERE id = $1", which)
    assert row is not None
    plan = {
        "id": str(which),
        "revision": row["revision"],
        "after": row["settled_until"].isoformat(),
        "zone": "Europe/Berlin",
        "zone_version": "2025b",
        "zone_digest": "older",
        "nominals": [],
        "folds": [],
        "dues": [],
    }
    (answer,) = await conn.fetch("SELECT * FROM accs.plan_schedules($1)", [plan])
    assert (answer["answer"], answer["reason"]) == ("refused", "other_rules")
    assert await conn.fetchval("SELECT state FROM schedules WHERE id = $1", which) == "active"


async def test_a_changed_calendar_replans_its_schedules(conn: Connection):
    """CA2."""
    await conn.execute("INSERT INTO calendars (name) VALUES ('holidays')")
    which = await schedule(conn, 60, exclude=["holidays"])
    await schedule(conn, 60)
    await conn.execute(
        "UPDATE calendars SET entries = $1", [{"from": "2026-12-25", "to": "2026-12-25", "label": "Christmas"}]
    )
    (asked,) = await conn.fetch("SELECT * FROM accs.schedules_to_plan()")
    assert asked["id"] == which
    assert asked["calendars"]["holidays"]["entries"][0]["label"] == "Christmas"


async def test_an_actor_runs_no_more_often_than_its_quota(conn: Connection):
    """AG4: what is beyond it is skipped, and the ledger says why."""
    await conn.fetchval("SELECT accs.put_actor('bot', 'assistant', $1)", {"runs_per_hour": 3})
    first = await schedule(conn, 60, created_by="bot", overlap="allow")
    second = await schedule(conn, 60, created_by="bot", overlap="allow")
    for _ in range(3):
        await pass_time(conn, 60)
        await settle(conn)
    outcomes = sorted(await told(conn, first) + await told(conn, second))
    assert outcomes == [("fired", "on_time")] * 3 + [("skipped", "quota")] * 3
    await pass_time(conn, 3600)
    await settle_all(conn)
    assert len(await jobs_of(conn, first)) + len(await jobs_of(conn, second)) > 3


async def test_a_schedule_that_was_ended_is_revived_by_its_definition(conn: Connection):
    await workflow(conn, name="w")
    definition = {"name": "s", "schedule_kind": "interval", "schedule_expr": "60s", "workflow": "w"}
    made = await call(conn, "put_schedule", definition)
    await call(conn, "end_schedule", "s")
    assert (await call(conn, "put_schedule", definition))["answer"] == "accepted"
    assert (await row(conn, made["id"]))["state"] == "active"
    await replan(conn)
    await pass_time(conn, 61)
    assert await settle(conn) == [("fired", "on_time")]
