"""Whether everything was kept: what the tasks did (counted in files) against what the database says, rule by rule."""

from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import pairwise

from tests.chaos import effects
from tests.chaos.effects import Execution
from tests.chaos.fleet import CONTAINERS, LEASE, Fleet, Member, Span
from tests.chaos.load import KEY, Load
from tests.support.checker import violations

SHOWN = 10
Attempt = tuple[str, int]
# An agent that was dead or stopped needs so long to hear what it has lost, and to end it.
_BACK_AT_WORK = 3.0


@dataclass(frozen=True, slots=True)
class End:
    """How an attempt ended, by its event. `at` is the wall clock, in seconds."""

    at: float
    to: str
    outcome: str | None
    code: str | None

    @property
    def was_given_back(self) -> bool:
        """Or taken back: from then on nobody may begin it. A cancellation may come while it begins."""
        return self.outcome in ("lost", "released")


@dataclass
class Story:
    """All that is known at the end."""

    fleet: Fleet
    load: Load
    executions: list[Execution]
    owners: dict[Attempt, str] = field(default_factory=dict)  # of claims
    ends: dict[Attempt, End] = field(default_factory=dict)
    leases: dict[Attempt, float] = field(default_factory=dict)  # until when each was, at its end
    done: dict[Attempt, str | None] = field(default_factory=dict)  # what its results say: a nonce
    doomed: set[str] = field(default_factory=set)  # tasks that fail by themselves
    reclaims: list[float] = field(default_factory=list)  # clean deaths: seconds to each reclaim
    returns: list[float] = field(default_factory=list)  # PostgreSQL ready → first claim
    not_reclaimed: list[str] = field(default_factory=list)
    left_idle: dict[str, list[str]] = field(default_factory=dict)  # when all was settled: folders and so on
    left_after: list[str] = field(default_factory=list)  # processes after the stop

    @classmethod
    async def read(cls, fleet: Fleet, load: Load) -> "Story":
        story = cls(fleet, load, effects.executions(agent.notes for agent in fleet.agents))
        for row in await fleet.desk.insist(_MOVES):
            key = (str(row["job_task_id"]), row["attempt_id"])
            if row["to"] == "starting":
                story.owners[key] = row["owner"]
            else:
                story.ends[key] = End(row["ts"].timestamp(), row["to"], row["outcome"], row["error_code"])
        for row in await fleet.desk.insist("SELECT * FROM chaos.leases"):
            story.leases[str(row["task_id"]), row["attempt_id"]] = row["lease_until"].timestamp()
        for row in await fleet.desk.insist(_TASKS):
            if row["status"] == "done" and not row["was_multiplied"]:
                story.done[str(row["id"]), row["outcome_attempt_id"]] = row["nonce"]
            if row["fate"]:
                story.doomed.add(str(row["id"]))
        return story

    def agent(self, name: str) -> Member:
        return self.fleet.member(name)


_MOVES = """
SELECT job_task_id, attempt_id, ts, data ->> 'owner' AS owner, data ->> 'to' AS to, data ->> 'outcome' AS outcome,
       data ->> 'error_code' AS error_code
  FROM task_events
 WHERE job_task_id IS NOT NULL AND type IN ('status', 'retry')
   AND (data ->> 'to' = 'starting' OR data ->> 'from' IN ('starting', 'running') AND data ->> 'to' <> 'running')
 ORDER BY id"""
_TASKS = """
SELECT id, status, outcome_attempt_id, results ->> 'nonce' AS nonce, params ->> 'fate' AS fate,
       items IS NOT NULL AS was_multiplied FROM job_tasks"""


# The rules. Each gives what offends it, in words.


async def one_job_each(story: Story) -> list[str]:
    rows = await story.fleet.desk.insist(
        "SELECT idempotency_key AS key, array_agg(id) AS ids, count(*) AS n FROM jobs GROUP BY 1"
    )
    jobs = {row["key"]: row["n"] for row in rows}
    known = {each for row in rows for each in row["ids"]}
    lost = [f"{each}: acknowledged, and not there" for each in story.load.acknowledged if each not in known]
    doubled = [f"{key}: {n} jobs" for key, n in jobs.items() if n > 1 or key is None]
    short = story.load.submissions - len(story.load.acknowledged)
    return lost + doubled + ([f"{short} submissions were never acknowledged"] if short else [])


async def all_ended(story: Story) -> list[str]:
    rows = await story.fleet.desk.insist(
        "SELECT t.id, t.task_key, t.service_name, t.status, t.lease_owner"
        " FROM job_tasks t JOIN jobs j ON j.id = t.job_id"
        " WHERE j.status NOT IN ('done', 'error', 'cancelled') AND t.status NOT IN ('done', 'skipped')"
        " UNION ALL SELECT id, NULL, NULL, status, NULL FROM jobs WHERE status = 'queued'"
    )
    return [str(dict(row)) for row in rows]


async def history_is_sound(story: Story) -> list[str]:
    conn = await story.fleet.desk.connection()
    found = await violations(
        conn, slack=timedelta(seconds=10), lowered=[KEY], acknowledged=list(story.load.acknowledged)
    )
    return [f"{each.rule}: {each.id}: {each.detail}" for each in found]


async def nothing_is_damaged(story: Story) -> list[str]:
    return [str(dict(row)) for row in await story.fleet.desk.insist("SELECT * FROM accs.damage")]


async def each_attempt_once(story: Story) -> list[str]:
    times = Counter(each.key for each in story.executions)
    return [str(each) for each in story.executions if times[each.key] > 1]


async def each_has_its_claim(story: Story) -> list[str]:
    return [
        f"{each}; claimed by {story.owners.get(each.key)}"
        for each in story.executions
        if story.owners.get(each.key) != each.node
    ]


def late(story: Story) -> Iterable[tuple[Execution, float]]:
    """What began after its lease, and by how many seconds."""
    for each in story.executions:
        end, lease = story.ends.get(each.key), story.leases.get(each.key, float("inf"))
        if end is not None and end.was_given_back:
            lease = min(lease, end.at)
        if each.begin_real > lease:
            yield each, each.begin_real - lease


def was_underway_in_docker(story: Story, each: Execution) -> bool:
    """A node that is suspended while Docker's CLI starts a container finds it started when it wakes: nothing can give
    that CLI a deadline. The agent must have ended it soon."""
    spans = [Span(span.start, span.end + _BACK_AT_WORK) for span in story.agent(each.node).absences]
    was_ended = any(span.meets(each.begin, each.begin) and each.last <= span.end for span in spans)
    return each.service in CONTAINERS and was_ended and not each.is_complete


async def none_begins_late(story: Story) -> list[str]:
    return [
        f"{each}: {seconds:.2f} s after the end of its lease; {story.ends.get(each.key)}"
        for each, seconds in late(story)
        if not was_underway_in_docker(story, each)
    ]


def overlaps(story: Story) -> Iterable[tuple[Execution, Execution, bool]]:
    """Two executions of one task at once, and whether the earlier one's agent was alive to prevent it."""
    by_task: dict[str, list[Execution]] = defaultdict(list)
    for each in story.executions:
        by_task[each.task].append(each)
    for several in by_task.values():
        several.sort(key=lambda each: each.attempt)
        for earlier, later in pairwise(several):
            if later.begin < earlier.last:
                agent = story.agent(earlier.node)
                window = (later.begin - LEASE.total_seconds(), earlier.last)
                yield earlier, later, not any(span.meets(*window) for span in helpless(agent))


def helpless(agent: Member) -> list[Span]:
    """When an agent could not end what it had lost: dead, stopped, or back and still without its database."""
    spans = [Span(each.start, each.end + _BACK_AT_WORK) for each in agent.absences]
    for span in spans:
        for outage in sorted(agent.outages, key=lambda each: each.start):
            if outage.meets(span.start, span.end):
                span.end = max(span.end, outage.end + _BACK_AT_WORK)
    return spans


async def none_overlaps(story: Story) -> list[str]:
    return [f"{one} and {other}" for one, other, was_alive in overlaps(story) if was_alive]


async def done_was_done(story: Story) -> list[str]:
    complete = {each.nonce: each.key for each in story.executions if each.is_complete}
    return [f"{key}: nonce {nonce}" for key, nonce in story.done.items() if complete.get(nonce or "") != key]


async def ends_are_recorded(story: Story) -> list[str]:
    return [str(each) for each in story.executions if each.is_complete and each.key not in story.ends]


async def none_fails_unharmed(story: Story) -> list[str]:
    """No attempt is spent on a task that never fails by itself: not by a full disk either."""
    return [
        f"{key}: {end}"
        for key, end in story.ends.items()
        if end.outcome == "error" and key[0] not in story.doomed and key not in story.fleet.killed
    ]


async def nothing_is_left(story: Story) -> list[str]:
    idle = [f"{what}: {each}" for what, found in story.left_idle.items() for each in found]
    return idle + story.left_after


async def reclaimed_in_time(story: Story) -> list[str]:
    return story.not_reclaimed


async def drains_end_well(story: Story) -> list[str]:
    return [
        f"{member.name}: exit code {code} after {seconds:.1f} s"
        for member in story.fleet.members
        for seconds, code in member.drains
        if code != 0
    ]


async def daemons_hold(story: Story) -> list[str]:
    crashed = [
        f"{member.name}: {line[:600]}"
        for member in story.fleet.members
        for line in member.process.log_file.read_text(errors="replace").splitlines()
        if '"role_crashed"' in line
    ]
    return crashed + [each for member in story.fleet.members for each in member.ended_by_itself]


async def nothing_strange(story: Story) -> list[str]:
    return story.load.strange


RULES: dict[str, Callable[[Story], Awaitable[list[str]]]] = {
    "each acknowledged submission is one job": one_job_each,
    "every job has ended": all_ended,
    "the history checker finds nothing": history_is_sound,
    "accs.damage is empty": nothing_is_damaged,
    "no attempt is executed twice": each_attempt_once,
    "each execution has its claim, by its node": each_has_its_claim,
    "no execution begins after its lease": none_begins_late,
    "no task is executed twice at once while its agent lives": none_overlaps,
    "what is done was begun and ended by that attempt": done_was_done,
    "each complete execution has its recorded end": ends_are_recorded,
    "a task that never fails loses no attempt unless we kill it": none_fails_unharmed,
    "no folder, process or container is left": nothing_is_left,
    "what a dead agent held is reclaimed in time": reclaimed_in_time,
    "a drain ends with exit code 0": drains_end_well,
    "no daemon ends and no role crashes by itself": daemons_hold,
    "no statement and no command fails but for a lost connection": nothing_strange,
}


async def judge(story: Story) -> dict[str, list[str]]:
    """What offends each rule; nothing, if all is well."""
    return {name: await rule(story) for name, rule in RULES.items()}


def told(verdict: dict[str, list[str]]) -> str:
    lines: list[str] = []
    for name, found in verdict.items():
        lines.append(f"{'FAIL' if found else 'ok  '}  {name}" + (f": {len(found)}" if found else ""))
        lines += [f"        {each}" for each in found[:SHOWN]]
        lines += [f"        and {len(found) - SHOWN} more"] if len(found) > SHOWN else []
    return "\n".join(lines)


async def figures(story: Story, faults: Counter[str]) -> dict[str, str]:
    [row] = await story.fleet.desk.insist(
        "SELECT (SELECT count(*) FROM jobs) AS jobs, (SELECT count(*) FROM job_tasks) AS tasks,"
        " (SELECT count(*) FROM task_events) AS events,"
        " (SELECT count(*) FROM dead_letters WHERE reason = 'lost_too_often') AS lost_too_often"
    )
    refusals = await story.fleet.desk.insist(
        "SELECT data ->> 'reason' AS reason, count(*) AS n FROM task_events WHERE type = 'refused' GROUP BY 1"
    )
    ends = Counter(end.outcome or end.to for end in story.ends.values())
    unfinished = [each for each in story.executions if each.is_complete and story.ends[each.key].to != "done"]
    twice = [earlier.last - later.begin for earlier, later, was_alive in overlaps(story) if not was_alive]
    drains = [seconds for member in story.fleet.members for seconds, _ in member.drains]
    load = story.load
    return {
        "jobs, tasks, events": f"{row['jobs']:,}, {row['tasks']:,}, {row['events']:,}",
        "submissions sent again after an unknown commit": f"{load.sent_again}",
        "claims, executions": f"{len(story.owners):,}, {len(story.executions):,}",
        "executions by service (box and standing are containers)": _counts(
            Counter(each.service for each in story.executions)
        ),
        "ends of attempts": _counts(ends),
        "complete executions that did not become done": f"{len(unfinished)}, each with its recorded end",
        "refusals": _counts({refusal["reason"]: refusal["n"] for refusal in refusals}),
        "tasks lost too often": f"{row['lost_too_often']}",
        "two executions at once, the agent dead or stopped": f"{len(twice)}, at most {max(twice, default=0):.1f} s",
        "containers that Docker's CLI was starting when their node was suspended, ended after it woke": str(
            sum(was_underway_in_docker(story, each) for each, _ in late(story))
        ),
        "operations": _counts(load.operations),
        f"faults: {faults.total()}": _counts(faults),
        "drains": _times(drains),
        "clean death → reclaimed": _times(story.reclaims),
        "PostgreSQL ready → first claim": _times(story.returns),
    }


def _counts(of: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {n}" for name, n in sorted(of.items(), key=lambda each: -each[1])) or "none"


def _times(seconds: Sequence[float]) -> str:
    if not seconds:
        return "none"
    ordered = sorted(seconds)
    p50, p99 = (ordered[min(len(ordered) - 1, int(len(ordered) * part))] for part in (0.5, 0.99))
    return f"{len(ordered)}: p50 {p50:.2f} s, p99 {p99:.2f} s, max {ordered[-1]:.2f} s"


def table(rows: Mapping[str, str]) -> str:
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows.items())])
