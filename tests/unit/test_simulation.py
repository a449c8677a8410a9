"""The rehearsal: real planning on virtual time. What must never happen is checked by the world itself; here it is shown
that it would notice, that the figures are right where they can be worked out by hand, and that a run is repeatable."""

from datetime import timedelta
from typing import Any

import pytest

from accsd.errors import Bug
from accsd.simulation.fleet import Fleet, FleetPolicy, Machines, Workload, parse_fleet
from accsd.simulation.policies import Accsd, AlwaysOn
from accsd.simulation.rehearse import rehearse
from accsd.simulation.report import Report
from accsd.simulation.stress import stress
from accsd.simulation.trace import TraceJob
from accsd.simulation.workload import make_jobs
from accsd.simulation.world import World

MINUTE = 60.0
KINDS: list[dict[str, Any]] = [
    {"service": "render", "share": 2, "duration": "6m"},
    {"service": "render", "requires": {"gpu": True}},
]


def fleet(count: int = 2, policy: dict[str, Any] | None = None, **machine: Any) -> Fleet:
    """Boots take a minute and suspending 10 s, exactly."""
    kind = {"name": "m", "count": count, "services": {"render": 1}, "boot": "60s", "jitter": 0, "suspend": "10s"}
    return parse_fleet({"machines": [kind | machine], "policy": policy or {}}, "fleet.toml")


def job(number: int, at: float, minutes: float = 10, due: float | None = None, **given: Any) -> TraceJob:
    return TraceJob(number, "render", at * MINUTE, minutes * MINUTE, None if due is None else due * MINUTE, **given)


def rehearsed(fleet: Fleet, *jobs: TraceJob, policy: str = "accsd", seed: int = 1) -> Report:
    return rehearse(fleet, jobs, [policy], seed)[0]


# What is found


def test_a_thousand_small_fleets_of_failing_machines_starve_nobody_never_flap_and_never_sleep_at_work():
    outcomes = [stress(seed) for seed in range(1000)]

    assert sum(outcome.calls - outcome.wakes for outcome in outcomes) > 1000, "calls fail a lot"
    assert sum(outcome.unserved for outcome in outcomes) > 100, "some machines are broken for good"
    assert sum(outcome.wakes for outcome in outcomes) > 3000


class _Careless(Accsd):
    """Sends every machine to sleep the moment it can."""

    def act(self, world: World) -> None:
        super().act(world)
        for machine in world.machines.values():
            if machine.power == "ready":
                world.suspend(machine)


class _Lazy(AlwaysOn):
    def act(self, world: World) -> None:
        pass


@pytest.mark.parametrize(
    ("policy", "rules", "said"),
    [
        (_Careless(), {"awake": 0}, "with 1 leases, and was to sleep"),
        (_Lazy(), {}, "job 0 starved"),
    ],
)
def test_a_policy_that_breaks_a_promise_is_found_with_seed_and_time(policy: Any, rules: dict[str, Any], said: str):
    with pytest.raises(Bug, match=f"seed 7, at .* s: .*{said}"):
        World(fleet(policy=rules), [job(0, 0)], 7).run(policy)


def test_a_machine_that_sleeps_before_its_shortest_time_awake_is_flapping():
    world = World(fleet(policy={"awake": "1h"}), [job(0, 0, minutes=1)], 7)

    class Hasty(Accsd):
        def begin(self, world: World) -> None:
            super().begin(world)
            self._rules = FleetPolicy(awake=timedelta(0), idle=timedelta(0)).rules()

    with pytest.raises(Bug, match="which is flapping"):
        world.run(Hasty())


# What the figures mean


def test_one_job_costs_a_boot_the_job_the_idle_time_and_the_suspend():
    found = rehearsed(fleet(), job(0, 0))

    assert found.wait_max == pytest.approx(60)
    assert found.hours * 3600 == pytest.approx(60 + 600 + 0.75 * 60 + 10, abs=0.1)
    assert found.bound * 3600 == pytest.approx(60 + 600 + 10)
    assert (found.wakes, found.wake_failures, found.flaps) == (1, 0, 0)


def test_energy_is_that_of_each_state():
    watts = {"asleep": 1, "booting": 10, "idle": 100, "busy": 1000}
    found = rehearsed(fleet(1, watts=watts), job(0, 0, minutes=60))

    assert found.kwh * 3.6e6 == pytest.approx(70 * 10 + 45 * 100 + 3600 * 1000, abs=1)


def test_a_machine_is_ready_when_its_job_is_due():
    known = job(0, 0), job(1, 0, due=60)  # the first one teaches the machine's boot time
    found = rehearsed(fleet(), *known)

    assert (found.due, found.late) == (1, 0)
    assert rehearsed(fleet(), *known, policy="slurm").late == 1
    assert rehearsed(fleet(), *known, policy="slurm").latest == pytest.approx(60)


def test_slurm_suspends_after_its_time_and_gives_a_node_up_that_does_not_come():
    found = rehearsed(fleet(), job(0, 0), policy="slurm")
    assert found.hours * 3600 == pytest.approx(60 + 600 + 300 + 10)

    broken = Machines.model_validate({"name": "a", "services": {"render": 1}, "dead": 1.0})
    two = Fleet(machines=[broken, *fleet(1).machines])
    assert rehearsed(two, job(0, 0), policy="slurm").wait_max == pytest.approx(300 + 60)


def test_the_bound_keeps_a_machine_awake_in_a_short_gap_and_boots_it_again_after_a_long_one():
    short = rehearsed(fleet(), job(0, 0), job(1, 10.5), policy="always-on")
    long = rehearsed(fleet(), job(0, 0), job(1, 30), policy="always-on")

    assert short.bound * 3600 == pytest.approx(70 + 1200 + 30)
    assert long.bound * 3600 == pytest.approx(2 * 70 + 1200)
    assert long.hours == pytest.approx(2 * 40 / 60)


def test_the_bound_packs_jobs_and_counts_scarce_machines_apart():
    kinds = [
        {"name": "pair", "services": {"render": 2}, "boot": 60, "jitter": 0, "suspend": 10},
        {"name": "gpu", "services": {"render": 1}, "boot": 60, "suspend": 10, "labels": {"gpu": True}},
    ]
    both = parse_fleet({"machines": kinds}, "fleet.toml")

    def bound(*jobs: TraceJob) -> float:
        return rehearsed(both, *jobs, policy="always-on").bound * 3600

    assert bound(job(0, 0), job(1, 0)) == pytest.approx(670)
    assert bound(job(0, 0), job(1, 0), job(2, 0)) == pytest.approx(2 * 670)
    assert bound(job(0, 0, requires={"gpu": True})) == pytest.approx(670)


def test_no_policy_that_lets_nobody_wait_is_below_the_bound():
    some = Workload.model_validate({"days": 1, "jobs": 200, "kinds": KINDS[:1]})
    reports = rehearse(fleet(40), make_jobs(some, 3), ["accsd", "slurm", "always-on"], 3)

    assert reports[-1].wait_max == 0
    assert min(report.ratio for report in reports) > 1
    assert reports[0].hours < reports[1].hours < reports[2].hours
    assert reports[0].late_by_a_boot == 0


# The same again


def test_the_same_seed_gives_the_same_report_and_another_seed_another():
    rough = fleet(5, jitter="9s", call_fails=0.2, never_boots=0.1, slow=0.2, labels={"gpu": True})
    week = Workload.model_validate({"days": 2, "jobs": 150, "kinds": KINDS})

    def figures(seed: int) -> list[dict[str, Any]]:
        return [report.figures() for report in rehearse(rough, make_jobs(week, seed), ["accsd", "slurm"], seed)]

    assert figures(1) == figures(1)
    assert figures(1) != figures(2)


def test_a_made_up_week_is_busy_by_day_and_quiet_at_night_and_plans_ahead():
    week = Workload.model_validate({"jobs": 3000, "kinds": KINDS})
    jobs = make_jobs(week, 1)
    by_day = [job for job in jobs if 8 <= job.submitted / 3600 % 24 < 20]
    planned = [job for job in jobs if job.due is not None]

    assert len(jobs) == 3000
    assert [job.submitted for job in jobs] == sorted(job.submitted for job in jobs)
    assert len(by_day) > 0.8 * len(jobs)
    assert 0.1 < len(planned) / len(jobs) < 0.2
    assert all(job.wanted_at - job.submitted > 20 * MINUTE for job in planned)
    assert 400 < sum(job.duration for job in jobs) / len(jobs) < 480
