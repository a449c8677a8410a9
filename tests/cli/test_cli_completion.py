"""What a shell offers at a key: names, as the database has them, and silence where it has none."""

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

from accsd.cli import main
from accsd.explain.words import short
from tests.support.cli import ACCSD, Cli
from tests.support.cluster import Connection
from tests.support.factory import chain, node, submit_to, workflow
from tests.support.schedules import schedule

Offer = Callable[..., Awaitable[list[str]]]


@pytest.fixture
def offered(db_url: str, monkeypatch: pytest.MonkeyPatch) -> Offer:
    """`await offered("submit", "me")`: what completes the last word."""
    monkeypatch.setenv("ACC_DB_URL", db_url)

    async def ask(*words: str) -> list[str]:
        shell = ShellComplete(main, {}, "accsd", "_ACCSD_COMPLETE")
        found = await asyncio.to_thread(shell.get_completions, list(words[:-1]), words[-1])
        return [item.value for item in found]

    return ask


async def test_names_are_completed_as_the_database_has_them(offered: Offer, conn: Connection):
    await node(conn, "gpu-1", render=2)
    media = await workflow(conn, *chain("fetch", "render", service="fetcher"), name="media")
    await workflow(conn, name="mixdown")
    await workflow(conn, name="ugly\x1b[2J")
    first, second = await submit_to(conn, media), await submit_to(conn, media)
    assert await offered("submit", "me") == ["media"]
    assert await offered("workflows", "show", "") == ["media", "mixdown"]
    assert await offered("jobs", "--workflow", "mi") == ["mixdown"]
    assert await offered("jobs", "--service", "") == ["fetcher", "render"]
    assert await offered("jobs", "--node", "g") == ["gpu-1"]
    assert await offered("nodes", "wake", "") == ["gpu-1"]
    assert await offered("services", "pause", "f") == ["fetcher"]
    assert await offered("job", "") == [short(second), short(first)]
    assert await offered("cancel", short(first), short(second)[:5]) == [short(second)]
    assert await offered("logs", str(first)[:30]) in ([str(first)], [str(second), str(first)])
    assert await offered("why", f"{short(first)}/") == [f"{short(first)}/fetch", f"{short(first)}/render"]
    assert await offered("retry", short(first), "--from", "r") == ["render"]
    assert await offered("logs", short(first), "--task", "") == ["fetch", "render"]
    await schedule(conn, name="nightly", workflow="media")
    assert await offered("schedules", "show", "ni") == ["nightly"]


async def test_a_shell_gets_names_from_the_command_itself(db_url: str, conn: Connection):
    await workflow(conn, name="media")
    asking = {"_ACCSD_COMPLETE": "bash_complete", "COMP_WORDS": "accsd submit m", "COMP_CWORD": "2"}
    process = await asyncio.create_subprocess_exec(
        *ACCSD, env=Cli(db_url).environment() | asking, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate()
    assert out.decode().split() == ["plain,media"]


async def test_nothing_is_offered_and_nothing_said_where_no_database_answers(
    offered: Offer, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
):
    assert await offered("job", "zzzz") == []
    assert await offered("why", "zzzz/") == []
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        for url in (f"postgresql://x@127.0.0.1:{deaf.getsockname()[1]}/x", "postgresql://x@127.0.0.1:1/x", "nonsense"):
            monkeypatch.setenv("ACC_DB_URL", url)
            began = time.monotonic()
            assert await offered("submit", "") == []
            assert time.monotonic() - began < 10, "it waits a second for a database, not as long as a command does"
    monkeypatch.setenv("ACC_NO_SUCH_SETTING", "1")
    assert await offered("submit", "") == []
    monkeypatch.delenv("ACC_NO_SUCH_SETTING")
    monkeypatch.delenv("ACC_DB_URL")
    monkeypatch.setenv("ACC_STATE_DIR", str(tmp_path))
    assert await offered("submit", "") == []
    assert capfd.readouterr() == ("", "")
