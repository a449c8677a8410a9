"""The role that wakes nodes (A13, tick 2), on a real database and with real scripts: woken is whose script ran."""

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import anyio
import pytest

from accsd import proc
from accsd.db import Database, install
from accsd.db.wake import wake_demand
from accsd.errors import DatabaseUnavailable
from accsd.settings import WakeSettings
from accsd.supervisor import Pass
from tests.support.checker import check
from tests.support.cluster import Connection, TestServer
from tests.support.eventually import eventually
from tests.support.factory import claim, clock, node, pass_time, step, submit
from tests.support.http_servers import answering, http_answer
from tests.support.library import opened, url_as
from tests.support.waking import Builder

TOKEN = "canary-token-of-the-provider"


class Yard:
    """Scripts that write down for whom they ran."""

    def __init__(self, folder: Path) -> None:
        self.folder: Path = folder / "wake.d"
        self.folder.mkdir(mode=0o755)
        self.log: Path = folder / "woken"

    def script(self, name: str, body: str = "") -> str:
        path = self.folder / name
        path.write_text(f"#!/bin/sh\necho $1 >> {self.log}\n{body}\n")
        path.chmod(0o755)
        return str(path)

    def woken(self) -> list[str]:
        return sorted(self.log.read_text().split()) if self.log.exists() else []

    def settings(self, **given: Any) -> WakeSettings:
        return WakeSettings.model_validate({"script_dir": self.folder, **given})


@pytest.fixture
def yard(tmp_path: Path) -> Yard:
    return Yard(tmp_path)


@pytest.fixture
async def db(db_url: str) -> AsyncIterator[Database]:
    async with opened(db_url) as database:
        yield database


Sleep = Callable[..., Any]


@pytest.fixture
def sleeps(conn: Connection, yard: Yard) -> Sleep:
    """await sleeps("n1", {"gpu": True}, render=2): a node that went to sleep and has a script."""

    async def make(name: str, labels: dict[str, Any] | None = None, body: str = "", **slots: int) -> None:
        await node(conn, name, labels, **slots or {"render": 1})
        await conn.execute(
            "UPDATE nodes SET awake_state = 'sleep', wake_method = 'script', script = $2 WHERE name = $1",
            name,
            yard.script(name, body),
        )

    return make


def waker(db: Database, yard: Yard, **given: Any) -> Builder:
    return Builder(db, yard.settings(**given))


async def wake_events(conn: Connection) -> list[tuple[UUID, str, str, dict[str, Any]]]:
    rows = await conn.fetch("SELECT job_id, level, message, data FROM task_events WHERE type = 'wake' ORDER BY id")
    return [(row["job_id"], row["level"], row["message"], row["data"]) for row in rows]


async def noted(conn: Connection, name: str) -> tuple[str, str | None]:
    row = await conn.fetchrow("SELECT state, because FROM accs.power WHERE node = $1", name)
    assert row is not None
    return row["state"], row["because"]


async def test_a_sleeping_node_with_the_labels_is_woken_and_the_job_has_an_event_of_it(
    conn: Connection, db: Database, yard: Yard, sleeps: Sleep
):
    await sleeps("plain")
    await sleeps("gpu", {"gpu": True}, "echo plugged in")
    job = await submit(conn, step("a", requires={"gpu": True}))

    done = await waker(db, yard).run_once()

    assert yard.woken() == ["gpu"]
    assert done.did == "node gpu woken by script for render"
    assert done.more, "it plans anew: had the call not got through, another node might do"
    [(event_job, level, message, data)] = await wake_events(conn)
    assert (event_job, level, message) == (job, "info", done.did)
    assert 0 <= data.pop("latency_ms") < 20_000
    assert data == {"node": "gpu", "method": "script", "ok": True, "service": "render", "output": "plugged in"}
    await check(conn)


async def test_two_builders_wake_a_node_once_and_again_when_it_has_not_come(
    conn: Connection, db_url: str, yard: Yard, sleeps: Sleep
):
    for name in ("n1", "n2", "n3"):
        await sleeps(name)
    await submit(conn, step("a"), step("b"), step("c"))
    async with opened(db_url) as one, opened(db_url) as two:
        builders = [waker(one, yard), waker(two, yard)]
        for _ in range(3):
            await asyncio.gather(*(builder.run_once() for builder in builders))
        assert yard.woken() == ["n1", "n2", "n3"]
        assert len(await wake_events(conn)) == 3

        await pass_time(conn, 121)
        await asyncio.gather(*(builder.run_once() for builder in builders))
        assert yard.woken() == ["n1", "n1", "n2", "n2", "n3", "n3"]


async def test_nobody_is_woken_while_awake_nodes_have_room(conn: Connection, db: Database, yard: Yard, sleeps: Sleep):
    await node(conn, "on", render=2)
    await sleeps("off")
    await submit(conn, step("a"), step("b"))
    assert (await waker(db, yard).run_once()).did is None

    await claim(conn, 1, on="on")
    await submit(conn, step("c"))
    await waker(db, yard).run_once()
    assert yard.woken() == ["off"]


async def test_a_node_that_fell_silent_is_woken_and_one_that_came_back_is_not(
    conn: Connection, db: Database, yard: Yard, sleeps: Sleep
):
    await sleeps("n1")
    await node(conn, "n1", render=1)  # it is there
    await submit(conn)
    assert (await waker(db, yard).run_once()).did is None

    await pass_time(conn, 121)
    await waker(db, yard).run_once()
    assert yard.woken() == ["n1"]


async def test_a_job_due_later_wakes_nobody_until_its_node_would_be_ready_just_in_time(
    conn: Connection, db: Database, yard: Yard, sleeps: Sleep
):
    await sleeps("n1")
    job = await submit(conn, scheduled_at=await clock(conn) + timedelta(minutes=6))
    builder = waker(db, yard)
    assert await builder.run_once() == Pass()

    await pass_time(conn, 70)
    done = await builder.run_once()
    assert done.did is None
    assert done.next_due is not None
    assert timedelta(minutes=2) < done.next_due < timedelta(minutes=3), "it boots within two, and is due in five"
    assert "it wakes at " in ((await noted(conn, "n1"))[1] or "")
    await pass_time(conn, done.next_due.total_seconds() + 1)
    await builder.run_once()
    assert yard.woken() == ["n1"]
    assert [event[0] for event in await wake_events(conn)] == [job]


async def test_a_slow_node_is_thought_of_earlier(conn: Connection, db: Database, yard: Yard, sleeps: Sleep):
    await sleeps("n1")
    await conn.execute("UPDATE accs.power SET latency = '10 min'")
    await submit(conn, scheduled_at=await clock(conn) + timedelta(minutes=10))
    await waker(db, yard).run_once()
    assert yard.woken() == ["n1"]


async def test_a_drained_node_is_left_alone(conn: Connection, db: Database, yard: Yard, sleeps: Sleep):
    await sleeps("n1")
    await conn.execute("SELECT accs.pause('node', 'n1')")
    await submit(conn)

    assert (await waker(db, yard).run_once()).did is None
    assert yard.woken() == []


async def test_broken_nodes_stop_nobody_and_another_one_takes_their_place(
    conn: Connection, db: Database, yard: Yard, sleeps: Sleep
):
    await sleeps("a", body="echo broken >&2; exit 1")
    await sleeps("b")
    await sleeps("c")
    await conn.execute("UPDATE nodes SET wake_method = 'wol', mac = 'nonsense', script = NULL WHERE name = 'b'")
    job = await submit(conn, step("a"), step("b"))
    builder = waker(db, yard)

    first = await builder.run_once()
    assert first.did is not None
    assert "node a not woken by script for render: a ended with exit code 1" in first.did
    assert "node b not woken by wol for render: node b has no valid MAC address" in first.did
    assert first.more
    await builder.run_once()

    assert yard.woken() == ["a", "c"]
    events = await wake_events(conn)
    assert sorted((data["node"], level, data["ok"]) for _, level, _, data in events) == [
        ("a", "warn", False),
        ("b", "warn", False),
        ("c", "info", True),
    ]
    assert {event[0] for event in events} == {job}


async def test_nodes_are_woken_side_by_side_up_to_the_limit(conn: Connection, db: Database, yard: Yard, sleeps: Sleep):
    """Each script waits until the other one runs too: one after the other they would never end."""
    both = f"while [ $(wc -l < {yard.log}) -lt 2 ]; do sleep 0.05; done"
    await sleeps("n1", body=both)
    await sleeps("n2", body=both)
    await submit(conn, step("a"), step("b"))

    await waker(db, yard, at_once=2, script_timeout=20).run_once()

    assert [data["ok"] for *_, data in await wake_events(conn)] == [True, True]


async def test_a_slow_call_keeps_nobody_else_asleep_and_is_made_once(
    conn: Connection, db: Database, yard: Yard, sleeps: Sleep
):
    go = yard.folder.parent / "go"
    await sleeps("slow", {"slow": True}, f"until [ -e {go} ]; do sleep 0.05; done")
    await sleeps("quick")
    await sleeps("third", audio=1)
    await submit(conn, step("a", requires={"slow": True}))
    builder = waker(db, yard, at_once=2)
    async with asyncio.timeout(30), anyio.create_task_group() as group:
        group.start_soon(builder.calls.serve)
        await eventually(lambda: builder.calls.is_open)
        await builder.waker.run_once()
        await eventually(lambda: yard.woken() == ["slow"])
        await submit(conn, step("b"))
        await builder.waker.run_once()
        await eventually(lambda: builder.calls.nodes == {"slow"} and yard.woken() == ["quick", "slow"])
        assert (await builder.waker.run_once()).did == "node quick woken by script for render"

        await node(conn, "quick", render=1)
        await pass_time(conn, 119)  # the slow one has used up the time that it has to come
        await conn.fetch("SELECT * FROM accs.register_node('quick')")
        await pass_time(conn, 2)
        await submit(conn, step("c", "audio"))
        builder.waker = Builder(db, yard.settings(at_once=1), calls=builder.calls).waker
        await builder.waker.run_once()
        assert await noted(conn, "third") == ("asleep", "as many nodes as may start at once are starting")
        assert (yard.woken(), builder.calls.nodes) == (["quick", "slow"], {"slow"})
        go.touch()
        await builder.calls.all_ended()
        assert builder.calls.take() == ["node slow woken by script for render"]
        group.cancel_scope.cancel()


async def test_a_pass_that_is_stopped_says_so_on_the_job_and_leaves_no_script_behind(
    conn: Connection, db: Database, yard: Yard, sleeps: Sleep
):
    pid = yard.folder.parent / "pid"
    await sleeps("n1", body=f"echo $$ > {pid}; sleep 1000")
    await submit(conn)
    running = asyncio.ensure_future(waker(db, yard).run_once())
    await eventually(lambda: pid.exists() and pid.read_text())

    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running

    [(_, level, message, _)] = await wake_events(conn)
    assert (level, message) == ("warn", "node n1 not woken by script for render: interrupted")
    assert not proc.is_running(int(pid.read_text()))


async def test_without_a_database_the_pass_is_put_off_by_one_plain_error(conn: Connection, db_url: str, yard: Yard):
    await submit(conn)
    async with opened(db_url, statement_timeout_sec=0.5) as db:
        await db.close()
        with pytest.raises(DatabaseUnavailable):
            await waker(db, yard).run_once()


async def test_a_providers_token_is_in_no_event_and_no_log(
    conn: Connection, db: Database, yard: Yard, capfd: pytest.CaptureFixture[str]
):
    await node(conn, "cloud", render=1)
    await conn.execute("UPDATE nodes SET awake_state = 'sleep', wake_method = 'provider', provider_ref = 'studio/vm-7'")
    await submit(conn)
    async with answering(http_answer("200 OK", f"authorised by {TOKEN}")) as server:
        studio = {"url": f"http://127.0.0.1:{server.port}/{{ref}}", "token": TOKEN, "allow_private": True}
        done = await waker(db, yard, providers={"studio": studio}).run_once()

    assert TOKEN in server.requests[0]
    [(_, level, _, data)] = await wake_events(conn)
    assert (level, data["output"]) == ("info", "200 authorised by ***")
    assert TOKEN not in str(data) + str(done) + "".join(capfd.readouterr())


async def test_the_scheduler_may_wake_and_an_agent_may_not(
    server: TestServer, conn: Connection, db_url: str, yard: Yard, sleeps: Sleep
):
    if server.launched is None:
        pytest.skip("roles belong to the whole cluster, and the one of ACC_TEST_DB_URL is not ours")
    await install(conn, with_roles=True)
    await sleeps("n1")
    await submit(conn)
    async with opened(url_as(server, db_url, "accs_agent")) as agent:
        assert await wake_demand(agent, timedelta(minutes=5)), "whether it is needed is why a node stays awake"
        with pytest.raises(Exception, match="permission denied"):
            await waker(agent, yard).run_once()
    async with opened(url_as(server, db_url, "accs_scheduler")) as scheduler:
        assert (await waker(scheduler, yard).run_once()).did == "node n1 woken by script for render"
