"""A daemon with nothing to do costs next to nothing, and says that all is well. `pytest -s` shows the figures."""

import os
import re
import time
from dataclasses import dataclass
from pathlib import Path

import anyio
import asyncpg

from tests.support import daemon
from tests.support.cluster import TestServer
from tests.support.daemon import Daemon
from tests.support.eventually import eventually
from tests.support.library import name_in
from tests.support.tasks import counted_service

SERVICES = ("render", "audio", "video", "mixer", "judge")
# A session tells the server's counters what it did within 10 s: the start must not be counted.
SETTLED = 11.0
WATCHED = 21.0


@dataclass(frozen=True, slots=True)
class Reading:
    at: float
    calls: float  # by the daemon's own count
    transactions: int  # by the server's
    cpu: float  # seconds
    rss: int  # bytes


async def read(accsd: Daemon, admin: asyncpg.Connection, database: str) -> Reading:
    counted = re.findall(r"^accsd_queries_total\{.*\} (\S+)$", accsd.metrics(), re.MULTILINE)
    transactions = await admin.fetchval(
        "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = $1", database
    )
    return Reading(time.monotonic(), sum(map(float, counted)), transactions, cpu_of(accsd.pid), rss_of(accsd.pid))


def cpu_of(pid: int) -> float:
    ticks = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")


def rss_of(pid: int) -> int:
    [kilobytes] = re.findall(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(kilobytes) * 1024


async def watched(accsd: Daemon) -> list[str]:
    """What /health complains of meanwhile, asked now and then."""
    complaints: list[str] = []
    ends = time.monotonic() + WATCHED
    while time.monotonic() < ends:
        await anyio.sleep(2)
        complaints += accsd.health()["reasons"]
    return complaints


async def test_an_idle_daemon_asks_seldom_and_burns_nothing(tmp_path: Path, server: TestServer, db_url: str):
    config = "".join(counted_service(name, tmp_path / "notes", node="n1") for name in SERVICES)
    admin = await asyncpg.connect(server.url_of("postgres"))  # its own questions are counted elsewhere
    try:
        with daemon.running(tmp_path, db_url, config=config, http=True, environ={"ACC_LOG_LEVEL": "info"}) as accsd:
            accsd.wait_for("listening")
            accsd.wait_for("node_registered")
            await eventually(lambda: accsd.health()["status"] == "ok", within=10)
            await anyio.sleep(SETTLED)
            before = await read(accsd, admin, name_in(db_url))
            said = len(accsd.log())
            complaints = await watched(accsd)
            after = await read(accsd, admin, name_in(db_url))
            assert len(accsd.log()) == said, accsd.tail()
    finally:
        await admin.close()

    seconds = after.at - before.at
    calls, transactions = (after.calls - before.calls) / seconds, (after.transactions - before.transactions) / seconds
    cpu = (after.cpu - before.cpu) / seconds
    print(f"\n{calls:.2f} calls/s, {transactions:.2f} transactions/s, {cpu:.2%} of a core, {after.rss / 2**20:.0f} MiB")
    assert complaints == []
    assert calls < 2.5
    assert transactions < 2.5
    assert cpu < 0.03
    assert after.rss < 120 * 2**20
