"""repair beside everything else: it never takes a verb that is under way for damage."""

import asyncio
import random
from collections import Counter
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import invariant, run_state_machine_as_test

from tests.conftest import Connect
from tests.support.checker import check
from tests.support.claimers import Claimer, History, kill_one
from tests.support.cluster import Connection, TestServer
from tests.support.eventually import eventually
from tests.support.factory import pass_time, step, workflow
from tests.support.machine import StateMachine
from tests.support.world import world_on

SEED = 77
SERVICES = ("render", "audio")
KEYED: dict[str, Any] = {"concurrency_key": "k", "concurrency_limit": 2}


def shape() -> list[dict[str, Any]]:
    """Dependencies, a key, a label, retries that come back at once."""
    steps = [
        step("top", "render"),
        step("left", "audio", after="top", requires={"gpu": True}),
        step("right", "render", after="top", **KEYED),
        step("bottom", "audio", after="left right"),
        step("aside", "render", **KEYED),
    ]
    return [one | {"max_attempts": 5, "backoff": {"strategy": "fixed", "base": 0.02}} for one in steps]


class Repairer:
    def __init__(self, conn: Connection) -> None:
        self._conn = conn
        self.calls = 0
        self.repaired: Counter[str] = Counter()

    async def work(self, over: asyncio.Event) -> None:
        while not over.is_set():
            for row in await self._conn.fetch("SELECT * FROM accs.repair()"):
                self.repaired[row["what"]] += row["repaired"]
            self.calls += 1


class Operator:
    """Does to jobs at random what people and the builder do to them."""

    def __init__(self, conn: Connection, flow: Any) -> None:
        self._conn = conn
        self._flow = flow
        self._random = random.Random(SEED)
        self.calls = 0

    async def work(self, over: asyncio.Event) -> None:
        while not over.is_set():
            await self._conn.fetch(*self._random.choice(self._deeds()))
            self.calls += 1

    def _deeds(self) -> list[tuple[Any, ...]]:
        some = "ARRAY(SELECT id FROM jobs ORDER BY random() LIMIT 2)"
        return [
            (f"SELECT accs.cancel_jobs({some})",),
            (f"SELECT accs.retry_jobs({some})",),
            (f"SELECT accs.retry_jobs({some}, '{{top,aside}}')",),
            ("SELECT accs.skip_tasks(ARRAY(SELECT id FROM job_tasks WHERE status = 'queued' LIMIT 1))",),
            ("SELECT accs.redrive(ARRAY(SELECT id FROM dead_letters WHERE redriven_at IS NULL LIMIT 2))",),
            ("SELECT accs.reclaim_tasks(100, '0')",),
            ("SELECT accs.pause('workflow', 'w')",),
            ("SELECT accs.resume('workflow', 'w')",),
            ("SELECT accs.recheck_holds()",),
            ("SELECT accs.set_concurrency_limit('k', $1)", self._random.randint(1, 3)),
            ("SELECT accs.submit_jobs($1)", [self._flow] * 2),
            ("INSERT INTO jobs (workflow_id) VALUES ($1)", self._flow),
            ("INSERT INTO jobs (workflow_id, scheduled_at) VALUES ($1, now() + interval '20 s')", self._flow),
            ("UPDATE jobs SET scheduled_at = scheduled_at + interval '1 s' WHERE id ="
             " (SELECT job_id FROM accs.pending_jobs p JOIN jobs j ON j.id = job_id WHERE j.status = 'queued' LIMIT 1"
             " FOR NO KEY UPDATE OF j SKIP LOCKED)",),
            ("SELECT accs.instantiate_due_jobs()",),
        ]  # fmt: skip


async def test_beside_claimers_and_operators_it_finds_nothing_to_mend(conn: Connection, connect: Connect):
    flow = await workflow(conn, *shape(), name="w")
    await conn.fetch("SELECT accs.submit_jobs($1)", [flow] * 100)
    history, over, chance = History(), asyncio.Event(), random.Random(SEED)
    claimers = [Claimer(f"n{i}", connect, history, SEED + i, SERVICES) for i in range(4)]
    repairer, operator = Repairer(await connect()), Operator(await connect(), flow)

    async def direct() -> None:
        for _ in range(3):
            goal = repairer.calls + 25
            await eventually(lambda goal=goal: repairer.calls >= goal, within=40, what="25 repairs")
            await kill_one(conn, claimers, history, chance)
            await pass_time(conn, 61)  # every lease that somebody holds right now runs out
        over.set()

    async with asyncio.timeout(100), asyncio.TaskGroup() as group:
        for worker in (*claimers, repairer, operator):
            group.create_task(worker.work(over))
        group.create_task(direct())
    print(f"\n{repairer.calls} repairs, {operator.calls} deeds, {len(history.claims)} claims, {history.kills} kills")
    assert repairer.repaired == {}
    assert min(operator.calls, len(history.claims)) > 50, "nothing went on beside it"
    await conn.execute("SELECT accs.recheck_holds()")
    await check(conn, lowered=["k"])


class Watched(StateMachine):
    @invariant()
    def there_is_nothing_to_mend(self) -> None:
        assert self.fetch("repair()") == []


def test_no_sequence_of_verbs_leaves_anything_to_mend(server: TestServer):
    how = settings(
        max_examples=6,
        stateful_step_count=40,
        derandomize=True,
        database=None,
        deadline=None,
        phases=(Phase.generate,),
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
    )
    with world_on(server) as world:
        run_state_machine_as_test(type("WatchedOnItsWorld", (Watched,), {"world": world}), settings=how)
