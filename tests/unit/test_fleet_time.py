"""What machines did and what that has cost: lanes from changes and samples, and figures that equal the rehearsal's."""

from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import pytest

from accsd.db.power import KnownNode, NodeSample, PowerChange
from accsd.explain.fleet_time import Interval, Lane, Timeline, energy_document, energy_of, lanes_of
from accsd.planning.energy import Use
from accsd.simulation.fleet import Fleet, Machines
from accsd.simulation.machine import Power, SimulatedMachine
from accsd.simulation.policies import Accsd
from accsd.simulation.workload import make_jobs
from accsd.simulation.world import World

BEGIN = datetime(2026, 11, 18, tzinfo=UTC)
WATTS = {"asleep": 4.0, "booting": 120.0, "idle": 80.0, "busy": 300.0}


def at(seconds: float) -> datetime:
    return BEGIN + timedelta(seconds=seconds)


def known(name: str = "n1", *, seen: float = 1000, now: float = 1000, **given: Any) -> KnownNode:
    return KnownNode(
        name,
        given.pop("awake_state", "awake"),
        at(seen),
        timedelta(seconds=now - seen),
        None,
        given.pop("watts", WATTS),
        given.pop("busy", False),
    )


def changes(*states: tuple[float, str], node: str = "n1") -> list[PowerChange]:
    return [PowerChange(node, at(ts), state, f"because {state}", None) for ts, state in states]


def samples(*live: tuple[float, int], service: str = "render") -> list[NodeSample]:
    return [NodeSample("n1", service, at(ts), n) for ts, n in live]


def lane(
    states: list[PowerChange], taken: list[NodeSample] | None = None, *, silent: float | None = None, **given: Any
) -> list[tuple[str, float, float]]:
    node = known(**given)
    [found] = lanes_of(
        [node], states, taken or [], at(0), at(1000), silent=None if silent is None else timedelta(seconds=silent)
    )
    return [
        (each.state, (each.since - BEGIN).total_seconds(), (each.until - BEGIN).total_seconds())
        for each in found.intervals
    ]


def test_a_lane_is_cut_at_each_change_and_by_what_was_to_do():
    states = changes((-500, "asleep"), (100, "waking"), (110, "booting"), (150, "ready"), (900, "asleep"))
    assert lane(states, samples((160, 2), (400, 1), (700, 0))) == [
        ("asleep", 0, 100),
        ("waking", 100, 110),
        ("booting", 110, 150),
        ("idle", 150, 160),
        ("busy", 160, 700),
        ("idle", 700, 900),
        ("asleep", 900, 1000),
    ]


def test_a_machine_is_busy_while_one_of_its_services_is():
    taken = samples((100, 1), (300, 0)) + samples((200, 1), (400, 0), service="audio")
    assert lane(changes((-1, "ready")), sorted(taken, key=lambda each: each.ts)) == [
        ("idle", 0, 100),
        ("busy", 100, 400),
        ("idle", 400, 1000),
    ]


def test_what_is_not_known_is_away_and_what_was_before_the_first_change_is_left_out():
    assert lane(changes((100, "ready"), (200, "unknown"), (300, "failed"), (400, "ready"))) == [
        ("idle", 100, 200),
        ("away", 200, 400),
        ("idle", 400, 1000),
    ]
    assert lane([]) == []


def test_a_machine_that_is_silent_now_is_away_since_it_was_last_seen():
    assert lane(changes((-1, "ready")), silent=60, seen=700) == [("idle", 0, 700), ("away", 700, 1000)]
    assert lane(changes((-1, "ready")), silent=60, seen=990) == [("idle", 0, 1000)]
    assert lane(changes((-1, "asleep")), silent=60, seen=-1) == [("asleep", 0, 1000)], "it sleeps, as it said"


def test_what_runs_now_is_seen_before_the_next_sample():
    assert lane(changes((-1, "ready")), samples((0, 0)), silent=60, busy=True) == [("busy", 0, 1000)]


def test_the_reason_of_a_call_is_told_by_its_record():
    states = [
        PowerChange("n1", at(0), "asleep", "nothing to do", None),
        PowerChange("n1", at(10), "waking", None, "wol"),
        PowerChange("n1", at(12), "booting", "job 3f9a wants it", "wol"),
    ]
    [found] = lanes_of([known()], states, [], at(0), at(50))
    assert [each.because for each in found.intervals] == ["nothing to do", "job 3f9a wants it", "job 3f9a wants it"]


# Energy


def hours(*spent: tuple[str, float]) -> list[Interval]:
    found: list[Interval] = []
    ts = 0.0
    for state, length in spent:
        found.append(Interval(state, at(ts * 3600), at((ts + length) * 3600)))
        ts += length
    return found


def test_energy_is_time_times_watts_and_what_sleep_saves_is_the_difference_to_idle():
    found = energy_of(
        Lane("n1", WATTS, hours(("asleep", 10), ("waking", 1), ("booting", 0.5), ("idle", 2), ("busy", 3)))
    )
    assert found["kwh"] == pytest.approx((11 * 4 + 0.5 * 120 + 2 * 80 + 3 * 300) / 1000)
    assert found["saved_kwh"] == pytest.approx(11 * (80 - 4) / 1000)
    assert (found["awake_seconds"], found["asleep_seconds"]) == (5.5 * 3600, 11 * 3600)


def test_machines_without_watts_are_named_and_not_guessed_and_a_time_away_is_not_counted():
    lanes = [
        Lane("n1", WATTS, hours(("idle", 1), ("away", 5))),
        Lane("n2", None, hours(("idle", 1))),
        Lane("n3", {"idle": 80.0}, hours(("idle", 1))),
    ]
    found = energy_document(Timeline(at(0), at(6 * 3600), at(6 * 3600), lanes, complete=True))
    assert found["kwh"] == pytest.approx(0.08)
    assert found["without_watts"] == ["n2", "n3"]
    assert [node["away_seconds"] for node in found["nodes"]] == [5 * 3600, 0, 0]


def test_the_figures_equal_those_of_the_rehearsal_for_the_same_intervals(monkeypatch: pytest.MonkeyPatch):
    """A fleet works for a day in virtual time; what each machine did is told to both."""
    told: dict[str, list[Interval]] = {}
    counted_until: dict[str, float] = {}
    count = SimulatedMachine.count

    def and_tell(self: SimulatedMachine, now: float) -> None:
        since = counted_until.get(self.name, 0.0)
        told.setdefault(self.name, []).append(Interval(self.use.value, at(since), at(now)))
        counted_until[self.name] = now
        count(self, now)

    monkeypatch.setattr(SimulatedMachine, "count", and_tell)
    fleet = Fleet.model_validate(
        {
            "machines": [{"name": "gpu", "count": 3, "services": {"render": 2}, "watts": WATTS}],
            "workload": {"days": 1, "jobs": 120, "kinds": [{"service": "render"}]},
        }
    )
    assert fleet.workload is not None
    world = World(fleet, make_jobs(fleet.workload, 7), 7)
    world.run(Accsd())
    states = {piece.state for pieces in told.values() for piece in pieces}
    assert states == {use.value for use in Use}, "each of them was met"
    for name, machine in world.machines.items():
        found = energy_of(Lane(name, WATTS, told[name]))
        assert found["kwh"] == pytest.approx(machine.kilowatt_hours())
        assert found["awake_seconds"] / 3600 == pytest.approx(machine.hours_awake())


def test_a_machine_that_is_suspending_draws_as_one_that_starts():
    machine = SimulatedMachine("gpu", Machines(name="gpu", services={"render": 1}), Random(1))
    machine.power = Power.SUSPENDING
    assert machine.use is Use.BOOTING
