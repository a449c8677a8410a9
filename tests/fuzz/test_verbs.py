"""Every function of schema accs, called by every role with whatever its types allow.

Who may call it gets an answer, or an error that says what is wrong; who may not, 42501. Afterwards nothing is damaged,
and a job runs through.
"""

import asyncio
import re
from collections import deque
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

import asyncpg
import pytest

from accsd.db.install import install
from tests.conftest import server as server
from tests.fuzz.cases import Case, Findings, Run, at_length
from tests.fuzz.verb_calls import OWNER, Call, Known, Verb, find_verbs, look, made
from tests.support.checker import check
from tests.support.cluster import Connection, TestServer, open_connection
from tests.support.factory import chain, diamond, step
from tests.support.library import url_as

REFUSED = "42501"
# Beside our own codes: data, what is missing, a stranger's reference, a broken rule, a name that is none (only
# PostgreSQL 15 calls it so), a limit of PostgreSQL's.
SAYS_WHAT_IS_WRONG = ("AC", REFUSED, "22", "23502", "23503", "23514", "42602", "54")
CHECKED_EVERY = 100
UUID_WRITTEN = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
ROLES = """
SELECT rolname::text FROM pg_roles WHERE rolname ~ '^accs_[a-z]+$' AND rolcanlogin AND NOT rolsuper
   AND has_schema_privilege(oid, 'accs', 'USAGE') ORDER BY rolname
"""
WORKFLOWS = {
    "chain": chain("a", "b", "c"),
    "diamond": diamond(),
    "keyed": [
        step("a", concurrency_key="disk", concurrency_limit=2),
        step("b", "mix", after="a", requires={"gpu": True}),
    ],
    "told": [step("a", max_attempts=1), step("b", after="a", node="n1")],
    "mapped": [
        step("a", **{"if": "params.x"}),
        step("each", for_each="${params.x}", concurrency_key="disk"),
        step("join", after=["a", "each"]),
    ],
}
DEPLOYMENTS = {
    "seqpulse.pre_collect": [step("collect", "sampler")],
    "seqpulse.post_collect": [step("collect", "sampler")],
    "seqpulse.analysis": [step("analyse", "analyst")],
}
# A node is its login's.
LOGIN_OF = {"n1": OWNER, "n2": "accs_agent", "n3": "accs_scheduler"}


@dataclass
class World:
    """A session for each role, one beside them that sets things up, and what there is to be named in a call."""

    beside: Connection
    sessions: Mapping[str, Connection]
    verbs: Sequence[Verb]
    known: Known = field(default_factory=Known)

    async def replenish(self) -> None:
        """Jobs in every state, because calls use them up; what was paused can be resumed."""
        await self.beside.fetch("SELECT accs.resume(kind, name) FROM accs.pauses")
        for name, login in LOGIN_OF.items():
            register = "SELECT FROM accs.register_node($1, '{\"gpu\": true}', '{\"render\": 50}')"
            await self.sessions[login].execute(register, name)
        await self.beside.execute("SELECT FROM accs.trigger_deployment('shop', 'prod', 'https://shop.example/')")
        for workflow in WORKFLOWS:
            await self.beside.execute("SELECT accs.submit($1) FROM generate_series(1, 3)", workflow)
        for node in ("n1", "n2"):
            claim = "SELECT task_id, attempt_id FROM accs.claim_tasks('render', $1, $1, 4, '1 min')"
            claimed = await self.sessions[LOGIN_OF[node]].fetch(claim, node)
            for fate, task in zip(("start", "fail", "finish", "leave"), claimed, strict=False):
                await self._bring_on(fate, node, task)
        self.known = await look(self.beside)

    async def _bring_on(self, fate: str, node: str, task: asyncpg.Record) -> None:
        agent = self.sessions[LOGIN_OF[node]]
        fence = [task["task_id"]], [task["attempt_id"]], node
        if fate != "leave":
            await agent.execute("SELECT FROM accs.start_tasks($1, $2, $3)", *fence)
        if fate == "fail":
            fail = "SELECT FROM accs.finish_tasks($1, $2, $3, '{error}', NULL, '{bad}', '{bad}', '{true}')"
            await agent.execute(fail, *fence)
        if fate == "finish":
            await agent.execute("SELECT FROM accs.finish_tasks($1, $2, $3)", *fence)

    async def nothing_is_damaged(self) -> None:
        damage = await self.beside.fetch("SELECT what, id, found::text FROM accs.damage LIMIT 5")
        assert damage == [], [tuple(row) for row in damage]
        # any limit may have been lowered while tasks ran
        lowered = [row[0] for row in await self.beside.fetch("SELECT key FROM accs.concurrency_keys")]
        await check(self.beside, lowered=lowered)

    async def a_job_runs_through(self) -> None:
        await self.beside.execute("INSERT INTO workflows (name, steps) VALUES ('fresh', $1)", [step("x", "fresh")])
        job = await self.sessions["accs_scheduler"].fetchval("SELECT accs.submit('fresh')")
        agent = self.sessions["accs_agent"]
        await agent.execute("SELECT FROM accs.register_node('fresh-1')")
        claim = "SELECT task_id, attempt_id FROM accs.claim_tasks('fresh', 'fresh-1', 'fresh-1', 1, '1 min', true)"
        (task,) = await agent.fetch(claim)
        finish = "SELECT answer FROM accs.finish_tasks($1, $2, 'fresh-1')"
        assert await agent.fetchval(finish, [task["task_id"]], [task["attempt_id"]]) == "accepted"
        assert await self.beside.fetchval("SELECT status FROM jobs WHERE id = $1", job) == "done"


@asynccontextmanager
async def a_world(server: TestServer, db_url: str) -> AsyncGenerator[World]:
    if server.launched is None:
        pytest.skip("roles belong to the whole cluster, and the one of ACC_TEST_DB_URL is not ours")
    async with AsyncExitStack() as open_ones:

        async def session(url: str) -> Connection:
            opened = await open_connection(url)
            open_ones.push_async_callback(opened.close)
            await opened.execute("SET statement_timeout = '5s'; SET lock_timeout = '5s'")
            return opened

        beside = await session(db_url)
        await install(beside, with_roles=True)
        roles = [str(row[0]) for row in await beside.fetch(ROLES)]
        sessions = {OWNER: await session(db_url)} | {
            role: await session(url_as(server, db_url, role)) for role in roles
        }
        await _populate(beside)
        verbs = await find_verbs(beside, roles)
        world = World(beside, sessions, verbs)
        await world.replenish()
        yield world


async def _populate(owner: Connection) -> None:
    for name, steps in (WORKFLOWS | DEPLOYMENTS).items():
        notify = ["job.done", "job.error", "job.submitted"] if name == "told" else []
        await owner.execute("INSERT INTO workflows (name, steps, notify) VALUES ($1, $2, $3)", name, steps, notify)
    await owner.execute("SELECT accs.register_outbox_target('t1', 'https://x', '{job.done,job.error}')")


async def carry_out(world: World, call: Call) -> bool:
    """Whether it was taken."""
    session = world.sessions[call.role]
    transaction = session.transaction()
    await transaction.start()
    try:
        await session.fetch(call.sql, *call.given.values())
    except asyncpg.PostgresError as error:
        await transaction.rollback()
        judge(call, error)
        return False
    await (transaction.commit() if call.is_kept else transaction.rollback())
    assert call.is_allowed, "a call without the right was taken"
    return True


def judge(call: Call, error: asyncpg.PostgresError) -> None:
    # A constant that is none of its type is refused before the right is asked for.
    expected = SAYS_WHAT_IS_WRONG if call.is_allowed else (REFUSED, "22", "54")
    if call.verb.name == "probe":  # it carries out a statement: what PostgreSQL says of that is what is wrong
        expected = (*expected, "42")
    if not (error.sqlstate or "").startswith(expected):
        raise AssertionError(f"{error.sqlstate}: {error}") from error


@pytest.mark.every_postgresql
@at_length(cases=2_000)
async def test_a_verb_answers_or_says_what_is_wrong_whoever_calls_it(run: Run, server: TestServer, db_url: str):
    kept: deque[Call] = deque(maxlen=CHECKED_EVERY)
    with run.judged() as findings:
        async with a_world(server, db_url) as world:
            for case in run.cases():
                random = case.random
                call = made(random, world.verbs, world.known, random.choice(list(world.sessions)))
                with findings.about(case, call):
                    if await carry_out(world, call) and call.is_kept:
                        kept.append(call)
                if call.verb.name == "delete_finished_jobs":
                    # A submission may name its job's id, and that of a deleted job would go on with its history.
                    world.known = await look(world.beside)
                if case.number % CHECKED_EVERY == CHECKED_EVERY - 1:
                    await _look_over(world, case, kept, findings)
            await world.nothing_is_damaged()
            await world.a_job_runs_through()


async def _look_over(world: World, case: Case, kept: deque[Call], findings: Findings) -> None:
    """Damage is found soon after it was done: what was called meanwhile did it."""
    try:
        await world.nothing_is_damaged()
        await world.replenish()
    except (AssertionError, asyncpg.PostgresError) as damage:
        ids = UUID_WRITTEN.findall(str(damage))
        named = [call for call in kept if any(each in repr(call) for each in ids)]
        findings.add(case, named or list(kept), f"one of these did damage: {damage}")
        raise AssertionError(str(findings)) from None
    kept.clear()


@at_length(cases=400)
async def test_verbs_side_by_side_neither_lock_each_other_out_nor_damage(run: Run, server: TestServer, db_url: str):
    """One verb in a transaction: those of several are for their caller to order."""
    with run.judged() as findings:
        async with a_world(server, db_url) as world:

            async def call_on(role: str, cases: Sequence[Case]) -> None:
                for case in cases:
                    call = made(case.random, world.verbs, world.known, role)
                    if call.verb.name == "delete_finished_jobs":  # as above: another may just name the deleted job's id
                        call = call._replace(is_kept=False)
                    with findings.about(case, call):
                        await carry_out(world, call)

            cases = list(run.cases())
            roles = list(world.sessions)
            async with asyncio.TaskGroup() as group:
                for n, role in enumerate(roles):
                    group.create_task(call_on(role, cases[n :: len(roles)]))
            await world.nothing_is_damaged()
            await world.a_job_runs_through()
