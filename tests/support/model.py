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

    @property
    def satisfies(self) -> bool:
        return self.status == "done" or (self.status == "skipped" and self.code != "upstream_failed")

    @property
    def parents(self) -> list["Task"]:
        return [self.job.tasks[key] for key in self.step.depends_on]

    @property
    def children(self) -> list["Task"]:
        return [task for task in self.job.tasks.values() if self.step.key in task.step.depends_on]

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
            job.tasks[step.key] = Task(job, step, number)

    # Claim and what an attempt says

    @property
    def tasks(self) -> Iterable[Task]:
        return (task for job in self.jobs.values() for task in job.tasks.values())

    def running_with(self, key: str) -> int:
        return sum(task.status in LIVE and task.step.concurrency_key == key for task in self.tasks)

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
        key = step.concurrency_key
        return (
            task.status == "queued"
            and step.service == service
            and (node.gpu or not step.gpu)
            and step.node in (None, node.name)
            and all(parent.satisfies for parent in task.parents)
            and (task.due is None or task.due <= self.now)
            and ("workflow", task.job.workflow) not in self.pauses
            and (key is None or self.running_with(key) < self.limits[key])
        )

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

    # How an attempt ends

    def _leave(self, task: Task, status: str, outcome: str | None) -> None:
        task.status = status
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
        answers: dict[Letter, Answer] = {letter: REPEATED if letter.redriven else ACCEPTED for letter in letters}
        for job in {letter.task.job for letter in letters if not letter.redriven}:
            chosen = {letter.task for letter in letters if letter.task.job is job and not letter.redriven}
            freed = {below for task in chosen for below in task.below() if below.code == "upstream_failed"}
            self._reopen(job, self._runnable(chosen | freed))
        return answers

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
            chosen = {task for task in job.tasks.values() if not task.satisfies}
            if not chosen:
                return refused("nothing_to_retry")
        elif step not in job.tasks:
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
