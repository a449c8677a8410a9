"""pgbouncer in transaction mode in front of a test server: a real process on a port of its own."""

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg

from accsd import embedded
from tests.support.eventually import eventually

PGBOUNCER = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")

# Fewer connections to the server than the tests open, so that a client's statements really wander between them.
INI = """
[databases]
* = host=127.0.0.1 port={server.port} user=accsd password={server.password}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 3
"""


@asynccontextmanager
async def bouncing(server: embedded.Server, database: str) -> AsyncGenerator[str]:
    """The URL of a database on this server by way of pgbouncer."""
    with tempfile.TemporaryDirectory(prefix="accsd-bouncer-") as folder:
        port = free_port()
        log = Path(folder, "log")
        process = _start(Path(folder, "pgbouncer.ini"), INI.format(server=server, port=port), log)
        try:
            url = f"postgresql://anybody@127.0.0.1:{port}/{database}"
            await _answering(url, process, log)
            yield url
        finally:
            process.terminate()
            process.wait(10)


def _start(ini: Path, text: str, log: Path) -> subprocess.Popen[bytes]:
    assert PGBOUNCER is not None
    ini.write_text(text)
    user = _unprivileged(ini)
    with log.open("wb") as output:
        return subprocess.Popen([PGBOUNCER, "-q", ini], stdout=output, stderr=output, user=user)


def _unprivileged(ini: Path) -> str | None:
    """pgbouncer refuses to be root; the file holds a password and is for its reader alone."""
    ini.chmod(0o600)
    if os.geteuid() != 0:
        return None
    shutil.chown(ini, "nobody")
    shutil.chown(ini.parent, "nobody")
    return "nobody"


async def _answering(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    async def answers() -> bool:
        if process.poll() is not None:
            raise RuntimeError(f"pgbouncer ended with {process.returncode}: {log.read_bytes()}")  # noqa: ASYNC240
        try:
            connection = await asyncpg.connect(url, timeout=5, statement_cache_size=0)
        except OSError:
            return False
        await connection.close()
        return True

    await eventually(answers, within=10, what="an answer of pgbouncer")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
