"""The lease keeper on a real database: kept in one statement, lost by our own clock, asked about after a pause."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import cast
from urllib.parse import urlsplit

import anyio
import pytest

from accsd.agent.registration import register
from accsd.clock import boot_time
from accsd.db import Database, Fence, cancel_jobs
from accsd.metrics import Metrics
from accsd.runners.base import Runner
from accsd.work.lease import LeaseKeeper
from accsd.work.service import LocalService
from tests.conftest import Connect
from tests.support.attempts import node_of
from tests.support.cable import Cable
from tests.support.cluster import Connection, TestServer
from tests.support.eventually import eventually
from tests.support.factory import NODE, claim, node, step, submit
from tests.support.library import opened, tcp_url

LEASE = timedelta(seconds=5)
SOON = timedelta(milliseconds=20)


def keeper_of(db: Database, *, lease: timedelta = LEASE, every: timedelta = SOON) -> LeaseKeeper:
    return LeaseKeeper(db, node=NODE, lease=lease, every=every, metrics=Metrics())


@asynccontextmanager
async def silenced(server: TestServer, db_url: str) -> AsyncGenerator[tuple[Database, Cable]]:
    """A database behind a cable that can fall silent."""
    url = tcp_url(server, db_url)
    there = urlsplit(url)
    assert there.hostname
    assert there.port
    async with Cable.to(there.hostname, there.port) as cable, opened(cable.through(url)) as db:
        yield db, cable


async def held(conn: Connection, *, lease: timedelta = LEASE) -> Fence:
    """A task of ours, claimed."""
    await node(conn)
    await submit(conn, step("a"))
    (task,) = await claim(conn, owner=NODE, lease=lease)
    return Fence(task["task_id"], task["attempt_id"])


async def lease_left(conn: Connection, fence: Fence) -> timedelta:
    return await conn.fetchval("SELECT lease_until - accs.clock() FROM job_tasks WHERE id = $1", fence.task_id)


async def test_a_lease_is_extended_for_as_long_as_it_is_held(db_url: str, conn: Connection):
    fence = await held(conn, lease=timedelta(seconds=1))
    async with opened(db_url) as db, anyio.create_task_group() as group:
        keeper = keeper_of(db)
        with keeper.holding(fence, granted=boot_time()) as lease:
            group.start_soon(keeper.serve)
            group.start_soon(keeper.beat_on)

            async def extended() -> bool:
                return await lease_left(conn, fence) > timedelta(seconds=4)

            await eventually(extended)
            assert not lease.is_gone
        assert keeper.held == []
        group.cancel_scope.cancel()


async def test_one_statement_keeps_all_and_says_that_the_node_is_there(db_url: str, conn: Connection):
    await node(conn)
    await submit(conn, step("a"), step("b"), step("c"))
    tasks = await claim(conn, 3, owner=NODE, lease=LEASE)
    fences = [Fence(task["task_id"], task["attempt_id"]) for task in tasks]
    await conn.execute("UPDATE nodes SET last_seen = NULL")
    async with opened(db_url, pool_size=1) as db:
        keeper = keeper_of(db)
        with (
            keeper.holding(fences[0], granted=boot_time()),
            keeper.holding(fences[1], granted=boot_time()),
            keeper.holding(fences[2], granted=boot_time()),
        ):
            assert await keeper.beat()
    assert await conn.fetchval("SELECT count(DISTINCT lease_until) FROM accs.live") == 1
    assert await conn.fetchval("SELECT last_seen IS NOT NULL FROM nodes")


async def test_a_cancelled_task_loses_its_lease_as_soon_as_somebody_asks(db_url: str, conn: Connection):
    fence = await held(conn)
    async with opened(db_url) as db, anyio.create_task_group() as group:
        keeper = keeper_of(db, every=timedelta(hours=1))
        with keeper.holding(fence, granted=boot_time()) as lease:
            group.start_soon(keeper.serve)
            group.start_soon(keeper.beat_on)
            await eventually(lambda: conn.fetchval("SELECT awake_state = 'awake' FROM nodes"))
            await cancel_jobs(db, [await conn.fetchval("SELECT job_id FROM job_tasks")])
            keeper.ask_now()
            with anyio.fail_after(5):
                await lease.gone.wait()
            assert lease.is_cancelled
        group.cancel_scope.cancel()


async def test_a_lease_that_cannot_be_kept_is_lost_before_it_ends(server: TestServer, db_url: str, conn: Connection):
    async with silenced(server, db_url) as (db, cable), anyio.create_task_group() as group:
        short = timedelta(seconds=1.5)
        fence = await held(conn, lease=short)
        keeper = keeper_of(db, lease=short, every=timedelta(milliseconds=100))
        with keeper.holding(fence, granted=boot_time()) as lease:
            cable.fall_silent()
            group.start_soon(keeper.serve)
            group.start_soon(keeper.beat_on)
            with anyio.fail_after(5):
                await lease.gone.wait()
            assert lease.reason == "not_kept_in_time"
            assert await lease_left(conn, fence) > timedelta(0), "the work can be killed while the lease still holds"
        group.cancel_scope.cancel()
        cable.flow_again()


async def test_after_a_pause_leases_are_asked_about_before_anything_else(
    db_url: str, conn: Connection, monkeypatch: pytest.MonkeyPatch
):
    fence = await held(conn)
    async with opened(db_url) as db, anyio.create_task_group() as group:
        resumed = anyio.Event()
        keeper = LeaseKeeper(
            db, node=NODE, lease=LEASE, every=timedelta(hours=1), metrics=Metrics(), when_resumed=resumed.set
        )
        with keeper.holding(fence, granted=boot_time()) as lease:
            group.start_soon(keeper.serve)
            group.start_soon(keeper.beat_on)
            await eventually(lambda: conn.fetchval("SELECT awake_state = 'awake' FROM nodes"))
            # The machine sleeps for an hour: its task is taken back meanwhile, and it is told so when it wakes.
            await conn.execute("UPDATE accs.test_clock SET shift = '1 hour'")
            await conn.fetch("SELECT * FROM accs.reclaim_tasks()")
            monkeypatch.setattr("accsd.clock.time_asleep", lambda: 3600.0)
            with anyio.fail_after(5):
                await resumed.wait()
            assert lease.is_gone
            assert not keeper.is_frozen
            assert keeper.absences == 1
        group.cancel_scope.cancel()


async def test_after_a_long_sleep_a_lease_that_nobody_confirms_is_lost_although_our_clock_stood_still(
    server: TestServer, db_url: str, conn: Connection, monkeypatch: pytest.MonkeyPatch
):
    long = timedelta(seconds=20)
    fence = await held(conn, lease=long)
    async with silenced(server, db_url) as (db, cable), anyio.create_task_group() as group:
        keeper = keeper_of(db, lease=long, every=timedelta(hours=1))
        with keeper.holding(fence, granted=boot_time()) as lease:
            group.start_soon(keeper.serve)
            await anyio.wait_all_tasks_blocked()
            cable.fall_silent()  # the network takes longer to come back than the machine
            monkeypatch.setattr("accsd.clock.time_asleep", lambda: 3600.0)
            group.start_soon(keeper.beat_on)
            with anyio.fail_after(8):
                await lease.gone.wait()
            assert lease.reason == "not_kept_in_time"
        group.cancel_scope.cancel()
        cable.flow_again()


@pytest.mark.parametrize("is_still_ours", [True, False])
async def test_work_begins_after_a_sleep_only_when_the_database_has_said_whose_it_is(
    server: TestServer, db_url: str, conn: Connection, monkeypatch: pytest.MonkeyPatch, is_still_ours: bool
):
    fence = await held(conn)
    async with silenced(server, db_url) as (db, cable), anyio.create_task_group() as group:
        keeper = keeper_of(db)
        cleared: list[float] = []

        async def begin() -> None:
            cleared.append(await keeper.confirmed(lease))

        with keeper.holding(fence, granted=boot_time()) as lease:
            group.start_soon(keeper.serve)
            await anyio.wait_all_tasks_blocked()
            cable.fall_silent()
            monkeypatch.setattr("accsd.clock.time_asleep", lambda: 4.5)  # the margin has begun
            group.start_soon(begin)
            group.start_soon(keeper.beat_on)
            await eventually(lambda: keeper.absences == 1)
            await anyio.wait_all_tasks_blocked()
            assert not cleared
            if not is_still_ours:
                await conn.execute("UPDATE accs.test_clock SET shift = '1 hour'")
                await conn.fetch("SELECT * FROM accs.reclaim_tasks()")
            cable.flow_again()
            await eventually(lambda: not keeper.is_frozen)
            if is_still_ours:
                await eventually(lambda: cleared == [lease.good_until])
                assert lease.good_until > boot_time()
            else:
                assert lease.is_gone
                await anyio.wait_all_tasks_blocked()
                assert not cleared
        group.cancel_scope.cancel()


async def test_a_claim_that_was_answered_late_is_asked_about_and_begins(db_url: str, conn: Connection):
    """It had waited for a lock for longer than the lease lasts; in the database the lease begins after the wait."""
    fence = await held(conn)
    async with opened(db_url) as db, anyio.create_task_group() as group:
        keeper = keeper_of(db)
        with keeper.holding(fence, granted=boot_time() - 2 * LEASE.total_seconds()) as lease:
            group.start_soon(keeper.serve)
            group.start_soon(keeper.beat_on)
            with anyio.fail_after(30):
                assert await keeper.confirmed(lease) > boot_time()
            assert not lease.is_gone
        group.cancel_scope.cancel()


async def test_a_heartbeat_from_before_the_sleep_does_not_answer_for_the_leases(
    db_url: str, conn: Connection, connect: Connect, monkeypatch: pytest.MonkeyPatch
):
    await node(conn)
    holder = await connect()
    async with opened(db_url) as db, anyio.create_task_group() as group:
        answers: list[int] = []
        asked: list[bool] = []
        db.observe(lambda answered, _: asked.append(answered))
        resumed = anyio.Event()

        def when_resumed() -> None:
            answers.append(len(asked))
            resumed.set()

        keeper = LeaseKeeper(
            db, node=NODE, lease=timedelta(minutes=1), every=SOON, metrics=Metrics(), when_resumed=when_resumed
        )
        async with holder.transaction():
            await holder.execute("SELECT FROM nodes FOR UPDATE")
            group.start_soon(keeper.beat_on)
            await eventually(lambda: conn.fetchval("SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted)"))
            group.start_soon(keeper.serve)
            await anyio.wait_all_tasks_blocked()
            monkeypatch.setattr("accsd.clock.time_asleep", lambda: 3600.0)
            await eventually(lambda: keeper.absences == 1)
        with anyio.fail_after(5):
            await resumed.wait()
        assert answers == [2], "the one from before, and one that was asked afterwards"
        group.cancel_scope.cancel()


async def test_an_older_attempt_of_our_own_is_given_up_when_the_task_comes_back_to_us(db_url: str, conn: Connection):
    fence = await held(conn)
    newer = Fence(fence.task_id, fence.attempt_id + 1)
    async with opened(db_url) as db:
        keeper = keeper_of(db)
        with (
            keeper.holding(fence, granted=boot_time()) as old,
            keeper.holding(newer, granted=boot_time()) as new,
        ):
            assert old.reason == "stale_attempt"
            assert not new.is_gone


async def test_who_falls_silent_is_not_seen_and_asks_about_his_leases_when_he_speaks_again(
    db_url: str, conn: Connection
):
    await node(conn)
    async with opened(db_url) as db, anyio.create_task_group() as group:
        resumed = anyio.Event()
        keeper = LeaseKeeper(db, node=NODE, lease=LEASE, every=SOON, metrics=Metrics(), when_resumed=resumed.set)
        group.start_soon(keeper.beat_on)
        await keeper.fall_silent()
        await conn.execute("UPDATE nodes SET awake_state = 'sleep'")
        keeper.ask_now()
        await anyio.sleep(3 * SOON.total_seconds())  # several heartbeats
        assert await conn.fetchval("SELECT awake_state FROM nodes") == "sleep"
        keeper.speak_again()
        assert keeper.is_frozen
        with anyio.fail_after(5):
            await resumed.wait()
        assert await conn.fetchval("SELECT awake_state FROM nodes") == "awake"
        assert (keeper.is_frozen, keeper.absences) == (False, 0)
        group.cancel_scope.cancel()


def offered(name: str, concurrency: int) -> LocalService:
    """A service that is never run."""
    runner, moment = cast("Runner", None), timedelta(0)
    return LocalService(name, runner, concurrency, timeout=None, stop_grace=moment, idle_stop=None, output_limit=0)


async def test_who_is_silent_does_not_register_either_before_he_speaks_again(db_url: str, conn: Connection):
    await node(conn)
    async with opened(db_url) as db, anyio.create_task_group() as group:
        here = node_of(db, is_registered=False)
        here.services = {"render": offered("render", 7)}
        keeper = here.leases
        await keeper.fall_silent()
        await conn.fetch("SELECT accs.node_leaves($1, 'sleep')", NODE)
        group.start_soon(register, here)
        await anyio.sleep(0.2)  # longer than a statement takes
        assert await conn.fetchval("SELECT awake_state FROM nodes") == "sleep"
        keeper.speak_again()
        await eventually(lambda: here.is_registered)
        assert await conn.fetchval("SELECT max_concurrency ->> 'render' FROM nodes") == "7"
