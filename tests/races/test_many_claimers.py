"""Eight claimers on one database, with kills, failures and leases that run out: every task is done exactly once."""

import asyncio
import random
from collections import Counter
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from tests.conftest import Connect
from tests.support.checker import check
from tests.support.claimers import Claimer, History, kill_one, passed_over
from tests.support.cluster import Connection
from tests.support.cluster import server as server  # what differs between versions is in tests/db and the races
from tests.support.eventually import eventually
from tests.support.factory import NODE, chain, claim, node, pass_time, step, submit_to, workflow

SEED = 20_240
SERVICES = ("render", "audio", "video")
FLEET = 8
PHASES = 4  # a task may lose 4 owners and live


def shapes() -> list[list[dict[str, Any]]]:
    """Five steps each; failures come back at once."""
    chained = chain("a", "b", "c", "d", "e")
    for one, service in zip(chained, [*SERVICES, *SERVICES], strict=False):
        one["service"] = service
    diamond = [
        step("top", "render"),
        step("left", "audio", after="top"),
        step("right", "video", after="top", requires={"gpu": True}),
        step("bottom", "render", after="left right"),
        step("aside", "audio"),
    ]
    fan = [
        step("root", "video"),
        *(step(f"leaf{i}", SERVICES[i], after="root") for i in range(3)),
        step("join", "audio", after="leaf0 leaf1 leaf2"),
    ]
    flat = [step(f"s{i}", SERVICES[i % 3]) for i in range(5)]
    layers = [
        step("a", "render"),
        step("b", "audio"),
        step("c", "video", after="a b"),
        step("d", "render", after="a b"),
        step("e", "audio", after="c d"),
    ]
    found = [chained, diamond, fan, flat, layers]
    for one in (one for shape in found for one in shape):
        one |= {"max_attempts": 5, "backoff": {"strategy": "fixed", "base": 0.02}}
    return found


async def submit_jobs(conn: Connection, count: int, chance: random.Random) -> None:
    flows = [await workflow(conn, *shape) for shape in shapes()]
    chosen = [chance.choice(flows) for _ in range(count)]
    priorities = [chance.choice([0, 0, 0, 5]) for _ in range(count)]
    await conn.fetch("SELECT * FROM accs.submit_jobs($1, p_priorities => $2)", chosen, priorities)


async def finished(conn: Connection) -> int:
    return await conn.fetchval("SELECT count(*) FROM job_tasks WHERE status = 'done'")


@pytest.mark.timeout(120)
async def test_eight_claimers_do_5000_tasks_exactly_once_and_in_order(conn: Connection, connect: Connect) -> None:
    chance = random.Random(SEED)
    await submit_jobs(conn, 1000, chance)
    total = await conn.fetchval("SELECT count(*) FROM job_tasks")
    assert total == 5000
    history, over = History(), asyncio.Event()
    claimers = [Claimer(f"n{i}", connect, history, SEED + i, SERVICES) for i in range(FLEET)]
    watcher = await connect()

    async def reclaim() -> None:
        while not over.is_set():
            if not await watcher.fetch("SELECT * FROM accs.reclaim_tasks(500, '0')"):
                await kill_one(watcher, claimers, history, chance)
                await asyncio.sleep(0.2)

    async def direct() -> None:
        for phase in range(1, PHASES + 1):
            goal = total * phase // (PHASES + 1)

            async def reached(goal: int = goal) -> bool:
                return await finished(conn) >= goal

            await eventually(reached, within=60, interval=0.05, what=f"the end of phase {phase}")
            for claimer in claimers:
                claimer.may_forget = phase < PHASES
            await pass_time(conn, 61)  # every lease that somebody holds right now runs out

        async def all_done() -> bool:
            return await finished(conn) == total

        await eventually(all_done, within=60, interval=0.05, what="the last task")
        over.set()

    async with asyncio.TaskGroup() as group:
        for claimer in claimers:
            group.create_task(claimer.work(over))
        group.create_task(reclaim())
        group.create_task(direct())

    print(
        f"\n{len(history.claims)} claims, {history.kills} kills, {history.forgotten} forgotten,"
        f" {sum(history.failed.values())} failed, refused: {dict(history.refused)}"
    )
    assert min(history.kills, history.forgotten, sum(history.failed.values())) > 0, "nothing went wrong"
    await assert_done_once(conn, history)
    await assert_in_order(conn, history)
    await check(conn, timedelta(0))


async def assert_done_once(conn: Connection, history: History) -> None:
    rows = await conn.fetch(
        "SELECT t.id, t.attempt_id, array_agg(e.attempt_id) AS done FROM job_tasks t"
        " LEFT JOIN task_events e ON e.job_task_id = t.id AND e.type = 'status' AND e.data ->> 'to' = 'done'"
        " GROUP BY t.id"
    )
    assert [dict(row) for row in rows if row["done"] != [row["attempt_id"]]] == []
    heard = {task_id: set(attempts) for task_id, attempts in history.done.items()}
    assert {task_id for task_id, attempts in heard.items() if len(attempts) > 1} == set()
    fence = {row["id"]: row["attempt_id"] for row in rows}
    assert {task_id for task_id, attempts in heard.items() if attempts != {fence[task_id]}} == set()
    statuses = await conn.fetch("SELECT DISTINCT status FROM jobs")
    assert [row["status"] for row in statuses] == ["done"]


async def assert_in_order(conn: Connection, history: History) -> None:
    rows = await conn.fetch(
        "SELECT t.id, t.service_name, -j.priority AS rank, j.order_seq, t.created_at,"
        "       ARRAY(SELECT d.id FROM job_tasks d"
        "              WHERE d.job_id = t.job_id AND d.task_key = ANY (t.depends_on)) AS needs"
        "  FROM job_tasks t JOIN jobs j ON j.id = t.job_id"
    )
    place = {row["id"]: (row["rank"], row["order_seq"], row["created_at"], row["id"]) for row in rows}
    lane = {row["id"]: row["service_name"] for row in rows}
    never = float("inf")
    ready_by = {
        row["id"]: max((history.done_by.get(parent, never) for parent in row["needs"]), default=0.0) for row in rows
    }
    assert passed_over(history, place, lane, ready_by) == []


async def test_one_claimer_takes_everything_in_the_global_order(conn: Connection) -> None:
    chance = random.Random(SEED)
    await node(conn, labels={"gpu": True})
    flows = [
        await workflow(conn, step("a"), step("b", requires={"gpu": True})),
        await workflow(conn, *(step(f"s{i}") for i in range(3))),
    ]
    for _ in range(60):
        await submit_to(conn, chance.choice(flows), priority=chance.choice([0, 0, 7]))
    expected = await conn.fetch(
        "SELECT t.id FROM job_tasks t JOIN jobs j ON j.id = t.job_id"
        " ORDER BY j.priority DESC, j.order_seq, t.created_at, t.id"
    )
    taken: list[UUID] = []
    while batch := await claim(conn, chance.randint(1, 9)):
        taken += [row["task_id"] for row in batch]
    assert taken == [row["id"] for row in expected]
    await check(conn)


@pytest.mark.parametrize("limit", [1, 3])
async def test_a_key_keeps_its_limit_with_eight_claimers_and_batches(
    conn: Connection, connect: Connect, limit: int
) -> None:
    """Two services share the key; batches are larger than the limit; some are killed in the middle."""
    chance = random.Random(SEED + limit)
    # c is in another lane of its service: a claim merges the two, and may need a second round
    same: dict[str, Any] = {
        "concurrency_key": "k",
        "concurrency_limit": limit,
        "max_attempts": 5,
        "backoff": {"strategy": "fixed", "base": 0.01},
    }
    flow = await workflow(
        conn,
        step("a", "render", **same),
        step("b", "audio", after="a", **same),
        step("c", "render", after="a", requires={"gpu": True}, **same),
        step("d", "audio", **(same | {"concurrency_key": "other"})),
    )
    for _ in range(40):
        await submit_to(conn, flow)
    history, over, most = History(), asyncio.Event(), Counter[str]()
    claimers = [Claimer(f"n{i}", connect, history, SEED + i, ("render", "audio")) for i in range(FLEET)]
    for claimer in claimers:
        claimer.may_forget = False
    watcher, killer = await connect(), await connect()

    async def watch() -> None:
        while not over.is_set():
            for row in await watcher.fetch("SELECT key, count(*) AS n FROM accs.live GROUP BY key"):
                most[row["key"]] = max(most[row["key"]], row["n"])
                assert row["n"] <= limit
            if await watcher.fetchval("SELECT NOT EXISTS (SELECT FROM jobs WHERE status = 'running')"):
                over.set()

    async def kill() -> None:
        while not over.is_set():
            await kill_one(killer, claimers, history, chance)
            await asyncio.sleep(0.1)

    async with AsyncExitStack() as stack, asyncio.timeout(60):
        group = await stack.enter_async_context(asyncio.TaskGroup())
        for claimer in claimers:
            group.create_task(claimer.work(over))
        group.create_task(watch())
        group.create_task(kill())
    print(f"\nat most {dict(most)} at once, {history.kills} kills, {len(history.claims)} claims")
    assert most["k"] == limit, "the key was never used to its limit"
    assert await finished(conn) == 160
    await check(conn)


async def test_a_node_never_holds_more_than_its_capacity(conn: Connection, connect: Connect) -> None:
    flow = await workflow(conn, step("a", "render"), step("b", "audio"))
    for _ in range(60):
        await submit_to(conn, flow)
    await node(conn, render=3, audio=2)
    sessions = [await connect() for _ in range(FLEET)]
    over = asyncio.Event()
    ended: list[UUID] = []

    async def work(session: Connection, service: str) -> None:
        while not over.is_set():
            held = await claim(session, 5, service)
            ids, fences = [row["task_id"] for row in held], [row["attempt_id"] for row in held]
            await session.fetch("SELECT * FROM accs.start_tasks($1, $2, 'owner-1')", ids, fences)
            rows = await session.fetch("SELECT * FROM accs.finish_tasks($1, $2, 'owner-1')", ids, fences)
            ended.extend(row["id"] for row in rows if row["answer"] == "accepted")

    async def watch() -> None:
        while not over.is_set():
            held = await conn.fetch(
                "SELECT service, count(*) AS n FROM accs.live WHERE node = $1 GROUP BY service", NODE
            )
            assert {
                row["service"]: row["n"] for row in held if row["n"] > {"render": 3, "audio": 2}[row["service"]]
            } == {}
            if len(ended) == 120:
                over.set()

    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        for number, session in enumerate(sessions):
            group.create_task(work(session, ("render", "audio")[number % 2]))
        group.create_task(watch())
    assert len(set(ended)) == 120
    await check(conn)
