"""The database that the state machine drives: its workflows, nodes and limits, and a clock that stands still."""

import asyncio
from collections.abc import Awaitable, Callable, Generator
from contextlib import AsyncExitStack, contextmanager
from datetime import datetime
from typing import Any
from uuid import UUID

from tests.support.cluster import Connection, TestServer, open_connection
from tests.support.model import MAX_LOST, Node, Step

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
        Step("y", "audio", max_attempts=1),
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
    "mapped": [
        Step("each", "video", max_attempts=1, fans=True),
        Step("join", "audio", ("each",), resolve=True),
    ],
    "gated": [
        Step("gate", "mixer", resolve=True, concurrency_key="disk", max_attempts=1),
        Step("many", "mixer", ("gate",), fans=True, concurrency_key="net", max_attempts=1),
        Step("both", "audio", ("gate", "many"), resolve=True),
        Step("last", "video", ("both",)),
    ],
    "memo": [Step("memo", "audio", max_attempts=1, resolve=True)],
}
LIMITS = {"disk": 1, "net": 2}
NODES = [Node("north", gpu=False, capacity={"audio": 2}), Node("south", gpu=True, capacity={})]
PAUSABLE = [
    ("service", "audio"),
    ("service", "mixer"),
    ("workflow", "keyed"),
    ("workflow", "shared"),
    ("workflow", "diamond"),
    ("workflow", "mapped"),
    ("workflow", "gated"),
    ("node", "south"),
]

RESET = """
SET session_replication_role = replica;
DELETE FROM public.task_events; DELETE FROM public.task_artifacts; DELETE FROM public.dead_letters;
DELETE FROM accs.cached_results; DELETE FROM accs.borrowed_files;
DELETE FROM accs.waiting; DELETE FROM accs.live; DELETE FROM accs.pending_jobs; DELETE FROM accs.pauses;
DELETE FROM accs.conclusions;
DELETE FROM public.job_tasks; DELETE FROM public.jobs; DELETE FROM accs.concurrency_keys WHERE key LIKE 'map/%';
UPDATE accs.test_clock SET shift = '0';
UPDATE public.workflows SET is_active = true WHERE NOT is_active;
UPDATE public.nodes SET last_seen = accs.clock();
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
        await conn.execute(
            "CREATE OR REPLACE FUNCTION accs.waited() RETURNS interval LANGUAGE sql AS $$ SELECT interval '0' $$"
        )
        await conn.execute(
            f"CREATE OR REPLACE FUNCTION accs.max_lost() RETURNS int LANGUAGE sql IMMUTABLE AS $$ SELECT {MAX_LOST} $$"
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
            await conn.execute("SELECT FROM accs.register_node($1, $2, $3)", node.name, labels, node.capacity)
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
def world_on(server: TestServer, plant: Callable[[Connection], Awaitable[None]] | None = None) -> Generator[World]:
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
    if step.fans:
        document["for_each"] = "${params.items}"
    elif step.resolve:
        document["if"] = "params.wanted"
    if step.gpu:
        document["requires"] = {"gpu": True}
    if step.node:
        document["node"] = step.node
    if step.concurrency_key:
        document["concurrency_key"] = step.concurrency_key
        document["concurrency_limit"] = LIMITS[step.concurrency_key]
    return document
