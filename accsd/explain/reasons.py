"""Each blocker of accs.why in words: what keeps it, and what to do about it.

What to do is a sentence for people. The commands in it are remedies, which a page can make buttons of.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from shlex import quote
from typing import Any, Final, Literal
from uuid import UUID

from accsd.db.nodes import Obstacle
from accsd.db.why import Blocker
from accsd.explain.words import duration, short
from accsd.model.outcome import ErrorCode, meaning_of
from accsd.values.labels import shown_label

_PATIENCE: Final = timedelta(seconds=30)  # what an agent or a builder that lives takes at most to see what is there
_HOLDERS_SHOWN: Final = 3
Detail = Mapping[str, Any]


RemedyKind = Literal[
    "start_builder",
    "start_agent",
    "check_control_host",
    "resume_service",
    "resume_workflow",
    "resume_node",
    "wake_node",
    "open_node",
    "open_nodes",
    "open_why",
    "open_log",
    "follow_log",
    "open_artifacts",
    "retry_job",
]


@dataclass(frozen=True, slots=True)
class Remedy:
    """One thing that can be done: `cli` is the command for it, `kind` and `target` say the same to a program."""

    kind: RemedyKind
    target: str | None
    label: str
    cli: str


@dataclass(frozen=True, slots=True)
class Reason:
    """`do` is what to try next, words and remedies by turns; empty: the wait ends by itself."""

    text: str
    do: tuple[str | Remedy, ...] = ()

    @property
    def advice(self) -> str | None:
        """What to try next as a sentence, with the commands in it."""
        return "".join(f"`{part.cli}`" if isinstance(part, Remedy) else part for part in self.do) or None

    @property
    def remedies(self) -> list[Remedy]:
        return [part for part in self.do if isinstance(part, Remedy)]


def reason(found: Blocker, *, job: UUID, step: str | None) -> Reason:
    """The words for a blocker. `step` is the key of the blocked task; None: the job itself is blocked."""
    return _WORDS[found.blocker](_About(found, short(job), step))


@dataclass(frozen=True, slots=True)
class _About:
    found: Blocker
    job: str
    step: str | None

    @property
    def detail(self) -> Detail:
        return self.found.detail

    @property
    def waited(self) -> timedelta:
        return self.found.waited or timedelta(0)

    @property
    def remains(self) -> str:
        """When the wait is over, as "in 5m" or "2s ago"."""
        if self.found.remains is None and self.found.until is not None:
            return f"at {self.found.until}"
        left = self.found.remains or timedelta(0)
        return f"in {duration(left)}" if left > timedelta(0) else f"{duration(-left)} ago"


# Before it may run


def _not_due(it: _About) -> Reason:
    return Reason(f"it is scheduled, and due {it.remains}")


def _not_instantiated(it: _About) -> Reason:
    said = f"it has been due for {duration(it.waited)}, and no builder has taken it"
    if it.detail["daemons"] == 0:
        return Reason(f"{said}: no daemon is connected to this database", ("start one: ", _BUILDER))
    if it.waited < _PATIENCE:
        return Reason(said)
    return Reason(f"{said}: is there one among the {it.detail['daemons']} daemons?", (_BUILDER, " runs one"))


def _run_key(it: _About) -> Reason:
    detail = it.detail
    jobs: list[str] = detail["by"] or []
    blocker = f"job {jobs[0]}" if len(jobs) == 1 else f"one of {len(jobs)} jobs"
    ahead = f"; {detail['ahead']} ahead of it" if detail["ahead"] else ""
    return Reason(f"it waits for {blocker} (run key {detail['key']}){ahead}", (_why(jobs[0]),) if jobs else ())


def _dependency(it: _About) -> Reason:
    key, status = it.detail["task_key"], it.detail["status"]
    return Reason(f'it waits for step "{key}", which is {status}', (_why_step(it, key),))


def _resolve(it: _About) -> Reason:
    said = "its condition and input are worked out on the control host"
    if obstacle := it.detail.get("obstacle"):
        return Reason(f"{said}, which can't: {obstacle}", (_DOCTOR, " on the control host"))
    if not it.detail["builders"]:
        return Reason(f"{said}, and no builder was seen for a minute", ("start one: ", _BUILDER))
    late = f"; nobody has, for {duration(it.waited)}" if it.waited >= _PATIENCE else ""
    return Reason(said + late, ("look at the log of the builder",) if late else ())


def _delay(it: _About) -> Reason:
    return Reason(f"its step says that it begins later: {it.remains}")


def _service_paused(it: _About) -> Reason:
    name = it.detail["name"]
    remedy = Remedy("resume_service", name, f"Resume service {name}", f"accsd services resume {name}")
    return Reason(f'service "{name}" is paused{_because(it.detail)}', (remedy,))


def _workflow_paused(it: _About) -> Reason:
    name = it.detail["name"]
    remedy = Remedy("resume_workflow", name, f"Resume workflow {name}", f"accsd workflows resume {name}")
    return Reason(f'workflow "{name}" is paused{_because(it.detail)}', (remedy,))


def _backoff(it: _About) -> Reason:
    detail = it.detail
    said = ": ".join(filter(None, (detail.get("error_code"), detail.get("error_message"))))
    match detail.get("outcome"):
        case "released":
            what = "it was given back by its node"
        case "lost":
            what = f"it {_was_lost(detail)} {detail['lost']} times, and no attempt was spent"
        case _:
            what = f"attempt {detail['attempt']} of {detail['max_attempts']} failed"
    return Reason(f"{what}{f' ({said})' if said else ''}; it may run again {it.remains}", (_log_of(it),))


def _key(it: _About) -> Reason:
    detail = it.detail
    taken = f"{detail['taken']} of {detail['limit']}{_holders(detail['by'])}"
    ahead = f"; {detail['ahead']} ahead of it" if detail["ahead"] else ""
    return Reason(f'concurrency key "{detail["key"]}" is taken: {taken}{ahead}')


def _misplaced(_: _About) -> Reason:
    return Reason(
        "it has lost its place in the queue, which is a bug; a builder puts it back within a minute",
        ("report it, with the events of the job",),
    )


# Nodes


def _node_unknown(it: _About) -> Reason:
    name = it.detail["node"]
    return Reason(f'only node "{name}" may take it, and none of that name has ever registered', _start_on(name))


def _service_not_offered(it: _About) -> Reason:
    service, node, nodes = it.detail["service"], it.detail.get("node"), it.detail["nodes"]
    if node is not None:
        who = f'only node "{node}" may take it, which does not offer'
    elif nodes:
        who = f"none of the {nodes} registered nodes offers"
    else:
        who = "no node is registered that offers"
    idle = it.detail.get("without_slots")
    said = f'{who} service "{service}"' + (f" ({', '.join(idle)}: with 0 slots)" if idle else "")
    advice = f"put {service} into a node's compose file or settings; ", _NODES, " shows who offers what"
    return Reason(said, advice)


def _labels(it: _About) -> Reason:
    nearest, service = it.detail["nearest"], it.detail["service"]
    lacks = ", ".join(_lacking(label, both) for label, both in it.detail["missing"].items())
    return Reason(
        f"no node that offers {service} has the labels that it requires; the nearest, {nearest}, lacks {lacks}",
        (_node(nearest), "; its labels are node.labels in its settings (ACC_NODE_LABELS)"),
    )


def _lacking(label: str, both: Detail) -> str:
    has = "" if both.get("has") is None else f" (it has {shown_label(both['has'])})"
    return f"{label}={shown_label(both['wanted'])}{has}"


def _node_drained(it: _About) -> Reason:
    name = it.detail["node"]
    by = {"reason": it.detail.get("reason"), "by": it.detail.get("drained_by")}
    return Reason(f"node {name} is drained{_because(by)}", (_resume_node(name),))


def _node_quarantined(it: _About) -> Reason:
    name, service, ill = it.detail["node"], it.detail["service"], it.detail["quarantine"]
    left = timedelta(seconds=max(0.0, float(ill.get("probe_in_sec") or 0)))
    probe = f"it is probed again in {duration(left)}" + (f" ({ill['probe_error']})" if ill.get("probe_error") else "")
    said = f"{service} on node {name} is in quarantine: {ill['reason']}; {probe}"
    return Reason(said, _then(it.detail, _resume_node(name)))


def _node_hindered(it: _About) -> Reason:
    name, service = it.detail["node"], it.detail["service"]
    said = f"node {name} takes no {service} now, for {duration(it.waited)}{_obstacle(it.detail)}"
    look = () if it.waited < _PATIENCE else (f"look at {service} and at the agent's log on {name}",)
    return Reason(said, _then(it.detail) or look)


def _step_failing(it: _About) -> Reason:
    return Reason(f"its step fails everywhere: {it.detail['reason']}", (_log_of(it),))


def _node_asleep(it: _About) -> Reason:
    return Reason(f"node {it.detail['node']} is asleep{_waking(it.detail)}", _wake(it.detail))


def _node_away(it: _About) -> Reason:
    seen = "has never been seen" if it.found.since is None else f"was last seen {duration(it.waited)} ago"
    return Reason(f"node {it.detail['node']} {seen}{_waking(it.detail)}", _wake(it.detail))


def _node_full(it: _About) -> Reason:
    detail = it.detail
    used = f"{detail['live']} of {detail['slots']} slots of {detail['service']} are in use"
    return Reason(f"node {detail['node']}: {used}{_holders(detail.get('by', []))}{_obstacle(detail)}", _then(detail))


def _unclaimed(it: _About) -> Reason:
    nodes: list[str] = list(it.detail.get("nodes") or [])
    ahead = f"; {it.detail['ahead']} tasks are ahead of it" if it.detail["ahead"] else ""
    said = f"it may run now, and {', '.join(nodes)} could take it{ahead}"
    if it.waited < _PATIENCE or it.detail["ahead"]:
        return Reason(said)
    return Reason(f"{said}; nobody has, for {duration(it.waited)}", (f"look at the agent's log on {nodes[0]}",))


# Live and ended


def _starting(it: _About) -> Reason:
    return Reason(f"node {it.detail['node']} is starting it{_attempt(it.detail)}; {_lease(it)}", (_follow(it),))


def _running(it: _About) -> Reason:
    if it.step is None:
        return Reason(f"{it.detail['open_tasks']} of {it.detail['task_count']} tasks are open")
    done = f", {float(it.detail['progress'] or 0):.0%} done" if it.detail.get("progress") else ""
    return Reason(f"it runs on node {it.detail['node']}{_attempt(it.detail)}{done}; {_lease(it)}", (_follow(it),))


def _done(it: _About) -> Reason:
    remedy = Remedy("open_artifacts", it.job, "Open its files", f"accsd artifacts {it.job}")
    return Reason("it is done", (remedy,))


def _error(it: _About) -> Reason:
    detail = it.detail
    tried = f" after {detail['attempt']} of {detail['max_attempts']} attempts" if "attempt" in detail else ""
    lost = f", it {_was_lost(detail)} {detail['lost']} times" if detail.get("lost") else ""
    do = f"{meaning_of(detail.get('error_code')).advice}: ", _log_of(it), ", ", _retry(it)
    step = f"; its step fails everywhere: {detail['fails_everywhere']}" if detail.get("fails_everywhere") else ""
    return Reason(f"it failed{tried}{lost}: {_what(detail)}{step}", do)


def _skipped(it: _About) -> Reason:
    failed = it.detail.get("failed")
    if not failed:
        return Reason(f"it was skipped: {_what(it.detail)}")
    return Reason(f'it was skipped, because step "{failed[0]}" failed', (_why_step(it, failed[0]),))


def _cancelled(it: _About) -> Reason:
    why = it.detail.get("error_message")
    return Reason(f"it was cancelled{f': {why}' if why else ''}", (_retry(it), " if it is wanted after all"))


_WORDS: Final[Mapping[str, Callable[[_About], Reason]]] = {
    "not_due": _not_due,
    "not_instantiated": _not_instantiated,
    "run_key": _run_key,
    "dependency": _dependency,
    "resolve": _resolve,
    "delay": _delay,
    "service_paused": _service_paused,
    "workflow_paused": _workflow_paused,
    "backoff": _backoff,
    "key": _key,
    "misplaced": _misplaced,
    "node_unknown": _node_unknown,
    "service_not_offered": _service_not_offered,
    "labels": _labels,
    "node_drained": _node_drained,
    "node_quarantined": _node_quarantined,
    "node_hindered": _node_hindered,
    "step_failing": _step_failing,
    "node_asleep": _node_asleep,
    "node_away": _node_away,
    "node_full": _node_full,
    "unclaimed": _unclaimed,
    "starting": _starting,
    "running": _running,
    "done": _done,
    "error": _error,
    "skipped": _skipped,
    "cancelled": _cancelled,
}

# Pieces of sentences


def _because(detail: Detail) -> str:
    by = f" by {detail['by']}" if detail.get("by") else ""
    return by + (f": {detail['reason']}" if detail.get("reason") else "")


def _obstacle(detail: Detail) -> str:
    """What the node itself says about why it does not serve the service."""
    return f": {Obstacle.read(detail['obstacle']).reason}" if detail.get("obstacle") else ""


def _then(detail: Detail, *others: Remedy) -> tuple[str | Remedy, ...]:
    """What to do on the node about its obstacle, then what else helps."""
    hint = Obstacle.read(detail["obstacle"]).hint if detail.get("obstacle") else None
    if not hint:
        return others
    return (f"on {detail['node']}: {hint}" + ("; then " if others else ""), *others)


def _holders(tasks: Sequence[Detail]) -> str:
    jobs = list(dict.fromkeys(short(task["job_id"]) for task in tasks))
    if not jobs:
        return ""
    more = " …" if len(jobs) > _HOLDERS_SHOWN else ""
    return f", by job {', '.join(jobs[:_HOLDERS_SHOWN])}{more}"


def _waking(detail: Detail) -> str:
    """How far waking a node has come, or why nobody wakes it; follows "node n1 is asleep"."""
    match detail.get("power"):
        case "waking":
            return f"; {_last_call(detail)} is under way since {_time_of_day(detail['tried_at'])}"
        case "booting":
            usual = f", and it usually takes {duration(_usual(detail))}" if "latency_sec" in detail else ""
            return f"; {_last_call(detail)} got through at {_time_of_day(detail['tried_at'])}{usual}"
        case "failed":
            return f", and waking it has failed: {detail.get('because')}"
        case _ if not detail.get("wake_method"):
            return ", and has no wake_method"
        case _:
            return f": {detail['because']}" if detail.get("because") else ""


def _last_call(detail: Detail) -> str:
    nth = {1: "first", 2: "second", 3: "third"}.get(detail["tries"], f"{detail['tries']}th")
    return f"the {nth} call to it, by {detail['method']},"


def _usual(detail: Detail) -> timedelta:
    return timedelta(seconds=float(detail["latency_sec"]))


def _time_of_day(moment: str) -> str:
    return f"{datetime.fromisoformat(moment).astimezone(UTC):%H:%M:%S} UTC"


def _wake(detail: Detail) -> tuple[str | Remedy, ...]:
    name = detail["node"]
    if detail.get("wake_method"):
        return (Remedy("wake_node", name, f"Wake node {name}", f"accsd nodes wake {name}"),)
    return ("switch it on, and ", *_start_on(name))


def _start_on(name: str) -> tuple[str | Remedy, ...]:
    agent = Remedy("start_agent", name, f"Start the agent on {name}", "accsd --role agent")
    return ("start ", agent, f" there (ACC_NODE_NAME={name})")


def _attempt(detail: Detail) -> str:
    """Only failures are counted, so the attempt that runs is the next one."""
    return f", attempt {detail['attempt'] + 1} of {detail['max_attempts']}"


def _lease(it: _About) -> str:
    if it.detail["is_expired"]:
        return f"its lease ran out {it.remains}: a builder takes it back"
    return f"its lease ends {it.remains}"


def _was_lost(detail: Detail) -> str:
    """ "was lost" if its machine went away; "was given back" if a machine could not run it."""
    return "was lost" if detail.get("error_code") in (None, ErrorCode.WORKER_LOST) else "was given back"


def _what(detail: Detail) -> str:
    code, message = detail.get("error_code"), detail.get("error_message")
    means = meaning_of(code).sentence
    said = f"{code} ({means})" if code and means else code or "without a code"
    return f"{said}: {message}" if message else said


# Remedies

_BUILDER: Final = Remedy("start_builder", None, "Start a builder", "accsd --role builder")
_DOCTOR: Final = Remedy("check_control_host", None, "Check the control host", "accsd doctor")
_NODES: Final = Remedy("open_nodes", None, "Open the list of nodes", "accsd nodes")


def _node(name: str) -> Remedy:
    return Remedy("open_node", name, f"Open node {name}", f"accsd nodes show {name}")


def _resume_node(name: str) -> Remedy:
    return Remedy("resume_node", name, f"Resume node {name}", f"accsd nodes resume {name}")


def _retry(it: _About) -> Remedy:
    return Remedy("retry_job", it.job, f"Retry job {it.job}", f"accsd retry {it.job}")


def _why(subject: str) -> Remedy:
    """Quoted where a shell would take the brackets of an item for a pattern."""
    return Remedy("open_why", subject, f"Why {subject} waits", f"accsd why {quote(subject)}")


def _why_step(it: _About, step: str) -> Remedy:
    return _why(f"{it.job}/{step}")


def _log_of(it: _About) -> Remedy:
    return Remedy("open_log", _subject(it), "Open the log", f"accsd logs {_of_step(it)}")


def _follow(it: _About) -> Remedy:
    return Remedy("follow_log", _subject(it), "Follow the log", f"accsd logs -f {_of_step(it)}")


def _subject(it: _About) -> str:
    return f"{it.job}/{it.step}" if it.step else it.job


def _of_step(it: _About) -> str:
    return f"{it.job} --step {quote(it.step)}" if it.step else it.job
