"""Ten thousand clients that do nothing: the daemon's other roles do not notice them."""

import asyncio
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from tests.support import daemon
from tests.support.cluster import Connection

CLIENTS = 10_000
# as many open files as a shell gives a process, and not more than a thousand connections fit into
FEW_FILES = ("prlimit", "--nofile=1024:4096")
CONFIG = """
[gateway]
listen = "{listen}"
[gateway.limits]
connections = 1000
"""


async def idle(host: str, port: int, open_ones: list[asyncio.StreamWriter]) -> bool:
    """Connects and says nothing. Whether it was told that there are too many."""
    try:
        reader, writer = await asyncio.wait_for(asyncio.open_connection(host, port), 30)
        open_ones.append(writer)
        return (await asyncio.wait_for(reader.read(), 2)).startswith(b"HTTP/1.1 503")
    except (TimeoutError, OSError):
        return False


@pytest.mark.soak
@pytest.mark.timeout(300)
async def test_ten_thousand_idle_clients_cost_no_heartbeat(tmp_path: Path, db_url: str, conn: Connection):
    port = daemon.free_port()
    config = CONFIG.format(listen=f"127.0.0.1:{port}")
    with daemon.running(tmp_path, db_url, config=config, prefix=FEW_FILES) as running:
        await asyncio.to_thread(running.wait_for, "listening", component="gateway")
        longest = "SELECT extract(epoch FROM clock_timestamp() - last_seen)::float8 FROM nodes WHERE name = 'n1'"
        open_ones: list[asyncio.StreamWriter] = []
        silences: list[float] = []
        refused = 0
        for _ in range(CLIENTS // 500):
            told = await asyncio.gather(*[idle("127.0.0.1", port, open_ones) for _ in range(500)])
            refused += sum(told)
            silences.append(await conn.fetchval(longest))
        assert refused > CLIENTS * 0.6, "all beyond the limit are told so, but for those that hung up before"
        assert max(silences) < 30, silences
        assert not running.log("role_crashed")
        for writer in open_ones:
            with suppress(OSError):
                writer.close()
        async with httpx.AsyncClient() as client:
            assert (await client.get(f"http://127.0.0.1:{port}/health", timeout=30)).status_code == 200
