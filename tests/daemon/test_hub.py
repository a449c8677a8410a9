"""The hub on a real database: what is committed is told, in whatever order, and nothing is lost."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any
from uuid import UUID

import anyio
import orjson

from accsd.db.listen import Listener
from accsd.gateway.hub import Hub
from accsd.gateway.messages import JOBS, OVERVIEW, Message, Topic
from accsd.gateway.pace import HubPace
from accsd.gateway.position import Mark
from accsd.gateway.subscriptions import Subscription
from accsd.metrics import Metrics
from tests.support.cluster import Connection, open_connection
from tests.support.eventually import eventually
from tests.support.factory import finish, node, started, step, submit
from tests.support.library import opened, settings_of
from tests.support.own_server import own_server

QUICK = HubPace(together=0.0, quick=0.01, idle=0.02, deaf=0.02, counts=0.05, counts_idle=0.05, nodes=0.1)


@asynccontextmanager
async def hub_on(url: str, pace: HubPace = QUICK, *, is_listening: bool = False) -> AsyncGenerator[Hub]:
    """With a listener that is deaf: what arrives came by the timer."""
    async with opened(url, pool_size=4, statement_timeout_sec=5) as db:
        listener = Listener(settings_of(url), "accs_", behind_pooler=False)
        hub = Hub(db, listener, metrics=Metrics(), pace=pace)
        async with anyio.create_task_group() as group:
            if is_listening:
                await group.start(listener.serve)
            await group.start(hub.serve)
            try:
                yield hub
            finally:
                group.cancel_scope.cancel()


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


async def say(conn: Connection, job: UUID, what: str) -> None:
    await conn.execute(
        "INSERT INTO task_events (job_id, source, type, message) VALUES ($1, 'test', 'wake', $2)", job, what
    )


def said(told: list[tuple[str, Any]]) -> list[str]:
    return [data["message"] for event, data in told if event == "event" and data["source"] == "test"]


async def test_a_job_is_told_from_its_claim_to_its_end(db_url: str, conn: Connection) -> None:
    await node(conn)
    async with hub_on(db_url) as hub:
        job = await submit(conn, step("a"))
        async with hub.subscribe([Topic.job(job), JOBS]) as subscription:
            seen = Seen(subscription)
            (claimed,) = await started(conn)
            await finish(conn, claimed)
            # The state of a job is told as it is when an event is read: the end may be known before its event is here.
            told = await seen.until(lambda _: len(seen.of("event")) == 4 and seen.of("job")[-1]["status"] == "done")
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


async def test_a_transaction_that_commits_late_is_told_when_it_does(db_url: str, connect: Any) -> None:
    early, late = await connect(), await connect()
    job = await submit(early, step("a"))
    async with hub_on(db_url) as hub, hub.subscribe([Topic.job(job)]) as subscription:
        seen = Seen(subscription)
        under_way = late.transaction()
        await under_way.start()
        await say(late, job, "first")
        await say(early, job, "second")
        await seen.until(lambda told: "second" in said(told))
        assert "first" not in said(seen.told)
        low = Mark.parse(seen.messages[-1].mark or "").low
        assert low < seen.of("event")[-1]["event"] - 1  # it would be told again to whoever came back with this mark
        await under_way.commit()
        await seen.until(lambda told: "first" in said(told))
    assert said(seen.told) == ["second", "first"]


async def test_ids_of_a_transaction_that_was_rolled_back_are_given_up_soon(db_url: str, connect: Any) -> None:
    conn, other = await connect(), await connect()
    job = await submit(conn, step("a"))
    async with hub_on(db_url) as hub, hub.subscribe([Topic.job(job)]) as subscription:
        under_way = other.transaction()
        await under_way.start()
        await say(other, job, "never")
        await say(conn, job, "told")
        await Seen(subscription).until(lambda told: "told" in said(told))
        await under_way.rollback()
        last = await conn.fetchval("SELECT accs.feed_head()")
        # by the horizon of the transactions; the minute after which anything is given up is not over
        await eventually(lambda: Mark.parse(hub.mark or "").low == last, within=10)


async def test_whoever_comes_back_is_told_what_it_missed_from_the_database_too(db_url: str, conn: Connection) -> None:
    job = await submit(conn, step("a"))
    async with hub_on(db_url) as hub, hub.subscribe([Topic.job(job)]) as subscription:
        seen = Seen(subscription)
        await say(conn, job, "before")
        await seen.until(lambda told: "before" in said(told))
    await say(conn, job, "missed")
    async with (
        hub_on(db_url, replace(QUICK, ring=0)) as hub,
        hub.subscribe([Topic.job(job), JOBS], seen.messages[-1].mark) as subscription,
    ):
        back = Seen(subscription)
        await say(conn, job, "after")
        await back.until(lambda told: "after" in said(told))
    assert said(back.told) in (["missed", "after"], ["missed", "after", "after"])
    assert back.of("reset") == []


async def test_an_overview_is_told_counts_and_nodes_when_they_change(db_url: str, conn: Connection) -> None:
    await node(conn)
    async with hub_on(db_url) as hub, hub.subscribe([OVERVIEW]) as subscription:
        seen = Seen(subscription)
        await seen.until(lambda told: {"counts", "dead", "node"} <= {event for event, _ in told})
        await submit(conn, step("a"))
        await seen.until(lambda _: seen.of("counts")[-1]["services"] == {"render": {"claimable": 1}})
        await started(conn)
        await seen.until(lambda _: seen.of("counts")[-1]["services"] == {"render": {"live": 1}})
        await seen.until(lambda _: seen.of("node")[-1]["live"] == {"render": 1})
        n = len(seen.messages)
        async with hub.subscribe([OVERVIEW]) as another:  # is told at once what is known
            first = Seen(another)
            await first.until(lambda told: len(told) >= 4)
            assert first.of("counts") == seen.of("counts")[-1:]
            assert [each["name"] for each in first.of("node")] == ["n1"]
        assert [message.event for message in seen.messages[n:]] == []


async def test_a_notification_and_what_this_process_does_are_seen_before_the_timer(
    db_url: str, conn: Connection
) -> None:
    job = await submit(conn, step("a"))
    slow = replace(QUICK, quick=60.0, idle=60.0, deaf=60.0)
    async with hub_on(db_url, slow, is_listening=True) as hub, hub.subscribe([Topic.job(job)]) as subscription:
        seen = Seen(subscription)
        await seen.until(lambda told: len(told) > 0)
        await say(conn, job, "heard")
        await conn.execute("SELECT pg_notify('accs_builder', '')")
        await seen.until(lambda told: "heard" in said(told))
        await say(conn, job, "done here")
        hub.stir()
        await seen.until(lambda told: "done here" in said(told))


async def test_doors_get_every_event_and_what_is_no_event(db_url: str, conn: Connection) -> None:
    """G-8."""
    job = await submit(conn, step("a"))
    got: list[str | None] = []
    async with hub_on(db_url, is_listening=True) as hub:
        payloads: list[str] = []
        hub.subscribe_doors(payloads.append)
        with hub.subscribe_events(lambda batch: got.extend(event.message for event in batch)):
            await eventually(lambda: hub.mark)
            await say(conn, job, "for a door")
            await eventually(lambda: "for a door" in got)
            await eventually(lambda: "" in payloads)  # it listens by now
            await conn.execute("SELECT pg_notify('accs__doors', 'worker 7')")
            await eventually(lambda: "worker 7" in payloads)
    assert got.count("for a door") == 1


async def test_a_database_that_crashes_and_comes_back_has_lost_nothing() -> None:
    with own_server() as server:
        url = await server.with_schema()
        async with hub_on(url) as hub:
            conn = await open_connection(url)
            job = await submit(conn, step("a"))
            async with hub.subscribe([Topic.job(job)]) as subscription:
                seen = Seen(subscription)
                await say(conn, job, "before")
                await seen.until(lambda told: "before" in said(told))
                conn.terminate()
                await asyncio.to_thread(server.crash)
                await seen.until(lambda _: [each["state"] for each in seen.of("hearing")][-1:] == ["lost"], 30)
                await asyncio.to_thread(server.start)
                conn = await open_connection(url)
                await say(conn, job, "after")  # its id may be 32 higher than the last: a sequence that crashed
                await seen.until(lambda told: "after" in said(told), 30)
                await conn.close()
        assert said(seen.told) == ["before", "after"]
        assert [each["state"] for each in seen.of("hearing")] == ["lost", "deaf"]
        assert seen.of("reset") == []
