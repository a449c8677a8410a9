"""What some more jobs would do to the fleet as it is now: its machines and all that is in motion go into virtual time,
once with these jobs and once without, and the planner does what it would do.

A step takes as long as it usually does, and again as long as its slow runs. Nothing fails, every call wakes its machine
in the usual time, and nothing else is submitted. What nobody can know is said (`assumed`).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from graphlib import TopologicalSorter
from typing import Any, Final
from uuid import UUID

from accsd.db.pool import Database
from accsd.db.power import KnownNode, known_nodes
from accsd.db.statistics import StepStats
from accsd.db.views.jobs import clock
from accsd.db.views.open_work import Gates, OpenTask, PendingJob, gates, open_tasks, pending_jobs, usual_runs
from accsd.db.wake import FleetNode, wake_nodes
from accsd.db.workflows import StoredWorkflow, workflows_by_id
from accsd.errors import InvalidValue
from accsd.planning.energy import Use
from accsd.planning.wake import WakePolicy
from accsd.simulation.fleet import Fleet, FleetPolicy, Label, Machines, Watts
from accsd.simulation.policies import Accsd
from accsd.simulation.trace import TraceJob
from accsd.simulation.world import Run, World
from accsd.values.labels import shown_label

MOST_TASKS: Final = 5_000
_ASSUMED: Final = 600.0  # seconds that a step of another workflow takes that was never seen
_MOST_SHOWN: Final = 20
_MOST_WAKES: Final = 200
_NOTICED: Final = 1.0  # seconds
_NAME: Final = "accs.rehearsed"  # the label by which a step that names its node finds it
_NOWHERE: Final = {"accs.nothing": 1}  # the services of a machine that takes nothing new

Ref = tuple[UUID | int, str]  # of a task: its job (a number: one that is asked for), and its key or id


class _Named(Machines):
    """One machine, by its own name."""

    name: str

    def names(self) -> Iterator[str]:
        yield self.name


@dataclass(frozen=True, slots=True)
class Asked:
    """So many jobs of a workflow, at once or in a while. `durations`: in seconds by step, instead of the usual ones."""

    workflow: StoredWorkflow
    count: int = 1
    due_in: float = 0.0
    priority: int = 0
    durations: Mapping[str, float] = field(default_factory=dict[str, float])


@dataclass(frozen=True, slots=True)
class Present:
    """All that is known when a rehearsal begins."""

    now: datetime
    fleet: Sequence[FleetNode]
    machines: Mapping[str, KnownNode]
    tasks: Sequence[OpenTask]
    pending: Sequence[PendingJob]
    workflows: Mapping[UUID, StoredWorkflow]
    usual: Mapping[tuple[str, str], StepStats]
    gates: Gates

    def at(self, seconds: float | None) -> datetime | None:
        try:
            return None if seconds is None else self.now + timedelta(seconds=seconds)
        except OverflowError:
            raise InvalidValue("the jobs would end after the year 9999", hint="ask for fewer or shorter ones") from None


async def read_present(db: Database, asked: StoredWorkflow, *, silent: timedelta) -> Present:
    """In one snapshot: a task that is claimed between two would be there twice."""
    async with db.acquire() as connection, connection.transaction(isolation="repeatable_read", readonly=True):
        at_once = Database.over(connection)
        tasks = await open_tasks(at_once, limit=MOST_TASKS + 1)
        pending = await pending_jobs(at_once, limit=MOST_TASKS + 1)
        workflows = await workflows_by_id(at_once, list({job.workflow_id for job in pending}))
        names = {asked.name, *(task.workflow for task in tasks), *(each.name for each in workflows)}
        return Present(
            await clock(at_once),
            await wake_nodes(at_once, silent=silent),
            {node.name: node for node in await known_nodes(at_once)},
            tasks,
            pending,
            {each.id: each for each in workflows},
            await usual_runs(at_once, names),
            await gates(at_once),
        )


# The work


@dataclass(frozen=True, slots=True)
class _Work:
    """A task of the rehearsal; `usual` and `slow` are how many seconds it has left to run."""

    ref: Ref
    order: tuple[Any, ...]
    service: str
    requires: dict[str, Label]
    key: str | None
    usual: float
    slow: float
    after: tuple[Ref, ...] = ()
    due: float | None = None
    delay: float = 0.0
    on: str | None = None


class _Works:
    """Puts together all work, and what had to be assumed on the way."""

    def __init__(self, present: Present, asked: Asked, tell: Callable[[float], None]) -> None:
        self._present = present
        self._asked = asked
        self.assumed: dict[str, None] = {}  # sentences, each once
        self.held: int = 0
        self.found: dict[Ref, _Work] = {}
        self._require_few()  # before any is made: a thousand jobs of thousands of steps would be gigabytes
        self._of_tasks()
        for job in present.pending:
            tell(0.0)
            order = (-job.priority, job.order_seq)
            self._of_workflow(present.workflows[job.workflow_id], job.id, order, job.due_in.total_seconds())
        for nth in range(asked.count):
            tell(0.0)
            order = (-asked.priority, float("inf"), nth)
            self._of_workflow(asked.workflow, nth, order, asked.due_in, is_asked=True)

    def _require_few(self) -> None:
        present, asked = self._present, self._asked
        in_motion = sum(task.hold != "paused" for task in present.tasks)
        in_motion += sum(len(present.workflows[job.workflow_id].steps) for job in present.pending)
        if in_motion + asked.count * len(asked.workflow.steps) > MOST_TASKS:
            raise InvalidValue(
                f"more than {MOST_TASKS} tasks are too many to rehearse", hint="ask for fewer jobs, or later"
            )

    def _of_tasks(self) -> None:
        refs: dict[UUID, Ref] = {task.id: (task.job_id, str(task.id)) for task in self._present.tasks}
        after: dict[UUID, list[Ref]] = {}
        for task in self._present.tasks:
            for dependant in task.dependants or ():
                after.setdefault(dependant, []).append(refs[task.id])
        known = {each.node.name for each in self._present.fleet}
        for number, task in enumerate(self._present.tasks):
            if task.hold == "paused":
                self.held += 1
                continue
            usual, slow = self._seconds(task.workflow, task.task_key.partition("[")[0])
            if task.on is not None:
                ran = 0.0 if task.ran_for is None else task.ran_for.total_seconds()
                usual, slow = (max(whole - ran, whole / 10, 1.0) for whole in (usual, slow))
            self.found[refs[task.id]] = _Work(
                refs[task.id],
                (-task.priority, task.order_seq, number),
                task.service,
                _requires(task.requires, task.node),
                task.key,
                usual,
                slow,
                tuple(after.get(task.id, ())) if task.on is None else (),
                None if task.due_in is None else max(0.0, task.due_in.total_seconds()),
                on=task.on if task.on in known else None,
            )

    def _of_workflow(
        self, workflow: StoredWorkflow, job: UUID | int, order: tuple[Any, ...], due: float, *, is_asked: bool = False
    ) -> None:
        for number, step in enumerate(workflow.steps):
            key = str(step["key"])
            usual, slow = self._asked_seconds(key) if is_asked else self._seconds(workflow.name, key)
            after = tuple((job, str(each)) for each in step.get("depends_on") or ())
            if is_asked and step.get("for_each") is not None:
                self.assumed[f"step {key} becomes a task for each item; it is counted as one"] = None
            if is_asked and step.get("if") is not None:
                self.assumed[f"step {key} runs, whatever its condition says"] = None
            self.found[job, key] = _Work(
                (job, key),
                (*order, number),
                str(step.get("service") or ""),
                _requires(step.get("requires") or {}, step.get("node")),
                step.get("concurrency_key"),
                usual,
                slow,
                after,
                None if after else max(0.0, due + self._delay(step, is_asked=is_asked)),
                self._delay(step, is_asked=is_asked) if after else 0.0,
            )

    def _delay(self, step: Mapping[str, Any], *, is_asked: bool) -> float:
        match step.get("delay"):
            case int() | float() as seconds:
                return float(seconds)
            case str() if is_asked:
                self.assumed[f"step {step['key']} begins without its delay, which an expression says"] = None
            case _:
                pass
        return 0.0

    def _seconds(self, workflow: str, step: str) -> tuple[float, float]:
        if (known := self._present.usual.get((workflow, step))) is not None:
            return known.p50, max(known.p50, known.p95)
        self.assumed[f"step {step} of {workflow} takes {_ASSUMED:.0f} s: how long it takes is not known yet"] = None
        return _ASSUMED, _ASSUMED

    def _asked_seconds(self, step: str) -> tuple[float, float]:
        if (given := self._asked.durations.get(step)) is not None:
            return given, given
        known = self._present.usual[self._asked.workflow.name, step]
        return known.p50, max(known.p50, known.p95)


def unknown_steps(present: Present, asked: Asked) -> list[str]:
    """The steps whose duration neither history nor the caller knows."""
    keys = [str(step["key"]) for step in asked.workflow.steps]
    return [key for key in keys if key not in asked.durations and (asked.workflow.name, key) not in present.usual]


def _requires(labels: Mapping[str, Any], node: str | None) -> dict[str, Label]:
    return dict(labels) | ({} if node is None else {_NAME: node})


def _trace(works: Sequence[_Work], seconds: Callable[[_Work], float]) -> tuple[list[TraceJob], dict[int, _Work]]:
    """Numbered in the global order, each after those that it waits for; what waits for something held is left out."""
    known = {work.ref: work for work in works}
    numbers = {work.ref: number for number, work in enumerate(sorted(works, key=lambda work: work.order))}
    jobs: dict[Ref, TraceJob] = {}
    for ref in TopologicalSorter({work.ref: work.after for work in works}).static_order():
        work = known.get(ref)
        if work is None or any(before not in jobs for before in work.after):
            continue
        jobs[ref] = TraceJob(
            numbers[ref],
            work.service,
            0.0,
            max(seconds(work), 0.001),
            work.due,
            work.requires,
            after=tuple(numbers[before] for before in work.after),
            key=work.key,
            on=work.on,
            delay=work.delay,
        )
    return list(jobs.values()), {numbers[ref]: known[ref] for ref in jobs}


# The machines


class _FromNow(Accsd):
    """Begins with each machine as it is."""

    def __init__(self, fleet: Sequence[FleetNode], lease: timedelta) -> None:
        super().__init__()
        self._fleet = fleet
        self._lease = lease

    def begin(self, world: World) -> None:
        super().begin(world)
        for known in self._fleet:
            machine, state = world.machines.get(known.node.name), known.state
            if machine is None:
                continue
            machine.latency = None if state.latency is None else state.latency.total_seconds()
            if state.is_awake(self._lease) or state.live:
                world.is_up(machine, awake_for=world.shortest_awake.total_seconds(), idle_for=0.0)
                continue
            machine.left_at = None if state.unseen_for is None else -state.unseen_for.total_seconds()
            if (calls := state.calls) is None:
                continue
            called, boot = calls.ago.total_seconds(), machine.kind.boot.total_seconds()
            if calls.ok is not False and called < 2 * boot:
                world.is_booting(machine, called=called, left=max(1.0, boot - called))
            else:
                machine.calls, machine.called_at, machine.call_ok = calls.count, -called, calls.ok


def _machines(present: Present, policy: WakePolicy, lease: timedelta) -> tuple[list[Machines], list[dict[str, str]]]:
    """Those that may do something, and those that may not, with the reason."""
    found, left_out = list[Machines](), list[dict[str, str]]()
    for known in present.fleet:
        state, name = known.state, known.node.name
        because = _why_not(known, lease)
        if because is not None and name in present.machines:
            left_out.append({"node": name, "because": because})
        slots = {service: min(slots, 1000) for service, slots in state.slots.items() if slots > 0}
        if (because is not None or not slots) and not state.live:
            continue
        watts = _watts(present.machines.get(name))
        found.append(
            _Named(
                name=name,
                services=_NOWHERE if because is not None or not slots else slots,
                labels=dict(state.labels) | {_NAME: name},
                boot=timedelta(seconds=(state.latency or policy.boot).total_seconds()),
                jitter=timedelta(0),
                methods=["call"],
                sleeps=known.node.wake_method is not None,
                watts=watts or Watts(),
            )
        )
    return found, left_out


def _why_not(known: FleetNode, lease: timedelta) -> str | None:
    if known.state.is_drained:
        return "it is drained"
    if known.state.is_awake(lease):
        return None
    if known.node.wake_method is None:
        return "it is away, and has no way to be woken"
    return "it did not come when it was called" if known.power == "failed" else None


def _watts(known: KnownNode | None) -> Watts | None:
    if known is None or known.watts is None or not known.watts.keys() >= set(Use):
        return None
    return Watts(**{use.value: float(known.watts[use]) for use in Use})


# The rehearsal


@dataclass(frozen=True, slots=True)
class Planner:
    """How the fleet is run: the settings that matter here."""

    lease: timedelta
    policy: WakePolicy
    ahead: timedelta
    at_once: int


def rehearse_present(
    present: Present, asked: Asked, planner: Planner, tell: Callable[[float], None] = lambda _: None
) -> dict[str, Any]:
    """Takes a while: it belongs into a thread. `tell` is called now and then, and may raise."""
    works = _Works(present, asked, tell)
    machines, left_out = _machines(present, planner.policy, planner.lease)
    if not machines:
        raise InvalidValue("no machine is there or could be woken", hint="`accsd nodes` tells why")
    rules = FleetPolicy(
        ahead=planner.ahead,
        at_once=planner.at_once,
        boot=planner.policy.boot,
        rounds=planner.policy.rounds,
        rest=planner.policy.rest,
        longest_rest=planner.policy.longest_rest,
    )
    fleet = Fleet(machines=machines, policy=rules)

    def run(which: Sequence[_Work], seconds: Callable[[_Work], float]) -> _Outcome:
        jobs, by_number = _trace(which, seconds)
        world = World(fleet, jobs, 1, present.gates.keys, starves=False)
        world.run(_FromNow(present.fleet, planner.lease), tell)
        runs: dict[UUID | int, list[Run]] = {}
        for each in world.runs:
            runs.setdefault(by_number[each.job.number].ref[0], []).append(each)
        return _Outcome(world, by_number, runs)

    everything = list(works.found.values())
    others = [work for work in everything if not isinstance(work.ref[0], int)]
    usual, slow, without = (
        run(everything, lambda work: work.usual),
        run(everything, lambda work: work.slow),
        run(others, lambda work: work.usual),
    )
    until = max(usual.world.now, without.world.now)
    for outcome in (usual, without):
        for machine in outcome.world.machines.values():
            machine.count(until)  # what stays awake draws on until both have ended
    jobs = [_job(asked, nth, usual, slow) for nth in range(asked.count)]
    nodes = [_node(name, present, usual, without) for name in usual.world.machines if name in present.machines]
    return {
        "as_of": present.now,
        "workflow": asked.workflow.name,
        "version": asked.workflow.version,
        "count": asked.count,
        "starts_at": present.at(min((began for job in jobs if (began := job["starts_in"]) is not None), default=None)),
        "ends_at": present.at(_last(job["ends_in"] for job in jobs)),
        "slow_ends_at": present.at(_last(job["slow_ends_in"] for job in jobs)),
        "jobs": [{f"{key.removesuffix('_in')}_at": present.at(each) for key, each in job.items()} for job in jobs],
        "wakes": _wakes(present, usual, without),
        "nodes": nodes,
        "kwh": sum(node["kwh"] for node in nodes if node["kwh"] is not None),
        "without_watts": [node["node"] for node in nodes if node["kwh"] is None],
        "unmet": _unmet(everything, usual),
        "delayed": _delayed(present, usual, without),
        "in_motion": len(others),
        "held": works.held,
        "paused": [
            {"kind": kind, "name": name}
            for kind, name in sorted(present.gates.paused)
            if (kind == "workflow" and name == asked.workflow.name)
            or (kind == "service" and any(step.get("service") == name for step in asked.workflow.steps))
        ],
        "left_out": left_out,
        "assumed": list(works.assumed)[:_MOST_SHOWN],
    }


@dataclass(frozen=True, slots=True)
class _Outcome:
    """A world that has come to its end, and when each of its tasks began and ended, by job."""

    world: World
    works: Mapping[int, _Work]
    runs: Mapping[UUID | int, Sequence[Run]]


def _job(asked: Asked, nth: int, usual: _Outcome, slow: _Outcome) -> dict[str, float | None]:
    """In seconds from now; without an end where a step of it could run nowhere."""
    began = min((run.began for run in usual.runs.get(nth, ())), default=None)
    ends = [
        _end(outcome, nth) if len(outcome.runs.get(nth, ())) == len(asked.workflow.steps) else None
        for outcome in (usual, slow)
    ]
    return {"starts_in": began, "ends_in": ends[0], "slow_ends_in": ends[1]}


def _last(ends: Iterable[float | None]) -> float | None:
    found = [*ends]
    return None if None in found else max(each for each in found if each is not None)


def _end(outcome: _Outcome, job: UUID | int) -> float:
    return max((run.began + run.job.duration for run in outcome.runs.get(job, ())), default=0.0)


def _wakes(present: Present, usual: _Outcome, without: _Outcome) -> list[dict[str, Any]]:
    """The first ones. `also_without`: the machine is woken for other work anyway."""
    anyway = {name for name, _, _ in without.world.tally.boots}
    return [
        {"node": name, "at": present.at(called), "ready_at": present.at(ready), "also_without": name in anyway}
        for name, called, ready in usual.world.tally.boots[:_MOST_WAKES]
    ]


def _node(name: str, present: Present, usual: _Outcome, without: _Outcome) -> dict[str, Any]:
    """What is asked for adds to this machine. What it draws is not known of each."""
    ours = [run for job, runs in usual.runs.items() if isinstance(job, int) for run in runs if run.machine == name]
    machine, other = usual.world.machines[name], without.world.machines[name]
    more = machine.kilowatt_hours() - other.kilowatt_hours()
    return {
        "node": name,
        "tasks": len(ours),
        "wakes": sum(boot[0] == name for boot in usual.world.tally.boots),
        "awake_seconds": round(3600 * (machine.hours_awake() - other.hours_awake()), 3),
        "kwh": None if _watts(present.machines[name]) is None else more,
    }


def _unmet(works: Sequence[_Work], usual: _Outcome) -> list[dict[str, Any]]:
    """What of the jobs that are asked for no machine could run; what waits for such a step is not told again."""
    done = {usual.works[run.job.number].ref for runs in usual.runs.values() for run in runs}
    found: dict[tuple[str, ...], dict[str, Any]] = {}
    for work in works:
        if isinstance(work.ref[0], int) and work.ref not in done and all(before in done for before in work.after):
            requires = {name: value for name, value in work.requires.items() if name != _NAME}
            labels = tuple(f"{name}={shown_label(value)}" for name, value in sorted(requires.items()))
            node = work.requires.get(_NAME)
            one = found.setdefault(
                (work.service, str(node), *labels),
                {"service": work.service, "requires": requires, "node": node, "tasks": 0},
            )
            one["tasks"] += 1
    return list(found.values())


def _delayed(present: Present, usual: _Outcome, without: _Outcome) -> dict[str, Any]:
    """The jobs that are in motion already and end later than they would: how many, and the worst of them."""
    later = sorted(
        ((by, job) for job in without.runs if (by := _end(usual, job) - _end(without, job)) > _NOTICED),
        reverse=True,
        key=lambda each: each[0],
    )
    return {
        "count": len(later),
        "jobs": [{"job_id": str(job), "by_seconds": round(by, 3)} for by, job in later[:_MOST_SHOWN]],
    }
