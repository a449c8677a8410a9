"""Is the node or the step at fault? Decided from how attempts ended lately.

A step that fails on one node and passes on others accuses that node's service. A step that fails wherever it runs
accuses itself. A failure whose code is a machine's fault accuses the machine at once, if more than one task met it. A
task that fails on several nodes is its own fault, and accuses nobody but its step. Plain data in, a judgement out.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Final, NamedTuple
from uuid import UUID

_WITNESSES: Final = 2  # tasks


class Fault(StrEnum):
    """What a failed attempt is put down to, as far as the attempt alone tells."""

    UNKNOWN = "unknown"  # the task's, its step's or the node's: only comparing tells
    TASK = "task"  # it said that trying again is useless
    MACHINE = "machine"


class Quarantine(StrEnum):
    SHUT = "shut"
    TRIAL = "trial"


class Step(NamedTuple):
    workflow_id: UUID
    task_key: str


class Place(NamedTuple):
    """A service on a node."""

    node: str
    service: str


@dataclass(frozen=True, slots=True)
class Conclusion:
    """How an attempt ended; `fault` is None where it passed. `is_trial`: it began the trial of a place in quarantine.
    `version`: of that quarantine. `offered`: how many nodes offer the service."""

    place: Place
    step: Step
    task_id: UUID
    fault: Fault | None
    code: str | None = None
    message: str | None = None
    quarantine: Quarantine | None = None
    version: str | None = None
    is_trial: bool = False
    times: int = 0
    offered: int = 2
    id: int = 0


@dataclass(frozen=True, slots=True)
class QuarantineRules:
    """So many failures in a row are enough, if the others' record makes it so unlikely that they are luck. A place is
    probed after `probe`, then after twice that, and so on up to `longest_probe`."""

    failures: int = 3
    luck: float = 0.01
    probe: timedelta = timedelta(seconds=30)
    longest_probe: timedelta = timedelta(minutes=30)


@dataclass(frozen=True, slots=True)
class Seen:
    """What was known of a place when it was judged: nobody may have decided otherwise before it is carried out."""

    version: str | None
    conclusion: int


@dataclass(frozen=True, slots=True)
class Shut:
    place: Place
    reason: str
    probe_in: timedelta
    seen: Seen


@dataclass(frozen=True, slots=True)
class Lift:
    place: Place
    seen: Seen


@dataclass(frozen=True, slots=True)
class Failing:
    """A step that fails everywhere."""

    step: Step
    reason: str


@dataclass(frozen=True, slots=True)
class Judgement:
    shut: tuple[Shut, ...] = ()
    lift: tuple[Lift, ...] = ()
    failing: tuple[Failing, ...] = ()


def judge(conclusions: Sequence[Conclusion], rules: QuarantineRules) -> Judgement:
    """Judges a history of conclusions, the oldest first."""
    by_place: dict[Place, list[Conclusion]] = defaultdict(list)
    by_step: dict[Step, list[Conclusion]] = defaultdict(list)
    for each in conclusions:
        by_place[each.place].append(each)
        by_step[each.step].append(each)
    shut: list[Shut] = []
    lift: list[Lift] = []
    for place, its in by_place.items():
        seen = Seen(its[-1].version, its[-1].id)
        if its[-1].quarantine is Quarantine.TRIAL and _has_passed_trial(its):
            lift.append(Lift(place, seen))
        elif reason := _accusation(place, its, by_step, rules):
            shut.append(Shut(place, reason, pause(its[-1].times, rules), seen))
    failing = [Failing(step, reason) for step, its in by_step.items() if (reason := _fails_everywhere(its, rules))]
    return Judgement(tuple(shut), tuple(lift), tuple(failing))


def pause(times: int, rules: QuarantineRules) -> timedelta:
    """How long to wait for the next probe, after so many probes in vain."""
    return min(rules.longest_probe, rules.probe * 2 ** min(times, 30))


def _accusation(
    place: Place, its: Sequence[Conclusion], by_step: Mapping[Step, Sequence[Conclusion]], rules: QuarantineRules
) -> str | None:
    match its[-1].quarantine:
        case Quarantine.SHUT:
            return None
        case Quarantine.TRIAL:
            failed = [each for each in its if each.is_trial and each.fault in (Fault.UNKNOWN, Fault.MACHINE)]
            return f"its trial failed: {_what(failed[-1])}" if failed else None
        case None:
            steps = {each.step for each in its}
            by_comparison = (_unlike_others(place, by_step[step], rules) for step in sorted(steps))
            return _machine_faults(its, rules) or next(filter(None, by_comparison), None)


def _has_passed_trial(its: Sequence[Conclusion]) -> bool:
    """The last word of its trial counts: what ran there before it was shut may end during the trial, too."""
    said = [each for each in its if each.is_trial and each.fault is not Fault.TASK]
    return bool(said) and said[-1].fault is None


def _machine_faults(its: Sequence[Conclusion], rules: QuarantineRules) -> str | None:
    """Attempts, not tasks: a machine that is ill meets the same few again and again. But of more than one task: what
    looks like the machine's fault may be one task's doing."""
    faults = [each for each in _since_last_pass(its) if each.fault is Fault.MACHINE]
    if len(faults) < rules.failures or len({each.task_id for each in faults}) < _WITNESSES:
        return None
    return f"{len(faults)} attempts in a row failed for a reason of the machine's, the last one: {_what(faults[-1])}"


def _unlike_others(place: Place, of_step: Sequence[Conclusion], rules: QuarantineRules) -> str | None:
    """A step that fails here several times in a row while it passes on other nodes."""
    here = [each for each in of_step if each.place == place]
    row = [each for each in _since_last_pass(here) if each.fault is Fault.UNKNOWN]
    if not row:
        return None
    since = next(n for n, each in enumerate(of_step) if each is row[0])
    failed_elsewhere = {each.task_id for each in _elsewhere(place, of_step) if each.fault is not None}
    accusing = {each.task_id for each in row} - failed_elsewhere
    meanwhile = _elsewhere(place, of_step[since:])
    passed = sum(each.fault is None for each in meanwhile)
    if not passed or len(accusing) < rules.failures or _luck(meanwhile, len(accusing)) > rules.luck:
        return None
    nodes = len({each.place.node for each in meanwhile if each.fault is None})
    return (
        f'{len(accusing)} tasks of step "{row[0].step.task_key}" in a row failed here, while {passed} passed on'
        f" {nodes} other node{'s' if nodes > 1 else ''}; the last one: {_what(row[-1])}"
    )


def _elsewhere(place: Place, of_step: Iterable[Conclusion]) -> list[Conclusion]:
    return [each for each in of_step if each.place != place and each.quarantine is not Quarantine.SHUT]


def _luck(others: Iterable[Conclusion], failures: int) -> float:
    """How likely so many failures in a row are on a node that is like the others, by the rule of succession."""
    faults = [each.fault is not None for each in others]
    return ((sum(faults) + 1) / (len(faults) + 2)) ** failures


def _fails_everywhere(of_step: Sequence[Conclusion], rules: QuarantineRules) -> str | None:
    row = [each for each in _since_last_pass(of_step) if each.fault in (Fault.UNKNOWN, Fault.TASK)]
    nodes = {each.place.node for each in row}
    tasks = {each.task_id for each in row}
    if len(tasks) < rules.failures or len(nodes) < min(2, max(1, row[-1].offered)):
        return None
    where = f"on all {len(nodes)} nodes that tried it" if len(nodes) > 1 else "on the only node that offers its service"
    return f"it failed for the last {len(tasks)} tasks, {where}; the last one: {_what(row[-1])}"


def _since_last_pass(conclusions: Sequence[Conclusion]) -> Sequence[Conclusion]:
    passes = [n for n, each in enumerate(conclusions) if each.fault is None]
    return conclusions[passes[-1] + 1 :] if passes else conclusions


def _what(failed: Conclusion) -> str:
    return ": ".join(filter(None, (failed.code, failed.message))) or "without a code"
