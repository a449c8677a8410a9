"""The files in the folder of an embedded server: locks, a note on the running server, its log, its data.

Both sides use it: the users (attach.py) and the guardian (guardian.py).
"""

import fcntl
import json
import os
import secrets
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from urllib.parse import quote, urlencode

from accsd.errors import DatabaseUnavailable

SUPERUSER = "accsd"


class EmbeddedError(DatabaseUnavailable):
    """The embedded PostgreSQL could not be started or reached."""


class Deadline:
    """A moment on the monotonic clock, and the complaint when it has passed."""

    def __init__(self, after: timedelta, complaint: str) -> None:
        self._end = time.monotonic() + after.total_seconds()
        self._complaint = complaint

    def pause(self) -> None:
        """Waits a little, or raises if there is no time left."""
        if time.monotonic() > self._end:
            raise EmbeddedError(self._complaint)
        time.sleep(0.01)


@dataclass(frozen=True, slots=True)
class Server:
    """A running server, reached by its socket (no password: its folder is private) or by TCP (password)."""

    socket_dir: str
    port: int
    password: str
    postmaster_pid: int
    guardian_pid: int

    @property
    def url(self) -> str:
        """The URL of the maintenance database, by the socket."""
        return self.url_of("postgres")

    @property
    def tcp_url(self) -> str:
        """The URL of the maintenance database, by 127.0.0.1."""
        return self.tcp_url_of("postgres")

    def url_of(self, database: str) -> str:
        where = urlencode({"host": self.socket_dir, "port": self.port}, safe="/")
        return f"postgresql://{SUPERUSER}@/{quote(database)}?{where}"

    def tcp_url_of(self, database: str) -> str:
        return f"postgresql://{SUPERUSER}:{self.password}@127.0.0.1:{self.port}/{quote(database)}"


@dataclass(frozen=True, slots=True)
class Folder:
    path: Path

    @classmethod
    def at(cls, path: Path) -> "Folder":
        """The folder, made if it is missing. As root: other accounts (the server's) may only pass through it."""
        path = path.absolute()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(mode=0o711 if os.geteuid() == 0 else 0o700, exist_ok=True)
        return cls(path.resolve())

    @property
    def users_lock(self) -> Path:
        return self.path / "users.lock"

    @property
    def starting_lock(self) -> Path:
        return self.path / "starting.lock"

    @property
    def guardian_lock(self) -> Path:
        return self.path / "guardian.lock"

    @property
    def log(self) -> Path:
        return self.path / "server.log"

    @property
    def data(self) -> Path:
        return self.path / "pgdata"

    @property
    def _description(self) -> Path:
        return self.path / "server.json"

    @property
    def _password(self) -> Path:
        return self.path / "password"

    def describe(self, server: Server) -> None:
        """Announces that the server is ready: the note appears complete or not at all."""
        _write_privately(self._description, json.dumps(asdict(server)))

    def forget_server(self) -> None:
        self._description.unlink(missing_ok=True)

    def server(self) -> Server | None:
        try:
            return Server(**json.loads(self._description.read_text()))
        except FileNotFoundError:
            return None

    def password(self) -> str:
        """The superuser's password for TCP: chosen once, before the data is made with it."""
        if not self._password.exists():
            _write_privately(self._password, secrets.token_urlsafe(24))
        return self._password.read_text()

    def log_tail(self, lines: int = 15) -> str:
        try:
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])
        except FileNotFoundError:
            return "(no log)"


def try_lock(path: Path, mode: int) -> int | None:
    """A descriptor that holds the lock until it is closed everywhere; None: another process holds the lock."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, mode | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    except BaseException:
        os.close(fd)
        raise
    return fd


@contextmanager
def locked(path: Path, mode: int, deadline: Deadline) -> Generator[None]:
    while (fd := try_lock(path, mode)) is None:
        deadline.pause()
    try:
        yield
    finally:
        os.close(fd)


def _write_privately(path: Path, text: str) -> None:
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "w") as file:
        file.write(text)
    draft.replace(path)
