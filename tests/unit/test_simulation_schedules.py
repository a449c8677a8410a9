"""Schedules in a rehearsal: due when the planner says, seen as the waker sees them, and skipped as the ledger would."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import orjson
import pytest

from accsd.errors import InvalidValue
from accsd.model.schedule import ScheduleDef
from accsd.planning.cover import Demand
from accsd.planning.recurrence import next_occurrences
from accsd.simulation.fleet import Fleet, parse_fleet
from accsd.simulation.policies import Accsd, demand_of
from accsd.simulation.rehearse import POLICIES, rehearse
from accsd.simulation.trace import MONDAY, TraceJob, read_trace
from accsd.simulation.world import World

HOUR = 3600.0
DAY = 24 * HOUR


def fleet(count: int = 1, **policy: Any) -> Fleet:
    machine = {"name": "m", "count": count, "services": {"render": 1, "encode": 1}, "boot": "80s", "jitter": "0s"}
    return parse_fleet({"machines": [machine], "policy": policy}, "fleet.toml")


@pytest.fixture
def trace(tmp_path: Path):
    def write(*lines: Mapping[str, Any], **when: Any) -> list[TraceJob]:
        path = tmp_path / "trace.jsonl"
        path.write_bytes(b"\n".join(map(orjson.dumps, lines)))
        return read_trace(path, **when)

    return write


NIGHTLY = {"schedule": "nightly", "cron": "30 2 * * *", "service": "render", "duration": "10m"}


@pytest.mark.parametrize(
    "rule",
    [
        {"cron": "30 2 * * *"},
        {"cron": "*/15 1-3 * * *"},
        {"rrule": "FREQ=DAILY;BYHOUR=2,3;BYMINUTE=15"},
        {"every": "90m"},
        {"at": "2026-03-29T02:30"},
        {"cron": "0 * * * *", "spread": "10m"},
    ],
)
def test_it_is_due_when_the_planner_of_the_daemon_says_so_through_a_change_of_the_clock(trace: Any, rule: Any):
    begin, span = datetime(2026, 3, 28, tzinfo=UTC), timedelta(days=3)
    line = NIGHTLY | {"cron": None, "timezone": "Europe/Berlin"} | rule
    jobs = trace(line, begin=begin, span=span)

    definition = ScheduleDef.model_validate({"name": "nightly", "workflow": "w", "timezone": "Europe/Berlin", **rule})
    planned, _ = next_occurrences(
        definition.timing(id="nightly", created_at=begin, anchor=None, calendars={}).rule(), begin, 500
    )
    due = [(each.due_at - begin).total_seconds() for each in planned if each.fires and each.due_at < begin + span]
    assert [job.due for job in jobs] == due
    assert due


def test_it_goes_on_as_long_as_the_other_jobs_and_alone_for_a_week(trace: Any):
    job = {"submitted": "2d", "service": "render", "duration": 60}
    assert [each.due for each in trace(NIGHTLY, job)] == [2.5 * HOUR, DAY + 2.5 * HOUR, None]
    assert len(trace(NIGHTLY)) == 7
    assert len(trace(NIGHTLY | {"max_runs": 3})) == 3
    assert MONDAY.weekday() == 0


def test_only_its_next_due_time_is_known_and_no_job_of_it_exists_before(trace: Any):
    """WK1: the agenda has one row for each schedule."""
    often = NIGHTLY | {"cron": None, "every": "1m", "overlap": "allow"}
    world = World(fleet(ahead="5m"), trace(often, span=timedelta(minutes=10)), 1)
    seen: list[list[Demand]] = []

    class Watcher:
        name = "watcher"

        def begin(self, world: World) -> None:
            world.alarm(30.0)

        def act(self, world: World) -> None:
            seen.append(demand_of(world))
            if world.now >= 30.0:
                raise StopIteration

    with pytest.raises(StopIteration):
        world.run(Watcher())
    (ahead,) = seen[-1]
    assert (ahead.schedule, ahead.job_id, ahead.tasks) == ("nightly", None, 1)
    assert ahead.due_in == timedelta(seconds=30)


def test_the_machine_is_woken_before_the_due_time_and_ready_when_it_comes(trace: Any):
    """WK4."""
    jobs = trace(NIGHTLY)
    accsd, slurm, always = rehearse(fleet(), jobs, list(POLICIES), 1)
    assert (accsd.due, accsd.late, accsd.wakes) == (7, 0, 7)
    assert (slurm.late, always.late) == (7, 0)
    assert accsd.hours < 7 * 0.3


def test_it_does_not_go_to_sleep_for_less_than_a_boot(trace: Any):
    """WK2: the sleep decision asks the same function."""
    twice = [NIGHTLY | {"schedule": f"s{minute}", "cron": f"{minute} 2 * * *"} for minute in (0, 12)]
    (near,) = rehearse(fleet(), trace(*twice, span=timedelta(days=1)), ["accsd"], 1)
    far = [NIGHTLY | {"schedule": f"s{hour}", "cron": f"0 {hour} * * *"} for hour in (2, 3)]
    (apart,) = rehearse(fleet(), trace(*far, span=timedelta(days=1)), ["accsd"], 1)
    assert (near.wakes, near.late, apart.wakes, apart.late) == (1, 0, 2, 0)


def test_a_run_whose_last_one_is_open_is_skipped_unless_runs_may_overlap(trace: Any):
    long = NIGHTLY | {"cron": None, "every": "10m", "duration": "25m"}
    (skipping,) = rehearse(fleet(4), trace(long, span=timedelta(hours=1)), ["always-on"], 1)
    (allowed,) = rehearse(fleet(4), trace(long | {"overlap": "allow"}, span=timedelta(hours=1)), ["always-on"], 1)
    assert (skipping.jobs, skipping.skipped, skipping.unserved) == (5, 3, 0)
    assert (allowed.jobs, allowed.skipped, allowed.unserved) == (5, 0, 0)


def test_steps_follow_each_other_and_only_the_first_are_due(trace: Any):
    steps = [
        {"key": "mix", "service": "encode", "duration": "1m", "depends_on": ["a", "b"]},
        {"key": "a", "service": "render", "duration": "5m"},
        {"key": "b", "service": "render", "duration": "7m"},
    ]
    jobs = trace({"schedule": "nightly", "cron": "30 2 * * *", "steps": steps}, span=timedelta(days=1))
    world = World(fleet(2), jobs, 1)
    world.run(Accsd())
    began = {run.job.duration: run.began for run in world.runs}
    assert began[300.0] == began[420.0] == 2.5 * HOUR
    assert began[60.0] == 2.5 * HOUR + 420
    (report,) = rehearse(fleet(2), jobs, ["accsd"], 1)
    assert (report.jobs, report.due, report.unserved) == (3, 2, 0)


def test_what_nobody_can_run_leaves_the_steps_behind_it_unserved(trace: Any):
    steps = [
        {"key": "a", "service": "none", "duration": "5m"},
        {"key": "b", "service": "render", "duration": "7m", "depends_on": ["a"]},
    ]
    jobs = trace({"schedule": "s", "every": "12h", "steps": steps}, NIGHTLY, span=timedelta(days=1))
    (report,) = rehearse(fleet(), jobs, ["accsd"], 1)
    assert (report.jobs, report.unserved) == (3, 2)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (NIGHTLY | {"cron": "70 2 * * *"}, "minute"),
        (NIGHTLY | {"timezone": "Europe/Berln"}, "Europe/Berlin"),
        (NIGHTLY | {"cron": None}, "says when by one of"),
        (NIGHTLY | {"overlaps": "skip"}, 'did you mean "overlap"'),
        (NIGHTLY | {"exclude": ["holidays"]}, 'names the calendar "holidays"'),
        ({"schedule": "s", "every": "1h", "service": "render"}, "duration"),
        (NIGHTLY | {"steps": []}, "a schedule has steps, or a service"),
        ({"schedule": "s", "every": "1h", "steps": []}, "steps"),
        (
            {"schedule": "s", "every": "1h", "steps": [{"service": "a", "duration": 1, "depends_on": ["x"]}]},
            'has no step "x"',
        ),
        (
            {
                "schedule": "s",
                "every": "1h",
                "steps": [{"key": "a", "service": "a", "duration": 1, "depends_on": ["a"]}],
            },
            "wait for each other",
        ),
        (
            {
                "schedule": "s",
                "every": "1s",
                "steps": [{"key": f"k{n}", "service": "a", "duration": 1} for n in range(20)],
            },
            "rehearse fewer days",
        ),
    ],
)
def test_a_wrong_schedule_is_refused_with_its_line(trace: Any, line: Any, said: str):
    with pytest.raises(InvalidValue) as refused:
        trace({"submitted": 0, "service": "render", "duration": 1}, line, span=timedelta(days=30))
    assert "trace.jsonl:2: " in str(refused.value)
    assert said in f"{refused.value} {refused.value.hint}"
