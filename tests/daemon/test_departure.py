"""A node on its way to sleep, and back at work: what it hears on the way, what it says, and what is undone."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest

from accsd import failpoints
from accsd.db import Verdict, node_leaves
from accsd.work.attempts import Gate
from tests.conftest import Connect
from tests.support.bed import Bed, awake_state, because, bed, is_back
from tests.support.cluster import Connection
from tests.support.eventually import eventually
from tests.support.factory import claim, finish, node, pass_time, start, step, submit, submit_to, workflow


async def test_it_says_that_it_sleeps_before_it_does_and_is_at_work_again_afterwards(
    db_url: str, conn: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async with bed(db_url, conn, tmp_path) as its:
        seen: list[object] = []

        async def suspended() -> None:
            seen.append(await awake_state(conn))
            await pass_time(conn, 3600)
            await anyio.sleep(1.2)  # longer than the time between two heartbeats
            seen.append(await awake_state(conn))
            assert not its.here.attempts.gate.is_open
            monkeypatch.setattr("accsd.agent.suspend.time_asleep", lambda: 3600.0)

        its.when_told = suspended
        done = await its.sleeper.run_once()
        assert done.did == "slept and is awake again"
        assert seen == ["sleep", "sleep"]
        assert its.here.attempts.gate.is_open
        assert its.here.context.leases.is_frozen, "nothing is claimed before the heartbeat was answered"
        await is_back(conn)
        await eventually(lambda: not its.here.context.leases.is_frozen)
        said = [row["message"] for row in await conn.fetch("SELECT message FROM accs.node_history ORDER BY id")]
        assert said[-2:] == ["it has nothing to do", "it is there"]


async def test_a_machine_that_does_not_fall_asleep_is_back_and_not_tried_again_at_once(
    db_url: str, conn: Connection, tmp_path: Path
):
    async with bed(db_url, conn, tmp_path, within="300ms") as its:

        async def nothing() -> None:
            return None

        its.when_told = nothing
        await its.sleeper.run_once()
        await is_back(conn)
        await eventually(lambda: not its.here.context.leases.is_frozen)
        again = await its.sleeper.run_once()
        assert its.told == 1
        assert again.next_due is not None
        assert again.next_due > timedelta(seconds=30)
        assert await because(conn) == "it did not fall asleep when it was told to"
        said = await conn.fetch(
            "SELECT state, message FROM accs.node_history WHERE node = 'n1' ORDER BY id DESC LIMIT 3"
        )
        assert [tuple(row) for row in reversed(said)] == [
            ("asleep", "it has nothing to do"),
            ("unknown", "it did not fall asleep when it was told to"),
            ("ready", "it is there"),
        ]


# News of work


@asynccontextmanager
async def busy_neighbour(its: Bed, connect: Connect) -> AsyncGenerator[list[str]]:
    """n2 takes all work as soon as it comes, and it comes all the time. Yields what this node hears of it."""
    ear, hand = await connect(), await connect()
    await node(hand, "n2", render=2)
    heard: list[str] = []

    def hear(*news: Any) -> None:
        heard.append(str(news[-1]))
        its.node.has_news = True

    async def work() -> None:
        steps = await workflow(hand, step("a"))
        while True:
            await submit_to(hand, steps)
            claimed = await claim(hand, on="n2")
            await start(hand, *claimed)
            await finish(hand, *claimed)
            await anyio.sleep(0.02)  # it has room, so most of the time nothing waits

    await ear.add_listener(f"{await ear.fetchval('SELECT accs.channel_prefix()')}render", hear)
    async with anyio.create_task_group() as group:
        group.start_soon(work)
        await eventually(lambda: heard)
        yield heard
        group.cancel_scope.cancel()
    await ear.close()


async def test_a_node_beside_one_that_takes_all_work_goes_to_sleep_whatever_it_hears(
    db_url: str, conn: Connection, connect: Connect, tmp_path: Path
):
    async with bed(db_url, conn, tmp_path) as its, busy_neighbour(its, connect) as heard:

        async def stop_slowly() -> None:
            before = len(heard)
            await eventually(lambda: len(heard) > before + 5)

        its.when_stopping = stop_slowly
        done = await its.sleeper.run_once()
        assert (its.told, done.did) == (1, "stays awake: the machine won't"), "as far as it could it went"
        assert await conn.fetchval("SELECT count(*) FROM accs.node_history WHERE node = 'n1' AND state = 'asleep'") == 1


async def test_work_that_nobody_else_has_room_for_calls_it_off_before_it_has_said_anything(
    db_url: str, conn: Connection, tmp_path: Path
):
    async with bed(db_url, conn, tmp_path) as its:
        await node(conn, "n2", render=1)

        async def comes() -> None:
            await submit(conn, step("a"), step("b"))
            its.node.has_news = True

        its.when_stopping = comes
        done = await its.sleeper.run_once()
        assert (done.did or "").endswith("waits, and nobody else who is awake can take it")
        assert (its.told, await awake_state(conn)) == (0, "awake")
        assert its.here.attempts.gate.is_open
        assert await conn.fetchval("SELECT count(*) FROM accs.node_history WHERE state = 'asleep'") == 0


async def test_work_that_others_have_room_for_and_do_not_take_calls_it_off(
    db_url: str, conn: Connection, tmp_path: Path
):
    async with bed(db_url, conn, tmp_path) as its:
        await node(conn, "n2", render=1)

        async def comes() -> None:
            await submit(conn)
            its.node.has_news = True

        its.when_stopping = comes
        done = await its.sleeper.run_once()
        assert (its.told, (done.did or "").endswith("waits, and nobody else takes it")) == (0, True)


@pytest.mark.parametrize("is_heard", [True, False])
async def test_work_that_comes_just_before_the_goodbye_calls_it_off_heard_or_not(
    db_url: str, conn: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_heard: bool
):
    """The builder has counted on this node for it."""
    async with bed(db_url, conn, tmp_path) as its:

        async def says_goodbye(*args: Any, **given: Any) -> Verdict:
            await submit(conn)
            if is_heard:
                its.node.has_news = True
            return await node_leaves(*args, **given)

        monkeypatch.setattr("accsd.agent.suspend.node_leaves", says_goodbye)
        done = await its.sleeper.run_once()
        assert (its.told, (done.did or "").endswith("waits, and nobody else who is awake can take it")) == (0, True)
        await is_back(conn)


async def test_an_agent_that_stops_does_not_go_to_sleep(db_url: str, conn: Connection, tmp_path: Path):
    async with bed(db_url, conn, tmp_path) as its:

        async def stops() -> None:
            its.node.must_stay = "its agent stops"

        its.when_stopping = stops
        assert (await its.sleeper.run_once()).did == "stays awake: its agent stops"
        assert its.told == 0


# Accidents


@pytest.mark.parametrize("point", ["sleep.gated", "sleep.said"])
async def test_a_bug_on_the_way_leaves_a_node_at_work(db_url: str, conn: Connection, tmp_path: Path, point: str):
    async with bed(db_url, conn, tmp_path) as its:
        failpoints.arm(f"{point}:raise")
        try:
            with pytest.raises(failpoints.Injected):
                await its.sleeper.run_once()
        finally:
            failpoints.arm(None)
        assert its.here.attempts.gate.is_open
        assert not its.node.has_said_goodbye
        await is_back(conn)


async def test_a_claim_under_way_is_waited_for():
    gate = Gate()
    with gate.passing():
        assert not await gate.shut(timedelta(milliseconds=10))
    assert await gate.shut(timedelta(milliseconds=10))
    assert not gate.is_open
