"""NOTIFY: once for each service and statement, on prefix + service, and the builder's own channel."""

from collections import Counter
from datetime import timedelta
from typing import Any

from tests.conftest import Connect
from tests.support.cluster import Connection
from tests.support.factory import claim, clock, done, fail, node, release, started, step, submit, submit_to, workflow


class Ear:
    """What a listener hears on these channels, in order. `told()` is what has come since the last call."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn
        self._heard: list[tuple[str, str]] = []

    @classmethod
    async def on(cls, conn: Connection, *channels: str) -> "Ear":
        ear = cls(conn)
        for channel in channels:
            await conn.add_listener(channel, ear._hear)
        return ear

    def _hear(self, _conn: Any, _pid: int, channel: str, payload: Any) -> None:
        self._heard.append((channel, payload))

    async def told(self) -> Counter[tuple[str, str]]:
        await self._conn.fetchval("SELECT 1")  # what was committed before arrives before this answer
        heard, self._heard = self._heard, []
        return Counter(heard)


async def ear(connect: Connect) -> Ear:
    return await Ear.on(await connect(), "accs_render", "accs_audio", "accs_builder")


RENDER, AUDIO, BUILDER = ("accs_render", ""), ("accs_audio", ""), ("accs_builder", "")


async def test_a_submission_tells_each_service_that_got_something_runnable_once(conn: Connection, connect: Connect):
    listening = await ear(connect)
    shape = await workflow(conn, step("a"), step("b"), step("c", "audio", after="a"))
    await conn.fetch("SELECT * FROM accs.submit_jobs($1)", [shape] * 5)
    assert await listening.told() == {RENDER: 1}


async def test_a_finish_tells_the_services_of_what_became_runnable(conn: Connection, connect: Connect):
    await node(conn)
    await submit(conn, step("a"), step("b", "audio", after="a"), step("c", "audio", after="a"))
    listening = await ear(connect)
    claimed = await started(conn)
    assert await listening.told() == {}
    await conn.fetch("SELECT * FROM accs.finish_tasks($1, '{1}', 'owner-1')", [claimed[0]["task_id"]])
    assert await listening.told() == {AUDIO: 1}
    await done(conn, 2, "audio")
    assert await listening.told() == {}


async def test_work_that_is_given_back_is_told_and_work_that_waits_is_not(conn: Connection, connect: Connect):
    await node(conn)
    await submit(conn, step("a", backoff=[60]))
    listening = await ear(connect)
    await release(conn, *await claim(conn))
    assert await listening.told() == {RENDER: 1}
    await fail(conn, *await claim(conn))
    assert await listening.told() == {}


async def test_a_task_that_a_full_key_holds_is_told_when_the_key_is_free(conn: Connection, connect: Connect):
    await node(conn)
    shape = await workflow(conn, step("a", concurrency_key="k"))
    await submit_to(conn, shape)
    (first,) = await started(conn)
    listening = await ear(connect)
    await submit_to(conn, shape)
    assert await listening.told() == {}
    await conn.fetch("SELECT * FROM accs.finish_tasks($1, '{1}', 'owner-1')", [first["task_id"]])
    assert await listening.told() == {RENDER: 1}


async def test_the_builder_hears_of_plain_inserts_scheduled_submissions_and_changed_due_times(
    conn: Connection, connect: Connect
):
    shape = await workflow(conn)
    listening = await ear(connect)
    await conn.execute("INSERT INTO jobs (workflow_id) SELECT $1 FROM generate_series(1, 5)", shape)
    assert await listening.told() == {BUILDER: 1}
    await submit_to(conn, shape, scheduled_at=await clock(conn) + timedelta(hours=1))
    assert await listening.told() == {BUILDER: 1}
    await conn.execute("UPDATE jobs SET scheduled_at = now() + interval '1 day'")
    assert await listening.told() == {BUILDER: 1}
    await submit_to(conn, shape)
    assert await listening.told() == {RENDER: 1}
    await conn.execute("INSERT INTO jobs (workflow_id) SELECT $1 WHERE false", shape)
    assert await listening.told() == {}


async def test_a_resumed_service_node_or_workflow_is_told(conn: Connection, connect: Connect):
    await node(conn, render=1, audio=1)
    shape = await workflow(conn, name="media")
    await submit_to(conn, shape)
    listening = await ear(connect)
    for kind, name, told in (
        ("service", "audio", {AUDIO: 1}),
        ("node", "n1", {RENDER: 1, AUDIO: 1}),
        ("workflow", "media", {RENDER: 1}),
    ):
        await conn.execute("SELECT accs.pause($1, $2)", kind, name)
        assert await listening.told() == {}
        await conn.execute("SELECT accs.resume($1, $2)", kind, name)
        assert await listening.told() == told


async def test_nothing_is_told_of_what_is_rolled_back(conn: Connection, connect: Connect):
    shape = await workflow(conn)
    listening = await ear(connect)
    transaction = conn.transaction()
    await transaction.start()
    await submit_to(conn, shape)
    await transaction.rollback()
    assert await listening.told() == {}
