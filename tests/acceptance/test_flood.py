"""A chatty task in each mode: every line is kept once and in order, and whoever follows it sees them while it runs."""

import subprocess
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Thread
from typing import IO
from uuid import UUID

import pytest

from tests.support.checker import check
from tests.support.cli import ACCSD, Cli
from tests.support.cluster import Connection
from tests.support.compose_node import PREAMBLE, ComposeNode, job_reaches
from tests.support.eventually import eventually
from tests.support.factory import step, submit
from tests.support.objectstore import log_lines

pytestmark = [pytest.mark.needs_docker, pytest.mark.usefixtures("compose_engine"), pytest.mark.xdist_group("compose")]

MILLION = 1_000_000
# A line is its number and the time of its writing, which begins anew every thousand seconds: a million fit into a log.
FLOOD = (
    PREAMBLE
    + """
def write(lines):
    for i in lines:
        print("%d %.2f" % (i, time.time() % 1000))
        if i % 1000 == 999:
            sys.stdout.flush()
            time.sleep(params["pause"])
    sys.stdout.flush()
write(range(params["first"]))
while not os.path.exists(params["go"]): time.sleep(0.02)
write(range(params["first"], params["all"]))
"""
)


def serve(node: ComposeNode, mode: str) -> None:
    match mode:
        case "process":
            node.add_process(mode, FLOOD)
            node.add("idle", "run", FLOOD)  # an empty compose file would be refused
        case "http":
            node.add_http(mode, FLOOD)
        case _:
            node.add(mode, mode, FLOOD)


@dataclass
class Follower:
    """`accsd logs -f`, and how far behind it was at its worst."""

    process: subprocess.Popen[bytes]
    lines: list[bytes] = field(default_factory=list)
    worst_lag: float = 0.0

    def read(self, pipe: IO[bytes]) -> None:
        for line in pipe:
            self.lines.append(line)
            if len(self.lines) % 100 == 0:
                behind = (time.time() - float(line.split()[-1])) % 1000
                self.worst_lag = max(self.worst_lag, behind)


@contextmanager
def following(node: ComposeNode, db_url: str, job: UUID) -> Generator[Follower]:
    config = node.folder / "cli.toml"
    config.write_text(f'[node]\nstate_dir = "{node.folder / "state"}"\n')
    command = [*ACCSD, "--config", str(config), "logs", "-f", str(job), "--task", "a"]
    process = subprocess.Popen(command, env=Cli(db_url).environment(), stdout=subprocess.PIPE)
    assert process.stdout is not None
    follower = Follower(process)
    reader = Thread(target=follower.read, args=(process.stdout,))
    reader.start()
    try:
        yield follower
        assert process.wait(timeout=300) == 0
    finally:
        process.kill()
        process.wait(timeout=10)
        reader.join(timeout=10)
        process.stdout.close()


def numbers(lines: list[str]) -> list[int]:
    return [int(line.split()[0]) for line in lines]


@pytest.mark.parametrize("mode", ["process", "run"])
async def test_every_line_of_a_flood_is_followed_while_it_runs_and_kept_once(
    node: ComposeNode, db_url: str, conn: Connection, mode: str
):
    """Far more than the first thousand lines, which are events; and not by the age of the last part, which is a minute
    by then."""
    serve(node, mode)
    first, every = 100_000, 150_000
    with node.daemon(db_url) as accsd:
        job = await submit(conn, step("a", mode), options=node.options(first=first, all=every, pause=0))
        with following(node, db_url, job) as follower:
            await eventually(lambda: len(follower.lines) == first, within=50, what="all lines of one that runs")
            assert await conn.fetchval("SELECT status FROM jobs WHERE id = $1", job) == "running"
            node.go.touch()
            await job_reaches(conn, job, "done")
        assert accsd.stop() == 0
    assert numbers([line.decode() for line in follower.lines]) == list(range(every))
    assert numbers(await log_lines(conn, node.folder / "state/objects", job, "a")) == list(range(every))
    await check(conn)


@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("pause", [0, 0.1], ids=["at-once", "steadily"])
@pytest.mark.parametrize("mode", ["process", "run", "exec", "http"])
async def test_a_million_lines_are_kept_in_every_mode(
    node: ComposeNode, db_url: str, conn: Connection, mode: str, pause: float
):
    """At once: as fast as it can write. Steadily: at most ten thousand lines in a second."""
    serve(node, mode)
    node.go.touch()
    with node.daemon(db_url) as accsd:
        began = time.monotonic()
        job = await submit(conn, step("a", mode), options=node.options(first=0, all=MILLION, pause=pause))
        with following(node, db_url, job) as follower:
            await job_reaches(conn, job, "done", within=1000)
            took = time.monotonic() - began
        assert accsd.stop() == 0
        assert not accsd.log("role_crashed")
    kept = numbers(await log_lines(conn, node.folder / "state/objects", job, "a"))
    print(f"{mode}, pause {pause}: {len(kept)} lines kept in {took:.0f} s, worst lag {follower.worst_lag:.1f} s")
    assert kept == list(range(MILLION))
    assert numbers([line.decode() for line in follower.lines]) == kept
    await check(conn)
