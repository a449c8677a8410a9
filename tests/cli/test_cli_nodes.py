"""`accsd nodes`, `accsd services` and `accsd top`: what the fleet is, and how it is operated."""

import asyncio
import os
import pty
import re
import select
import subprocess
import termios
import time
from contextlib import suppress
from datetime import timedelta
from uuid import UUID, uuid4

import pytest

from accsd.explain.words import short
from tests.support.cli import ACCSD, Cli
from tests.support.cluster import SERVER_NAMES, Clusters, Connection, TestServer
from tests.support.factory import claim, clock, fail, node, pass_time, started, step, submit, submit_to, workflow

HOUR = timedelta(hours=1)


@pytest.fixture
def server(clusters: Clusters) -> TestServer:
    return clusters.get(SERVER_NAMES[0])


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


async def called(conn: Connection, name: str) -> UUID:
    """A call that is under way."""
    try_id = uuid4()
    seen = await conn.fetchval("SELECT last_seen FROM nodes WHERE name = $1", name)
    assert await conn.fetchval("SELECT accs.claim_wake($1, $2, 'wol', NULL, $3)", name, try_id, seen) == "accepted"
    return try_id


async def not_woken(conn: Connection, name: str, because: str, *, failed: bool = False) -> None:
    """As the builder notes it."""
    await conn.fetch(
        "SELECT accs.note_not_woken(ARRAY[$1], ARRAY[NULL::uuid], ARRAY[$2::boolean], ARRAY[$3], '1 min')",
        name,
        failed,
        because,
    )


def on_terminal(cli: Cli, width: int, *arguments: str) -> list[str]:
    """The lines of a command whose stdout is a terminal that is so wide."""
    screen, terminal = pty.openpty()
    environment = cli.environment() | {"TERM": "dumb", "NO_COLOR": "1", "COLUMNS": str(width)}
    with subprocess.Popen([*ACCSD, *arguments], env=environment, stdout=terminal, stdin=subprocess.DEVNULL) as process:
        os.close(terminal)
        seen = b""
        with suppress(OSError):  # the other side is closed
            while part := os.read(screen, 65536):
                seen += part
        os.close(screen)
        assert process.wait(timeout=20) == 0
    return seen.decode().splitlines()


# Nodes


async def test_the_list_shows_what_each_offers_and_whether_it_is_there(cli: Cli, conn: Connection):
    (await cli("nodes")).ends(0, "no node has registered")
    await node(conn, "n1", {"gpu": True}, render=2)
    await wakeable(conn, "n2", "wol", mac="52:54:00:00:00:01")
    await submit(conn, step("a"))
    await claim(conn)
    (await cli.process("nodes")).ends(0, "NAME", "render 1/2", "it is at work", "asleep", "never (wol)")
    rows = {row["name"]: row for row in (await cli("nodes", "-o", "json")).json}
    assert {name: row["state"] for name, row in rows.items()} == {"n1": "awake", "n2": "asleep"}
    assert (rows["n1"]["live"], rows["n1"]["slots"], rows["n1"]["labels"]) == (
        {"render": 1},
        {"render": 2},
        {"gpu": True},
    )
    await pass_time(conn, 3600)
    assert [row["state"] for row in (await cli("nodes", "-o", "jsonl")).json_lines] == ["away", "asleep"]
    assert (await cli("nodes", "-o", "name")).out == "n1\nn2\n"
    (await cli("nodes", "show", "n1")).ends(0, "gpu=true", "away")


async def test_each_state_is_named_with_its_reason_and_the_last_wake(cli: Cli, conn: Connection):
    for name in ("n1", "n2", "n3", "n4"):
        await wakeable(conn, name, "wol", mac="52:54:00:00:00:01")
    first, second = await called(conn, "n1"), await called(conn, "n2")
    await conn.fetch("SELECT accs.record_wake('n2', $1, true, NULL, 'node n2 woken by wol', '{}')", second)
    await not_woken(conn, "n3", "it never came", failed=True)
    await not_woken(conn, "n4", "other nodes suffice")
    rows = {row["name"]: row for row in (await cli("nodes", "-o", "json")).json}
    assert {name: row["state"] for name, row in rows.items()} == {
        "n1": "waking", "n2": "booting", "n3": "failed", "n4": "asleep",
    }  # fmt: skip
    lines = {line.split()[0]: line for line in (await cli("nodes")).ends(0).out.splitlines()}
    assert ("under way" in lines["n1"], "sent" in lines["n2"]) == (True, True)
    assert (lines["n3"].endswith("it never came"), lines["n4"].endswith("other nodes suffice")) == (True, True)
    await conn.fetch(
        "SELECT accs.record_wake('n1', $1, false, NULL, 'node n1 not woken by wol: no route', '{}')", first
    )
    await pass_time(conn, 40)
    await conn.fetch("SELECT * FROM accs.register_node('n2')")
    await conn.fetch("SELECT accs.note_awake('n2', 'somebody is logged in')")
    lines = {line.split()[0]: line for line in (await cli("nodes")).ends(0).out.splitlines()}
    assert lines["n2"].split()[:2] == ["n2", "awake"]
    took = re.search(r"took (\d+)s", lines["n2"])
    assert took is not None, lines["n2"]
    assert 40 <= int(took[1]) < 60, "40 s by the database's clock, and what this test has taken"
    assert lines["n2"].endswith("somebody is logged in")
    assert lines["n1"].endswith("no route")
    (await cli("top", "--once")).ends(0, "failed", "asleep")


async def test_one_that_has_gone_offers_no_slots(cli: Cli, conn: Connection):
    """A pull process says 600 while it claims ahead, and may be gone before it says 100 again."""
    await node(conn, "n1.wordcount", wordcount=600)
    (await cli("nodes")).ends(0, "wordcount 0/600")
    await conn.fetch("SELECT accs.node_leaves('n1.wordcount')")
    assert "600" not in (await cli("nodes")).ends(0, "wordcount", "away").out


async def test_show_tells_what_happened_to_a_node(cli: Cli, conn: Connection):
    await wakeable(conn, "n1", "script", script="/opt/wake.sh")
    await conn.fetch("SELECT * FROM accs.register_node('n1', p_networks => '{10.0.7.0/24}')")
    said = (await cli("nodes", "show", "n1")).ends(
        0, "/opt/wake.sh", "10.0.7.0/24", "WHAT HAPPENED", "it goes to sleep"
    )
    assert said.out.count("it is there") == 2
    shown = (await cli("nodes", "show", "n1", "--history", "1", "-o", "json")).json[0]
    assert [event["message"] for event in shown["history"]] == ["it is there"]
    assert "WHAT HAPPENED" not in (await cli("nodes", "show", "n1", "--history", "0")).ends(0).out


@pytest.mark.parametrize("width", [40, 80, 120])
async def test_the_list_fits_its_terminal(cli: Cli, conn: Connection, width: int):
    reason = "it did not come after 6 calls by wol, relay (last 12:03:10 UTC); it is asked again at 12:18:10 UTC"
    for name in ("render-1", "render-2"):
        await wakeable(conn, name, "wol", mac="52:54:00:00:00:01")
    await not_woken(conn, "render-2", reason, failed=True)
    lines = await asyncio.to_thread(on_terminal, cli, width, "nodes")
    assert max(map(len, lines)) <= width
    assert " ".join(reason.split()) in " ".join(" ".join(lines).split())
    assert sum("render-" in line for line in lines) == 2


async def test_a_drained_node_takes_nothing_until_it_is_resumed(cli: Cli, conn: Connection):
    await node(conn, render=1)
    await submit(conn, step("a"))
    (await cli("nodes", "drain", "n1", "--reason", "new card")).ends(0, "is drained", "accsd nodes resume n1")
    assert await claim(conn) == []
    pause = await conn.fetchrow("SELECT reason, by FROM accs.pauses")
    assert pause is not None
    assert pause["reason"] == "new card"
    assert pause["by"]
    (await cli("nodes", "drain", "n1")).ends(0, "was drained already", ": new card")
    assert (await cli("nodes", "-o", "json")).json[0]["state"] == "drained"
    (await cli("nodes", "resume", "n1")).ends(0, "takes work again")
    (await cli("nodes", "resume", "n1")).ends(0, "was not drained")
    assert len(await claim(conn)) == 1


async def test_a_node_that_is_unknown_is_exit_code_3_with_a_suggestion(cli: Cli, conn: Connection):
    await node(conn, "render-1", render=1)
    for command in ("drain", "resume", "wake", "sleep", "show"):
        (await cli("nodes", command, "rendr-1")).ends(3, 'did you mean "render-1"?', "→ `accsd nodes`")


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
    (await cli("services", "pause", "render")).ends(0, "was paused already", ": licence")
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


@pytest.mark.parametrize("width", [40, 60, 120])
async def test_nothing_is_lost_on_a_narrow_terminal_but_the_end_of_a_message(cli: Cli, conn: Connection, width: int):
    await node(conn, "studio1", {}, **{f"service-{n}": 1 for n in range(7)}, render=2)
    job_id = await submit(conn, step("thumbnail", max_attempts=1), step("encode"))
    await fail(conn, *await started(conn, on="studio1"), code="start_failed", message="OCI runtime: " + "word " * 100)
    await started(conn, on="studio1")
    lines = await asyncio.to_thread(on_terminal, cli, width, "top", "--once")
    assert [line for line in lines if len(line) > width] == []
    said = " ".join(" ".join(lines).split())
    heading = ("jobs: 0 queued, 1 running, 1 failed today", "postgresql://")
    nodes = ("studio1", "awake", "service-6 0/1", "render 1/2")
    tasks = (f"{short(job_id)}/encode", f"{short(job_id)}/thumbnail", "start_failed", "OCI runtime")
    assert [words for words in (*heading, *nodes, *tasks) if words not in said] == []


async def test_jobs_that_wait_are_counted_by_workflow(cli: Cli, conn: Connection):
    await node(conn, render=1)
    busy, quiet = await workflow(conn, name="media"), await workflow(conn, name="nightly")
    for _ in range(3):
        await submit_to(conn, busy)
    await conn.execute("INSERT INTO jobs (workflow_id, scheduled_at) VALUES ($1, now() + interval '1 day')", quiet)
    await started(conn)
    await conn.fetch("SELECT accs.pause('workflow', 'media', NULL, NULL)")
    seen = (await cli("top", "-o", "json")).ends(0).json["workflows"]
    assert seen == [
        {"workflow": "media", "queued": 0, "running": 3, "is_paused": True},
        {"workflow": "nightly", "queued": 1, "running": 0, "is_paused": False},
    ]
    assert ["media", "0", "3", "paused"] in [line.split() for line in (await cli("top")).out.splitlines()]


async def test_from_top_to_a_job_its_log_and_back_and_the_terminal_is_as_it_was(cli: Cli, conn: Connection):
    await node(conn, render=2)
    job_id = await submit(conn, step("a", max_attempts=1))
    await fail(conn, *await started(conn))
    screen, terminal = pty.openpty()
    before = termios.tcgetattr(terminal)
    process = _top(cli, terminal, lines=12)
    try:
        _read_until(screen, b"q leave")
        for keys, shown in [
            (b"\x1b[B", b"boom"),
            (b"\r", f"accsd job {job_id}".encode()),
            (b"", b"workflow   "),
            (b"\x1b[6~", b"q back"),
            (b"q", b"q leave"),
            (b"j", b"boom"),
            (b"l", f"accsd logs {job_id} --task a".encode()),
            (b"", b"nothing was written"),
            (b"\x1b", b"q leave"),
            (b"?", b"Ctrl-C            leave"),
        ]:
            os.write(screen, keys)
            _read_until(screen, shown)
        os.write(screen, b"\x03")
        assert await asyncio.to_thread(process.wait, 20) == 0
        assert termios.tcgetattr(terminal) == before
        _read_until(screen, b"\x1b[?1049l")  # the screen from before it
    finally:
        process.kill()
        os.close(terminal)
        os.close(screen)


def _top(cli: Cli, terminal: int, lines: int = 40) -> subprocess.Popen[bytes]:
    environment = cli.environment() | {"TERM": "xterm", "COLUMNS": "120", "LINES": str(lines)}
    return subprocess.Popen(
        ["env", "--default-signal=INT", "setsid", "--ctty", *ACCSD, "top"],  # so that Ctrl-C reaches it
        env=environment,
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
    )


def _read_until(screen: int, word: bytes, within: float = 30) -> None:
    seen, deadline = b"", time.monotonic() + within
    while word not in seen:
        assert time.monotonic() < deadline, seen
        if select.select([screen], [], [], 0.2)[0]:
            seen += os.read(screen, 65536)


# What they did, what that has cost, what is ahead


async def test_what_machines_did_what_they_used_and_what_is_ahead(cli: Cli, conn: Connection):
    watts = {"asleep": 4, "booting": 120, "idle": 80, "busy": 300}
    await conn.fetch(
        "SELECT FROM accs.register_node('gpu-1', '{}', '{\"render\": 1}', 'wol', '52:54:00:00:00:01', p_watts => $1)",
        watts,
    )
    await node(conn, "old-1", render=1)
    await conn.fetch("SELECT accs.node_leaves('gpu-1', 'sleep', 'nothing to do')")
    await pass_time(conn, 10 * 3600)
    await submit_to(conn, await workflow(conn, step("a"), name="later"), scheduled_at=await clock(conn) + HOUR)
    assert "asleep 4, booting 120, idle 80, busy 300" in (await cli("nodes", "show", "gpu-1")).ends(0).out

    lanes = (await cli("nodes", "timeline", "--since", "10h")).ends(0).out.splitlines()
    assert lanes[0] == "gpu-1  " + "z" * 72
    assert "z asleep  w waking  b booting" in lanes[2]
    found = (await cli("nodes", "timeline", "--since", "10h", "-o", "json")).ends(0).json[0]
    assert [piece["state"] for piece in found["lanes"][0]["intervals"]] == ["asleep"]
    assert found["lanes"][0]["intervals"][0]["because"] == "nothing to do"

    said = (await cli("nodes", "energy", "--since", "10h")).ends(0)
    assert re.search(r"gpu-1\s+0\.00\s+10\.00\s+0\.04\s+0\.76", said.out)
    assert "in all 0.04 kWh used, 0.76 kWh saved" in said.out
    assert "nobody has said what these draw ([node] watts): old-1" in said.err

    assert "gpu-1" in (await cli("nodes", "forecast")).ends(0, "render", "job ").out
    [ahead] = (await cli("nodes", "forecast", "-o", "json")).ends(0).json
    assert [(wake["node"], wake["schedule"]) for wake in ahead["wakes"]] == [("gpu-1", None)]
    assert ahead["as_of"] < ahead["wakes"][0]["at"] < ahead["wakes"][0]["due_at"]
    assert "no machine will be woken within" in (await cli("nodes", "forecast", "--within", "10m")).ends(0).err
