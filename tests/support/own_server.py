"""A PostgreSQL of a test's own, on a port that stays the same: it may be stopped as by a crash and started again."""

import asyncio
import os
import signal
import tempfile
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from accsd import embedded
from accsd.db import install
from accsd.db.pool import connect
from tests.support.bouncer import free_port
from tests.support.cluster import SETTINGS
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
