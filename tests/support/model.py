"""The state machine as a few dictionaries: what schema.sql should do, said a second time and without SQL.

The tests drive both with the same calls and compare. Time is in seconds since the beginning of the example.
Nothing here knows of waiting rows, lanes, holds or counters: what is claimable is worked out anew at every claim.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import islice

LEASE = 60
MAX_LOST = 2  # fewer than in earnest, so that a random walk gets there
TERMINAL = {"done", "error", "skipped", "cancelled"}
LIVE = {"starting", "running"}

Agent = tuple[str, str]  # owner and node
Answer = tuple[str, str | None]  # accepted | repeated | refused, and why refused
ACCEPTED: Answer = ("accepted", None)
REPEATED: Answer = ("repeated", None)


def refused(reason: str) -> Answer:
    return ("refused", reason)


@dataclass(frozen=True)
class Step:
    key: str
    service: str
    depends_on: tuple[str, ...] = ()
    max_attempts: int = 3
    backoff: int = 30
    gpu: bool = False  # only a node with that label may take it
    node: str | None = None
    concurrency_key: str | None = None
    resolve: bool = False  # somebody says what becomes of it when everything that it depends on is there
    fans: bool = False  # and that may be a task for each of some items


@dataclass(frozen=True)
class Node:
    name: str
    gpu: bool
    capacity: dict[str, int]


@dataclass(eq=False)
class Task:
    job: "Job"
    step: Step
    number: int
    status: str = "queued"
    attempt: int = 0
    attempt_id: int = 0
    lost: int = 0
    generation: int = 0
    owner: str | None = None
    node: str | None = None
    lease_until: float | None = None
    due: float | None = None
    progress: float = 0
    code: str | None = None
    outcome: tuple[int, str] | None = None
    resolve: bool | None = None  # True: it waits to be resolved; None: that is not for it
    fan: "Fan | None" = None
    made: "list[Task]" = field(default_factory=list)  # the tasks that it became, this time or before, by item
    mother: "Task | None" = None  # the step that became this task
    has_item: bool = True
    tolerated: bool = False
    finished: float = 0  # when it was done
    borrowed: bool = False  # it is done with the result of another task, and has that one's files

    @property
    def key(self) -> str:
        return f"{self.step.key}[{self.mother.made.index(self)}]" if self.mother else self.step.key

    @property
    def concurrency_key(self) -> str | None:
        if self.mother and self.mother.fan and self.mother.fan.parallel:
            return f"map/{self.job.id}/{self.mother.key}"
        return self.step.concurrency_key

    @property
    def satisfies(self) -> bool:
        return self.status == "done" or (self.status == "skipped" and self.code != "upstream_failed") or self.tolerated

    @property
    def parents(self) -> list["Task"]:
        if self.mother:
            return [self.mother]
        steps = [self.job.tasks[key] for key in self.step.depends_on]
        return [task for step in steps for task in (step, *step.made)]

    @property
    def children(self) -> list["Task"]:
        return [task for task in self.job.tasks.values() if self in task.parents]

    @property
    def order(self) -> tuple[int, int, int]:
        return (-self.job.priority, self.job.sequence, self.number)

    def below(self) -> set["Task"]:
        found: set[Task] = set()
        todo = self.children
        while todo:
            task = todo.pop()
            if task not in found:
                found.add(task)
                todo += task.children
        return found


@dataclass(frozen=True)
class Fan:
    """How a step was multiplied the last time."""

    items: int
    parallel: int | None
    tolerate: int


@dataclass(eq=False)
class Job:
    id: int
    workflow: str
    sequence: int
    priority: int
    due: float
    status: str = "queued"
    code: str | None = None
    generation: int = 0
    tasks: dict[str, Task] = field(default_factory=dict)
    failures: list[Task] = field(default_factory=list)  # the tasks in error or cancelled, the first one first


@dataclass(eq=False)
class Letter:
    task: Task
    generation: int
    redriven: bool = False
    dismissed: bool = False


@dataclass(frozen=True, eq=False)
class Ticket:
    """What an agent has after a claim. It may be long out of date."""

    task: Task
    attempt_id: int
    owner: str

    @property
    def is_current(self) -> bool:
        """The task is still in this attempt, though perhaps its lease has run out."""
        return (self.task.attempt_id, self.task.owner) == (self.attempt_id, self.owner)


@dataclass
class Verdict:
    """What an agent says about a ticket at the end."""

    ticket: Ticket
    outcome: str  # done | error
    permanent: bool = False
    code: str | None = None


@dataclass
class Finding:
    """What a resolver says about a task: run | skip | error | done. It may be long out of date."""

    task: Task
    generation: int
    verdict: str
    delay: float = 0
    cache: float | None = None  # run: unless there is a result that is not older than so many seconds


Input = tuple[object, ...]  # what decides the result of a task


class Model:
    def __init__(self, workflows: dict[str, list[Step]], limits: dict[str, int], nodes: list[Node]) -> None:
        self.workflows = workflows
        self.limits = dict(limits)
        self.nodes = {node.name: node for node in nodes}
        self.now: float = 0
        self.jobs: dict[int, Job] = {}
        self.keys: dict[str, Job] = {}
        self.letters: list[Letter] = []
        self.pauses: set[tuple[str, str]] = set()
        self.inactive: set[str] = set()
        self.outputs: set[tuple[Task, int]] = set()
        self.cached: dict[Task, tuple[Input, int]] = {}  # with the generation in which it was resolved

    # Submission

    def submit(
        self, job_id: int, workflow: str, priority: int, due: float | None, key: str | None
    ) -> tuple[Answer, Job | None]:
        if workflow in self.inactive:
            known = self.keys.get(key) if key else None
            return (REPEATED, known) if known else (refused("workflow_inactive"), None)
        if key and key in self.keys:
            return REPEATED, self.keys[key]
        job = self._new_job(job_id, workflow, priority, self.now if due is None else due)
        if key:
            self.keys[key] = job
        if job.due <= self.now:
            self._instantiate(job)
        return ACCEPTED, job

    def insert(self, job_id: int, workflow: str, priority: int) -> Job:
        return self._new_job(job_id, workflow, priority, self.now)

    def instantiate_due(self, limit: int) -> dict[Job, Answer]:
        due = [job for job in self.jobs.values() if job.status == "queued" and job.due <= self.now]
        answers: dict[Job, Answer] = {}
        for job in islice(sorted(due, key=lambda job: job.due), limit):
            if job.workflow in self.inactive:
                job.status, job.code = "error", "workflow_inactive"
                answers[job] = refused("workflow_inactive")
            else:
                self._instantiate(job)
                answers[job] = ACCEPTED
        return answers

    def _new_job(self, job_id: int, workflow: str, priority: int, due: float) -> Job:
        job = self.jobs[job_id] = Job(job_id, workflow, len(self.jobs), priority, due)
        return job

    def _instantiate(self, job: Job) -> None:
        job.status = "running"
        for number, step in enumerate(self.workflows[job.workflow]):
            job.tasks[step.key] = Task(job, step, number, resolve=step.resolve or step.fans or None)

    # Claim and what an attempt says

    @property
    def tasks(self) -> Iterable[Task]:
        return (task for job in self.jobs.values() for task in job.tasks.values())

    def running_with(self, key: str) -> int:
        return sum(task.status in LIVE and task.concurrency_key == key for task in self.tasks)

    def claim(self, service: str, agent: Agent, limit: int) -> list[Ticket]:
        owner, node = agent
        if ("service", service) in self.pauses or ("node", node) in self.pauses:
            return []
        offer = self.nodes[node]
        if service in offer.capacity:
            used = sum(t.status in LIVE and t.node == node and t.step.service == service for t in self.tasks)
            limit = min(limit, offer.capacity[service] - used)
        tickets: list[Ticket] = []
        for task in sorted(self.tasks, key=lambda task: task.order):
            if len(tickets) < limit and self._may_claim(task, service, offer):
                task.status, task.attempt_id = "starting", task.attempt_id + 1
                task.owner, task.node, task.lease_until = owner, node, self.now + LEASE
                task.due, task.progress = None, 0
                tickets.append(Ticket(task, task.attempt_id, owner))
        return tickets

    def _may_claim(self, task: Task, service: str, node: Node) -> bool:
        step = task.step
        key = task.concurrency_key
        return (
            task.status == "queued"
            and not task.resolve
            and step.service == service
            and (node.gpu or not step.gpu)
            and step.node in (None, node.name)
            and all(parent.satisfies for parent in task.parents)
            and (task.due is None or task.due <= self.now)
            and ("workflow", task.job.workflow) not in self.pauses
            and (key is None or self.running_with(key) < self._limit(task, key))
        )

    def _limit(self, task: Task, key: str) -> int:
        parallel = task.mother.fan.parallel if task.mother and task.mother.fan else None
        return parallel or self.limits[key]

    def adopt(self, agent: Agent) -> list[Task]:
        mine = [task for task in self.tasks if (task.owner, task.node) == agent and self._leased(task)]
        for task in mine:
            task.lease_until = self.now + LEASE
        return mine

    def start(self, tickets: list[Ticket]) -> dict[Task, Answer]:
        def start(ticket: Ticket) -> Answer:
            if ticket.task.status == "starting":
                ticket.task.status = "running"
                return ACCEPTED
            return REPEATED

        return self._fenced(tickets, start)

    def heartbeat(self, tickets: list[Ticket]) -> dict[Task, Answer]:
        def extend(ticket: Ticket) -> Answer:
            ticket.task.lease_until = self.now + LEASE
            return ACCEPTED

        return self._fenced(tickets, extend)

    def report_progress(self, tickets: list[Ticket], progress: float) -> dict[Task, Answer]:
        def report(ticket: Ticket) -> Answer:
            if ticket.task.status != "running":
                return self._explain(ticket)
            ticket.task.progress = progress
            return ACCEPTED

        return self._fenced(tickets, report)

    def record_output(self, ticket: Ticket) -> Answer:
        known = (ticket.task, ticket.attempt_id) in self.outputs
        if self.holds(ticket):
            self.outputs.add((ticket.task, ticket.attempt_id))
            return REPEATED if known else ACCEPTED
        return REPEATED if known else self._explain(ticket)

    def finish(self, verdicts: list[Verdict]) -> dict[Task, Answer]:
        """At most one verdict for a task. What succeeded counts first; refusals are explained at the end."""
        answers: dict[Task, Answer] = {}
        for verdict in verdicts:
            task = verdict.ticket.task
            if verdict.outcome == "done" and self.holds(verdict.ticket) and task.status == "running":
                task.progress, task.code = 1, None
                self._leave(task, "done", "done")
                self.outputs = {(t, n) for t, n in self.outputs if t is not task or n == task.attempt_id}
                answers[task] = ACCEPTED
        for verdict in sorted(verdicts, key=lambda verdict: verdict.ticket.task.order):
            if verdict.outcome == "error" and self.holds(verdict.ticket):
                self._fail(verdict.ticket.task, verdict.code, permanent=verdict.permanent)
                answers[verdict.ticket.task] = ACCEPTED
        self._close_jobs()
        for verdict in verdicts:
            if verdict.ticket.task not in answers:
                answers[verdict.ticket.task] = self._explain(verdict.ticket, verdict.outcome)
        return answers

    def release(self, tickets: list[Ticket], *, lost: bool, delay: float | None) -> dict[Task, Answer]:
        answers: dict[Task, Answer] = {}
        for ticket in sorted(tickets, key=lambda ticket: ticket.task.order):
            if self.holds(ticket):
                self._give_back(ticket.task, lost=lost, delay=delay)
                answers[ticket.task] = ACCEPTED
        self._close_jobs()
        outcome = "lost" if lost else "released"
        return {ticket.task: answers.get(ticket.task) or self._explain(ticket, outcome) for ticket in tickets}

    def reclaim(self, grace: float) -> dict[Task, Answer]:
        lost = [t for t in self.tasks if t.lease_until is not None and t.lease_until <= self.now - grace]
        for task in sorted(lost, key=lambda task: task.order):
            self._give_back(task, lost=True, delay=None)
        self._close_jobs()
        return dict.fromkeys(lost, ACCEPTED)

    def _leased(self, task: Task) -> bool:
        return task.lease_until is not None and task.lease_until > self.now

    def holds(self, ticket: Ticket) -> bool:
        return ticket.is_current and self._leased(ticket.task)

    def _fenced(self, tickets: list[Ticket], act: Callable[[Ticket], Answer]) -> dict[Task, Answer]:
        return {ticket.task: act(ticket) if self.holds(ticket) else self._explain(ticket) for ticket in tickets}

    def _explain(self, ticket: Ticket, outcome: str | None = None) -> Answer:
        task = ticket.task
        if outcome and task.outcome == (ticket.attempt_id, outcome):
            return REPEATED
        if task.attempt_id > ticket.attempt_id:
            return refused("stale_attempt")
        if task.status in TERMINAL:
            return refused("already_finished")
        if task.status in LIVE and not self.holds(ticket):
            return refused("lease_lost_or_owner_mismatch")
        return refused("not_in_expected_state")

    # What a resolver says

    @property
    def to_resolve(self) -> list[Task]:
        return sorted((task for task in self.tasks if self._waits_for_resolver(task)), key=lambda task: task.order)

    def _waits_for_resolver(self, task: Task) -> bool:
        paused = ("workflow", task.job.workflow) in self.pauses
        return (
            task.status == "queued"
            and bool(task.resolve)
            and all(parent.satisfies for parent in task.parents)
            and not paused
        )

    def resolve(self, findings: list[Finding]) -> dict[Task, Answer]:
        """At most one finding for a task."""
        good = [f for f in findings if self._waits_for_resolver(f.task) and f.generation == f.task.generation]
        for finding in sorted(good, key=lambda finding: finding.task.order):
            task = finding.task
            if finding.verdict != "error":
                self._drop_items(task)
            if finding.verdict == "run" and self._use_cache(task, finding.cache):
                continue
            if finding.verdict == "run":
                task.resolve, task.due = False, self.now + finding.delay if finding.delay else None
            elif finding.verdict == "skip":
                task.status, task.code = "skipped", "condition_false"
            elif finding.verdict == "done":
                self._end_without_node(task)
            else:
                task.resolve, task.attempt_id = False, task.attempt_id + 1
                self._fail(task, "template_error", permanent=True)
        self._close_jobs()
        said = {finding.task for finding in good}
        return {
            f.task: ACCEPTED if f.task in said else self._explain_unresolved(f.task, f.generation) for f in findings
        }

    def fan_out(
        self,
        task: Task,
        generation: int,
        items: list[bool],
        delays: list[int],
        parallel: int | None,
        tolerate: int,
        cache: float | None = None,
    ) -> Answer:
        """`items`: for each whether it has a task that runs; the others are skipped."""
        if not self._waits_for_resolver(task) or generation != task.generation:
            return self._explain_unresolved(task, generation)
        task.fan = Fan(len(items), parallel, tolerate)
        for index, (runs, delay) in enumerate(zip(items, delays, strict=True)):
            if index == len(task.made):
                fresh = Task(task.job, task.step, len(task.job.tasks), mother=task)
                task.made.append(fresh)
                task.job.tasks[fresh.key] = fresh
            made = task.made[index]
            if made.status != "queued":
                made.status, made.code, made.generation = "queued", None, made.generation + 1
            made.has_item, made.due = runs, self.now + delay if delay and runs else None
            if not runs:
                made.status, made.code = "skipped", "condition_false"
        self._without_item(task.made[len(items) :])
        may_be_cached = task.attempt_id == 0
        self._end_without_node(task)
        for made in task.made[: len(items)]:
            if made.status == "queued":
                self._use_cache(made, cache, may=may_be_cached)
        self._close_jobs()
        return ACCEPTED

    def _use_cache(self, task: Task, seconds: float | None, *, may: bool = True) -> bool:
        """Whether it is done with the result of an earlier task; what is not is remembered, for when it has one."""
        if seconds is None or (found := self._input(task)) is None:
            return False
        known = [
            source
            for source, (same, generation) in self.cached.items()
            if (same, generation, source.status) == (found, source.generation, "done")
            and source.finished > self.now - seconds
        ]
        if not known or not may or task.attempt_id > 0:
            self.cached[task] = (found, task.generation)
            return False
        source = min(known, key=lambda source: (-source.finished, source.number, source.job.id))
        task.borrowed = (source, source.attempt_id) in self.outputs
        self._end_without_node(task)
        return True

    def _input(self, task: Task) -> Input | None:
        """None: nobody can know it, because a file has no checksum, and here no file has."""
        step = task.mother or task
        above = [task.job.tasks[key] for key in step.step.depends_on]
        makers = [maker for one in above if one.status == "done" for maker in (one, *(one.made if one.fan else ()))]
        if any(
            maker.status == "done" and (maker.borrowed or (maker, maker.attempt_id) in self.outputs) for maker in makers
        ):
            return None
        lists = [
            tuple(item.status == "done" for item in one.made if item.code != "not_in_list") if one.fan else None
            for one in above
        ]
        return (task.job.workflow, step.key, step.made.index(task) if task.mother else None, *lists)

    def _end_without_node(self, task: Task) -> None:
        task.attempt_id, task.progress = task.attempt_id + 1, 1
        task.resolve = None if task.resolve is None else False
        self._leave(task, "done", "done")

    def _drop_items(self, task: Task) -> None:
        if task.status == "queued" and task.fan:
            task.fan = None
            self._without_item(task.made)

    def _without_item(self, tasks: list[Task]) -> None:
        for task in tasks:
            task.has_item = False
            if task.status == "queued":
                task.status, task.code, task.due = "skipped", "not_in_list", None

    def _explain_unresolved(self, task: Task, generation: int) -> Answer:
        if task.generation != generation:
            return refused("stale_generation")
        waits = task.resolve and task.status == "queued"
        if task.resolve is None or task.status == "cancelled" or waits:
            return refused("not_in_expected_state")
        return REPEATED

    # How an attempt ends

    def _leave(self, task: Task, status: str, outcome: str | None) -> None:
        task.status, task.finished = status, self.now
        task.owner = task.node = task.lease_until = None
        if outcome:
            task.outcome = (task.attempt_id, outcome)

    def _fail(self, task: Task, code: str | None, *, permanent: bool) -> None:
        task.attempt += 1
        task.code = code
        if permanent or task.attempt >= task.step.max_attempts:
            self._bury(task, "error")
        else:
            task.due, task.progress = self.now + task.step.backoff, 0
            self._leave(task, "queued", "error")

    def _give_back(self, task: Task, *, lost: bool, delay: float | None) -> None:
        outcome = "lost" if lost else "released"
        if lost:
            task.lost += 1
            task.code = "worker_lost"
            if task.lost >= MAX_LOST:
                self._bury(task, outcome)
                return
        task.due, task.progress = None if delay is None else self.now + delay, 0
        self._leave(task, "queued", outcome)

    def _bury(self, task: Task, outcome: str) -> None:
        self._leave(task, "error", outcome)
        self.letters.append(Letter(task, task.generation))
        if task.mother and task.mother.fan:
            task.tolerated = sum(other.tolerated for other in task.mother.made) < task.mother.fan.tolerate
        if task.tolerated:
            return
        task.job.failures.append(task)
        task.job.code = task.job.failures[0].code or "error"
        self._skip_below(task)

    def _skip_below(self, task: Task) -> None:
        for child in task.children:
            if child.status == "queued":
                child.status, child.code = "skipped", "upstream_failed"
                self._skip_below(child)

    def _close_jobs(self) -> None:
        for job in self.jobs.values():
            if job.status == "running" and all(task.status in TERMINAL for task in job.tasks.values()):
                job.status = "error" if job.failures else "done"

    # Operators

    def skip(self, tasks: list[Task], reason: str) -> dict[Task, Answer]:
        for task in tasks:
            self._drop_items(task)
        fresh = [task for task in tasks if task.status == "queued"]
        for task in fresh:
            task.status, task.code, task.due = "skipped", reason, None
        self._close_jobs()

        def answer(task: Task) -> Answer:
            if task in fresh:
                return ACCEPTED
            if task.status == "skipped" and task.code == reason:
                return REPEATED
            return refused("already_finished" if task.status in TERMINAL else "not_in_expected_state")

        return {task: answer(task) for task in tasks}

    def change(self, job: Job, priority: int | None, due: float | None) -> Answer:
        if job.status in TERMINAL:
            return refused("already_finished")
        if job.status == "running" and due is not None:
            return refused("already_started")
        if due is None and priority in (None, job.priority):
            return REPEATED
        job.priority = job.priority if priority is None else priority
        job.due = job.due if due is None else due
        return ACCEPTED

    def cancel(self, job: Job) -> Answer:
        if job.status in TERMINAL:
            return REPEATED if job.status == "cancelled" else refused("already_finished")
        for task in job.tasks.values():
            if task.status not in TERMINAL:
                task.code, task.due = "cancelled", None
                self._leave(task, "cancelled", "cancelled")
                job.failures.append(task)
        job.status, job.code = "cancelled", "cancelled"
        return ACCEPTED

    def close(self, job: Job) -> Answer:
        if job.status in TERMINAL:
            return REPEATED
        return refused("tasks_open" if job.status == "running" else "not_in_expected_state")

    def redrive(self, letters: list[Letter]) -> dict[Letter, Answer]:
        answers: dict[Letter, Answer] = {letter: self._may_redrive(letter) for letter in letters}
        good = [letter for letter, answer in answers.items() if answer == ACCEPTED]
        for job in {letter.task.job for letter in good}:
            chosen = {letter.task for letter in good if letter.task.job is job}
            freed = {
                below
                for task in chosen
                for below in task.below()
                if task.tolerated or (below.status == "skipped" and below.code == "upstream_failed")
            }
            self._reopen(job, self._runnable(chosen | freed))
        return answers

    def _may_redrive(self, letter: Letter) -> Answer:
        if letter.redriven:
            return REPEATED
        goes_on = letter.task.tolerated and any(task.status not in TERMINAL for task in letter.task.below())
        return refused("not_in_expected_state") if goes_on else ACCEPTED

    def dismiss(self, letter: Letter) -> Answer:
        if letter.dismissed:
            return REPEATED
        if letter.redriven:
            return refused("already_redriven")
        letter.dismissed = True
        return ACCEPTED

    def retry(self, job: Job, step: str | None) -> Answer:
        if job.status in ("queued", "running"):
            again = job.status == "running" and job.generation > 0
            return REPEATED if again else refused("not_in_expected_state")
        if not job.tasks:
            return refused("never_instantiated")
        if step is None:
            bad = {task for task in job.tasks.values() if not task.satisfies or task.tolerated}
            chosen = bad | {below for task in bad if task.tolerated for below in task.below()}
            if not chosen:
                return refused("nothing_to_retry")
        elif step not in job.tasks or not job.tasks[step].has_item:
            return refused("step_not_found")
        else:
            if not all(parent.satisfies for parent in job.tasks[step].parents):
                return refused("earlier_step_unfinished")
            chosen = {job.tasks[step]} | job.tasks[step].below()
        self._reopen(job, self._runnable(chosen))
        return ACCEPTED

    def _runnable(self, chosen: set[Task]) -> set[Task]:
        """Of tasks to reopen, those that depend on nothing that ended badly and is not reopened."""
        while True:
            kept = {
                task
                for task in chosen
                if all(p in chosen or p.satisfies or p.status not in TERMINAL for p in task.parents)
            }
            if kept == chosen:
                return kept
            chosen = kept

    def _reopen(self, job: Job, chosen: set[Task]) -> None:
        for task in chosen:
            task.status, task.generation = "queued", task.generation + 1
            task.attempt = task.lost = 0
            task.progress, task.code, task.due = 0, None, None
            task.borrowed = False
            task.tolerated, task.resolve = False, None if task.resolve is None else True
        for letter in self.letters:
            if letter.task in chosen:
                letter.redriven = True
        job.failures = [task for task in job.failures if task not in chosen]
        job.code = (job.failures[0].code or "error") if job.failures else None
        job.status, job.generation = "running", job.generation + 1

    def pause(self, kind: str, name: str) -> str:
        if (kind, name) in self.pauses:
            return "repeated"
        self.pauses.add((kind, name))
        return "accepted"

    def resume(self, kind: str, name: str) -> str:
        if (kind, name) not in self.pauses:
            return "repeated"
        self.pauses.remove((kind, name))
        return "accepted"

    def set_limit(self, key: str, limit: int) -> str:
        if self.limits[key] == limit:
            return "repeated"
        self.limits[key] = limit
        return "accepted"
