"""The sleep role on a real database: when it goes, and what keeps it. How it goes: test_departure.py. Who
may ask it to: test_orders.py."""

from datetime import timedelta
from pathlib import Path

import pytest

from accsd.agent.node import IdleClock
from tests.support.bed import awake_state, because, bed, is_back
from tests.support.cluster import Connection
from tests.support.eventually import eventually
from tests.support.factory import NODE, clock, node, step, submit
from tests.support.tasks import WAIT

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
    its = IdleClock()
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
