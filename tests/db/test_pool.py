"""The way to PostgreSQL when it is slow, silent, cut, restarted or full: every call ends in time, says what happened,
and is sent again only where that does no harm."""

import asyncio
import gc
import os
import signal
import socket
import time
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest

from accsd import embedded
from accsd.db import (
    Database,
    Submission,
    adopt_tasks,
    claim_tasks,
    install,
    mark_task_error,
    mark_task_running,
    submit_job,
)
from accsd.db.pool import connect as connect_alone
from accsd.errors import (
    AccsdError,
    DatabaseUnavailable,
)
from tests.conftest import Connect
from tests.support.cable import Cable
from tests.support.checker import check
from tests.support.cluster import SETTINGS, Connection, TestServer, bindir_of
from tests.support.cluster import server as server  # what stands above SQL, whichever PostgreSQL it is
from tests.support.eventually import eventually
from tests.support.library import name_in, opened, prepared, settings_of, tcp_url

LEASE = timedelta(seconds=60)
SLEEPING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'"


class Stopwatch:
    """with Stopwatch() as watch: …; assert watch.seconds < 1"""

    def __enter__(self) -> "Stopwatch":
        self._began = time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.monotonic() - self._began


# Deadlines


async def test_a_call_past_its_deadline_ends_and_its_connection_is_free_again(db_url: str, conn: Connection):
    async with opened(db_url, pool_size=1) as db:
        with Stopwatch() as watch, pytest.raises(DatabaseUnavailable, match="did not answer in time"):
            await db.fetch("SELECT pg_sleep(60)", within=0.3)
        assert watch.seconds < 2
        assert db.pool_free == 1
        running = (
            "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND query LIKE '%pg_sleep%' AND pid <> $1"
        )
        assert await conn.fetchval(running, conn.get_server_pid()) == 0, "it was cancelled on the server too"
        assert await db.fetchval("SELECT 1") == 1


async def test_the_deadline_of_the_settings_holds_for_calls_that_name_none(db_url: str):
    async with opened(db_url, statement_timeout_sec=0.3) as db:
        with Stopwatch() as watch, pytest.raises(DatabaseUnavailable):
            await db.fetchval("SELECT pg_sleep(60)", repeatable=True)
    assert watch.seconds < 2


async def test_waiting_for_a_free_connection_counts_towards_the_deadline(db_url: str):
    async with opened(db_url, pool_size=1) as db, db.acquire():
        with Stopwatch() as watch, pytest.raises(DatabaseUnavailable, match="in time"):
            await db.fetch("SELECT 1", within=0.2)
    assert watch.seconds < 1


async def test_a_cancelled_call_leaves_its_connection_usable(db_url: str):
    async with opened(db_url, pool_size=1) as db:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await db.fetch("SELECT pg_sleep(60)")
        assert await db.fetchval("SELECT 1") == 1


async def test_a_transaction_left_open_is_rolled_back_when_its_connection_comes_back(db_url: str):
    async with opened(db_url, pool_size=1) as db:
        async with db.acquire() as connection:
            await connection.execute("BEGIN; CREATE TABLE accs.unfinished ()")
        assert await db.fetchval("SELECT to_regclass('accs.unfinished')") is None


# From one call to the next


async def test_a_call_takes_the_connection_of_the_last_one_and_starts_no_task(db_url: str):
    async with opened(db_url) as db:
        session = await db.fetchval("SELECT pg_backend_pid()")
        started: list[object] = []

        def start(loop: asyncio.AbstractEventLoop, work: Any, **named: Any) -> asyncio.Task[Any]:
            started.append(work)
            return asyncio.Task(work, loop=loop, **named)

        asyncio.get_running_loop().set_task_factory(start)
        try:
            assert await db.fetchval("SELECT pg_backend_pid()") == session
        finally:
            asyncio.get_running_loop().set_task_factory(None)
    assert started == []


async def test_whoever_waits_for_the_pool_is_served_though_calls_go_on_and_on(db_url: str):
    async with opened(db_url, pool_size=1) as db:
        is_served = asyncio.Event()

        async def calls() -> None:
            while not is_served.is_set():
                await db.fetch("SELECT 1")

        busy = asyncio.ensure_future(calls())
        await db.fetch("SELECT pg_sleep(0.01)")
        for _ in range(5):
            await asyncio.wait_for(db.fetch("SELECT pg_sleep(0.01)"), 5)
        is_served.set()
        await busy
        assert db.pool_free == 1


async def test_a_connection_that_ended_while_no_call_used_it_is_replaced(db_url: str, conn: Connection):
    async with opened(db_url, pool_size=1) as db:
        session = await db.fetchval("SELECT pg_backend_pid()")
        await conn.execute("SELECT pg_terminate_backend($1)", session)
        await eventually(
            lambda: conn.fetchval("SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $1)", session)
        )
        await asyncio.sleep(0.05)  # the driver reads the end of the connection in its next turn
        assert await db.fetchval("SELECT pg_backend_pid()") != session
        assert db.pool_free == 1


async def test_two_connections_stay_at_hand_and_the_others_go_back_to_the_pool(db_url: str):
    async with opened(db_url, pool_size=5) as db:
        await asyncio.gather(*(db.fetch("SELECT pg_sleep(0.1)") for _ in range(5)))
        assert db.pool_free == 5
        assert len(set(await asyncio.gather(*(db.fetchval("SELECT pg_backend_pid()") for _ in range(5))))) == 5


# Silence: the peer is there and says nothing any more


async def test_a_statement_between_the_goodbye_of_a_session_and_its_end_is_sent_on_another_one(
    cable: Cable, by_cable: str, conn: Connection
):
    """The driver has read that the session was terminated, and not yet that the connection is closed."""
    async with opened(by_cable, pool_size=1) as db:
        session = await db.fetchval("SELECT pg_backend_pid()")
        cable.delays_ends = True
        await conn.execute("SELECT pg_terminate_backend($1)", session)
        await eventually(lambda: cable.ends_delayed)
        await asyncio.sleep(0.05)  # the goodbye is in the socket; the driver reads it in its next turn
        with pytest.raises(DatabaseUnavailable):
            await db.fetch("SELECT 1")
        cable.delays_ends = False
        assert await db.fetchval("SELECT pg_backend_pid()", repeatable=True) != session


def _releases() -> list[object]:
    return [task for task in asyncio.all_tasks() if "release" in repr(task.get_coro())]


async def test_a_call_that_was_given_up_leaves_no_error_that_nobody_hears(cable: Cable, by_cable: str):
    untold: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: untold.append(context))
    async with opened(by_cable, pool_size=1) as db:
        cable.fall_silent_at("SELECT 7")
        async with anyio.create_task_group() as group:
            group.start_soon(db.fetch, "SELECT 7")
            await eventually(lambda: cable.is_silent)
            group.cancel_scope.cancel()
        assert _releases(), "asyncpg has shielded it"
        await eventually(lambda: not _releases())
        gc.collect()
        assert not untold
        cable.cut()
        cable.flow_again()


async def test_a_connection_that_fell_silent_is_given_up_within_seconds_and_replaced(cable: Cable, by_cable: str):
    async with opened(by_cable, pool_size=1) as db:
        cable.fall_silent()
        with Stopwatch() as watch, pytest.raises(DatabaseUnavailable, match="in time"):
            await db.fetch("SELECT 1", within=0.5)
        assert watch.seconds < 4
        cable.flow_again()
        made = cable.connections
        assert await db.fetchval("SELECT 1") == 1
        assert cable.connections == made + 1, "the silent connection must not be used again"
    assert len(asyncio.all_tasks()) <= 1 + 3 * 2, "only this test and the cable's own"


async def test_opening_towards_silence_ends_within_the_connect_timeout(cable: Cable, by_cable: str):
    cable.fall_silent()
    with Stopwatch() as watch, pytest.raises(DatabaseUnavailable, match="in time"):
        await Database.open(settings_of(by_cable, connect_timeout_sec=0.5))
    assert watch.seconds < 2


async def test_silence_after_the_handshake_ends_opening_too(cable: Cable, by_cable: str):
    cable.fall_silent_at("pg_backend_pid")
    with Stopwatch() as watch, pytest.raises(DatabaseUnavailable, match="in time"):
        await Database.open(settings_of(by_cable, statement_timeout_sec=0.5))
    assert watch.seconds < 4


async def test_the_kernel_is_told_to_notice_a_dead_peer(server: TestServer, db_url: str):
    async with opened(tcp_url(server, db_url)) as db, db.acquire() as connection:
        link: socket.socket = getattr(connection, "_transport").get_extra_info("socket")  # noqa: B009
        assert link.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert link.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 5000
        quiet = link.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE)
        probes = [link.getsockopt(socket.IPPROTO_TCP, o) for o in (socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)]
        assert quiet + probes[0] * probes[1] < 10


# Cuts: what was asked is done, and nobody hears of it


async def test_a_submission_whose_answer_was_lost_is_one_job(cable: Cable, by_cable: str, conn: Connection):
    async with opened(by_cable, pool_size=1) as db:
        workflow = await prepared(db)
        cable.lose_answer_to("submit_jobs")
        job = await submit_job(db, Submission(workflow))
    assert cable.left_to_lose == 0
    assert await conn.fetch("SELECT id FROM jobs") == [(job,)]
    await check(conn, acknowledged=[job])


async def test_a_claim_whose_answer_was_lost_raises_once_and_is_found_by_adopt(
    cable: Cable, by_cable: str, conn: Connection
):
    async with opened(by_cable, pool_size=1) as db:
        workflow = await prepared(db)
        for _ in range(2):
            await submit_job(db, Submission(workflow))
        cable.lose_answer_to("claim_tasks")
        with pytest.raises(DatabaseUnavailable):
            await claim_tasks(db, "render", owner="n1", node="n1", limit=1, lease=LEASE)
        assert await conn.fetchval("SELECT count(*) FROM job_tasks WHERE status = 'starting'") == 1
        [held] = await adopt_tasks(db, owner="n1", node="n1", lease=LEASE)
        assert (held.attempt_id, held.status) == (1, "starting")
    await check(conn)


async def test_a_failure_whose_answer_was_lost_spends_one_attempt(cable: Cable, by_cable: str, conn: Connection):
    async with opened(by_cable, pool_size=1) as db:
        await submit_job(db, Submission(await prepared(db)))
        [task] = await claim_tasks(db, "render", owner="n1", node="n1", limit=1, lease=LEASE)
        await mark_task_running(db, task.fence, owner="n1")
        cable.lose_answer_to("finish_tasks", times=2)
        answer = await mark_task_error(db, task.fence, owner="n1", code="boom")
        assert (answer.verdict, answer.reason) == ("repeated", None)
    assert await conn.fetchrow("SELECT status, attempt FROM job_tasks") == ("queued", 1)
    assert await conn.fetchval("SELECT count(*) FROM task_events WHERE type = 'retry'") == 1
    await check(conn)


async def test_a_cut_between_calls_is_not_even_noticed(cable: Cable, by_cable: str):
    async with opened(by_cable, pool_size=1) as db:
        for _ in range(3):
            cable.cut()
            assert await db.fetchval("SELECT 1", repeatable=True) == 1


# The server is restarted under the pool


async def test_repeatable_calls_survive_a_restart_and_others_raise_once(server: TestServer, own_folder: Path):
    started = embedded.running(own_folder, bindir=bindir_of(server.name), settings=SETTINGS)
    with ExitStack() as stack:
        first = await asyncio.to_thread(stack.enter_context, started)
        async with Cable.to("127.0.0.1", first.port) as cable, opened(cable.through(first.tcp_url), pool_size=2) as db:
            installer = await connect_alone(settings_of(first.url))
            await install(installer)
            await installer.close()
            workflow = await prepared(db)
            acknowledged = [await submit_job(db, Submission(workflow))]
            sleeper = asyncio.ensure_future(db.fetch("SELECT pg_sleep(60)"))
            await eventually(lambda: db.fetchval(SLEEPING), what="the call's arrival at the server")

            os.kill(first.postmaster_pid, signal.SIGQUIT)  # pg_ctl stop -m immediate
            with pytest.raises(DatabaseUnavailable):
                await sleeper
            submitting = asyncio.ensure_future(submit_job(db, Submission(workflow)))
            claim = claim_tasks(db, "render", owner="n1", node="n1", limit=9, lease=LEASE)
            with pytest.raises(DatabaseUnavailable):
                await claim
            await asyncio.to_thread(embedded.wait_until_stopped, own_folder)
            again = embedded.running(own_folder, bindir=bindir_of(server.name), settings=SETTINGS)
            second = await asyncio.to_thread(stack.enter_context, again)
            cable.target = ("127.0.0.1", second.port)

            acknowledged.append(await submitting)
            claimed = await claim_tasks(db, "render", owner="n1", node="n1", limit=9, lease=LEASE)
            assert [task.job_id for task in claimed] == acknowledged


# What is sent again, and what is not

FLAKY = """
CREATE SEQUENCE accs.tries;
CREATE FUNCTION accs.fail_twice(p_state text) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
  v_try bigint := nextval('accs.tries');
BEGIN
  IF v_try <= 2 THEN
    RAISE EXCEPTION 'not yet' USING ERRCODE = p_state;
  END IF;
  RETURN v_try;
END $$"""


async def test_what_the_server_has_undone_is_always_sent_again(db_url: str, conn: Connection):
    await conn.execute(FLAKY)
    async with opened(db_url) as db:
        for state in ("40001", "40P01", "55P03"):
            await conn.execute("ALTER SEQUENCE accs.tries RESTART")
            assert await db.fetchval("SELECT accs.fail_twice($1)", state) == 3, state


async def test_what_has_an_unknown_outcome_is_sent_again_only_if_repeatable(db_url: str, conn: Connection):
    await conn.execute(FLAKY)
    async with opened(db_url) as db:
        for state in ("08006", "40003", "53200", "57014", "57P01", "58030"):
            await conn.execute("ALTER SEQUENCE accs.tries RESTART")
            with pytest.raises(DatabaseUnavailable, match="not yet"):
                await db.fetchval("SELECT accs.fail_twice($1)", state)
            assert await db.fetchval("SELECT accs.fail_twice($1)", state, repeatable=True) == 3, state


async def test_a_deadlock_is_resolved_by_sending_the_call_again(db_url: str, connect: Connect, conn: Connection):
    await conn.execute(f"ALTER DATABASE {name_in(db_url)} SET deadlock_timeout = '100ms'")
    rival = await connect(server_settings={"deadlock_timeout": "60s"})  # so that the other one is the victim
    async with opened(db_url) as db:
        async with rival.transaction():
            await rival.execute("SELECT pg_advisory_xact_lock(1)")
            call = asyncio.ensure_future(db.fetch("SELECT pg_advisory_xact_lock(2), pg_advisory_xact_lock(1)"))
            waiting = "SELECT count(*) = 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
            await eventually(lambda: conn.fetchval(waiting), what="the call's wait for the rival")
            await rival.execute("SELECT pg_advisory_xact_lock(2)")
        assert len(await call) == 1


async def test_a_lock_that_is_not_free_in_time_is_asked_for_again(db_url: str, connect: Connect, conn: Connection):
    await conn.execute(f"ALTER DATABASE {name_in(db_url)} SET lock_timeout = '50ms'")
    async with opened(db_url) as db:
        async with conn.transaction():
            await conn.execute("LOCK TABLE public.nodes")
            call = asyncio.ensure_future(db.fetch("SELECT name FROM public.nodes"))
            await asyncio.sleep(0.3)  # several times the lock timeout
            assert not call.done()
        assert await call == []


async def test_errors_inside_a_callers_own_transaction_are_translated_and_not_sent_again(conn: Connection):
    await conn.execute(FLAKY)
    with pytest.raises(DatabaseUnavailable):
        async with conn.transaction():
            await Database.over(conn).fetch("SELECT accs.fail_twice('40001')")
    assert await conn.fetchval("SELECT last_value FROM accs.tries") == 1


# The end of a pool


async def test_closing_waits_for_a_call_under_way(db_url: str, conn: Connection):
    async with opened(db_url) as db:
        call = asyncio.ensure_future(db.fetchval("SELECT 7 FROM pg_sleep(0.5)"))
        await eventually(lambda: conn.fetchval(SLEEPING), what="the call's arrival at the server")
        await db.close()
        assert await call == 7


async def test_closing_ends_in_time_though_a_connection_never_comes_back(db_url: str):
    db = await Database.open(settings_of(db_url, statement_timeout_sec=0.3))
    held, never = asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        async with db.acquire():
            held.set()
            await never.wait()

    holder = asyncio.ensure_future(hold())
    await held.wait()
    with Stopwatch() as watch:
        await db.close()
    assert watch.seconds < 2
    holder.cancel()
    await asyncio.gather(holder, return_exceptions=True)


async def test_a_call_after_the_end_says_so_at_once(db_url: str):
    async with opened(db_url) as db:
        pass
    with Stopwatch() as watch, pytest.raises(DatabaseUnavailable, match="pool is clos"):
        await db.fetchval("SELECT 1", repeatable=True)
    assert watch.seconds < 1


async def test_a_hundred_failures_leak_no_connection(db_url: str, conn: Connection):
    async with opened(db_url, pool_size=3) as db:

        async def fail(sql: str, within: float) -> None:
            with pytest.raises(AccsdError):
                await db.fetch(sql, within=within)

        # the verb fails, the deadline passes, the backend is killed
        kinds = [
            ("SELECT 1 / 0", 5.0),
            ("SELECT pg_sleep(9)", 0.05),
            ("SELECT pg_terminate_backend(pg_backend_pid())", 5),
        ]
        await asyncio.gather(*(fail(*kinds[i % 3]) for i in range(99)))
        mine = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'accsd'"
        assert await conn.fetchval(mine) <= 3
        assert await asyncio.gather(*(db.fetchval("SELECT 1") for _ in range(9))) == [1] * 9
