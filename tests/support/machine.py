"""A Hypothesis machine that calls the verbs at random, on a real database and on the model, and compares.

Every call happens at a second of its own on a clock that stands still otherwise, and ids are given by the
machine: an example repeats exactly. After each call the rows must be the model's, and the history checker must
find nothing.
"""

from collections.abc import Awaitable, Callable, Iterator
from datetime import datetime, timedelta
from typing import Any, ClassVar, TypeVar
from uuid import UUID

import asyncpg
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from tests.support.checker import check
from tests.support.cluster import Connection
from tests.support.model import LEASE, TERMINAL, Agent, Answer, Finding, Job, Letter, Model, Task, Ticket, Verdict
from tests.support.world import LIMITS, NODES, PAUSABLE, WORKFLOWS, World

T = TypeVar("T")
Draw = Callable[[st.SearchStrategy[T]], T]

CACHE = 100  # for so many seconds results are used again: some are too old
recent = st.integers(0, 7)  # how far back in a list; what came last is the likeliest
some = st.lists(recent, min_size=1, max_size=3)
NODE_OF = {"sam": "south", "sue": "south", "ann": "north"}
agents: st.SearchStrategy[Agent] = st.sampled_from(["sam", "sam", "sue", "ann"]).map(lambda who: (who, NODE_OF[who]))


def same(got: Any, expected: Any) -> None:
    """An assert that says how they differ, and of dictionaries only where."""
    if got == expected:
        return
    if isinstance(got, dict) and isinstance(expected, dict):
        keys = {key: None for key in [*got, *expected] if got.get(key) != expected.get(key)}
        lines = [f"{key}: the database has {got.get(key)}, the model {expected.get(key)}" for key in keys]
        raise AssertionError("\n".join(lines))
    raise AssertionError(f"the database has {got}, the model {expected}")


def back(items: list[T], index: int) -> T:
    return items[-1 - index % len(items)]


def mostly(usual: T, *others: T) -> st.SearchStrategy[T]:
    return st.sampled_from([usual, usual, usual, *others])


class StateMachine(RuleBasedStateMachine):
    """All verbs. `drive` gives it its world."""

    world: ClassVar[World]

    def __init__(self) -> None:
        super().__init__()
        self.model = Model(WORKFLOWS, LIMITS, NODES)
        self.tickets: list[Ticket] = []
        self.task_ids: dict[tuple[int, str], UUID] = {}
        self.letter_ids: dict[tuple[UUID, int], int] = {}
        self.lowered: set[str] = set()
        self.run(self.world.reset())

    def run(self, work: Awaitable[T]) -> T:
        async def awaited() -> T:
            try:
                return await work
            except asyncpg.IntegrityConstraintViolationError as refusal:
                raise AssertionError(f"a table refuses what the model does: {refusal}") from refusal

        return self.world.runner.run(awaited())

    def at_next_second(self, seconds: float = 1) -> None:
        self.model.now += seconds
        shift = timedelta(seconds=self.model.now)
        self.run(self.world.conn.execute("UPDATE accs.test_clock SET shift = $1", shift))

    def fetch(self, verb: str, *arguments: Any) -> list[Any]:
        return self.run(self.world.conn.fetch(f"SELECT * FROM accs.{verb}", *arguments))

    def value(self, verb: str, *arguments: Any) -> Any:
        return self.run(self.world.conn.fetchval(f"SELECT accs.{verb}", *arguments))

    def execute(self, statement: str, *arguments: Any) -> None:
        self.run(self.world.conn.execute(statement, *arguments))

    # What the model calls by name, the database calls by id

    def task_id(self, task: Task) -> UUID:
        return self.task_ids[task.job.id, task.key]

    def letter_id(self, letter: Letter) -> int:
        return self.letter_ids[self.task_id(letter.task), letter.generation]

    @property
    def jobs(self) -> list[Job]:
        return list(self.model.jobs.values())

    @property
    def tasks(self) -> list[Task]:
        return list(self.model.tasks)

    @property
    def ready(self) -> list[Task]:
        """What may be claimed, unless it is paused, not due yet, or its key is taken."""
        queued = [task for task in self.tasks if task.status == "queued" and not task.resolve]
        return [task for task in queued if all(parent.satisfies for parent in task.parents)]

    def draw_tickets(self, draw: Draw) -> list[Ticket]:
        """Up to three tickets of one owner: mostly good ones (but for the lease), or old ones, or stolen ones."""
        whose = draw(mostly("good", "old", "stolen"))
        good = [ticket for ticket in self.tickets if ticket.is_current]
        pool = good if whose == "good" and good else self.tickets
        chosen = {ticket.task: ticket for ticket in (back(pool, index) for index in draw(some))}
        if whose == "stolen":
            return [Ticket(ticket.task, ticket.attempt_id, "eve") for ticket in chosen.values()]
        owner = next(iter(chosen.values())).owner
        return [ticket for ticket in chosen.values() if ticket.owner == owner]

    def fence(self, tickets: list[Ticket]) -> tuple[list[UUID], list[int], str]:
        ids = [self.task_id(ticket.task) for ticket in tickets]
        return ids, [ticket.attempt_id for ticket in tickets], tickets[0].owner

    def expect(self, rows: list[Any], expected: dict[Task, Answer]) -> None:
        answers = {row["id"]: (row["answer"], row["reason"]) for row in rows}
        same(answers, {self.task_id(task): answer for task, answer in expected.items()})
        assert len(rows) == len(answers)

    @initialize(workflows=st.lists(st.sampled_from(list(WORKFLOWS)), min_size=1, max_size=3))
    def begin(self, workflows: list[str]) -> None:
        for workflow in workflows:
            self.submit_job(workflow, 0, None, None)

    @rule(data=st.data())
    def call(self, data: st.DataObject) -> None:
        """One rule for all verbs: with a rule for each, most examples are without claims, or pause everything."""
        verb = data.draw(st.sampled_from(list(self.sensible_verbs())), label="verb")
        getattr(self, verb)(data.draw)

    def sensible_verbs(self) -> Iterator[str]:
        """Each as often as it should come in proportion: mostly what gets the work on."""
        good = any(ticket.is_current for ticket in self.tickets)
        statuses = {job.status for job in self.jobs}
        to_resolve = self.model.to_resolve
        weights = {
            "claim_and_start": 8 if self.ready else 1,
            "finish_done": 10 if good else 1 if self.tickets else 0,
            "finish": 8 if good else 1 if self.tickets else 0,
            "reclaim": 4 if good else 1 if self.tickets else 0,
            "outlive": 2 if good else 0,
            "redrive": 4 if self.model.letters else 0,
            "retry": 6 if statuses & TERMINAL else 0,
            "resolve": 8 if to_resolve else 1 if any(task.resolve is not None for task in self.tasks) else 0,
            "submit_and_resolve": 4,
            "submit_and_fan_out": 2,
            "fan_out": 10 if any(task.step.fans for task in to_resolve) else 0,
            "claim_beside_another_service": 6 if self.ready else 0,
            "claim": 2 if self.ready else 0,
            "skip": 2 if self.tasks else 0,
            "start": 2 if good else 0,
            "heartbeat": 2 if good else 0,
            "report_progress": 3 if good else 0,
            "record_output": 3 if good else 0,
            "release": 2 if good else 0,
            "cancel": 1,
            "instantiate_due_jobs": 3 if "queued" in statuses else 0,
            "submit": 1 if "running" in statuses else 6,
            "insert": 1,
            "wait": 3,
            "adopt": 1 if good else 0,
            "close": 1,
            "dismiss": 1 if self.model.letters else 0,
            "pause": 1,
            "resume": 3 if self.model.pauses else 0,
            "set_limit": 1,
            "switch_workflow": 1,
            "recheck_holds": 1,
            "change": 2,
        }
        return (verb for verb, weight in weights.items() for _ in range(weight))

    # Submission

    def submit(self, draw: Draw) -> None:
        self.submit_job(
            draw(st.sampled_from(list(WORKFLOWS))),
            draw(mostly(0, 5)),
            draw(mostly(None, 40, -40)),
            draw(mostly(None, "one", "two")),
        )

    def submit_job(self, workflow: str, priority: int, later: int | None, key: str | None) -> None:
        self.at_next_second()
        job_id = self.next_job_id()
        # no two due times are the same, so that their order is known
        due = None if later is None else self.model.now + later + job_id / 1000
        (row,) = self.fetch(
            "submit_jobs(ARRAY[$1::uuid], NULL, ARRAY[$2::int], ARRAY[$3::timestamptz], ARRAY[$4::text],"
            " ARRAY[$5::uuid])",
            self.world.workflow_ids[workflow],
            priority,
            None if due is None else self.world.base + timedelta(seconds=due),
            key,
            UUID(int=job_id),
        )
        answer, job = self.model.submit(job_id, workflow, priority, due, key)
        same((row["answer"], row["reason"]), answer)
        if job is not None:
            same((row["job_id"], row["status"]), (UUID(int=job.id), job.status))

    def insert(self, draw: Draw) -> None:
        self.at_next_second()
        workflow, priority = draw(st.sampled_from(list(WORKFLOWS))), draw(mostly(0, 5))
        job = self.model.insert(self.next_job_id(), workflow, priority)
        self.execute(
            "INSERT INTO public.jobs (id, workflow_id, priority) VALUES ($1, $2, $3)",
            UUID(int=job.id),
            self.world.workflow_ids[workflow],
            priority,
        )

    def instantiate_due_jobs(self, draw: Draw) -> None:
        self.at_next_second()
        limit = draw(mostly(100, 1))
        rows = self.fetch("instantiate_due_jobs($1)", limit)
        expected = {UUID(int=job.id): answer for job, answer in self.model.instantiate_due(limit).items()}
        same({row["job_id"]: (row["answer"], row["reason"]) for row in rows}, expected)

    def next_job_id(self) -> int:
        return len(self.model.jobs) + 1

    # Attempts

    def claim(self, draw: Draw, *, start: bool = False) -> list[Ticket]:
        self.at_next_second()
        wanted = {task.step.service for task in self.ready} or {"mixer"}
        service, agent, limit = draw(st.sampled_from(sorted(wanted))), draw(agents), draw(st.integers(1, 4))
        return self.claim_of(service, agent, limit, start=start)

    def claim_of(self, service: str, agent: Agent, limit: int, *, start: bool) -> list[Ticket]:
        rows = self.run(self.call_claim(self.world.conn, service, agent, limit, start=start))
        expected = self.model.claim(service, agent, limit)
        if start:
            self.model.start(expected)
        return self.expect_claimed(rows, expected, "running" if start else "starting")

    def claim_and_start(self, draw: Draw) -> None:
        """In one call, or one after the other, by turns: the same."""
        if self.model.now % 2:
            self.claim(draw, start=True)
        elif tickets := self.claim(draw):
            self.start_these(tickets)

    def claim_beside_another_service(self, draw: Draw) -> None:
        """The claim of one service, not committed yet, hides nothing from the other: the order is the same for both."""
        self.at_next_second()
        first, second, limit = draw(agents), draw(agents), draw(st.integers(1, 2))

        async def both() -> tuple[list[Any], list[Any]]:
            async with self.world.other.transaction():
                audio = await self.call_claim(self.world.other, "audio", first, limit)
                return audio, await self.call_claim(self.world.conn, "video", second, limit)

        audio, video = self.run(both())
        self.expect_claimed(audio, self.model.claim("audio", first, limit))
        self.expect_claimed(video, self.model.claim("video", second, limit))

    def call_claim(
        self, conn: Connection, service: str, agent: Agent, limit: int, *, start: bool = False
    ) -> Awaitable[list[Any]]:
        lease = timedelta(seconds=LEASE)
        return conn.fetch(
            "SELECT * FROM accs.claim_tasks($1, $2, $3, $4, $5, $6)", service, *agent, limit, lease, start
        )

    def expect_claimed(self, rows: list[Any], expected: list[Ticket], status: str = "starting") -> list[Ticket]:
        self.tickets += expected
        got = [(row["task_id"], row["attempt_id"], row["status"]) for row in rows]
        same(got, [(self.task_id(ticket.task), ticket.attempt_id, status) for ticket in expected])
        return expected

    def adopt(self, draw: Draw) -> None:
        self.at_next_second()
        agent = draw(agents)
        rows = self.fetch("adopt_tasks($1, $2, $3)", *agent, timedelta(seconds=LEASE))
        expected = {(self.task_id(t), t.attempt_id, t.status) for t in self.model.adopt(agent)}
        same({(row["task_id"], row["attempt_id"], row["status"]) for row in rows}, expected)

    def start(self, draw: Draw) -> None:
        self.at_next_second()
        self.start_these(self.draw_tickets(draw))

    def start_these(self, tickets: list[Ticket]) -> None:
        self.expect(self.fetch("start_tasks($1, $2, $3)", *self.fence(tickets)), self.model.start(tickets))

    def heartbeat(self, draw: Draw) -> None:
        self.at_next_second()
        tickets = self.draw_tickets(draw)
        ids, attempt_ids, owner = self.fence(tickets)
        lease = timedelta(seconds=LEASE)
        rows = self.fetch("heartbeat('south', $1, $2, $3, $4)", owner, ids, attempt_ids, lease)
        self.expect(rows, self.model.heartbeat(tickets))

    def report_progress(self, draw: Draw) -> None:
        self.at_next_second()
        tickets, progress = self.draw_tickets(draw), draw(st.sampled_from([0.25, 0.5, 1.0, 0.0]))
        rows = self.fetch(
            "report_progress($1, $2, $3, $4::float8[]::numeric[])",
            *self.fence(tickets),
            [progress] * len(tickets),
        )
        self.expect(rows, self.model.report_progress(tickets, progress))

    def record_output(self, draw: Draw) -> None:
        self.at_next_second()
        ticket = self.draw_tickets(draw)[0]
        key = f"{ticket.task.job.id}/{ticket.task.key}/{ticket.attempt_id}"
        (row,) = self.fetch(
            "record_artifact($1, $2, $3, 'output', 'bucket', $4)",
            self.task_id(ticket.task),
            ticket.attempt_id,
            ticket.owner,
            key,
        )
        same((row["answer"], row["reason"]), self.model.record_output(ticket))

    def finish_done(self, draw: Draw) -> None:
        self.finish_with([Verdict(ticket, "done") for ticket in self.draw_tickets(draw)])

    def finish(self, draw: Draw) -> None:
        tickets, code = self.draw_tickets(draw), draw(st.sampled_from(["oom", "timeout", None]))
        words = [draw(st.sampled_from(["error", "permanent", "done"])) for _ in tickets]
        self.finish_with(
            [
                Verdict(ticket, "done" if word == "done" else "error", word == "permanent", code)
                for ticket, word in zip(tickets, words, strict=True)
            ]
        )

    def finish_with(self, verdicts: list[Verdict]) -> None:
        self.at_next_second()
        ids, attempt_ids, owner = self.fence([verdict.ticket for verdict in verdicts])
        rows = self.fetch(
            "finish_tasks($1, $2, $3, $4, NULL, $5, NULL, $6)",
            ids,
            attempt_ids,
            owner,
            [verdict.outcome for verdict in verdicts],
            [verdict.code for verdict in verdicts],
            [verdict.permanent for verdict in verdicts],
        )
        self.expect(rows, self.model.finish(verdicts))

    def release(self, draw: Draw) -> None:
        self.at_next_second()
        tickets, lost, delay = self.draw_tickets(draw), draw(st.booleans()), draw(mostly(None, 20))
        rows = self.fetch(
            "release_tasks($1, $2, $3, NULL, $4, $5)",
            *self.fence(tickets),
            lost,
            None if delay is None else timedelta(seconds=delay),
        )
        self.expect(rows, self.model.release(tickets, lost=lost, delay=delay))

    def reclaim(self, draw: Draw) -> None:
        self.reclaim_after(draw(mostly(LEASE + 5, 1)))

    def reclaim_after(self, seconds: float) -> None:
        self.at_next_second(seconds)
        self.expect(self.fetch("reclaim_tasks(100, '1 s')"), self.model.reclaim(1))

    def outlive(self, draw: Draw) -> None:
        """An attempt speaks when its lease is over and its owner has the task again, or somebody else has: one by one,
        these would seldom follow each other."""
        ticket = back([each for each in self.tickets if each.is_current], draw(recent))
        self.reclaim_after(LEASE + 5)
        self.at_next_second()
        self.claim_of(ticket.task.step.service, (ticket.owner, NODE_OF[ticket.owner]), 4, start=True)
        self.finish_with([Verdict(ticket, "done")])

    def wait(self, draw: Draw) -> None:
        self.at_next_second(draw(st.sampled_from([8, 35, LEASE + 1])))

    # What a resolver says

    def resolve(self, draw: Draw) -> None:
        self.at_next_second()
        self.expect_to_resolve()
        for_a_resolver = [task for task in self.tasks if task.resolve is not None]
        if not for_a_resolver:
            return
        pool = self.model.to_resolve if draw(mostly(True, False)) else for_a_resolver
        chosen = {back(pool or for_a_resolver, index): None for index in draw(some)}
        findings = [
            Finding(
                task,
                task.generation - draw(mostly(0, 1)),
                draw(st.sampled_from(["run", "run", "skip", "error", "done"])),
                draw(mostly(0, 30)),
                draw(mostly(CACHE, None)),
            )
            for task in chosen
        ]
        said = [
            {
                "task_id": str(self.task_id(finding.task)),
                "generation": finding.generation,
                "verdict": finding.verdict,
                "delay": finding.delay,
                "cache_for": finding.cache,
                "reason": {"skip": "condition_false", "error": "template_error"}.get(finding.verdict),
            }
            for finding in findings
        ]
        self.expect(self.fetch("resolve_tasks($1)", said), self.model.resolve(findings))

    def submit_and_resolve(self, _draw: Draw) -> None:
        """A step with cache, several times: one by one, two jobs of it would seldom come so far in an example."""
        job_id = self.next_job_id()
        self.submit_job("memo", 5, None, None)
        self.the_rows_are_the_models()
        job = self.model.jobs.get(job_id)
        if job is not None and job.tasks:
            self.at_next_second()
            finding = Finding(job.tasks["memo"], 0, "run", cache=CACHE)
            said = {"task_id": str(self.task_id(finding.task)), "generation": 0, "verdict": "run", "cache_for": CACHE}
            self.expect(self.fetch("resolve_tasks($1)", [said]), self.model.resolve([finding]))

    def fan_out(self, draw: Draw) -> None:
        self.at_next_second()
        self.expect_to_resolve()
        fans = [task for task in self.tasks if task.resolve is not None and task.step.fans]
        if not fans:
            return
        waiting = [task for task in self.model.to_resolve if task.step.fans]
        task = back(waiting if waiting and draw(mostly(True, False)) else fans, draw(recent))
        items = [draw(mostly(True, False)) for _ in range(draw(st.sampled_from([2, 3, 1, 0])))]
        delays = [draw(mostly(0, 30)) for _ in items]
        generation, tolerate = task.generation - draw(mostly(0, 1)), draw(st.integers(0, 2))
        parallel = None if task.step.concurrency_key else draw(st.sampled_from([1, None, 2]))
        self.fan_out_of(task, generation, items, delays, parallel, tolerate, draw(st.sampled_from([CACHE, None])))

    def submit_and_fan_out(self, _draw: Draw) -> None:
        """A step whose items run one at a time: one by one, its job, its limit and a claim of two would seldom meet."""
        job_id = self.next_job_id()
        self.submit_job("mapped", 5, None, None)
        self.the_rows_are_the_models()
        job = self.model.jobs.get(job_id)
        if job is not None and job.tasks:
            self.at_next_second()
            self.fan_out_of(job.tasks["each"], 0, [True, True], [0, 0], 1, 0, None)

    def fan_out_of(
        self,
        task: Task,
        generation: int,
        items: list[bool],
        delays: list[int],
        parallel: int | None,
        tolerate: int,
        cache: int | None,
    ) -> None:
        (row,) = self.fetch(
            "fan_out($1, $2, $3, $4, $5, $6, $7)",
            self.task_id(task),
            generation,
            [{"with": {"item": index}} if runs else None for index, runs in enumerate(items)],
            parallel,
            tolerate,
            delays,
            cache,
        )
        expected = self.model.fan_out(task, generation, items, delays, parallel, tolerate, cache)
        same((row["answer"], row["reason"]), expected)

    def expect_to_resolve(self) -> None:
        rows = self.fetch("tasks_to_resolve()")
        same([row["task_id"] for row in rows], [self.task_id(task) for task in self.model.to_resolve])

    # Operators

    def skip(self, draw: Draw) -> None:
        self.at_next_second()
        if not self.tasks:
            return
        open_first = sorted(self.tasks, key=lambda task: task.status == "queued")
        tasks = list({back(open_first, index): None for index in draw(some)})
        reason = draw(mostly("condition_false", "not_needed"))
        rows = self.fetch("skip_tasks($1, $2)", [self.task_id(task) for task in tasks], reason)
        self.expect(rows, self.model.skip(tasks, reason))

    def change(self, draw: Draw) -> None:
        self.at_next_second()
        job = back(self.jobs, draw(recent))
        priority, later = draw(mostly(9, 0, 5, None)), draw(mostly(None, 30))
        due = None if later is None else self.model.now + later + job.id / 1000
        (row,) = self.fetch(
            "change_jobs(ARRAY[$1::uuid], $2, NULL, $3)",
            UUID(int=job.id),
            priority,
            None if due is None else self.world.base + timedelta(seconds=due),
        )
        same((row["answer"], row["reason"]), self.model.change(job, priority, due))

    def cancel(self, draw: Draw) -> None:
        self.at_next_second()
        job = back(self.jobs, draw(recent))
        (row,) = self.fetch("cancel_jobs(ARRAY[$1::uuid])", UUID(int=job.id))
        same((row["answer"], row["reason"]), self.model.cancel(job))

    def close(self, draw: Draw) -> None:
        job = back(self.jobs, draw(recent))
        (row,) = self.fetch("close_jobs(ARRAY[$1::uuid])", UUID(int=job.id))
        same((row["answer"], row["reason"]), self.model.close(job))

    def redrive(self, draw: Draw) -> None:
        self.at_next_second()
        if not self.model.letters:
            return
        letters = list({back(self.model.letters, index): None for index in draw(some)})
        rows = self.fetch("redrive($1)", [self.letter_id(letter) for letter in letters])
        expected = {self.letter_id(letter): answer for letter, answer in self.model.redrive(letters).items()}
        same({row["dead_letter_id"]: (row["answer"], row["reason"]) for row in rows}, expected)

    def dismiss(self, draw: Draw) -> None:
        if not self.model.letters:
            return
        letter = back(self.model.letters, draw(recent))
        (row,) = self.fetch("dismiss(ARRAY[$1::bigint])", self.letter_id(letter))
        same((row["answer"], row["reason"]), self.model.dismiss(letter))

    def retry(self, draw: Draw) -> None:
        self.at_next_second()
        closed_first = sorted(self.jobs, key=lambda job: job.status in TERMINAL)
        job = back(closed_first, draw(recent))
        key = draw(st.sampled_from([None, *(job.tasks or ["no such step"])]))
        (row,) = self.fetch("retry_jobs(ARRAY[$1::uuid], ARRAY[$2::text])", UUID(int=job.id), key)
        same((row["answer"], row["reason"]), self.model.retry(job, key))

    def pause(self, draw: Draw) -> None:
        self.at_next_second()
        what = draw(st.sampled_from(PAUSABLE))
        same(self.value("pause($1, $2)", *what), self.model.pause(*what))

    def resume(self, draw: Draw) -> None:
        self.at_next_second()
        what = draw(st.sampled_from(sorted(self.model.pauses) or PAUSABLE))
        same(self.value("resume($1, $2)", *what), self.model.resume(*what))

    def set_limit(self, draw: Draw) -> None:
        key, limit = draw(st.sampled_from(sorted(LIMITS))), draw(st.integers(1, 3))
        if self.model.running_with(key) > limit:
            self.lowered.add(key)
        same(self.value("set_concurrency_limit($1, $2)", key, limit), self.model.set_limit(key, limit))

    def recheck_holds(self, _draw: Draw) -> None:
        """Calls that come one after the other leave nothing to it."""
        same(self.value("recheck_holds()"), 0)

    def switch_workflow(self, draw: Draw) -> None:
        workflow = draw(st.sampled_from(["chain", "fan"]))
        self.model.inactive ^= {workflow}
        self.execute("UPDATE public.workflows SET is_active = NOT is_active WHERE name = $1", workflow)

    # What must hold after every call

    def second(self, moment: datetime | None) -> float | None:
        return None if moment is None else (moment - self.world.base).total_seconds()

    @invariant()
    def the_rows_are_the_models(self) -> None:
        rows = self.run(
            self.world.conn.fetch(
                "SELECT t.*, j.status AS job_status, j.error_code AS job_code, j.generation AS job_generation"
                " FROM public.jobs j LEFT JOIN public.job_tasks t ON t.job_id = j.id"
            )
        )
        self.task_ids = {(row["job_id"].int, row["task_key"]): row["id"] for row in rows if row["id"]}
        got = {
            (row["job_id"].int, row["task_key"]): (
                (row["job_status"], row["job_code"], row["job_generation"]),
                (row["status"], row["attempt_id"], row["generation"], row["attempt"], row["lost"]),
                (row["lease_owner"], self.second(row["lease_until"]), self.second(row["next_attempt_at"])),
                (float(row["progress"]), row["error_code"]),
                (row["resolve"], row["items"], row["tolerated"] is True),
            )
            for row in rows
            if row["id"]
        }
        expected = {
            (task.job.id, task.key): (
                (task.job.status, task.job.code, task.job.generation),
                (task.status, task.attempt_id, task.generation, task.attempt, task.lost),
                (task.owner, task.lease_until, task.due),
                (float(task.progress), task.code),
                (task.resolve, task.fan.items if task.fan else None, task.tolerated),
            )
            for task in self.tasks
        }
        same(got, expected)
        without_tasks = sorted((row["job_status"], row["job_code"]) for row in rows if not row["id"])
        same(without_tasks, sorted((job.status, job.code) for job in self.jobs if not job.tasks))

    @invariant()
    def the_letters_are_the_models(self) -> None:
        rows = self.run(self.world.conn.fetch("SELECT * FROM public.dead_letters"))
        self.letter_ids = {(row["job_task_id"], row["generation"]): row["id"] for row in rows}
        got = {row["id"]: (bool(row["redriven_at"]), bool(row["dismissed_at"])) for row in rows}
        same(got, {self.letter_id(x): (x.redriven, x.dismissed) for x in self.model.letters})

    @invariant()
    def the_checker_finds_nothing(self) -> None:
        self.lowered = {key for key in self.lowered if self.model.running_with(key) > self.model.limits[key]}
        self.run(check(self.world.conn, lowered=self.lowered))


def drive(world: World, examples: int, *, always_the_same: bool = True, shrink: bool = True) -> None:
    """Runs that many examples; fails with the first that went wrong, made as short as can be if that is wanted."""
    how = settings(
        max_examples=examples,
        stateful_step_count=40,
        derandomize=always_the_same,
        database=None,
        deadline=None,
        report_multiple_bugs=False,
        phases=(Phase.generate, Phase.shrink) if shrink else (Phase.generate,),
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
    )
    run_state_machine_as_test(type("MachineOnItsWorld", (StateMachine,), {"world": world}), settings=how)
