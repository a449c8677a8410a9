"""The planner and the scheduler on a real database: rules become plans, plans become jobs."""

import asyncio
import re
import sys
from collections import Counter
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import orjson
import pytest

from accsd.builder.planner import Planner
from accsd.builder.scheduler import DatabaseClock, Scheduler
from accsd.db import Database
from accsd.db.firings import scheduler_outlook
from accsd.db.wake import wake_demand
from accsd.errors import Bug
from accsd.metrics import FIRINGS, Metrics
from accsd.planning.cover import Demand
from accsd.planning.recurrence.zones import RULES_VARIABLE
from accsd.simulation.fleet import parse_fleet
from accsd.simulation.policies import demand_of
from accsd.simulation.trace import read_trace
from accsd.simulation.world import World
from tests.support.cluster import Connection
from tests.support.factory import clock, pass_time, step, workflow
from tests.support.library import opened
from tests.support.schedules import ledger, outlook, row, told
from tests.support.zones import folder_of_rules


@pytest.fixture
async def db(db_url: str) -> AsyncIterator[Database]:
    async with opened(db_url) as opening:
        yield opening


async def make(conn: Connection, kind: str, expr: str, zone: str = "Europe/Berlin", **columns: Any):
    given = {"name": "s", "schedule_kind": kind, "schedule_expr": expr, "timezone": zone, "workflow": "w", **columns}
    await workflow(conn, name="w", version=await conn.fetchval("SELECT count(*) + 1 FROM workflows"))
    places = ", ".join(f"${i + 1}" for i in range(len(given)))
    return await conn.fetchval(
        f"INSERT INTO schedules ({', '.join(given)}) VALUES ({places}) RETURNING id", *given.values()
    )


async def set_clock(conn: Connection, to: str) -> None:
    """Moves the database's clock to an instant."""
    await conn.execute("UPDATE accs.test_clock SET shift = $1 - now()", datetime.fromisoformat(to))


async def both(db: Database, passes: int = 20) -> None:
    """Planner and scheduler in turn, until neither has anything to do."""
    planner, scheduler = Planner(db, node="n1"), Scheduler(db, node="n1", metrics=Metrics())
    for _ in range(passes):
        planned, fired = await planner.run_once(), await scheduler.run_once()
        ahead = await scheduler_outlook(db)
        if not (planned.more or fired.more or timedelta(0) in (ahead.next_due, ahead.next_plan)):
            return
    raise AssertionError("there is always more to do")


async def test_a_cron_in_a_zone_fires_on_the_hour_of_its_wall_clock(db: Database, conn: Connection):
    await set_clock(conn, "2026-11-18T00:30:00+00:00")
    which = await make(conn, "cron", "30 2 * * *")
    await both(db)
    assert timedelta(minutes=59) < (await outlook(conn))["next_due"] <= timedelta(hours=1)
    await set_clock(conn, "2026-11-18T01:30:01+00:00")
    await both(db)
    (fired,) = await ledger(conn, which)
    assert (fired["outcome"], fired["nominal"]) == ("fired", datetime.fromisoformat("2026-11-18T02:30"))


async def test_what_happened_at_half_past_two_on_the_sunday_of_the_change(db: Database, conn: Connection):
    """DS2, DS5 end to end: the clock skips 02:15 and 02:45 on 2027-03-28; one firing at 03:00, the other is merged."""
    await set_clock(conn, "2027-03-27T23:30:00+00:00")
    which = await make(conn, "cron", "15,45 2 * * *")
    await both(db)
    await set_clock(conn, "2027-03-28T01:00:01+00:00")
    await both(db)
    first, second = await ledger(conn, which)
    assert (first["outcome"], first["nominal"], first["due_at"].isoformat()[:16]) == (
        "fired",
        datetime.fromisoformat("2027-03-28T02:15"),
        "2027-03-28T01:00",
    )
    assert (second["outcome"], second["reason"], second["merged_into"]) == ("merged", "dst_gap", first["nominal"])


async def test_every_quarter_of_an_hour_fires_through_the_repeated_hour(db: Database, conn: Connection):
    """DS4, DS3: identity is nominal time and fold."""
    await set_clock(conn, "2026-10-24T23:50:00+00:00")
    which = await make(conn, "cron", "*/15 * * * *", overlap="allow")
    await both(db)
    for minute in range(0, 120, 15):
        await set_clock(conn, f"2026-10-25T{minute // 60:02}:{minute % 60:02}:01+00:00")
        await both(db)
    rows = await ledger(conn, which)
    assert [each["outcome"] for each in rows] == ["fired"] * 8
    assert [each["fold"] for each in sorted(rows, key=lambda each: each["due_at"])] == [0] * 4 + [1] * 4


async def test_an_rrule_keeps_its_anchor(db: Database, conn: Connection):
    """RR3: every other week keeps its phase over edits of anything else."""
    await set_clock(conn, "2026-11-18T08:00:00+00:00")
    which = await make(conn, "rrule", "FREQ=WEEKLY;INTERVAL=2;BYDAY=WE;BYHOUR=17", options={"a": 1})
    await both(db)
    assert (await row(conn, which))["anchor"] == datetime.fromisoformat("2026-11-18")
    assert (await row(conn, which))["revision"] == 1
    await conn.execute("UPDATE schedules SET options = '{}' WHERE id = $1", which)
    await both(db)
    dues = await conn.fetchval("SELECT dues FROM accs.plan_of WHERE schedule_id = $1", which)
    assert dues[1] - dues[0] == timedelta(weeks=2)


async def test_a_wrong_rule_leaves_its_schedule_broken_and_the_others_are_planned(db: Database, conn: Connection):
    bad = await make(conn, "cron", "*/70 * * * *", name="bad")
    odd = await make(conn, "cron", "0 2 * * *", "Europe/Berln", name="odd")
    good = await make(conn, "interval", "90m", name="good")
    await both(db)
    assert (await row(conn, bad))["state"] == "broken"
    assert "minute" in (await row(conn, bad))["state_reason"]
    assert "Europe/Berlin" in (await row(conn, odd))["state_reason"]
    assert (await row(conn, good))["state"] == "active"


async def test_a_once_fires_and_ends(db: Database, conn: Connection):
    await set_clock(conn, "2025-12-25T06:59:00+00:00")
    which = await make(conn, "once", "2025-12-25T09:00:00+02:00")
    await both(db)
    await pass_time(conn, 61)
    await both(db)
    assert await told(conn, which) == [("fired", "on_time")]
    assert ((await row(conn, which))["state"], (await row(conn, which))["state_reason"]) == ("ended", "once")


async def test_three_days_of_a_minutely_schedule_are_caught_up_once(db: Database, conn: Connection):
    """MI2, LG5 with the real planner."""
    which = await make(conn, "cron", "* * * * *", overlap="allow")
    await both(db)
    await pass_time(conn, 3 * 86400)
    await both(db)
    rows = await ledger(conn, which)
    assert sum(each["times"] or 1 for each in rows) in (4319, 4320, 4321)
    assert [each["outcome"] for each in rows].count("caught_up") == 1


async def test_a_calendar_keeps_a_schedule_from_firing_and_the_ledger_says_which(db: Database, conn: Connection):
    """CA1."""
    await set_clock(conn, "2026-12-24T22:30:00+00:00")
    days = [{"from": "2026-12-25", "to": "2026-12-26", "label": "Christmas"}]
    await conn.execute("INSERT INTO calendars (name, entries) VALUES ('holidays', $1)", days)
    which = await make(conn, "cron", "0 3 * * *", exclude=["holidays"])
    await both(db)
    await set_clock(conn, "2026-12-25T02:00:01+00:00")
    await both(db)
    (skipped,) = await ledger(conn, which)
    assert (skipped["reason"], skipped["detail"]) == ("excluded", {"calendar": "holidays", "label": "Christmas"})


async def test_options_are_rendered_for_each_occurrence(db: Database, conn: Connection):
    await set_clock(conn, "2026-11-18T01:29:00+00:00")
    which = await make(conn, "cron", "30 2 * * *", options={"day": "${nominal.substring(0, 10)}", "n": 3})
    await both(db)
    await pass_time(conn, 62)
    await both(db)
    (job,) = await conn.fetch("SELECT options FROM jobs WHERE schedule_id = $1", which)
    assert job["options"] == {"day": "2026-11-18", "n": 3}


async def test_an_assistant_may_not_fire_more_often_than_its_limit(db: Database, conn: Connection):
    """AG4."""
    await conn.fetchval("SELECT accs.put_actor('bot', 'assistant', $1)", {"least_interval_sec": 60})
    often = await make(conn, "interval", "15s", name="often", created_by="bot")
    seldom = await make(conn, "interval", "60s", name="seldom", created_by="bot")
    await both(db)
    assert (await row(conn, often))["state"] == "broken"
    assert (await row(conn, seldom))["state"] == "active"


async def test_a_clock_that_leaps_is_believed_when_it_stays(conn: Connection, monkeypatch: pytest.MonkeyPatch):
    """CL2."""
    mine = 1000.0
    monkeypatch.setattr("accsd.builder.scheduler.time.monotonic", lambda: mine)
    monkeypatch.setattr("accsd.builder.scheduler.time_asleep", lambda: 0.0)
    seen, now = DatabaseClock(), await clock(conn)
    assert seen.doubt(now) is None
    mine += 5
    assert seen.doubt(now + timedelta(seconds=5)) is None
    mine += 5
    leapt = now + timedelta(days=365)
    assert "has leapt" in (seen.doubt(leapt) or "")
    mine += 30
    assert "has leapt" in (seen.doubt(leapt + timedelta(seconds=30)) or "")
    mine += 31
    assert seen.doubt(leapt + timedelta(seconds=61)) is None


async def test_a_sleep_of_the_machine_is_no_leap(conn: Connection, monkeypatch: pytest.MonkeyPatch):
    asleep = 0.0
    monkeypatch.setattr("accsd.builder.scheduler.time_asleep", lambda: asleep)
    seen, now = DatabaseClock(), await clock(conn)
    assert seen.doubt(now) is None
    asleep = 3600.0
    assert seen.doubt(now + timedelta(hours=1)) is None


async def test_while_all_are_held_the_scheduler_says_so(db: Database, conn: Connection):
    await conn.fetchval("SELECT accs.hold_schedules('a fire', 'ops')")
    done = await Scheduler(db, node="n1", metrics=Metrics()).run_once()
    assert done.obstacle == "all schedules are held: a fire, by ops"


def counted(metrics: Metrics) -> Counter[tuple[str, str]]:
    """accsd_firings_total of one process, without what it did not count."""
    found = re.findall(
        r'^accsd_firings_total\{outcome="(\w+)",reason="(\w+)"\} (\S+)$', metrics.render().decode(), re.M
    )
    return Counter({(outcome, reason): int(float(times)) for outcome, reason, times in found if float(times)})


async def test_the_counts_of_several_schedulers_add_up_to_the_ledger(db: Database, conn: Connection):
    """LG7: each counts what it has settled itself, by outcome and reason, and how late it was."""
    await set_clock(conn, "2026-11-18T08:00:00+00:00")
    for number in range(40):
        policy = {"missed": ("one", "all", "skip")[number % 3], "overlap": ("skip", "queue", "allow")[number % 3]}
        await make(conn, "cron", "*/10 * * * *", "UTC", name=f"s{number}", **policy)
    await both(db)
    await set_clock(conn, "2026-11-18T08:10:00.4+00:00")
    everyone = [Metrics() for _ in range(4)]
    schedulers = [Scheduler(db, node=f"n{i}", metrics=each) for i, each in enumerate(everyone)]

    async def work(scheduler: Scheduler) -> None:
        while (await scheduler.run_once()).more:
            pass

    await asyncio.gather(*map(work, schedulers))
    await set_clock(conn, "2026-11-18T09:03:00+00:00")
    for scheduler in schedulers:
        scheduler._clock = DatabaseClock()  # pyright: ignore[reportPrivateUsage] - it was the test that leapt
    await asyncio.gather(*map(work, schedulers))

    rows = await conn.fetch("SELECT outcome, reason, sum(coalesce(times, 1)) AS n FROM firings GROUP BY 1, 2")
    settled = {(row["outcome"], row["reason"]): row["n"] for row in rows}
    assert sum((counted(each) for each in everyone), Counter()) == settled
    assert {"fired", "caught_up", "missed", "merged"} <= {outcome for outcome, _ in settled}
    shown = [each.render().decode() for each in everyone]
    late = sum(float(value) for said in shown for value in re.findall(r"accsd_firing_late_seconds_count (\S+)", said))
    assert late == await conn.fetchval("SELECT count(*) FROM firings WHERE outcome IN ('fired', 'caught_up')")
    within_a_second = sum(
        float(value)
        for said in shown
        for value in re.findall(r'accsd_firing_late_seconds_bucket\{le="1.0"\} (\S+)', said)
    )
    assert within_a_second == await conn.fetchval("SELECT count(*) FROM firings WHERE outcome = 'fired'")
    assert not any("s1" in line for said in shown for line in said.splitlines() if "firing" in line), "no name"


async def test_every_outcome_that_the_ledger_allows_is_a_series_from_the_start_and_has_words(conn: Connection):
    allowed = await conn.fetchval(
        "SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conname = 'known_outcome' LIMIT 1"
    )
    by_outcome = re.split(r"WHEN '(\w+)'::text THEN", allowed)[1:]
    pairs = {
        (outcome, reason)
        for outcome, said in zip(by_outcome[::2], by_outcome[1::2], strict=True)
        for listed in re.findall(r"'\{?([\w,]+)\}?'::text", said)
        for reason in listed.split(",")
    }
    assert pairs == {(outcome, reason) for outcome, reasons in FIRINGS.items() for reason in reasons}
    metrics = Metrics()
    assert metrics.render().decode().count("accsd_firings_total{") == len(pairs)
    metrics.settled("fired", "a name", timedelta(0), 1)
    assert 'accsd_firings_total{outcome="fired",reason="other"} 1.0' in metrics.render().decode()


async def test_a_rehearsal_sees_of_a_schedule_what_the_waker_sees(db: Database, conn: Connection, tmp_path: Path):
    """WK1: the same demand at the same distance from the due time, minute by minute, over two due times."""
    steps = [step("a", "render"), step("b", "render"), step("c", "encode", after="a")]
    await workflow(conn, *steps, name="nights")
    begin = datetime.fromisoformat("2026-11-18T08:00:00+00:00")
    await set_clock(conn, begin.isoformat())
    places = "'nightly', 'cron', '*/7 * * * *', 'Europe/Berlin', 'nights', 'allow'"
    await conn.execute(
        f"INSERT INTO schedules (name, schedule_kind, schedule_expr, timezone, workflow, overlap) VALUES ({places})"
    )
    lines = [
        {"key": each["key"], "service": each["service"], "duration": 1, "depends_on": each["depends_on"]}
        for each in steps
    ]
    nightly = {"schedule": "nightly", "cron": "*/7 * * * *", "timezone": "Europe/Berlin", "overlap": "allow"}
    path = tmp_path / "trace.jsonl"
    path.write_bytes(orjson.dumps(nightly | {"steps": lines}))
    fleet = parse_fleet({"machines": [{"name": "m", "services": {"render": 2}}], "policy": {"ahead": "5m"}}, "fleet")
    minutes = range(1, 14)
    rehearsed: dict[float, list[Demand]] = {}

    class Looker:
        name = "looker"

        def begin(self, world: World) -> None:
            for minute in minutes:
                world.alarm(minute * 60.0 + 1)

        def act(self, world: World) -> None:
            world.waiting = {lane: [] for lane in world.waiting}  # all are claimed at once
            rehearsed[world.now] = demand_of(world)

    world = World(fleet, read_trace(path, begin, timedelta(minutes=20)), 1)
    with pytest.raises(Bug, match="nothing would ever happen again"):
        world.run(Looker())

    await both(db)
    for minute in minutes:
        await set_clock(conn, (begin + timedelta(minutes=minute, seconds=1)).isoformat())
        await both(db)
        await conn.fetch("SELECT * FROM accs.cancel_jobs(ARRAY(SELECT id FROM jobs WHERE status = 'running'))")
        real = await wake_demand(db, timedelta(minutes=5))
        assert [_comparable(each) for each in real] == [_comparable(each) for each in rehearsed[minute * 60.0 + 1]]
    assert any(rehearsed.values())


def _comparable(each: Demand) -> tuple[object, ...]:
    """A test's clock goes on while it looks."""
    return each.service, each.tasks, each.job_id, dict(each.requires), each.schedule, round(each.due_in.total_seconds())


async def test_what_is_due_in_a_moment_is_awaited_and_fired_in_the_same_pass(db: Database, conn: Connection):
    """So that the look before it does not make it late."""
    which = await make(conn, "interval", "1h")
    await Planner(db, node="n1").run_once()
    scheduler = Scheduler(db, node="n1", metrics=Metrics())
    await conn.execute(
        "WITH moved AS (UPDATE accs.agenda SET due_at = accs.clock() + interval '5 ms' WHERE what = 'occurrence'"
        " RETURNING due_at) UPDATE accs.plan_of SET dues[1] = moved.due_at FROM moved"
    )
    assert (await scheduler.run_once()).did == "1 fired (on_time)"
    assert await told(conn, which) == [("fired", "on_time")]


PLAN_ONCE = """
import asyncio, sys
from accsd.builder.planner import Planner
from accsd.db import Database
from accsd.settings import DatabaseSettings

async def main():
    db = await Database.open(DatabaseSettings.model_validate({"url": sys.argv[1]}))
    print((await Planner(db, node="n1").run_once()).did)
    await db.close()

asyncio.run(main())
"""


async def planned_by(rules: Path, url: str) -> str:
    """One pass of a planner that has these time zone rules."""
    said = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", PLAN_ONCE, url), env={RULES_VARIABLE: str(rules)}, stdout=asyncio.subprocess.PIPE
    )
    return (await said.communicate())[0].decode().splitlines()[-1]


async def history(conn: Connection, what: str) -> list[Any]:
    return await conn.fetch("SELECT * FROM accs.schedule_history WHERE what = $1 ORDER BY id", what)


async def test_newer_zone_rules_move_what_is_planned_and_the_history_says_so(
    conn: Connection, db_url: str, tmp_path: Path
):
    """TZ5, TZ6"""
    older = folder_of_rules(tmp_path / "older", "2025b", **{"America/Vancouver": "Etc/GMT+8", "Europe/Berlin": "UTC"})
    newer = folder_of_rules(tmp_path / "newer", "2026f", **{"America/Vancouver": "Etc/GMT+7", "Europe/Berlin": "UTC"})
    await set_clock(conn, "2026-11-18T00:30:00+00:00")
    which = await make(conn, "cron", "0 9 * * *", "America/Vancouver")
    await make(conn, "cron", "0 9 * * *", "Europe/Berlin", name="same")
    assert await planned_by(older, db_url) == "planned 2 schedules"
    assert await history(conn, "moved") == []
    await conn.execute("SELECT accs.ask_for_plans(ARRAY[$1]::uuid[])", which)
    assert await planned_by(newer, db_url) == "planned 1 schedules"
    (moved,) = await history(conn, "moved")
    assert moved["schedule_id"] == which
    assert moved["reason"] == (
        "2026-11-18 09:00 in America/Vancouver is 16:00 UTC now, was 17:00 (time zone rules 2026f, before 2025b);"
        " 32 planned times have moved"
    )
    await conn.execute("SELECT accs.ask_for_plans(ARRAY[$1]::uuid[])", which)
    assert await planned_by(older, db_url) == "None", "older rules than those on record plan nothing there"
    assert await planned_by(newer, db_url) == "planned 1 schedules"
    assert len(await history(conn, "moved")) == 1


async def test_a_planner_that_was_overtaken_by_newer_rules_looks_again(db: Database, conn: Connection):
    """It has spoken of its zone before, and was accepted."""
    await set_clock(conn, "2026-11-18T00:30:00+00:00")
    which = await make(conn, "cron", "0 9 * * *")
    planner = Planner(db, node="n1")
    await planner.run_once()
    before = await conn.fetchval("SELECT planned_at FROM accs.plan_of")
    await conn.execute("SELECT * FROM accs.note_zones('{Europe/Berlin}', '2999z', '{newer}', 'other')")
    await pass_time(conn, 60)
    await planner.run_once()
    while not (passed := await planner.run_once()).obstacle:
        assert passed.did is None
    assert "newer time zone rules than these are in use for Europe/Berlin (2999z)" in str(passed.obstacle)
    assert await conn.fetchval("SELECT planned_at FROM accs.plan_of") == before
    assert (await row(conn, which))["state"] == "active"


async def test_an_edit_that_drops_a_skip_or_a_snooze_is_told_in_the_history(db: Database, conn: Connection):
    """ED6"""
    await set_clock(conn, "2026-11-18T00:30:00+00:00")
    which = await make(conn, "cron", "0 9 * * *", "UTC")
    await both(db)
    await conn.execute("SELECT accs.snooze('s', '10 min')")
    await conn.execute("SELECT accs.skip_occurrence('s', '2026-11-20T09:00')")
    await conn.execute("UPDATE schedules SET title = 'the same times' WHERE id = $1", which)
    await both(db)
    assert await history(conn, "dropped") == []
    await conn.execute("UPDATE schedules SET schedule_expr = '0 10 * * *' WHERE id = $1", which)
    await both(db)
    (dropped,) = await history(conn, "dropped")
    assert dropped["before"] == {"skips": ["2026-11-20T09:00:00"], "snoozes": ["2026-11-18T09:00:00.000000/0"]}
    assert dropped["reason"] == "its rule does not name these times any more"


async def test_a_calendar_with_a_zone_has_the_dates_of_that_zone(db: Database, conn: Connection):
    """CA1: 20:00 in New York on the 25th is the 26th in Berlin."""
    await set_clock(conn, "2026-12-25T00:30:00+00:00")
    days = [{"from": "2026-12-26", "to": "2026-12-26", "label": "Boxing Day"}]
    for name, zone in (("own", None), ("berlin", "Europe/Berlin"), ("wrong", "Europe/Nowhere")):
        await conn.execute("INSERT INTO calendars (name, timezone, entries) VALUES ($1, $2, $3)", name, zone, days)
        await make(conn, "cron", "0 20 * * *", "America/New_York", name=name, exclude=[name])
    await both(db)
    await set_clock(conn, "2026-12-27T02:00:00+00:00")
    await both(db)
    found = {
        name: [(each["nominal"].day, each["outcome"]) for each in await ledger(conn, which)]
        for name, which in await conn.fetch("SELECT name, id FROM schedules WHERE name <> 'wrong'")
    }
    assert found["own"] == [(24, "merged"), (25, "caught_up"), (26, "skipped")]
    assert found["berlin"][1] == (25, "skipped")
    broken = await conn.fetchrow("SELECT state, state_reason FROM schedules WHERE name = 'wrong'")
    assert broken is not None
    assert broken["state"] == "broken"
    assert "Europe/Nowhere" in broken["state_reason"]
