"""The agent of a service beside others on its node: what it settles, and what it leaves alone."""

import re
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest

from accsd.agent.agent import Agent
from accsd.errors import ServiceBusy
from accsd.model.fence import Fence
from accsd.runners.base import Execution, Launch, Runner
from accsd.supervisor import Pass
from accsd.work.service import LocalService
from tests.conftest import Connect
from tests.support.attempts import Shop, shop
from tests.support.checker import check
from tests.support.cluster import Connection
from tests.support.eventually import eventually
from tests.support.factory import NODE, SERVICE, claim, node, step, submit
from tests.support.library import opened
from tests.support.tasks import NOTE, WAIT


@dataclass
class Slow:
    """A runner that takes its time to find survivors; everything else is the real one's."""

    real: Runner
    asked: anyio.Event = field(default_factory=anyio.Event)
    go_on: anyio.Event = field(default_factory=anyio.Event)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    async def survivors(self) -> list[Fence]:
        self.asked.set()
        await self.go_on.wait()
        return list(await self.real.survivors())


def agent_of(here: Shop, served: LocalService) -> Agent:
    here.context.services = {served.name: served}
    return Agent(here.context, served.name)


async def test_an_agent_that_settles_leaves_alone_what_another_service_has_just_begun(
    db_url: str, conn: Connection, connect: Connect, tmp_path: Path
):
    """The other's attempt has a folder, and no envelope in it yet: whose it is cannot be read there."""
    await node(conn)
    await submit(conn, step("a", "audio"), options={"note": str(tmp_path / "notes")})
    other = await connect()
    async with opened(db_url) as db, shop(db, tmp_path) as here:
        served = here.serving(NOTE)
        slow = Slow(served.runner)
        settling = agent_of(here, here.in_hands_of(served, slow))
        async with other.transaction(), anyio.create_task_group() as group:  # settled while it cannot go on
            group.start_soon(settling.run_once)
            await slow.asked.wait()
            await other.execute("LOCK TABLE task_artifacts IN ACCESS EXCLUSIVE MODE")  # its inputs cannot be asked for
            attempt = await here.begin(here.serving(NOTE, service="audio"))
            folder = here.context.folder(attempt.fence)
            await eventually((folder / "work").exists)
            slow.go_on.set()
        await here.idle()
    assert await conn.fetch("SELECT status, lost FROM job_tasks") == [("done", 0)]
    await check(conn)


async def test_what_another_agent_of_the_same_service_began_meanwhile_is_not_given_back(
    db_url: str, conn: Connection, tmp_path: Path
):
    """A service was taken out of the configuration and put back while its agent was at a claim."""
    await node(conn)
    await submit(conn, step("a"), options={"note": str(tmp_path / "notes")})
    async with opened(db_url) as db, shop(db, tmp_path) as here:
        served = here.serving(NOTE)
        slow = Slow(served.runner)
        settling = agent_of(here, here.in_hands_of(served, slow))
        async with anyio.create_task_group() as group:
            group.start_soon(settling.run_once)
            await slow.asked.wait()
            attempt = await here.begin(served)
            await eventually((here.context.folder(attempt.fence) / "work").exists)
            slow.go_on.set()
        await here.idle()
    assert await conn.fetch("SELECT status, lost, attempt_id FROM job_tasks") == [("done", 0, 1)]
    await check(conn)


async def test_what_ends_unclearly_while_the_agent_settles_is_settled_too(
    db_url: str, conn: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    await node(conn)
    for key in ("a", "b"):
        await submit(conn, step(key), options={"note": str(tmp_path / "notes"), "go": str(tmp_path / key)})

    async def not_cleared(*_: object) -> None:
        raise OSError("the folder is in use")

    monkeypatch.setattr("accsd.work.attempt.clear_away", not_cleared)
    async with opened(db_url) as db, shop(db, tmp_path) as here:
        served = here.serving(WAIT, concurrency=2)
        slow = Slow(served.runner)
        agent = agent_of(here, here.in_hands_of(served, slow))
        slow.go_on.set()
        await agent.run_once()  # settles
        await agent.run_once()  # claims both
        (tmp_path / "a").touch()
        await eventually(lambda: len(here.attempts) == 1, within=10)
        slow.asked, slow.go_on = anyio.Event(), anyio.Event()
        async with anyio.create_task_group() as group:
            group.start_soon(agent.run_once)
            await slow.asked.wait()  # which of them are under way is known by now
            (tmp_path / "b").touch()
            await here.idle()
            slow.go_on.set()
        assert len(list(here.context.attempts_folder.iterdir())) == 1
        await agent.run_once()
        assert not list(here.context.attempts_folder.iterdir())
    await check(conn)


async def test_of_what_all_have_heard_a_node_that_rests_leaves_the_first_claim_to_others(
    db_url: str, conn: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    await node(conn)
    await submit(conn, step("a"), step("b"), options={"note": str(tmp_path / "notes")})
    async with opened(db_url) as db, shop(db, tmp_path, sleep={"method": "suspend"}) as here:
        resting = agent_of(here, here.serving(NOTE))
        await resting.run_once()  # settles
        await resting.run_once()  # looked by itself: it does not wait
        await here.idle()
        assert await conn.fetchval("SELECT status FROM job_tasks WHERE task_key = 'a'") == "done"
        monkeypatch.setattr("accsd.agent.agent.yields_for", lambda *_: timedelta(hours=1))
        here.context.called.add(SERVICE)
        with anyio.move_on_after(0.5):
            await resting.run_once()
        assert [task["task_key"] for task in await claim(conn)] == ["b"], "nobody was faster than that"


@dataclass
class Busy:
    """A runner whose service says "not now" to so many tasks."""

    real: Runner
    refusals: int
    again_in: timedelta
    says: str = "the service takes no task now: 503 it loads"
    is_deaf: bool = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    async def start(self, launch: Launch) -> Execution:
        if self.refusals:
            self.refusals -= 1
            raise ServiceBusy(self.says, again_in=self.again_in)
        return await self.real.start(launch)

    async def check(self) -> None:
        if self.is_deaf:
            raise ServiceBusy(self.says, again_in=self.again_in)
        await self.real.check()


async def looked(agent: Agent) -> Pass:
    """The next pass that does not only settle."""
    done = await agent.run_once()
    return await agent.run_once() if done.more else done


async def test_what_a_service_does_not_take_now_goes_back_unspent_and_is_not_claimed_again_at_once(
    db_url: str, conn: Connection, tmp_path: Path
):
    await node(conn, NODE, render=1)
    await conn.execute("UPDATE nodes SET last_seen = accs.clock(), awake_state = 'awake'")
    await submit(conn, step("a"), options={"note": str(tmp_path / "notes")})
    async with opened(db_url) as db, shop(db, tmp_path) as here:
        served = here.serving(NOTE)
        busy = Busy(served.runner, 7, timedelta(minutes=4))
        agent = agent_of(here, here.in_hands_of(served, busy))
        began: set[datetime] = set()
        for turn in range(1, 8):  # more often than a task may be lost, or fail
            assert (await looked(agent)).did == "claimed a"
            await here.idle()
            waits = await looked(agent)
            assert re.fullmatch(rf"{busy.says}; next claim in 2\d\d s", waits.obstacle or "")
            tasks = await conn.fetch("SELECT status, attempt, lost, attempt_id FROM job_tasks")
            assert tasks == [("queued", 0, 0, turn)]
            (blocker,) = await conn.fetch("SELECT y.* FROM job_tasks t, accs.why(t.id) y")
            assert (blocker["blocker"], blocker["detail"].get("obstacle")) == ("node_hindered", busy.says)
            began.add(blocker["since"])
            here.context.well.add(served.name)  # as if that time had passed
        assert len(began) == 1, "one obstacle, for as long as it lasts"
        assert (await looked(agent)).did == "claimed a"
        await here.idle()
        await looked(agent)
    assert await conn.fetchval("SELECT status FROM job_tasks") == "done"
    assert await conn.fetchval("SELECT count(*) FROM accs.obstacles") == 0
    assert await conn.fetchval("SELECT count(*) FROM accs.conclusions") == 0, "it is nobody's fault"
    await check(conn)


async def test_while_a_service_stays_busy_its_agent_waits(
    db_url: str, conn: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """What was cut at its start is looked for again, but not before the service can be asked."""
    monkeypatch.setattr("accsd.agent.settle._LATE", timedelta(0))
    await node(conn, NODE, render=1)
    await submit(conn, step("a"))
    async with opened(db_url) as db, shop(db, tmp_path) as here:
        served = here.serving(NOTE)
        busy = Busy(served.runner, 1, timedelta(0))
        agent = agent_of(here, here.in_hands_of(served, busy))
        assert (await looked(agent)).did == "claimed a"
        await here.idle()
        busy.is_deaf = True
        waits = [(await agent.run_once()).next_due for _ in range(3)]
        assert min(filter(None, waits)) > timedelta(seconds=1)
        assert None not in waits


async def test_while_the_gate_is_shut_nothing_is_claimed(db_url: str, conn: Connection, tmp_path: Path):
    await node(conn)
    await submit(conn, step("a"), options={"note": str(tmp_path / "notes")})
    async with opened(db_url) as db, shop(db, tmp_path) as here:
        agent = agent_of(here, here.serving(NOTE))
        await agent.run_once()  # settles
        assert await here.attempts.gate.shut(timedelta(seconds=1))
        await agent.run_once()
        assert not here.attempts.fences()
        here.attempts.gate.open()
        await agent.run_once()
        await here.idle()
    assert await conn.fetchval("SELECT status FROM job_tasks") == "done"
