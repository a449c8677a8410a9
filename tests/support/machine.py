"""A Hypothesis machine that calls the verbs at random, on a real database and on the model, and compares after every call.

Every call happens at a second of its own on a clock that stands still otherwise, and ids are given by the machine: an example
repeats exactly. After each call the rows must be the model's, and the history checker must find nothing.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import AsyncExitStack, contextmanager
from datetime import datetime, timedelta
from typing import Any, ClassVar, TypeVar
from uuid import UUID

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.support.checker import check
from tests.support.cluster import Connection, TestServer, open_connection
from tests.support.model import LEASE, Answer, Job, Letter, Model, Node, Step, Task, Ticket, Verdict

T = TypeVar("T")

# Two services without concurrency keys, so that their claims never wait for one another, and one with.
WORKFLOWS = {
    "chain": [
        Step("a", "audio", max_attempts=2),
        Step("b", "video", ("a",), max_attempts=1),
        Step("c", "audio", ("b",)),
    ],
    "diamond": [
        Step("top", "audio"),
        Step("left", "video", ("top",), max_attempts=2),
        Step("right", "video", ("top",), gpu=True, backoff=10),
        Step("bottom", "audio", ("left", "right")),
    ],
    "fan": [
        Step("root", "video", max_attempts=1),
        Step("x", "audio", ("root",), max_attempts=1),
        Step("y", "audio", ("root",), max_attempts=1),
        Step("z", "video", ("root", "x"), node="north"),
    ],
    "keyed": [
        Step("p", "mixer", concurrency_key="disk"),
        Step("q", "mixer", concurrency_key="disk", max_attempts=1),
        Step("r", "mixer", ("p",), concurrency_key="net"),
    ],
    "shared": [
        Step("s", "mixer", concurrency_key="disk", gpu=True, max_attempts=2, backoff=10),
        Step("t", "mixer", concurrency_key="net"),
        Step("u", "mixer", concurrency_key="net", gpu=True),
        Step("v", "audio", ("s", "u")),
    ],
}
LIMITS = {"disk": 1, "net": 2}
NODES = [Node("north", gpu=False, capacity={"audio": 2}), Node("south", gpu=True, capacity={})]
AGENTS = [("ann", "north"), ("sam", "south"), ("sue", "south")]
PAUSABLE = [
    ("service", "audio"),
    ("service", "mixer"),
    ("workflow", "keyed"),
    ("workflow", "shared"),
    ("workflow", "diamond"),
    ("node", "south"),
]

RESET = """
SET session_replication_role = replica;
DELETE FROM public.task_events; DELETE FROM public.task_artifacts; DELETE FROM public.dead_letters;
DELETE FROM accs.waiting; DELETE FROM accs.live; DELETE FROM accs.pending_jobs; DELETE FROM accs.pauses;
DELETE FROM public.job_tasks; DELETE FROM public.jobs;
UPDATE accs.test_clock SET shift = '0';
UPDATE public.workflows SET is_active = true WHERE NOT is_active;
SET session_replication_role = origin;
"""


class World:
    """A database with the workflows and nodes above, two connections to it, and the loop they live on."""

    def __init__(self, runner: asyncio.Runner, conn: Connection, other: Connection, base: datetime) -> None:
        self.runner = runner
        self.conn = conn
        self.other = other
        self.base = base
        self.workflow_ids: dict[str, UUID] = {}

    @classmethod
    async def open(cls, runner: asyncio.Runner, url: str) -> "World":
        conn, other = await open_connection(url), await open_connection(url)
        base = await conn.fetchval("SELECT date_trunc('second', now())")
        await conn.execute(
            "CREATE OR REPLACE FUNCTION accs.clock() RETURNS timestamptz LANGUAGE sql STABLE AS"
            f" $$ SELECT timestamptz '{base.isoformat()}' + (SELECT shift FROM accs.test_clock) $$"
        )
        world = cls(runner, conn, other, base)
        for name, steps in WORKFLOWS.items():
            world.workflow_ids[name] = await conn.fetchval(
                "INSERT INTO public.workflows (name, steps) VALUES ($1, $2) RETURNING id",
                name,
                [as_document(step) for step in steps],
            )
        for node in NODES:
            labels = {"gpu": True} if node.gpu else {}
            await conn.execute(
                "SELECT FROM accs.register_node($1, $2, $3)", node.name, labels, node.capacity
            )
        return world

    async def reset(self) -> None:
        await self.conn.execute(RESET)
        await self.conn.executemany(
            "UPDATE accs.concurrency_keys SET max_running = $2 WHERE key = $1", list(LIMITS.items())
        )

    async def close(self) -> None:
        await self.conn.close()
        await self.other.close()


@contextmanager
def world_on(server: TestServer, plant: Callable[[Connection], Awaitable[None]] | None = None) -> Iterator[World]:
    """A world in a database of its own; `plant` may change its schema first."""
    with asyncio.Runner() as runner:
        resources = AsyncExitStack()

        async def enter() -> World:
            world = await World.open(runner, await resources.enter_async_context(server.cloned()))
            resources.push_async_callback(world.close)
            if plant:
                await plant(world.conn)
            return world

        try:
            yield runner.run(enter())
        finally:
            runner.run(resources.aclose())


def as_document(step: Step) -> dict[str, Any]:
    document: dict[str, Any] = {
        "key": step.key,
        "service": step.service,
        "depends_on": list(step.depends_on),
        "max_attempts": step.max_attempts,
        "backoff": {"strategy": "fixed", "base": step.backoff},
    }
    if step.gpu:
        document["requires"] = {"gpu": True}
    if step.node:
        document["node"] = step.node
    if step.concurrency_key:
        document["concurrency_key"] = step.concurrency_key
        document["concurrency_limit"] = LIMITS[step.concurrency_key]
    return document


recent = st.integers(0, 7)  # how far back in a list; what came last is the likeliest
some = st.lists(recent, min_size=1, max_size=3)
agents = st.sampled_from(AGENTS)
services = st.sampled_from(["audio", "video", "mixer"])


def back(items: list[T], index: int) -> T:
    return items[-1 - index % len(items)]


class StateMachine(RuleBasedStateMachine):
    """All verbs. `world` is set by `machine_on`."""

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
            return await work

        return self.world.runner.run(awaited())

    def at_next_second(self, seconds: float = 1) -> None:
        self.model.now += seconds
        shift = timedelta(seconds=self.model.now)
        self.run(self.world.conn.execute("UPDATE accs.test_clock SET shift = $1", shift))

    def fetch(self, verb: str, *arguments: Any) -> list[Any]:
        return self.run(self.world.conn.fetch(f"SELECT * FROM accs.{verb}", *arguments))

    def value(self, verb: str, *arguments: Any) -> Any:
        return self.run(self.world.conn.fetchval(f"SELECT accs.{verb}", *arguments))

    # What the model calls by name, the database calls by id

    def task_id(self, task: Task) -> UUID:
        return self.task_ids[task.job.id, task.step.key]

    def letter_id(self, letter: Letter) -> int:
        return self.letter_ids[self.task_id(letter.task), letter.generation]

    @property
    def jobs(self) -> list[Job]:
        return list(self.model.jobs.values())

    @property
    def tasks(self) -> list[Task]:
        return list(self.model.tasks)

    def choose(self, indexes: Iterable[int], impostor: bool = False) -> list[Ticket]:
        """Some tickets, at most one for a task; for an impostor they carry another owner's name."""
        chosen = {ticket.task: ticket for ticket in (back(self.tickets, index) for index in indexes)}
        if not impostor:
            return list(chosen.values())
        return [Ticket(ticket.task, ticket.attempt_id, "eve") for ticket in chosen.values()]

    def same_owner(self, tickets: list[Ticket]) -> list[Ticket]:
        """One call speaks for one owner."""
        return [ticket for ticket in tickets if ticket.owner == tickets[0].owner]

    def fence(self, tickets: list[Ticket]) -> tuple[list[UUID], list[int], str]:
        ids = [self.task_id(ticket.task) for ticket in tickets]
        return ids, [ticket.attempt_id for ticket in tickets], tickets[0].owner

    def expect(self, rows: list[Any], expected: dict[Task, Answer]) -> None:
        answers = {row["id"]: (row["answer"], row["reason"]) for row in rows}
        assert answers == {self.task_id(task): answer for task, answer in expected.items()}
        assert len(rows) == len(answers)

    # Submission

    def next_job_id(self) -> int:
        return len(self.model.jobs) + 1

    @rule(
        workflow=st.sampled_from(list(WORKFLOWS)),
        priority=st.sampled_from([0, 0, 0, 5]),
        later=st.sampled_from([None, None, None, 40, -40]),
        key=st.sampled_from([None, None, None, "one", "two"]),
    )
    def submit(self, workflow: str, priority: int, later: int | None, key: str | None) -> None:
        self.at_next_second()
        job_id = self.next_job_id()
        # no two due times are the same, so that their order is known
        due = None if later is None else self.model.now + later + job_id / 1000
        (row,) = self.fetch(
            "submit_jobs(ARRAY[$1::uuid], NULL, ARRAY[$2::int], ARRAY[$3::timestamptz], ARRAY[$4::text], ARRAY[$5::uuid])",
            self.world.workflow_ids[workflow],
            priority,
            None if due is None else self.world.base + timedelta(seconds=due),
            key,
            UUID(int=job_id),
        )
        answer, job = self.model.submit(job_id, workflow, priority, due, key)
        assert (row["answer"], row["reason"]) == answer
        if job is not None:
            assert (row["job_id"], row["status"]) == (UUID(int=job.id), job.status)

    @rule(workflow=st.sampled_from(list(WORKFLOWS)), priority=st.sampled_from([0, 5]))
    def insert_a_job(self, workflow: str, priority: int) -> None:
        self.at_next_second()
        job = self.model.insert(self.next_job_id(), workflow, priority)
        work = self.world.conn.execute(
            "INSERT INTO public.jobs (id, workflow_id, priority) VALUES ($1, $2, $3)",
            UUID(int=job.id),
            self.world.workflow_ids[workflow],
            priority,
        )
        self.run(work)

    @precondition(lambda self: any(job.status == "queued" for job in self.jobs))
    @rule(limit=st.sampled_from([100, 1]))
    def instantiate_due_jobs(self, limit: int) -> None:
        self.at_next_second()
        rows = self.fetch("instantiate_due_jobs($1)", limit)
        expected = {UUID(int=job.id): answer for job, answer in self.model.instantiate_due(limit).items()}
        assert {row["job_id"]: (row["answer"], row["reason"]) for row in rows} == expected

    @rule(workflow=st.sampled_from(["chain", "fan"]))
    def switch_a_workflow_on_or_off(self, workflow: str) -> None:
        self.model.inactive ^= {workflow}
        work = self.world.conn.execute(
            "UPDATE public.workflows SET is_active = NOT is_active WHERE name = $1", workflow
        )
        self.run(work)

    # Attempts

    def claimed(self, rows: list[Any], expected: list[Ticket]) -> None:
        self.tickets += expected
        self.learn_task_ids()
        got = [(row["task_id"], row["attempt_id"], row["status"]) for row in rows]
        assert got == [(self.task_id(ticket.task), ticket.attempt_id, "starting") for ticket in expected]

    def call_claim(
        self, conn: Connection, service: str, agent: tuple[str, str], limit: int
    ) -> Awaitable[list[Any]]:
        lease = timedelta(seconds=LEASE)
        return conn.fetch(
            "SELECT * FROM accs.claim_tasks($1, $2, $3, $4, $5)", service, *agent, limit, lease
        )

    @precondition(lambda self: self.model.jobs)
    @rule(service=services, agent=agents, limit=st.integers(1, 4))
    def claim(self, service: str, agent: tuple[str, str], limit: int) -> None:
        self.at_next_second()
        rows = self.run(self.call_claim(self.world.conn, service, agent, limit))
        self.claimed(rows, self.model.claim(service, *agent, limit))

    @precondition(lambda self: self.model.jobs)
    @rule(service=services, agent=agents, limit=st.integers(1, 4))
    def claim_and_start(self, service: str, agent: tuple[str, str], limit: int) -> None:
        before = len(self.tickets)
        self.claim(service, agent, limit)
        if fresh := self.tickets[before:]:
            self.expect(self.fetch("start_tasks($1, $2, $3)", *self.fence(fresh)), self.model.start(fresh))

    @precondition(lambda self: self.model.jobs)
    @rule(first=agents, second=agents, limit=st.integers(1, 2))
    def claim_while_another_service_claims(
        self, first: tuple[str, str], second: tuple[str, str], limit: int
    ) -> None:
        """The claim of one service, not committed yet, hides nothing from the other: the order is the same for both."""
        self.at_next_second()

        async def both() -> tuple[list[Any], list[Any]]:
            async with self.world.other.transaction():
                audio = await self.call_claim(self.world.other, "audio", first, limit)
                return audio, await self.call_claim(self.world.conn, "video", second, limit)

        audio, video = self.run(both())
        self.claimed(audio, self.model.claim("audio", *first, limit))
        self.claimed(video, self.model.claim("video", *second, limit))

    @rule(agent=agents)
    def adopt(self, agent: tuple[str, str]) -> None:
        self.at_next_second()
        rows = self.fetch("adopt_tasks($1, $2, $3)", *agent, timedelta(seconds=LEASE))
        expected = {(self.task_id(t), t.attempt_id, t.status) for t in self.model.adopt(*agent)}
        assert {(row["task_id"], row["attempt_id"], row["status"]) for row in rows} == expected

    @precondition(lambda self: self.tickets)
    @rule(indexes=some, impostor=st.sampled_from([False, False, False, True]))
    def start(self, indexes: list[int], impostor: bool) -> None:
        self.at_next_second()
        tickets = self.same_owner(self.choose(indexes, impostor))
        self.expect(self.fetch("start_tasks($1, $2, $3)", *self.fence(tickets)), self.model.start(tickets))

    @precondition(lambda self: self.tickets)
    @rule(indexes=some, impostor=st.sampled_from([False, False, False, True]))
    def heartbeat(self, indexes: list[int], impostor: bool) -> None:
        self.at_next_second()
        tickets = self.same_owner(self.choose(indexes, impostor))
        ids, attempt_ids, owner = self.fence(tickets)
        lease = timedelta(seconds=LEASE)
        rows = self.fetch("heartbeat('south', $1, $2, $3, $4)", owner, ids, attempt_ids, lease)
        self.expect(rows, self.model.heartbeat(tickets))

    @precondition(lambda self: self.tickets)
    @rule(indexes=some, progress=st.sampled_from([0.0, 0.25, 0.5, 1.0]))
    def report_progress(self, indexes: list[int], progress: float) -> None:
        self.at_next_second()
        tickets = self.same_owner(self.choose(indexes))
        rows = self.fetch(
            "report_progress($1, $2, $3, $4::float8[]::numeric[])",
            *self.fence(tickets),
            [progress] * len(tickets),
        )
        self.expect(rows, self.model.report_progress(tickets, progress))

    @precondition(lambda self: self.tickets)
    @rule(index=recent)
    def record_an_output(self, index: int) -> None:
        self.at_next_second()
        ticket = back(self.tickets, index)
        key = f"{ticket.task.job.id}/{ticket.task.step.key}/{ticket.attempt_id}"
        (row,) = self.fetch(
            "record_artifact($1, $2, $3, 'output', 'bucket', $4)",
            self.task_id(ticket.task),
            ticket.attempt_id,
            ticket.owner,
            key,
        )
        assert (row["answer"], row["reason"]) == self.model.record_output(ticket)

    def finish(self, verdicts: list[Verdict]) -> None:
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

    @precondition(lambda self: self.tickets)
    @rule(indexes=some, impostor=st.sampled_from([False, False, False, True]))
    def finish_done(self, indexes: list[int], impostor: bool) -> None:
        tickets = self.same_owner(self.choose(indexes, impostor))
        self.finish([Verdict(ticket, "done") for ticket in tickets])

    @precondition(lambda self: self.tickets)
    @rule(
        indexes=some,
        said=st.lists(st.sampled_from(["done", "error", "permanent"]), min_size=3, max_size=3),
        code=st.sampled_from([None, "oom", "timeout"]),
    )
    def finish_one_way_or_another(self, indexes: list[int], said: list[str], code: str | None) -> None:
        tickets = self.same_owner(self.choose(indexes))
        self.finish(
            [
                Verdict(ticket, "done")
                if word == "done"
                else Verdict(ticket, "error", permanent=word == "permanent", code=code)
                for ticket, word in zip(tickets, said, strict=False)
            ]
        )

    @precondition(lambda self: self.tickets)
    @rule(indexes=some, lost=st.booleans(), delay=st.sampled_from([None, 20]))
    def release(self, indexes: list[int], lost: bool, delay: int | None) -> None:
        self.at_next_second()
        tickets = self.same_owner(self.choose(indexes))
        rows = self.fetch(
            "release_tasks($1, $2, $3, NULL, $4, $5)",
            *self.fence(tickets),
            lost,
            None if delay is None else timedelta(seconds=delay),
        )
        self.expect(rows, self.model.release(tickets, lost=lost, delay=delay))

    @precondition(lambda self: self.tickets)
    @rule(wait=st.sampled_from([0, LEASE + 5, LEASE + 5]))
    def reclaim(self, wait: int) -> None:
        self.at_next_second(1 + wait)
        self.expect(self.fetch("reclaim_tasks(100, '1 s')"), self.model.reclaim(1))

    @rule(seconds=st.sampled_from([8, 35, LEASE + 1]))
    def wait(self, seconds: int) -> None:
        self.at_next_second(seconds)

    # Operators

    @precondition(lambda self: self.tasks)
    @rule(indexes=some, reason=st.sampled_from(["condition_false", "not_needed"]))
    def skip(self, indexes: list[int], reason: str) -> None:
        self.at_next_second()
        tasks = list({back(self.tasks, index): None for index in indexes})
        rows = self.fetch("skip_tasks($1, $2)", [self.task_id(task) for task in tasks], reason)
        self.expect(rows, self.model.skip(tasks, reason))

    @precondition(lambda self: self.jobs)
    @rule(index=recent)
    def cancel(self, index: int) -> None:
        self.at_next_second()
        job = back(self.jobs, index)
        (row,) = self.fetch("cancel_jobs(ARRAY[$1::uuid])", UUID(int=job.id))
        assert (row["answer"], row["reason"]) == self.model.cancel(job)

    @precondition(lambda self: self.jobs)
    @rule(index=recent)
    def close_a_job(self, index: int) -> None:
        job = back(self.jobs, index)
        (row,) = self.fetch("close_jobs(ARRAY[$1::uuid])", UUID(int=job.id))
        assert (row["answer"], row["reason"]) == self.model.close(job)

    @precondition(lambda self: self.model.letters)
    @rule(indexes=some)
    def redrive(self, indexes: list[int]) -> None:
        self.at_next_second()
        letters = list({back(self.model.letters, index): None for index in indexes})
        rows = self.fetch("redrive($1)", [self.letter_id(letter) for letter in letters])
        expected = {self.letter_id(letter): answer for letter, answer in self.model.redrive(letters).items()}
        assert {row["dead_letter_id"]: (row["answer"], row["reason"]) for row in rows} == expected

    @precondition(lambda self: self.model.letters)
    @rule(index=recent)
    def dismiss(self, index: int) -> None:
        letter = back(self.model.letters, index)
        (row,) = self.fetch("dismiss(ARRAY[$1::bigint])", self.letter_id(letter))
        assert (row["answer"], row["reason"]) == self.model.dismiss(letter)

    @precondition(lambda self: any(job.status in ("done", "error", "cancelled") for job in self.jobs))
    @rule(index=recent, step=st.sampled_from([None, 0, 1, 2]))
    def retry(self, index: int, step: int | None) -> None:
        self.at_next_second()
        job = back(self.jobs, index)
        key = None if step is None else WORKFLOWS[job.workflow][step].key
        (row,) = self.fetch("retry_jobs(ARRAY[$1::uuid], ARRAY[$2::text])", UUID(int=job.id), key)
        assert (row["answer"], row["reason"]) == self.model.retry(job, key)

    @rule(what=st.sampled_from(PAUSABLE))
    def pause(self, what: tuple[str, str]) -> None:
        self.at_next_second()
        assert self.value("pause($1, $2)", *what) == self.model.pause(*what)

    @precondition(lambda self: self.model.pauses)
    @rule(index=recent)
    def resume(self, index: int) -> None:
        self.at_next_second()
        what = back(sorted(self.model.pauses), index)
        assert self.value("resume($1, $2)", *what) == self.model.resume(*what)

    @rule(key=st.sampled_from(sorted(LIMITS)), limit=st.integers(1, 3))
    def set_concurrency_limit(self, key: str, limit: int) -> None:
        if self.model.running_with(key) > limit:
            self.lowered.add(key)
        assert self.value("set_concurrency_limit($1, $2)", key, limit) == self.model.set_limit(key, limit)

    # What must hold after every call

    def learn_task_ids(self) -> None:
        if all((task.job.id, task.step.key) in self.task_ids for task in self.tasks):
            return
        rows = self.run(self.world.conn.fetch("SELECT id, job_id, task_key FROM public.job_tasks"))
        self.task_ids = {(row["job_id"].int, row["task_key"]): row["id"] for row in rows}

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
            )
            for row in rows
            if row["id"]
        }
        expected = {
            (task.job.id, task.step.key): (
                (task.job.status, task.job.code, task.job.generation),
                (task.status, task.attempt_id, task.generation, task.attempt, task.lost),
                (task.owner, task.lease_until, task.due),
                (float(task.progress), task.code),
            )
            for task in self.tasks
        }
        assert got == expected
        without_tasks = sorted((row["job_status"], row["job_code"]) for row in rows if not row["id"])
        assert without_tasks == sorted((job.status, job.code) for job in self.jobs if not job.tasks)

    @invariant()
    def the_letters_are_the_models(self) -> None:
        rows = self.run(self.world.conn.fetch("SELECT * FROM public.dead_letters"))
        self.letter_ids = {(row["job_task_id"], row["generation"]): row["id"] for row in rows}
        got = {row["id"]: (bool(row["redriven_at"]), bool(row["dismissed_at"])) for row in rows}
        assert got == {self.letter_id(x): (x.redriven, x.dismissed) for x in self.model.letters}

    @invariant()
    def the_checker_finds_nothing(self) -> None:
        self.lowered = {key for key in self.lowered if self.model.running_with(key) > self.model.limits[key]}
        self.run(check(self.world.conn, lowered=self.lowered))


def machine_on(world: World) -> Callable[[], StateMachine]:
    return type("MachineOnItsWorld", (StateMachine,), {"world": world})
