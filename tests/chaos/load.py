"""Who uses the fleet meanwhile: submitters, whose every submission is acknowledged once, however often it had to be
sent, and operators, who meddle with all of it."""

import asyncio
import random
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg

from tests.chaos.fleet import CONNECTION_LOST, Fleet
from tests.support.cli import Cli
from tests.support.cluster import Connection, open_connection
from tests.support.factory import chain, diamond, step, workflow

KEY = "press"
BACKLOG = 40  # open tasks; with more the submitters wait
_QUICKLY = {"strategy": "fixed", "base": 0.5}


def _steps(fleet: Fleet) -> dict[str, list[dict[str, Any]]]:
    """The workflows by name. What never fails by itself has no fate."""
    first = fleet.agents[0].name
    flows = {
        "single": [step("a", "work")],
        "chain": chain("a", "b", "c", service="work"),
        "diamond": diamond("work"),
        "keyed": [step(key, "work", concurrency_key=KEY, concurrency_limit=3) for key in "abc"],
        "tied": [step("a", "work", node=first), step("b", "work", after="a")],
        "doomed": [
            step("a", "work", default_params={"fate": "fails"}, max_attempts=2, backoff=_QUICKLY),
            step("b", "work", after="a"),
        ],
        "mapped": [
            step("a", "work", **{"if": "size(job.id) > 0"}),
            step("each", "work", after="a", for_each=4, if_item="index != 1", max_parallel=2),
            step("join", "work", after="each"),
        ],
    }
    if fleet.composed:
        flows["contained"] = [step("run", "box"), step("exec", "standing"), step("last", "work", after="run exec")]
    return {name: [{"backoff": _QUICKLY, **each} for each in steps] for name, steps in flows.items()}


_SHARES = {"single": 8, "chain": 3, "diamond": 2, "keyed": 2, "tied": 1, "doomed": 2, "mapped": 2, "contained": 2}


@dataclass
class Load:
    fleet: Fleet
    seed: int
    acknowledged: list[UUID] = field(default_factory=list)
    submissions: int = 0
    sent_again: int = 0
    operations: Counter[str] = field(default_factory=Counter)
    strange: list[str] = field(default_factory=list)  # what failed for another reason than a lost connection
    open_tasks: int = 0
    _workflows: dict[str, UUID] = field(default_factory=dict)
    _sending: set[asyncio.Future[None]] = field(default_factory=set)

    async def prepare(self) -> None:
        conn = await self.fleet.desk.connection()
        for name, steps in _steps(self.fleet).items():
            self._workflows[name] = await workflow(conn, *steps, name=name)

    # Submitters

    async def submit_on(self, number: int, *, pause: float) -> None:
        """Until it is cancelled."""
        rng = random.Random(f"{self.seed}/submitter {number}")
        line = _Line(self.fleet.submitting.through(self.fleet.url))
        try:
            while True:
                await asyncio.sleep(rng.expovariate(1 / pause))
                if self.open_tasks < BACKLOG:
                    # whoever stops us waits for the answer (`answered`): what it is must be known
                    sending = asyncio.ensure_future(self._submit(line, rng))
                    self._sending.add(sending)
                    sending.add_done_callback(self._sending.discard)
                    await asyncio.shield(sending)
        finally:
            await self.answered()
            await line.close()

    async def answered(self) -> None:
        """Returns when every submission has its answer."""
        await asyncio.gather(*self._sending)

    async def submit_long(self, count: int, work: float) -> None:
        """For the clean deaths: tasks that are under way for a while."""
        line, rng = _Line(self.fleet.url), random.Random(self.seed)
        await self._send(line, "submit_jobs", [self._drawn(rng, "single") | {"work": work} for _ in range(count)])
        await line.close()

    async def _submit(self, line: "_Line", rng: random.Random) -> None:
        names = [name for name in _SHARES if name in self._workflows]
        how = rng.choice(["insert", "submit", "submit_jobs"])
        count = rng.randint(2, 4) if how == "submit_jobs" else 1
        drawn = [
            self._drawn(rng, rng.choices(names, [_SHARES[name] for name in names])[0], rng.random() < 0.15)
            for _ in range(count)
        ]
        await self._send(line, how, drawn)

    def _drawn(self, rng: random.Random, name: str, later: bool = False) -> dict[str, Any]:
        self.submissions += 1
        work = rng.uniform(3, 7) if rng.random() < 0.1 else rng.expovariate(1 / 0.8)
        return {
            "workflow": name,
            "work": round(work, 2),
            "key": f"submission {self.submissions}",
            "id": UUID(int=rng.getrandbits(128), version=4),
            "priority": rng.randint(-3, 3),
            "at": datetime.now(UTC) + timedelta(seconds=rng.uniform(0.5, 4)) if later else None,
        }

    async def _send(self, line: "_Line", how: str, jobs: list[dict[str, Any]]) -> None:
        """The very same again, until it is acknowledged."""
        while True:
            conn = await line.connection()
            try:
                ids = await _SENDERS[how](self, conn, jobs)
            except CONNECTION_LOST:
                self.sent_again += 1
            except asyncpg.PostgresError as error:
                self.strange.append(f"{how}: {type(error).__name__}: {error}")
                return
            else:
                self.acknowledged += ids
                return

    async def _insert(self, conn: Connection, jobs: list[dict[str, Any]]) -> list[UUID]:
        """By anybody who knows the table: the id is the caller's own."""
        await conn.executemany(
            "INSERT INTO jobs (id, workflow_id, options, priority, scheduled_at, idempotency_key)"
            " VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT DO NOTHING",
            [
                (job["id"], self._workflows[job["workflow"]], _options(job), job["priority"], job["at"], job["key"])
                for job in jobs
            ],
        )
        return [job["id"] for job in jobs]

    async def _submit_by_name(self, conn: Connection, jobs: list[dict[str, Any]]) -> list[UUID]:
        [job] = jobs
        values = (job["workflow"], _options(job), job["priority"], job["at"], job["key"])
        return [await conn.fetchval("SELECT accs.submit($1, $2, $3, $4, $5)", *values)]

    async def _submit_jobs(self, conn: Connection, jobs: list[dict[str, Any]]) -> list[UUID]:
        rows = await conn.fetch(
            "SELECT job_id, answer FROM accs.submit_jobs($1, $2, $3, $4, $5)",
            [self._workflows[job["workflow"]] for job in jobs],
            [_options(job) for job in jobs],
            [job["priority"] for job in jobs],
            [job["at"] for job in jobs],
            [job["key"] for job in jobs],
        )
        self.strange += [f"submit_jobs: {row['answer']}" for row in rows if row["answer"] == "refused"]
        return [row["job_id"] for row in rows]

    # Operators

    async def operate_on(self, *, pause: float) -> None:
        rng = random.Random(f"{self.seed}/operator")
        cli = Cli(self.fleet.url)
        operations = [self._cancel, self._retry, self._redrive, self._pause, self._limit, self._by_hand]
        while True:
            await asyncio.sleep(rng.expovariate(1 / pause))
            operation = rng.choices(operations, [4, 3, 3, 3, 2, 1])[0]
            try:
                await operation(rng, cli)
            except CONNECTION_LOST:
                self.operations["lost"] += 1
            except asyncpg.PostgresError as error:
                self.strange.append(f"{operation.__name__}: {type(error).__name__}: {error}")

    async def _cancel(self, rng: random.Random, _: Cli) -> None:
        await self._about_a_job(rng, "cancel", "SELECT * FROM accs.cancel_jobs($1)", among=30)

    async def _retry(self, rng: random.Random, _: Cli) -> None:
        await self._about_a_job(rng, "retry", "SELECT * FROM accs.retry_jobs($1)", among=200)

    async def _about_a_job(self, rng: random.Random, name: str, query: str, *, among: int) -> None:
        if recent := self.acknowledged[-among:]:
            [row] = await self.fleet.desk.ask(query, [rng.choice(recent)])
            self.operations[f"{name} {row['answer']}"] += 1

    async def _redrive(self, rng: random.Random, _: Cli) -> None:
        rows = await self.fleet.desk.ask(
            "SELECT id FROM dead_letters WHERE redriven_at IS NULL AND dismissed_at IS NULL ORDER BY id DESC LIMIT 20"
        )
        if rows:
            [row] = await self.fleet.desk.ask("SELECT * FROM accs.redrive($1)", [rng.choice(rows)["id"]])
            self.operations[f"redrive {row['answer']}"] += 1

    async def _pause(self, rng: random.Random, _: Cli) -> None:
        kind, names = rng.choice(
            [
                ("workflow", list(self._workflows)),
                ("service", ["work"]),
                ("node", [each.name for each in self.fleet.agents]),
            ]
        )
        name = rng.choice(names)
        await self.fleet.desk.ask("SELECT accs.pause($1, $2)", kind, name)
        await asyncio.sleep(rng.uniform(0.2, 2))
        await self.fleet.desk.insist("SELECT accs.resume($1, $2)", kind, name)
        self.operations["pause"] += 1

    async def _limit(self, rng: random.Random, _: Cli) -> None:
        await self.fleet.desk.ask("SELECT accs.set_concurrency_limit($1, $2)", KEY, rng.randint(1, 5))
        self.operations["key limit"] += 1

    async def _by_hand(self, rng: random.Random, cli: Cli) -> None:
        """As a person would: the command line. Whatever it meets, it says so in words."""
        if not self.acknowledged:
            return
        job = str(rng.choice(self.acknowledged[-30:]))
        words = rng.choice([["cancel", job], ["retry", job], ["why", job], ["job", job], ["jobs"], ["nodes"]])
        said = await cli.process(*words)
        self.operations["commands"] += 1
        if said.code not in (0, 1, 3, 4) or "Traceback" in said.err:
            self.strange.append(f"accsd {' '.join(words)}: exit code {said.code}: {said.err[-300:]}")

    async def settle(self) -> None:
        """Nobody holds anything back any more."""
        await self.fleet.desk.insist("SELECT accs.resume(kind, name) FROM accs.pauses")
        await self.fleet.desk.insist("SELECT accs.set_concurrency_limit($1, 3)", KEY)

    async def is_over(self) -> bool:
        await self.look()
        [row] = await self.fleet.desk.insist(
            "SELECT count(*) AS n FROM jobs WHERE status NOT IN ('done', 'error', 'cancelled')"
        )
        return row["n"] == 0

    async def look(self) -> None:
        [row] = await self.fleet.desk.insist(
            "SELECT (SELECT count(*) FROM accs.waiting) + (SELECT count(*) FROM accs.live) AS n"
        )
        self.open_tasks = row["n"]


_SENDERS = {"insert": Load._insert, "submit": Load._submit_by_name, "submit_jobs": Load._submit_jobs}


def _options(job: dict[str, Any]) -> dict[str, Any]:
    return {"work": job["work"], "submission": job["key"]}


class _Line:
    """A submitter's connection, made anew when it is lost."""

    def __init__(self, url: str) -> None:
        self._url: str = url
        self._connection: Connection | None = None

    async def connection(self) -> Connection:
        """One that is open, as soon as there is one."""
        while self._connection is None or self._connection.is_closed():
            try:
                self._connection = await open_connection(self._url, timeout=3, command_timeout=5)
            except CONNECTION_LOST:
                await asyncio.sleep(0.2)
        return self._connection

    async def close(self) -> None:
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None
