"""What becomes of schedules can be told to others (LG7), and costs nothing where nobody wants to hear it."""

from datetime import datetime, timedelta
from typing import Any, get_args

import asyncpg
import pytest

from accsd.values.names import ScheduleEvent
from tests.support.cluster import Connection
from tests.support.factory import pass_time, step
from tests.support.schedules import call, ledger, schedule, settle_all

SCHEDULE_EVENTS = list(get_args(ScheduleEvent))
TRIGGERS = ("announce_firing", "announce_unsnoozed", "announce_broken")


async def target(
    conn: Connection, events: list[str], *, name: str = "studio", workflows: list[str] | None = None
) -> None:
    await conn.execute("SELECT accs.register_outbox_target($1, 'https://x', $2, $3)", name, events, workflows)


async def told(conn: Connection, name: str = "studio") -> list[dict[str, Any]]:
    rows = await conn.fetch("SELECT job_id, payload FROM outbox_events WHERE target = $1 ORDER BY id", name)
    assert all(each["job_id"] is None for each in rows)
    return [each["payload"] for each in rows]


async def enabled(conn: Connection) -> set[str]:
    rows = await conn.fetch(
        "SELECT DISTINCT tgname FROM pg_trigger WHERE tgenabled <> 'D' AND tgname = ANY ($1::text[])", list(TRIGGERS)
    )
    return {each["tgname"] for each in rows}


async def break_it(conn: Connection, name: str) -> None:
    """As the planner does with a rule that it does not understand."""
    await conn.execute("UPDATE schedules SET schedule_expr = '61s' WHERE name = $1", name)
    found = await conn.fetchrow("SELECT * FROM schedules WHERE name = $1", name)
    assert found is not None
    plan = {"id": str(found["id"]), "revision": found["revision"], "after": found["settled_until"], "problem": "no"}
    await conn.fetch("SELECT * FROM accs.plan_schedules($1)", [plan])


async def test_missed_skipped_and_broken_are_told_to_who_wants_them(conn: Connection):
    await target(conn, SCHEDULE_EVENTS)
    await target(conn, ["schedule.broken"], name="pager")
    await target(conn, ["job.done", "notify"], name="others")
    slow = await schedule(conn, 60, name="slow")
    for _ in range(2):
        await pass_time(conn, 61)
        await settle_all(conn)
    await call(conn, "end_schedule", "slow")
    down = await schedule(conn, 60, missed="skip", name="down")
    await pass_time(conn, 185)
    await settle_all(conn)
    await break_it(conn, "down")
    events = await told(conn)
    assert [(each["schedule"]["name"], each["event"], each["schedule"].get("reason")) for each in events] == [
        ("slow", "schedule.skipped", "overlap"),
        *[("down", "schedule.missed", "down")] * 2,
        ("down", "schedule.broken", None),
    ]
    assert len(await ledger(conn, slow)) == 2, "the run itself is told as a job"
    missed = events[1]
    first = (await ledger(conn, down))[0]
    assert missed["schedule"] == {
        "id": str(down),
        "name": "down",
        "kind": "interval",
        "timezone": "UTC",
        "reason": "down",
        "nominal": missed["schedule"]["nominal"],
        "fold": 0,
        "due_at": missed["schedule"]["due_at"],
        "times": 1,
    }
    assert datetime.fromisoformat(missed["schedule"]["nominal"]) == first["nominal"]
    assert (missed["version"], missed["workflow"]) == (1, {"name": "w-down"})
    assert events[-1]["schedule"]["problem"] == "no"
    assert len({each["id"] for each in events}) == len(events)
    assert [each["event"] for each in await told(conn, "pager")] == ["schedule.broken"]
    assert await told(conn, "others") == []


async def test_a_target_of_some_workflows_hears_of_their_schedules_only(conn: Connection):
    await target(conn, SCHEDULE_EVENTS, workflows=["w-mine"])
    await schedule(conn, 60, missed="skip", name="mine")
    await schedule(conn, 60, missed="skip", name="yours")
    await pass_time(conn, 185)
    await settle_all(conn)
    assert {each["schedule"]["name"] for each in await told(conn)} == {"mine"}


async def test_a_snoozed_occurrence_that_does_not_run_is_told_once(conn: Connection):
    await target(conn, SCHEDULE_EVENTS)
    await schedule(conn, 60, name="s")
    await call(conn, "snooze", "s", timedelta(days=1))
    assert await told(conn) == [], "it is not final"
    await call(conn, "end_schedule", "s")
    assert [(each["event"], each["schedule"]["reason"]) for each in await told(conn)] == [
        ("schedule.skipped", "requested")
    ]


async def test_what_was_missed_in_a_long_outage_is_one_event_for_the_oldest(conn: Connection):
    """LG5."""
    await target(conn, ["schedule.missed"])
    which = await schedule(conn, 1, missed="skip")
    await pass_time(conn, 1500)
    await conn.execute("SELECT accs.ask_for_plans(ARRAY[$1::uuid])", which)
    await settle_all(conn)
    counted = [each["schedule"]["times"] for each in await told(conn)]
    assert sum(counted) == await conn.fetchval("SELECT sum(coalesce(times, 1)) FROM firings WHERE outcome = 'missed'")
    assert max(counted) > 1


async def test_the_triggers_are_off_until_a_target_wants_what_they_tell(conn: Connection):
    await target(conn, ["job.done", "task.done", "notify"])
    assert await enabled(conn) == set()
    await target(conn, ["schedule.skipped"], name="skips")
    assert await enabled(conn) == {"announce_firing", "announce_unsnoozed"}
    await target(conn, ["schedule.broken"], name="skips")
    assert await enabled(conn) == {"announce_broken"}
    await conn.execute("SELECT accs.forget_outbox_target('skips')")
    assert await enabled(conn) == set()


async def test_months_of_the_ledger_that_are_made_later_tell_too(conn: Connection):
    await target(conn, ["schedule.missed"])
    await pass_time(conn, 300 * 86_400)
    await conn.fetch("SELECT accs.make_months('firings')")
    await schedule(conn, 60, missed="skip")
    await pass_time(conn, 185)
    await settle_all(conn)
    assert len(await told(conn)) == 2
    assert await conn.fetchval("SELECT count(*) FROM firings_default") == 0


async def test_a_workflow_does_not_subscribe_to_schedules(conn: Connection):
    assert await conn.fetchval("SELECT accs.schedule_events()") == SCHEDULE_EVENTS
    with pytest.raises(asyncpg.PostgresError, match=r'"schedule\.missed" is no event'):
        await conn.execute(
            "INSERT INTO workflows (name, steps, notify) VALUES ('w', $1, '{schedule.missed}')", [step("a")]
        )
