"""The sleep role on a real database: when it goes, what keeps it, and that a node which returns is at work again.

The machine itself does not sleep: the way to sleep is the test's own, and so is the clock that counts suspended time.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import anyio
import pytest

from accsd import failpoints
from accsd.db import Database, Verdict, node_leaves
from accsd.db.orders import Order, OrderKind, ask_node, order_answer, take_orders
from accsd.roles.sleep import Sleeper
from accsd.settings import Sleep
from accsd.work.departure import Departure
from accsd.work.gate import Gate
from accsd.work.wakefulness import Wakefulness
from tests.support.attempts import LEASE, Shop, shop
from tests.support.cluster import Connection
from tests.support.eventually import eventually
from tests.support.factory import NODE, clock, node, pass_time, step, submit
from tests.support.library import opened
from tests.support.tasks import WAIT

AT_ONCE = {"idle": "0", "awake": "0"}


@dataclass
class Bed:
    """A sleeper with all around it; what the machine was told is counted."""

    db: Database
    here: Shop
    settings: Sleep
    objection: str | None = None
    when_stopping: Callable[[], Awaitable[Any]] | None = None
    when_told: Callable[[], Awaitable[str | None]] | None = None
    told: int = 0
    wakefulness: Wakefulness = field(default_factory=Wakefulness)
    departure: Departure = field(init=False)
    sleeper: Sleeper = field(init=False)

    def __post_init__(self) -> None:
        bench = self.here.bench
        self.departure = Departure(
            self.db,
            node=NODE,
            attempts=self.here.attempts,
            keeper=bench.keeper,
            reporter=bench.reporter,
            stop_containers=self._stop,
            when_back=lambda: None,
        )
        self.sleeper = Sleeper(
            self.db,
            node=NODE,
            lease=LEASE,
            settings=lambda: self.settings,
            wakefulness=self.wakefulness,
            departure=self.departure,
            veto=self._veto,
            way=self._sleep,
            is_ready=lambda: not bench.keeper.is_frozen,
            wake=lambda: None,
        )

    async def _veto(self) -> str | None:
        return self.objection

    async def _stop(self) -> None:
        if self.when_stopping:
            await self.when_stopping()

    async def _sleep(self) -> str | None:
        self.told += 1
        return await self.when_told() if self.when_told else "the machine won't"


@asynccontextmanager
async def bed(db_url: str, conn: Connection, root: Path, **rules: Any) -> AsyncGenerator[Bed]:
    await node(conn, NODE, render=1)
    settings = Sleep.model_validate({"method": "suspend", **AT_ONCE, **rules})
    async with opened(db_url) as db, shop(db, root) as here:
        yield Bed(db, here, settings)


async def because(conn: Connection) -> str | None:
    return await conn.fetchval("SELECT because FROM accs.power WHERE node = $1", NODE)


async def awake_state(conn: Connection, name: str = NODE) -> str:
    return await conn.fetchval("SELECT awake_state FROM nodes WHERE name = $1", name)


async def is_back(conn: Connection) -> None:
    async def there() -> bool:
        assert await conn.fetchval("SELECT state FROM accs.power WHERE node = $1", NODE) == "ready"
        return await awake_state(conn) == "awake"

    await eventually(there)


# When


async def test_a_node_at_work_stays_awake(db_url: str, conn: Connection, tmp_path: Path):
    async with bed(db_url, conn, tmp_path) as its:
        await submit(conn, step("a"), options={"note": str(tmp_path / "n"), "go": str(tmp_path / "go")})
        await its.here.begin(its.here.serving(WAIT))
        its.wakefulness.see(busy=True)
        await its.sleeper.run_once()
        assert await because(conn) == "it is at work"
        its.wakefulness.see(busy=False)  # even if it were mistaken about that
        done = await its.sleeper.run_once()
        assert done.did == "stays awake: work has just come"
        assert (its.told, await awake_state(conn)) == (0, "awake")
        (tmp_path / "go").touch()
        await its.here.idle()

        async def goes() -> bool:
            await its.sleeper.run_once()
            return its.told == 1

        await eventually(goes)


async def test_before_its_time_it_asks_nobody(db_url: str, conn: Connection, tmp_path: Path):
    async with bed(db_url, conn, tmp_path, idle="1h") as its:
        its.objection = "nobody may be asked"
        first = await its.sleeper.run_once()
        asked: list[bool] = []
        its.db.observe(lambda answered, _: asked.append(answered))
        again = await its.sleeper.run_once()
        assert first.next_due is not None
        assert again.next_due is not None
        assert timedelta(minutes=59) < again.next_due <= timedelta(hours=1)
        assert asked.count(True) <= 1, "a heartbeat may come in between; the role has nothing to say"
        assert await because(conn) == "it was at work a short while ago"


async def test_the_minimum_awake_time_begins_anew_when_it_comes_back():
    its = Wakefulness()
    its.see(busy=True)
    its.begin_anew()
    assert its.now.idle_for is None
    assert its.now.awake_for < timedelta(seconds=1)
    assert its.see(busy=False)
    assert not its.see(busy=False)


async def test_a_veto_keeps_it_awake_and_is_told(db_url: str, conn: Connection, tmp_path: Path):
    async with bed(db_url, conn, tmp_path) as its:
        its.objection = "ann (tty1) is logged in"
        done = await its.sleeper.run_once()
        assert done.next_due == timedelta(seconds=1)
        assert (its.told, await because(conn)) == (0, "ann (tty1) is logged in")


async def test_who_objects_for_long_is_asked_less_and_less_often(
    db_url: str, conn: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async with bed(db_url, conn, tmp_path) as its:
        its.objection = "ann (tty1) is logged in"
        pauses: list[object] = []
        for _ in range(7):
            pauses.append((await its.sleeper.run_once()).next_due)
            monkeypatch.setattr(its.sleeper, "_look_again_at", 0.0)
        assert pauses == [timedelta(seconds=seconds) for seconds in (1, 2, 4, 8, 16, 30, 30)]
        its.objection = "a file is there"
        assert (await its.sleeper.run_once()).next_due == timedelta(seconds=1)


async def test_a_veto_in_strange_words_is_told_as_far_as_that_goes(db_url: str, conn: Connection, tmp_path: Path):
    async with bed(db_url, conn, tmp_path) as its:
        its.objection = "backup says no: rsync\0--archive, in /srv/caf\udce9"
        await its.sleeper.run_once()
        assert (await because(conn) or "").startswith("backup says no: rsync")


@pytest.mark.parametrize("other", ["sleep", "unknown"])
async def test_what_only_this_node_can_do_soon_keeps_it_awake(
    db_url: str, conn: Connection, tmp_path: Path, other: str
):
    async with bed(db_url, conn, tmp_path) as its:
        await node(conn, "n2", render=1)
        await conn.execute("UPDATE accs.power SET latency = '10 min' WHERE node = $1", NODE)
        soon = await clock(conn) + timedelta(minutes=5)
        job = await submit(conn, step("a"), scheduled_at=soon)
        await conn.fetch("SELECT accs.node_leaves('n2', $1)", other)
        await its.sleeper.run_once()
        assert (its.told, await because(conn)) == (
            0,
            f"render of job {job} is due soon, and nobody else who is awake can take it",
        )


async def test_what_others_can_do_as_well_does_not(db_url: str, conn: Connection, tmp_path: Path):
    async with bed(db_url, conn, tmp_path) as its:
        await node(conn, "n2", render=1)
        await conn.execute("UPDATE accs.power SET latency = '10 min'")
        await submit(conn, step("a"), scheduled_at=await clock(conn) + timedelta(minutes=5))
        await its.sleeper.run_once()
        assert its.told == 1


async def test_a_service_that_pulls_on_this_machine_keeps_it_awake(db_url: str, conn: Connection, tmp_path: Path):
    async with bed(db_url, conn, tmp_path) as its:
        await node(conn, f"{NODE}.audio.2", audio=1)
        await its.sleeper.run_once()
        assert its.told == 0
        assert (await because(conn) or "").startswith(f"{NODE}.audio.2 claims by itself on this machine")


async def test_other_machines_with_a_longer_name_do_not(db_url: str, conn: Connection, tmp_path: Path):
    async with bed(db_url, conn, tmp_path) as its:
        for other in (f"{NODE}.audiophile", f"{NODE}.studio", f"{NODE}1.audio"):
            await node(conn, other, audio=1)
        await its.sleeper.run_once()
        assert its.told == 1


async def test_of_two_that_count_on_each_other_one_stays(db_url: str, conn: Connection, tmp_path: Path):
    async with bed(db_url, conn, tmp_path) as its:
        await node(conn, "n2", render=1)
        await conn.execute("UPDATE accs.power SET latency = '10 min'")
        await submit(conn, step("a"), scheduled_at=await clock(conn) + timedelta(minutes=5))
        # the other one goes while this one prepares
        its.when_stopping = lambda: conn.fetch("SELECT accs.node_leaves('n2', 'sleep')")
        done = await its.sleeper.run_once()
        assert "has just gone" in (done.did or "")
        assert its.told == 0
        await is_back(conn)


# Going


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
            monkeypatch.setattr("accsd.work.departure.time_asleep", lambda: 3600.0)

        its.when_told = suspended
        done = await its.sleeper.run_once()
        assert done.did == "slept and is awake again"
        assert seen == ["sleep", "sleep"]
        assert its.here.attempts.gate.is_open
        assert its.here.bench.keeper.is_frozen, "nothing is claimed before the heartbeat was answered"
        await is_back(conn)
        await eventually(lambda: not its.here.bench.keeper.is_frozen)
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
        await eventually(lambda: not its.here.bench.keeper.is_frozen)
        again = await its.sleeper.run_once()
        assert its.told == 1
        assert again.next_due is not None
        assert again.next_due > timedelta(seconds=30)
        assert await because(conn) == "it did not fall asleep when it was told to"


async def test_news_of_work_calls_it_off(db_url: str, conn: Connection, tmp_path: Path):
    async with bed(db_url, conn, tmp_path) as its:

        async def heard() -> None:
            its.departure.call_off("there may be work for it")

        its.when_stopping = heard
        await its.sleeper.run_once()
        assert (its.told, await awake_state(conn)) == (0, "awake")
        assert its.here.attempts.gate.is_open
        assert await conn.fetchval("SELECT count(*) FROM accs.node_history WHERE state = 'asleep'") == 0


async def test_news_of_work_that_comes_with_the_goodbye_calls_it_off_too(
    db_url: str, conn: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async with bed(db_url, conn, tmp_path) as its:

        async def says_goodbye(*args: Any, **given: Any) -> Verdict:
            answer = await node_leaves(*args, **given)
            its.departure.call_off("there may be work for it")
            return answer

        monkeypatch.setattr("accsd.work.departure.node_leaves", says_goodbye)
        await its.sleeper.run_once()
        assert its.told == 0
        await is_back(conn)


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
        assert not its.departure.has_said_goodbye
        await is_back(conn)


async def test_a_claim_under_way_is_waited_for():
    gate = Gate()
    with gate.passing():
        assert not await gate.shut(timedelta(milliseconds=10))
    assert await gate.shut(timedelta(milliseconds=10))
    assert not gate.is_open


# Orders


async def ordered(db: Database) -> Order:
    await ask_node(db, uuid4(), NODE, OrderKind.SLEEP, by="ann", within=timedelta(minutes=1))
    (order,) = await take_orders(db, NODE)
    return order


async def test_an_order_needs_no_idle_time_and_is_answered_before_it_goes(
    db_url: str, conn: Connection, tmp_path: Path
):
    async with bed(db_url, conn, tmp_path, idle="1h", awake="1h") as its:
        order = await ordered(its.db)
        answers: list[object] = []

        async def answered() -> str:
            answers.append(await order_answer(its.db, order.id))
            return "the machine won't"

        its.when_told = answered
        its.sleeper.ask(order)
        await its.sleeper.run_once()
        (answer,) = answers
        assert (getattr(answer, "ok", None), getattr(answer, "output", None)) == (True, "it goes to sleep")
        assert await conn.fetchval("SELECT message FROM accs.node_history WHERE state = 'asleep'") == "ann asked for it"


async def test_an_order_is_refused_with_the_reason(db_url: str, conn: Connection, tmp_path: Path):
    async with bed(db_url, conn, tmp_path) as its:
        for busy, objection, said in ((True, None, "it is at work"), (False, "a file is there", "a file is there")):
            its.wakefulness.see(busy=busy)
            its.objection = objection
            order = await ordered(its.db)
            its.sleeper.ask(order)
            await its.sleeper.run_once()
            answer = await order_answer(its.db, order.id)
            assert answer is not None
            assert (answer.ok, answer.output) == (False, said)
        assert its.told == 0


async def test_an_order_that_came_while_it_fell_asleep_does_not_send_it_back_when_it_is_woken(
    db_url: str, conn: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async with bed(db_url, conn, tmp_path, awake="1h") as its:

        async def asked_once_more() -> None:
            its.sleeper.ask(await ordered(its.db))

        async def suspended() -> None:
            monkeypatch.setattr("accsd.work.departure.time_asleep", lambda: 3600.0)

        its.when_stopping, its.when_told = asked_once_more, suspended
        its.sleeper.ask(await ordered(its.db))
        assert (await its.sleeper.run_once()).did == "slept and is awake again"
        await eventually(lambda: not its.here.bench.keeper.is_frozen)
        await its.sleeper.run_once()
        assert its.told == 1
