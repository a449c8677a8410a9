"""Plain INSERTs and UPDATEs of jobs, workflows and nodes, beside the builder's roles: no row stops a pass.

A row is refused with a reason, or taken; what was taken and is due ends as its own error or runs.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from random import Random
from typing import Any, NamedTuple

import anyio
import asyncpg
import orjson
import pytest

from accsd.builder.calls import CallsUnderWay
from accsd.builder.cleanup import Cleanup
from accsd.builder.instantiate import Builder
from accsd.builder.judge import Judge
from accsd.builder.wake import Waker
from accsd.db import Database, Done, claim_tasks, finish_tasks, start_tasks
from accsd.db.install import install
from accsd.metrics import Metrics
from accsd.settings import QuarantineSettings, WakeSettings
from accsd.work.protocol import envelope
from tests.fuzz.cases import Run, at_length
from tests.fuzz.values import integer, json_text, moment, nested, number, text, value
from tests.support.checker import check
from tests.support.cluster import Connection, TestServer, open_connection
from tests.support.factory import LEASE, NODE, SERVICE, step
from tests.support.library import opened, url_as

WRITERS = ("owner", "accs_scheduler")
# Ours, data, constraints, rights, limits, and what a plain INSERT may well meet: a name or id that is there already.
REFUSALS = ("AC", "22", "23", "42501", "54")
PASS_EVERY = 15
DUE = """
SELECT id, scheduled_at::text FROM jobs WHERE status = 'queued' AND coalesce(scheduled_at, created_at) <= accs.clock()
"""


class Statement(NamedTuple):
    writer: str
    sql: str
    arguments: list[str | None]


def made(random: Random) -> Statement:
    writer = random.choice(WRITERS)
    make = random.choice((_job, _job, _job, _job_changed, _workflow, _workflow, _workflow_changed, _node))
    table, columns = make(random)
    names = list(columns)
    values = [f"${n}::text::{TYPES.get(name, 'text')}" for n, name in enumerate(names, 1)]
    if make in (_job_changed, _workflow_changed):
        changes = ", ".join(f"{name} = {given}" for name, given in zip(names, values, strict=True))
        one = f"(SELECT id FROM {table} ORDER BY md5(id::text || '{random.random()}') LIMIT 1)"
        return Statement(writer, f"UPDATE {table} SET {changes} WHERE id = {one}", list(columns.values()))
    if table == "jobs" and "workflow_id" not in columns:
        names.append("workflow_id")
        values.append(f"(SELECT id FROM workflows ORDER BY md5(id::text || '{random.random()}') LIMIT 1)")
    into = f"INSERT INTO {table} ({', '.join(names)}) VALUES ({', '.join(values)})"
    return Statement(writer, into, list(columns.values()))


Columns = dict[str, str | None]
Maker = Callable[[Random], Any]
TYPES = {
    **dict.fromkeys(("id", "workflow_id"), "uuid"),
    **dict.fromkeys(("priority", "task_count", "generation", "version"), "int"),
    **dict.fromkeys(("options", "steps", "labels", "max_concurrency"), "jsonb"),
    **dict.fromkeys(("scheduled_at", "created_at", "last_seen"), "timestamptz"),
    "order_seq": "bigint",
    "progress": "numeric",
    "is_active": "boolean",
    "notify": "text[]",
}


def one_of(*values: Any) -> Maker:
    return lambda random: random.choice(values)


def _some(random: Random, columns: Mapping[str, Maker], least: int = 0) -> Columns:
    chosen = random.sample(list(columns), random.randint(least, min(4, len(columns))))
    return {name: None if random.random() < 0.05 else str(columns[name](random)) for name in chosen}


def _options(random: Random) -> str:
    huge = '{"a": "' + "x" * 2_000_000 + '"}'
    return random.choice(("{}", '{"a": 1}', '{"a": 1}', f'{{"a": {nested(random)}}}', json_text(random), huge))


JOB_COLUMNS: dict[str, Maker] = {
    "options": _options,
    "priority": integer,
    "scheduled_at": moment,
    "created_at": moment,
    "created_by": text,
    "trace_id": text,
    "idempotency_key": text,
    "order_seq": integer,
    "status": one_of("queued", "done", "running", "x"),
    "progress": number,
    "id": lambda random: f"{random.getrandbits(128):032x}",
    "error_message": text,
    "current_task_key": text,
    "generation": integer,
    "task_count": integer,
}


def _job(random: Random) -> tuple[str, Columns]:
    columns = _some(random, JOB_COLUMNS)
    if random.random() < 0.05:
        columns["workflow_id"] = f"{random.getrandbits(128):032x}"
    return "jobs", columns


def _job_changed(random: Random) -> tuple[str, Columns]:
    common = {name: JOB_COLUMNS[name] for name in ("options", "priority", "scheduled_at")}
    return "jobs", _some(random, common if random.random() < 0.8 else JOB_COLUMNS, least=1)


STEP_FIELDS: dict[str, Maker] = {
    "key": text,
    "service": text,
    "depends_on": one_of(["a"], ["zz"], "a", 5, ["a", "a"], [None], [["a"]]),
    "default_params": value,
    "max_attempts": integer,
    "backoff": value,
    "timeout": one_of(1, 0, -1, 1e300, "10m", 1e-300),
    "requires": value,
    "node": text,
    "concurrency_key": text,
    "concurrency_limit": integer,
    "when": value,
}
WORKFLOW_COLUMNS: dict[str, Maker] = {
    "version": integer,
    "is_active": one_of("true", "false"),
    "created_by": text,
    "created_at": moment,
    "notify": one_of("{}", "{job.done}", "{{job.done},{job.error}}", "{x}", "{NULL}"),
}
NODE_COLUMNS: dict[str, Maker] = {
    "labels": lambda random: random.choice(('{"gpu": true}', json_text(random))),
    "max_concurrency": lambda random: random.choice(
        ('{"render": 3}', '{"render": -1}', '{"render": 1e6}', json_text(random))
    ),
    "last_seen": moment,
    "mac": text,
    "provider_ref": text,
    "script": text,
    "awake_state": one_of("awake", "sleep", "unknown", "x"),
    "wake_method": one_of("wol", "provider", "script", "x"),
}


def _steps(random: Random) -> str:
    if random.random() < 0.15:
        return random.choice((json_text(random), "[]", "{}", "null", nested(random)))
    steps: list[object] = []
    for key in "abc"[: random.randint(1, 3)]:
        made: dict[str, Any] = {"key": key, "service": "render", "depends_on": [], "default_params": {}}
        for field in random.sample(list(STEP_FIELDS), random.choice((0, 0, 1, 1, 2))):
            made[field] = STEP_FIELDS[field](random)
        steps.append(made)
    return _as_json(steps)


def _as_json(value: object) -> str:
    """NaN and its like are no JSON: PostgreSQL says so."""
    try:
        return orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS).decode()
    except TypeError:  # an integer that is too large, or half a character
        return "[1e1000000]"


def _workflow(random: Random) -> tuple[str, Columns]:
    return "workflows", _some(random, WORKFLOW_COLUMNS) | {"name": text(random), "steps": _steps(random)}


def _workflow_changed(random: Random) -> tuple[str, Columns]:
    return "workflows", _some(random, WORKFLOW_COLUMNS | {"steps": _steps, "name": text}, least=1)


def _node(random: Random) -> tuple[str, Columns]:
    return "nodes", _some(random, NODE_COLUMNS) | {"name": text(random)}


class Control:
    """The roles of the control host on one database, as accs_scheduler, and an agent beside them."""

    def __init__(self, db: Database, agent: Database) -> None:
        self.db: Database = db
        self.agent: Database = agent
        self.calls: CallsUnderWay = CallsUnderWay()
        # Packets stay on this machine.
        wake = WakeSettings.model_validate({"broadcast": ["127.255.255.255"], "rounds": 1, "boot": "1s"})
        self.waker: Waker = Waker(db, wake, lease=LEASE, calls=self.calls)

    async def make_a_pass(self) -> None:
        """Every role once, the builder and the cleanup side by side."""
        cleanup = Cleanup(self.db, lease=LEASE, grace=timedelta(seconds=1), metrics=Metrics())
        await asyncio.gather(self._build(), cleanup.run_once())
        await Judge(self.db, QuarantineSettings(), metrics=Metrics()).run_once()
        await self.waker.run_once()
        await self._work()

    async def _build(self) -> None:
        builder = Builder(self.db)
        while (await builder.run_once()).more:
            pass

    async def _work(self) -> None:
        """What an agent makes of each task before it starts it."""
        tasks = await claim_tasks(self.agent, SERVICE, owner=NODE, node=NODE, limit=100, lease=LEASE)
        for task in tasks:
            envelope(
                job_id=task.job_id,
                job_task_id=task.task_id,
                attempt_id=task.attempt_id,
                task_key=task.task_key,
                service=SERVICE,
                params=task.params,
                options=task.options,
                inputs=task.inputs,
                trace_id="t",
                workdir=None,
            )
        if tasks:
            await start_tasks(self.agent, [task.fence for task in tasks], owner=NODE)
            await finish_tasks(self.agent, [Done(task.fence, {"a": 1}) for task in tasks], owner=NODE)


@asynccontextmanager
async def control(server: TestServer, db_url: str) -> AsyncGenerator[Control]:
    async with (
        opened(url_as(server, db_url, "accs_scheduler")) as db,
        opened(url_as(server, db_url, "accs_agent")) as agent,
        anyio.create_task_group() as group,
    ):
        made = Control(db, agent)
        group.start_soon(made.calls.serve)
        await agent.fetch("SELECT FROM accs.register_node($1)", NODE)
        yield made
        await made.calls.all_ended()
        group.cancel_scope.cancel()


@at_length(cases=300)
async def test_no_row_stops_a_pass_and_each_bad_one_ends_as_its_own_error(
    run: Run, server: TestServer, db_url: str, conn: Connection
):
    if server.launched is None:
        pytest.skip("roles belong to the whole cluster, and the one of ACC_TEST_DB_URL is not ours")
    await install(conn, with_roles=True)
    await conn.execute("INSERT INTO workflows (name, steps) VALUES ('w', $1)", [step("a"), step("b", after="a")])
    scheduler = await open_connection(url_as(server, db_url, "accs_scheduler"))
    writers = {"owner": conn, "accs_scheduler": scheduler}
    try:
        with run.judged() as findings:
            async with control(server, db_url) as host:
                for case in run.cases():
                    statement = made(case.random)
                    with findings.about(case, statement):
                        await _written(writers[statement.writer], statement)
                    if case.number % PASS_EVERY == PASS_EVERY - 1 or case.number == run.count - 1:
                        with findings.about(case, f"the pass after this case: {statement}"):
                            await host.make_a_pass()
    finally:
        await scheduler.close()
    assert await conn.fetch(DUE) == [], "these are due, and no pass took them"
    assert await conn.fetch("SELECT what, id, found::text FROM accs.damage") == []
    await check(conn)


async def _written(writer: Connection, statement: Statement) -> None:
    try:
        await writer.execute(statement.sql, *statement.arguments)
    except asyncpg.PostgresError as error:
        if not (error.sqlstate or "").startswith(REFUSALS):
            raise AssertionError(f"{error.sqlstate}: {error}") from error
