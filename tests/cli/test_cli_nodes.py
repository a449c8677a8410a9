"""`accsd nodes`, `accsd services` and `accsd top`: what the fleet is, and how it is operated."""

import os
import pty
import select
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest

from accsd.cli.identifiers import short
from tests.support.cli import ACCSD, Cli
from tests.support.cluster import SERVER_NAMES, Clusters, Connection, TestServer
from tests.support.factory import claim, fail, node, pass_time, started, step, submit


@pytest.fixture
def server(clusters: Clusters) -> TestServer:
    return clusters.get(SERVER_NAMES[0])


@pytest.fixture
def cli(db_url: str) -> Cli:
    return Cli(db_url)


async def wakeable(conn: Connection, name: str, method: str, **fields: str) -> None:
    await conn.fetch(
        "SELECT * FROM accs.register_node($1, '{}', '{\"render\": 1}', $2, $3, $4, $5)",
        name,
        method,
        fields.get("mac"),
        fields.get("provider_ref"),
        fields.get("script"),
    )
    await conn.fetch("SELECT accs.node_leaves($1, 'sleep')", name)


# Nodes


async def test_the_list_shows_what_each_offers_and_whether_it_is_there(cli: Cli, conn: Connection):
    (await cli("nodes")).ends(0, "no node has registered")
    await node(conn, "n1", {"gpu": True}, render=2)
    await wakeable(conn, "n2", "wol", mac="52:54:00:00:00:01")
    await submit(conn, step("a"))
    await claim(conn)
    (await cli.process("nodes")).ends(0, "NAME", "render 1/2", "gpu=true", "asleep", "wol")
    rows = {row["name"]: row for row in (await cli("nodes", "-o", "json")).json}
    assert {name: row["state"] for name, row in rows.items()} == {"n1": "awake", "n2": "asleep"}
    assert (rows["n1"]["live"], rows["n1"]["slots"]) == ({"render": 1}, {"render": 2})
    await pass_time(conn, 3600)
    assert [row["state"] for row in (await cli("nodes", "-o", "jsonl")).json_lines] == ["away", "asleep"]
    assert (await cli("nodes", "-o", "name")).out == "n1\nn2\n"
    (await cli("nodes", "show", "n1")).ends(0, "gpu=true", "away")


async def test_a_drained_node_takes_nothing_until_it_is_resumed(cli: Cli, conn: Connection):
    await node(conn, render=1)
    await submit(conn, step("a"))
    (await cli("nodes", "drain", "n1", "--reason", "new card")).ends(0, "is drained", "accsd nodes resume n1")
    assert await claim(conn) == []
    pause = await conn.fetchrow("SELECT reason, by FROM accs.pauses")
    assert pause is not None
    assert pause["reason"] == "new card"
    assert pause["by"]
    (await cli("nodes", "drain", "n1")).ends(0, "was drained already", "because new card")
    assert (await cli("nodes", "-o", "json")).json[0]["state"] == "drained"
    (await cli("nodes", "resume", "n1")).ends(0, "takes work again")
    (await cli("nodes", "resume", "n1")).ends(0, "was not drained")
    assert len(await claim(conn)) == 1


async def test_a_node_that_is_unknown_is_exit_code_3_with_a_suggestion(cli: Cli, conn: Connection):
    await node(conn, "render-1", render=1)
    for command in ("drain", "resume", "wake", "show"):
        (await cli("nodes", command, "rendr-1")).ends(3, 'did you mean "render-1"?', "→ `accsd nodes`")


async def test_waking_really_calls_and_leaves_a_record(cli: Cli, conn: Connection, tmp_path: Path):
    scripts = tmp_path / "scripts"
    scripts.mkdir()
    woken = tmp_path / "woken"
    (scripts / "wake.sh").write_text(f"#!/bin/sh\necho called > {woken}\n")
    (scripts / "wake.sh").chmod(0o755)
    (scripts / "broken.sh").write_text("#!/bin/sh\necho no power >&2\nexit 3\n")
    (scripts / "broken.sh").chmod(0o755)
    scripts.chmod(0o755)
    config = tmp_path / "accsd.toml"
    config.write_text(f'[wake]\nscript_dir = "{scripts}"\n')
    await wakeable(conn, "n1", "script", script=str(scripts / "wake.sh"))
    await wakeable(conn, "n2", "script", script=str(scripts / "broken.sh"))
    await node(conn, "n3", render=1)
    (await cli("--config", str(config), "nodes", "wake", "n1")).ends(0, "called by script", "accsd nodes show n1")
    assert woken.read_text() == "called\n"
    (await cli("--config", str(config), "nodes", "wake", "n2")).ends(4, "was not woken by script", "→")
    (await cli("nodes", "wake", "n3")).ends(2, "has no wake_method", "→ set node.wake_method")
    tries = await conn.fetch("SELECT node, ok, tries FROM accs.wake_tries ORDER BY node")
    assert [tuple(row) for row in tries] == [("n1", True, 1), ("n2", False, 1)]
    assert await conn.fetchval("SELECT count(*) FROM task_events") == 0
    (await cli("nodes")).ends(0, "script (sent", "script (failed")


# Services


async def test_services_with_what_waits_for_them(cli: Cli, conn: Connection):
    (await cli("services")).ends(0, "no service is known")
    await node(conn, render=2)
    await submit(conn, step("a"), step("b"), step("c", "audio"), step("d", backoff=[60]))
    await started(conn)
    rows = {row["service"]: row for row in (await cli("services", "-o", "json")).json}
    assert (rows["render"]["claimable"], rows["render"]["live"], rows["render"]["slots"]) == (2, 1, 2)
    assert rows["render"]["nodes"] == ["n1"]
    (await cli.process("services")).ends(0, "1/2", "no node offers it")


async def test_a_paused_service_says_so_and_by_whom(cli: Cli, conn: Connection):
    await node(conn, render=2)
    await submit(conn, step("a"))
    (await cli("services", "pause", "render", "--reason", "licence")).ends(0, "nothing of it runs", "services resume")
    assert await claim(conn) == []
    (await cli("services", "pause", "render")).ends(0, "was paused", "licence already")
    (await cli("services")).ends(0, "paused", "licence")
    (await cli("services", "resume", "render")).ends(0, "goes on")
    (await cli("services", "resume", "render")).ends(0, "was not paused")
    assert len(await claim(conn)) == 1
    (await cli("services", "pause", "rendr")).ends(3, 'did you mean "render"?', "→ `accsd services`")


# Top


async def test_without_a_terminal_top_is_shown_once(cli: Cli, conn: Connection):
    await node(conn, render=2)
    job_id = await submit(conn, step("a"), step("b", max_attempts=1))
    await started(conn)
    await fail(conn, *await started(conn), message="\x1b[2Jno")
    (await cli.process("top")).ends(0, "render 1/2", f"{short(job_id)}/a", "boom")
    seen = (await cli("top", "--once", "-o", "json")).ends(0).json
    assert [task["task_key"] for task in seen["tasks"]] == ["a"]
    assert [failure["error_code"] for failure in seen["failures"]] == ["boom"]
    assert "\x1b[2J" not in (await cli("top", "--once")).out


async def test_on_a_terminal_top_goes_on_until_q(cli: Cli, conn: Connection):
    await node(conn, render=2)
    screen, terminal = pty.openpty()
    process = _top(cli, terminal)
    os.close(terminal)
    try:
        _read_until(screen, b"render 0/2")
        _read_until(screen, b"render 0/2")  # drawn again
        os.write(screen, b"q")
        with suppress(OSError):  # the other side is closed
            _read_until(screen, b"never said", within=20)
        assert process.wait(timeout=20) == 0
    finally:
        process.kill()
        os.close(screen)


def _top(cli: Cli, terminal: int) -> subprocess.Popen[bytes]:
    environment = cli.environment() | {"TERM": "xterm", "COLUMNS": "120", "LINES": "40"}
    return subprocess.Popen([*ACCSD, "top"], env=environment, stdin=terminal, stdout=terminal, stderr=terminal)


def _read_until(screen: int, word: bytes, within: float = 30) -> None:
    seen, deadline = b"", time.monotonic() + within
    while word not in seen:
        assert time.monotonic() < deadline, seen
        if select.select([screen], [], [], 0.2)[0]:
            seen += os.read(screen, 65536)
