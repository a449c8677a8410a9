"""`accsd nodes wake` and `sleep`: a node is really called or asked, and the command says what came of it."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.conftest import Connect
from tests.support.cli import Cli, Said
from tests.support.cluster import Connection
from tests.support.eventually import eventually
from tests.support.factory import node


class Control:
    """The control host: its settings, and a folder with scripts that wake."""

    def __init__(self, folder: Path, url: str) -> None:
        self.scripts: Path = folder / "scripts"
        self.scripts.mkdir(mode=0o755)
        self.config: Path = folder / "accsd.toml"
        self.config.write_text(f'[wake]\nscript_dir = "{self.scripts}"\nboot = "20s"\n')
        self.cli: Cli = Cli(url)

    def script(self, name: str, text: str) -> str:
        path = self.scripts / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        return str(path)

    async def __call__(self, *arguments: str) -> Said:
        return await self.cli("--config", str(self.config), "nodes", *arguments)


@pytest.fixture
def control(tmp_path: Path, db_url: str) -> Control:
    return Control(tmp_path, db_url)


async def sleeper(
    conn: Connection, name: str, method: str, *, mac: str | None = None, script: str | None = None
) -> None:
    await conn.fetch(
        "SELECT * FROM accs.register_node($1, '{}', '{\"render\": 1}', $2, $3, NULL, $4, '{10.9.8.0/24}')",
        name,
        method,
        mac,
        script,
    )
    await conn.fetch("SELECT accs.node_leaves($1, 'sleep', 'idle for 5 min')", name)


@asynccontextmanager
async def agent(
    connect: Connect,
    name: str,
    answer: Callable[[str], tuple[bool, str]],
    when_gone: Callable[[Connection], Awaitable[None]] | None = None,
) -> AsyncGenerator[Connection]:
    """Plays a node's part by the verbs of the database: takes orders and answers each; an accepted sleep is gone to."""
    conn = await connect()

    async def serve() -> None:
        while True:
            for order in await conn.fetch("SELECT * FROM accs.take_orders($1)", name):
                ok, said = answer(order["kind"])
                await conn.fetch("SELECT accs.answer_order($1, $2, $3, $4)", order["id"], name, ok, said)
                if ok and order["kind"] == "sleep":
                    await conn.fetch("SELECT accs.node_leaves($1, 'sleep', $2)", name, said)
                    if when_gone is not None:
                        await when_gone(conn)
            await asyncio.sleep(0.02)

    async with asyncio.TaskGroup() as group:
        serving = group.create_task(serve())
        yield conn
        serving.cancel()


async def test_waking_really_calls_and_leaves_a_record(control: Control, conn: Connection, tmp_path: Path):
    woken = tmp_path / "woken"
    await sleeper(conn, "n1", "script", script=control.script("wake.sh", f"echo called > {woken}"))
    await sleeper(conn, "n2", "script", script=control.script("broken.sh", "echo no power >&2; exit 3"))
    (await control("wake", "n1")).ends(0, "called by script", "accsd nodes show n1")
    assert woken.read_text() == "called\n"
    (await control("wake", "n2")).ends(4, "was not woken by script", "no power", "→ `accsd doctor --node n2`")
    tries = await conn.fetch("SELECT node, state, method, ok, tries FROM accs.power ORDER BY node")
    assert [tuple(row) for row in tries] == [("n1", "booting", "script", True, 1), ("n2", "asleep", "script", False, 1)]
    told = await conn.fetchrow("SELECT message, data FROM accs.node_history WHERE node = 'n2' ORDER BY id DESC LIMIT 1")
    assert told is not None
    assert "not woken by script for" in told["message"]
    assert (told["data"]["output"], told["data"]["ok"]) == ("no power", False)
    assert await conn.fetchval("SELECT count(*) FROM task_events") == 0
    (await control()).ends(0, "booting", "script", "sent", "failed")


async def test_a_call_that_does_not_get_through_is_followed_by_the_next_method(control: Control, conn: Connection):
    broken = control.script("broken.sh", "exit 3")
    await sleeper(conn, "n1", "script", script=broken, mac="52:54:00:00:00:01")
    said = (await control("wake", "n1")).ends(0, "was not woken by script", "called by wol (sent to")
    assert "broken.sh ended with exit code 3" in said.err
    assert await conn.fetchval("SELECT tries FROM accs.power") == 2


async def test_who_calls_again_because_nobody_came_gets_another_method(control: Control, conn: Connection):
    await sleeper(conn, "n1", "wol", mac="52:54:00:00:00:01", script=control.script("wake.sh", "echo pressed"))
    (await control("wake", "n1")).ends(0, "called by wol")
    (await control("wake", "n1")).ends(0, "called by script (pressed)")
    (await control("wake", "n1")).ends(0, "called by wol")


async def test_a_neighbour_is_asked_where_this_machine_is_in_another_network(
    control: Control, conn: Connection, connect: Connect
):
    await sleeper(conn, "n1", "wol", mac="52:54:00:00:00:01")
    await conn.fetch("SELECT * FROM accs.register_node('n2', p_networks => '{10.9.8.0/24}')")
    async with agent(connect, "n2", lambda kind: (True, f"sent it ({kind})")):
        (await control("wake", "n1")).ends(0, "called by relay (n2 sent it (relay))")
    assert await conn.fetchval("SELECT method FROM accs.power WHERE node = 'n1'") == "relay"


async def test_a_node_that_is_awake_is_not_called(control: Control, conn: Connection):
    await node(conn, "n1", render=1)
    (await control("wake", "n1")).ends(0, "n1 is awake, seen")
    assert await conn.fetchval("SELECT tried_at FROM accs.power") is None
    await conn.fetch("SELECT accs.node_leaves('n1')")  # its agent has stopped
    (await control("wake", "n1")).ends(2, "has no wake_method", "→ set node.wake_method")


async def test_waiting_ends_when_the_node_is_seen_or_with_exit_code_5(
    control: Control, conn: Connection, connect: Connect
):
    await sleeper(conn, "n1", "script", script=control.script("wake.sh", "true"))
    other = await connect()

    async def boot() -> None:
        await eventually(
            lambda: other.fetchval("SELECT state = 'booting' FROM accs.power WHERE node = 'n1'"), within=20
        )
        await other.fetch("SELECT * FROM accs.register_node('n1')")

    said, _ = await asyncio.gather(control("wake", "n1", "--wait"), boot())
    said.ends(0, "called by script", "n1 is awake, ", "after the call")
    await conn.fetch("SELECT accs.node_leaves('n1', 'sleep')")
    late = await control("wake", "n1", "--wait", "--timeout", "0.3s")
    late.ends(5, "was not seen within 0.3s", "→ `accsd doctor --node n1`")


async def test_a_node_is_asked_to_sleep_and_says_that_it_goes(control: Control, conn: Connection, connect: Connect):
    await node(conn, "n1", render=1)
    async with agent(connect, "n1", lambda _: (True, "it goes to sleep")):
        (await control("sleep", "n1", "--wait")).ends(0, "n1: it goes to sleep", "n1 is asleep")
        (await control("sleep", "n1")).ends(0, "is asleep already")
    asked = await conn.fetchrow("SELECT kind, asked_by FROM accs.node_orders")
    assert asked is not None
    assert (asked["kind"], "@" in asked["asked_by"]) == ("sleep", True)


async def test_a_sleep_that_fails_is_told_as_one_however_quickly(control: Control, conn: Connection, connect: Connect):
    """It says goodbye and takes that back between two looks, as an agent does whose `systemctl suspend` fails."""
    await node(conn, "n1", render=1)
    why = "it could not be put to sleep: systemctl suspend: System has not been booted with systemd"

    async def fail_to_sleep(other: Connection) -> None:
        await other.fetch("SELECT accs.node_leaves('n1', 'unknown', $1)", why)
        await other.fetch("SELECT * FROM accs.heartbeat('n1', 'n1', '{}', '{}', '1 min')")

    async with agent(connect, "n1", lambda _: (True, "it goes to sleep"), when_gone=fail_to_sleep):
        said = await control("sleep", "n1", "--wait")
    said.ends(1, f"node n1 is awake: {why}", "→ `accsd nodes show n1`")
    assert "is asleep" not in said.out
    (await control("show", "n1")).ends(0, why)


async def test_a_node_that_stays_awake_says_why(control: Control, conn: Connection, connect: Connect):
    await node(conn, "n1", render=1)
    async with agent(connect, "n1", lambda _: (False, "ann is logged in")):
        (await control("sleep", "n1")).ends(1, "n1 stays awake: ann is logged in", "→", "`accsd nodes show n1`")


async def test_only_a_node_that_is_there_can_be_asked_to_sleep(control: Control, conn: Connection):
    await node(conn, "n1", render=1)
    await conn.fetch("SELECT accs.node_leaves('n1')")
    (await control("sleep", "n1")).ends(4, "n1 is away", "→ `accsd nodes wake n1`")
    assert await conn.fetchval("SELECT count(*) FROM accs.node_orders") == 0
