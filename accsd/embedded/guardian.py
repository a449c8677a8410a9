"""The guardian's side: makes the data, starts the server, stops it when no process uses it any more.

It may die at any point: the locks go with it, the kernel sends the server SIGINT (a fast shutdown), and data
that was only half made is made again. So there is no clean-up that a SIGKILL could prevent.
"""

import fcntl
import os
import re
import shutil
import signal
import socket
import tempfile
import threading
from dataclasses import dataclass
from datetime import timedelta
from hashlib import sha256
from pathlib import Path

from accsd import proc
from accsd.embedded import binaries
from accsd.embedded.attach import GuardianTask
from accsd.embedded.folder import SUPERUSER, Deadline, EmbeddedError, Folder, Server

_STOP_GRACE = timedelta(seconds=30)
_INITDB_LIMIT = timedelta(seconds=60)
_READY_LIMIT = timedelta(seconds=60)
_SETTLE_LIMIT = timedelta(seconds=15)
_SOCKET_PATH_LIMIT = 107
_NOBODYS_PID = 2**31 - 1  # above every kernel's pid_max
# Another process took the port meanwhile, or the backends of a killed server still hold its memory: try again.
_TRANSIENT = re.compile(r"Address already in use|is still in use")


@dataclass(frozen=True, slots=True)
class Cluster:
    """One data folder with the binaries and the account that serve it."""

    bindir: Path
    account: proc.Account | None
    data: Path

    @property
    def pid_file(self) -> Path:
        return self.data / "postmaster.pid"


def guard(order: GuardianTask) -> None:
    folder = Folder(Path(order.folder))
    account = binaries.server_account(folder.data)
    bindir = binaries.executable_by(account, Path(order.bindir))
    cluster = Cluster(bindir, account, _locate_data(folder, account))
    if not cluster.data.exists():
        _make_data(cluster, folder.password())
    _check_version(cluster)
    _settle_previous(cluster)
    postmaster, server = _start(cluster, folder, order.settings)
    try:
        folder.describe(server)
        _wait_until_unused(folder.users_lock, postmaster)
    finally:
        # In this order: a description must never outlive the server it describes.
        folder.forget_server()
        proc.stop(postmaster, first=signal.SIGINT, grace=_STOP_GRACE)
        if server.socket_dir != str(cluster.data):
            shutil.rmtree(server.socket_dir, ignore_errors=True)


def _wait_until_unused(users_lock: Path, postmaster: proc.Child) -> None:
    """Returns when the last user has gone (the lock then keeps new ones out), or the server has died."""
    unused = threading.Event()

    def wait_for_the_last_user() -> None:
        fd = os.open(users_lock, os.O_RDWR | os.O_CLOEXEC)
        fcntl.flock(fd, fcntl.LOCK_EX)
        unused.set()

    threading.Thread(target=wait_for_the_last_user, daemon=True).start()
    while not unused.wait(timeout=0.2) and postmaster.poll() is None:
        pass


def _locate_data(folder: Folder, account: proc.Account | None) -> Path:
    """Where the data really lies: in the folder, unless the server's account can't reach it.

    Then it lies in a place of its own and the folder holds a link, so that removing the folder starts afresh.
    """
    if folder.data.is_symlink():
        return folder.data.resolve()
    if account and not folder.data.exists() and not binaries.can_reach(account, folder.path):
        real = binaries.new_reachable_folder("data-") / "pgdata"
        folder.data.symlink_to(real)
        return real
    return folder.data


def _make_data(cluster: Cluster, password: str) -> None:
    """Makes the data, under a draft name first: an initdb that was killed half-way must not look like a cluster."""
    draft = cluster.data.with_name("pgdata.draft")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(mode=0o700)
    _hand_over(draft, cluster.account)
    with tempfile.NamedTemporaryFile(mode="w", dir=draft.parent) as password_file:
        password_file.write(password)
        password_file.flush()
        _hand_over(Path(password_file.name), cluster.account)
        code, output = proc.run(
            [
                *(cluster.bindir / "initdb", "-D", draft, "-U", SUPERUSER, "-E", "UTF8", "--locale=C"),
                *("--no-sync", "--auth-local=trust", "--auth-host=scram-sha-256"),
                f"--pwfile={password_file.name}",
            ],
            timeout=_INITDB_LIMIT,
            env=binaries.ENVIRONMENT,
            account=cluster.account,
        )
    if code != 0:
        raise EmbeddedError(f"initdb failed ({code}): {output}")
    draft.rename(cluster.data)


def _hand_over(path: Path, account: proc.Account | None) -> None:
    if account:
        os.chown(path, account.uid, account.gid)


def _check_version(cluster: Cluster) -> None:
    made_by = (cluster.data / "PG_VERSION").read_text().strip()
    ours = binaries.major_version(cluster.bindir, cluster.account)
    if made_by != ours:
        raise EmbeddedError(
            f"{cluster.data} was made by PostgreSQL {made_by}, {cluster.bindir} is PostgreSQL {ours}: "
            f"use the binaries of {made_by}, or another folder"
        )


def _settle_previous(cluster: Cluster) -> None:
    """Waits for a server whose guardian was killed, and makes sure that a stale postmaster.pid does not stop a new one.

    PostgreSQL itself ignores the file when its process is dead, but not when that is still a zombie or when the number
    belongs to another process by now; both are usual in a container. So the number is replaced. The file is not
    removed: its other lines let PostgreSQL check that no backend of the killed server is still at work on the data.
    """
    deadline = Deadline(_SETTLE_LIMIT, f"another PostgreSQL still runs on {cluster.data}: {cluster.pid_file}")
    while (pid := _pid_in(cluster.pid_file)) and proc.is_running(pid, with_arguments=["-D", str(cluster.data)]):
        deadline.pause()
    if pid:
        _, *rest = cluster.pid_file.read_text().splitlines(keepends=True)
        cluster.pid_file.write_text("".join([f"{_NOBODYS_PID}\n", *rest]))


def _start(cluster: Cluster, folder: Folder, settings: dict[str, str]) -> tuple[proc.Child, Server]:
    tries = 5
    while True:
        port = _free_port()
        socket_dir = _socket_dir(cluster, port)
        offset = folder.log.stat().st_size
        postmaster = _spawn_server(cluster, socket_dir, port, settings)
        if _becomes_ready(cluster, postmaster):
            return postmaster, Server(str(socket_dir), port, folder.password(), postmaster.pid, os.getpid())
        said = folder.log.read_bytes()[offset:].decode(errors="replace")
        tries -= 1
        if not tries or not _TRANSIENT.search(said):
            raise EmbeddedError(f"PostgreSQL ended with {postmaster.returncode}")


def _spawn_server(cluster: Cluster, socket_dir: Path, port: int, settings: dict[str, str]) -> proc.Child:
    options = {"listen_addresses": "127.0.0.1", "unix_socket_permissions": "0700", **settings}
    return proc.spawn(
        [
            *(cluster.bindir / "postgres", "-D", cluster.data, "-k", socket_dir, "-p", str(port)),
            *(part for name, value in options.items() for part in ("-c", f"{name}={value}")),
        ],
        output=2,  # our own log
        cwd=cluster.data.parent,
        env=binaries.ENVIRONMENT,
        account=cluster.account,
        when_parent_dies=signal.SIGINT,
    )


def _becomes_ready(cluster: Cluster, postmaster: proc.Child) -> bool:
    """Returns whether the server is ready, as line 8 of postmaster.pid says; False: it has ended."""
    deadline = Deadline(_READY_LIMIT, "PostgreSQL was not ready in time")
    while postmaster.poll() is None:
        lines = _lines(cluster.pid_file)
        if len(lines) >= 8 and lines[0] == str(postmaster.pid) and lines[7].strip() == "ready":
            return True
        try:
            deadline.pause()
        except EmbeddedError:
            proc.stop(postmaster, first=signal.SIGQUIT)
            raise
    return False


def _socket_dir(cluster: Cluster, port: int) -> Path:
    """The data folder (private by nature), or one in /tmp where the socket's path would be too long."""
    if len(os.fsencode(cluster.data / f".s.PGSQL.{port}.lock")) <= _SOCKET_PATH_LIMIT:
        return cluster.data
    owner = cluster.account.uid if cluster.account else os.geteuid()
    place = Path(tempfile.gettempdir()) / f"accsd-{sha256(os.fsencode(cluster.data)).hexdigest()[:16]}"
    try:
        place.mkdir(mode=0o700)
        _hand_over(place, cluster.account)
    except FileExistsError:
        status = place.lstat()
        if place.is_symlink() or status.st_uid != owner or status.st_mode & 0o077:
            raise EmbeddedError(f"{place} is not ours: remove it, or use a shorter path than {cluster.data}") from None
    return place


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _pid_in(pid_file: Path) -> int | None:
    lines = _lines(pid_file)
    return int(lines[0]) if lines and lines[0].isdigit() else None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except FileNotFoundError:
        return []
