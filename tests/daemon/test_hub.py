"""The hub on a real database: what is committed is told, in whatever order, and nothing is lost."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import orjson

from accsd.db.listen import Listener
from accsd.gateway.hub import Hub, Pace
from accsd.gateway.messages import JOBS, Message, Topic
from accsd.gateway.subscriptions import Subscription
from accsd.metrics import Metrics
from tests.support.cluster import Connection
from tests.support.factory import finish, node, started, step, submit
from tests.support.library import opened, settings_of

QUICK = Pace(together=0.0, quick=0.01, idle=0.02, deaf=0.02, counts=0.05, counts_idle=0.05, nodes=0.1)


@asynccontextmanager
async def hub_on(url: str, pace: Pace = QUICK, **options: Any) -> AsyncGenerator[Hub]:
    async with opened(url, pool_size=4) as db:
        listener = Listener(settings_of(url), "accs_", behind_pooler=False, is_off=True)
        hub = Hub(db, listener, metrics=Metrics(), pace=pace, **options)
        async with asyncio.TaskGroup() as group:
            serving = group.create_task(hub.serve())
            try:
                yield hub
            finally:
                serving.cancel()


class Seen:
    """What a subscription has brought, read as it comes."""

    def __init__(self, subscription: Subscription) -> None:
        self.subscription = subscription
        self.messages: list[Message] = []

    async def until(
        self, enough: Callable[[list[tuple[str, Any]]], bool], within: float = 10.0
    ) -> list[tuple[str, Any]]:
        async with asyncio.timeout(within):
            while not enough(self.told):
                self.messages += await self.subscription.batch(within=1.0)
        return self.told

    @property
    def told(self) -> list[tuple[str, Any]]:
        return [(message.event, orjson.loads(message.data)) for message in self.messages]

    def of(self, event: str) -> list[Any]:
        return [data for kind, data in self.told if kind == event]


async def test_a_job_is_told_from_its_claim_to_its_end(db_url: str, conn: Connection) -> None:
    await node(conn)
    async with hub_on(db_url) as hub:
        job = await submit(conn, step("a"))
        async with hub.subscribe([Topic.job(job), JOBS]) as subscription:
            seen = Seen(subscription)
            (claimed,) = await started(conn)
            await finish(conn, claimed)
            told = await seen.until(lambda told: any(e == "job" and d["status"] == "done" for e, d in told))
    assert told[0][0] == "hello"
    assert [entry["message"] for entry in seen.of("event")] == [
        "queued → starting",
        "starting → running",
        "running → done",
        "running → done",
    ]
    assert seen.of("task")[-1]["status"] == "done"
    assert seen.of("task")[-1]["task_key"] == "a"
    assert seen.of("job")[-1]["open_tasks"] == 0
