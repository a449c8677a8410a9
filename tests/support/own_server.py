"""A PostgreSQL of a test's own, on a port that stays the same: a test may stop it as by a crash and start it again. And
pgbouncer in transaction mode in front of a server."""

import asyncio
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import asyncpg

from accsd import embedded
from accsd.db import install
from accsd.db.pool import connect
from tests.support.cluster import SETTINGS
from tests.support.daemon import free_port
from tests.support.eventually import eventually
from tests.support.library import settings_of


@dataclass
class OwnServer:
    folder: Path
    port: int
    settings: Mapping[str, str]
    _uses: ExitStack
    bindir: Path | None = None
    _now: embedded.Server | None = None

    @property
    def now(self) -> embedded.Server:
        """As it runs, or as it ran last."""
        assert self._now is not None, "it was not started yet"
        return self._now

    @property
    def pg_hba(self) -> Path:
        return self.folder / "pgdata" / "pg_hba.conf"

    def start(self) -> embedded.Server:
        """Returns when connections are taken."""
        settings = {**SETTINGS, **self.settings, "port": str(self.port)}
        started = self._uses.enter_context(embedded.running(self.folder, bindir=self.bindir, settings=settings))
        self._now = replace(started, port=self.port)
        return self._now

    def crash(self) -> None:
        """pg_ctl stop -m immediate: no checkpoint, every session is gone; recovery at the next start."""
        os.kill(self.now.postmaster_pid, signal.SIGQUIT)
        embedded.wait_until_stopped(self.folder)

    async def with_schema(self) -> str:
        """Starts it and installs the schema; the URL of that database."""
        server = await asyncio.to_thread(self.start)
        connection = await connect(settings_of(server.tcp_url))
        await install(connection)
        await connection.close()
        return server.tcp_url


@contextmanager
def own_server(bindir: Path | None = None, /, **settings: str) -> Generator[OwnServer]:
    """Not started yet. Gone with its data at the end. `bindir` names other binaries than the embedded ones."""
    parent = Path(tempfile.mkdtemp(prefix="accsd-test-"))
    parent.chmod(0o711)  # as root the server runs as somebody else, who must get through
    folder = parent / "own"
    with ExitStack() as resources:
        resources.callback(parent.rmdir)
        resources.callback(lambda: embedded.destroy(folder) if folder.exists() else None)
        yield OwnServer(folder, free_port(), settings, resources.enter_context(ExitStack()), bindir)


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
