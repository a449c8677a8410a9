"""The ears of a process: what is notified is heard, and deafness is noticed, told and healed by itself."""

import asyncio
import os
import signal
from collections.abc import AsyncGenerator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import pytest
from anyio.abc import TaskStatus

from accsd import embedded
from accsd.db import install
from accsd.db.listen import CANCEL, NEWS, Listener, ListenerStatus, Rhythm
from accsd.db.pool import connect as connect_alone
from accsd.model.state import ListenerState
from tests.support.cable import Cable
from tests.support.cluster import SETTINGS, Connection, TestServer, bindir_of
from tests.support.eventually import eventually
from tests.support.factory import cancel, claim, node, step, submit
from tests.support.library import name_in, opened, settings_of, tcp_url

QUICK = Rhythm(probe_every=0.2, probe_within=0.5, first_pause=0.02, longest_pause=0.1, polling_pause=0.2)
SLOW = Rhythm(probe_every=60, first_pause=0.02, longest_pause=0.1)


class Ears:
    """A listener at work, and what it heard: payloads by name, and the states it was in."""

    def __init__(self, url: str, *, rhythm: Rhythm = QUICK, prefix: str = "accs_", **given: Any) -> None:
        settings = settings_of(url, connect_timeout_sec=1, **given.pop("settings", {}))
        given.setdefault("behind_pooler", False)
        self.heard: dict[str, list[str]] = {}
        self.states: list[ListenerStatus] = []
        self.listener = Listener(settings, prefix, on_change=self.states.append, rhythm=rhythm, **given)

    def subscribe(self, *names: str) -> "Ears":
        for name in names:
            self.listener.subscribe(name, self.heard.setdefault(name, []).append)
        return self

    @property
    def told(self) -> list[ListenerState]:
        return [state.hearing for state in self.states]

    @asynccontextmanager
    async def open(self) -> "AsyncGenerator[Ears]":
        async with anyio.create_task_group() as group:
            await group.start(self._run)
            yield self
            group.cancel_scope.cancel()

    async def _run(self, *, task_status: TaskStatus[None]) -> None:
        await self.listener.serve(task_status=task_status)

    async def until(self, hearing: ListenerState, *, within: float = 10) -> ListenerStatus:
        await eventually(lambda: self.listener.state.hearing is hearing, within=within, what=f"being {hearing}")
        return self.listener.state

    async def hears(self, name: str, payload: str = NEWS, *, times: int = 1) -> None:
        await eventually(lambda: self.heard[name].count(payload) >= times, what=f"{payload!r} for {name}")

    def forget(self) -> None:
        for payloads in self.heard.values():
            payloads.clear()


# What is heard


async def test_a_service_hears_of_its_tasks_and_the_builder_of_jobs(db_url: str, conn: Connection):
    async with Ears(db_url, rhythm=SLOW).subscribe("render", "audio", "builder").open() as ears:
        assert ears.listener.is_listening
        assert ears.heard == {"render": [NEWS], "audio": [NEWS], "builder": [NEWS]}, "once, at the beginning"
        ears.forget()
        await submit(conn, step("a"))
        await ears.hears("render")
        await conn.execute("INSERT INTO jobs (workflow_id) SELECT id FROM workflows")
        await ears.hears("builder")
        assert ears.heard == {"render": [NEWS], "audio": [], "builder": [NEWS]}


async def test_a_cancelled_task_is_told_to_its_service(db_url: str, conn: Connection):
    await node(conn)
    made = await submit(conn)
    await claim(conn)
    async with Ears(db_url).subscribe("render").open() as ears:
        await cancel(conn, made)
        await ears.hears("render", CANCEL)


async def test_many_channels_and_several_subscribers_share_one_connection(db_url: str, conn: Connection):
    names = [f"service-{i}.{'x' * 20}" for i in range(100)]
    async with Ears(db_url, rhythm=SLOW).subscribe(*names, names[0]).open() as ears:
        ears.forget()
        await conn.execute("SELECT pg_notify('accs_' || name, name) FROM unnest($1::text[]) AS u (name)", names)
        await ears.hears(names[-1], names[-1])
        assert ears.heard[names[0]] == [names[0]] * 2
        assert all(ears.heard[name] == [name] for name in names[1:])
        mine = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'accsd listener' AND datname = $1"
        assert await conn.fetchval(mine, name_in(db_url)) == 1


async def test_a_later_subscriber_hears_too(db_url: str, conn: Connection):
    async with Ears(db_url, rhythm=SLOW).subscribe("render").open() as ears:
        ears.subscribe("late")
        await ears.hears("late")
        ears.forget()
        await conn.execute("SELECT pg_notify('accs_late', 'x')")
        await ears.hears("late", "x")


async def test_a_subscriber_that_comes_while_a_new_connection_is_proved_hears_too(
    cable: Cable, by_cable: str, conn: Connection
):
    async with Ears(by_cable, rhythm=SLOW).subscribe("render").open() as ears:
        cable.fall_silent_at("pg_notify")
        cable.cut()
        await eventually(lambda: cable.is_silent, what="the first probe of the next connection")
        ears.subscribe("late")
        cable.flow_again()

        async def is_heard() -> bool:
            await conn.execute("SELECT pg_notify('accs_late', 'x')")
            return "x" in ears.heard["late"]

        await eventually(is_heard)


async def test_a_subscriber_that_raises_disturbs_nobody(db_url: str, conn: Connection):
    def broken(_payload: str) -> None:
        raise RuntimeError("a bug")

    ears = Ears(db_url)
    ears.listener.subscribe("render", broken)
    async with ears.subscribe("render").open():
        ears.forget()
        for n in range(3):
            await conn.execute("SELECT pg_notify('accs_render', $1)", str(n))
        await ears.hears("render", "2")
        assert ears.heard["render"] == ["0", "1", "2"]
        assert ears.told == [ListenerState.LISTENING]


# Deafness


async def test_a_cut_is_noticed_at_once_and_healed(cable: Cable, by_cable: str, conn: Connection):
    async with Ears(by_cable, rhythm=SLOW).subscribe("render").open() as ears:
        for n in range(3):
            ears.forget()
            cable.cut()
            await ears.hears("render")  # something may have been missed
            await ears.until(ListenerState.LISTENING)
            await conn.execute("SELECT pg_notify('accs_render', $1)", str(n))
            await ears.hears("render", str(n))
        assert ears.told[:3] == [ListenerState.LISTENING, ListenerState.DEAF, ListenerState.LISTENING]
        assert ears.states[1].reason == "the connection was closed"


async def test_silence_is_noticed_by_a_probe_and_healed(cable: Cable, by_cable: str, conn: Connection):
    async with Ears(by_cable).subscribe("render").open() as ears:
        cable.fall_silent()
        state = await ears.until(ListenerState.DEAF)
        assert "did not come back within 0.5 s" in (state.reason or "")
        assert not ears.listener.is_listening
        ears.forget()
        cable.flow_again()
        await ears.until(ListenerState.LISTENING)
        await ears.hears("render")
        await conn.execute("SELECT pg_notify('accs_render', 'x')")
        await ears.hears("render", "x")
    left = asyncio.all_tasks() - {asyncio.current_task()}
    assert not [task for task in left if "asyncpg" in repr(task)], "no call to a dead server is left behind"


async def test_a_server_that_is_not_there_at_the_start_delays_nobody(cable: Cable, by_cable: str):
    there, cable.target = cable.target, ("127.0.0.1", 1)
    async with Ears(by_cable).subscribe("render").open() as ears:
        assert ears.listener.state.hearing is ListenerState.DEAF
        assert ears.heard == {"render": []}
        cable.target = there
        await ears.until(ListenerState.LISTENING)
        await ears.hears("render")
    assert ears.told == [ListenerState.DEAF, ListenerState.LISTENING], "many tries, and one word about them"


async def test_a_listener_that_is_stopped_leaves_at_once_even_in_silence(cable: Cable, by_cable: str):
    async with asyncio.timeout(5):
        async with Ears(by_cable, rhythm=SLOW).subscribe("render").open():
            cable.fall_silent()


async def test_probes_through_the_pool_notice_ears_at_another_database(
    server: TestServer, db_url: str, conn: Connection
):
    """A listen_url that leads elsewhere hears its own probes, and never a task."""
    async with server.cloned() as elsewhere, opened(db_url) as db:
        settings = {"listen_url": elsewhere}
        async with Ears(db_url, db=db, settings=settings).subscribe("render").open() as ears:
            assert ears.told == [ListenerState.DEAF]
            await ears.until(ListenerState.POLLING)
        async with Ears(db_url, db=db, settings={"listen_url": db_url}).subscribe("render").open() as ears:
            assert ears.told == [ListenerState.LISTENING]
            await eventually(lambda: ears.listener.probes >= 3)


async def test_an_exhausted_pool_does_not_make_it_deaf(db_url: str):
    async with opened(db_url, pool_size=1) as db, db.acquire(), Ears(db_url, db=db).open() as ears:
        await eventually(lambda: ears.listener.probes >= 3)
        assert ears.told == [ListenerState.LISTENING]


async def test_another_prefix_than_the_schemas_is_told(db_url: str):
    async with Ears(db_url, prefix="other_").subscribe("render").open() as ears:
        state = ears.listener.state
        assert (state.hearing, state.reason) == (
            ListenerState.POLLING,
            'the schema notifies channels that begin with "accs_", not "other_"',
        )


# Behind a pooler


async def test_behind_a_pooler_it_polls_and_does_not_even_try(db_url: str, capsys: pytest.CaptureFixture[str]):
    async with Ears(db_url, behind_pooler=True).subscribe("render").open() as ears:
        state = ears.listener.state
        assert (state.hearing, state.reason) == (
            ListenerState.POLLING,
            "behind a transaction pooler, where LISTEN hears nothing",
        )
        assert ears.heard == {"render": []}
    said = capsys.readouterr()
    assert (said.out + said.err).count("database.listen_url") == 1


async def test_a_pooler_is_noticed_by_itself_and_looked_at_again(
    bouncer_url: str, cable: Cable, server: TestServer, conn: Connection
):
    bouncer = urlsplit(bouncer_url)
    there, cable.target = cable.target, ("127.0.0.1", bouncer.port or 0)
    assert server.launched is not None
    url = cable.through(tcp_url(server, f"postgresql:///{bouncer.path.strip('/')}"))
    async with Ears(url).subscribe("render").open() as ears:
        assert ears.listener.state.hearing is ListenerState.POLLING
        assert "is a transaction pooler" in (ears.listener.state.reason or "")
        cable.target = there
        await ears.until(ListenerState.LISTENING)
        await conn.execute("SELECT pg_notify('accs_render', 'x')")
        await ears.hears("render", "x")


async def test_with_a_way_past_the_pooler_it_listens(bouncer_url: str, db_url: str, conn: Connection):
    async with opened(bouncer_url) as db:
        ears = Ears(bouncer_url, behind_pooler=True, db=db, settings={"listen_url": db_url}).subscribe("render")
        async with ears.open():
            assert ears.told == [ListenerState.LISTENING]
            await conn.execute("SELECT pg_notify('accs_render', 'x')")
            await ears.hears("render", "x")


# The server is restarted


async def test_a_restart_of_the_server_is_survived(server: TestServer, own_folder: Path):
    def start() -> Any:
        return embedded.running(own_folder, bindir=bindir_of(server.name), settings=SETTINGS)

    with ExitStack() as stack:
        first = await asyncio.to_thread(stack.enter_context, start())
        async with Cable.to("127.0.0.1", first.port) as cable:
            await schema_on(first)
            async with Ears(cable.through(first.tcp_url), rhythm=SLOW).subscribe("render").open() as ears:
                ears.forget()
                os.kill(first.postmaster_pid, signal.SIGQUIT)  # pg_ctl stop -m immediate
                await ears.until(ListenerState.DEAF)
                await asyncio.to_thread(embedded.wait_until_stopped, own_folder)
                second = await asyncio.to_thread(stack.enter_context, start())
                cable.target = ("127.0.0.1", second.port)
                await ears.until(ListenerState.LISTENING)
                await ears.hears("render")
                async with opened(second.url) as db:
                    await db.fetch("SELECT pg_notify('accs_render', 'x')")
                await ears.hears("render", "x")
            assert ears.told == [ListenerState.LISTENING, ListenerState.DEAF, ListenerState.LISTENING]


async def schema_on(server: embedded.Server) -> None:
    session = await connect_alone(settings_of(server.url))
    await install(session)
    await session.close()
