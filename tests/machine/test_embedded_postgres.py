"""The embedded PostgreSQL on real processes: shared by its users, gone with the last, however he ends."""

import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import asyncpg
import pytest

from accsd import embedded, proc
from accsd.embedded.binaries import can_reach, wheel_binaries
from tests.support.cluster import ROOT, Unavailable, bindir_of, run_in_thread
from tests.support.eventually import eventually_sync

FAST = {"fsync": "off", "max_connections": "20"}

# A user as a process of its own: says what it got, then holds on until its stdin ends.
USER = """
import dataclasses, json, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from accsd import embedded
bindir = Path(sys.argv[3]) if sys.argv[3] else None
with embedded.running(Path(sys.argv[2]), bindir=bindir, settings={"fsync": "off"}) as server:
    print(json.dumps(dataclasses.asdict(server)), flush=True)
    sys.stdin.read()
"""


class User:
    """A process that uses the server of a folder until told to leave, or killed."""

    def __init__(
        self,
        folder: Path,
        bindir: Path | None,
        *,
        python: str = sys.executable,
        code: Path = ROOT,
        account: proc.Account | None = None,
    ) -> None:
        self.process = subprocess.Popen(
            [python, "-c", USER, str(code), str(folder), str(bindir or "")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd="/",
            user=account.uid if account else None,
            group=account.gid if account else None,
            extra_groups=[] if account else None,
        )

    def server(self) -> embedded.Server:
        assert self.process.stdout is not None
        return embedded.Server(**json.loads(self.process.stdout.readline()))

    def leave(self) -> None:
        self.process.communicate(timeout=30)
        assert self.process.returncode == 0

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        self.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


@pytest.fixture(params=["pg18", "pg15"])
def bindir(request: pytest.FixtureRequest) -> Path | None:
    try:
        return bindir_of(request.param)
    except Unavailable as reason:
        pytest.skip(str(reason))


@contextmanager
def temporary_folder() -> Generator[Path]:
    """Removed at the end, and nothing of it may run then."""
    parent = Path(tempfile.mkdtemp(prefix="accsd-embedded-"))
    parent.chmod(0o711)
    try:
        yield parent / "pg"
        eventually_sync(lambda: not processes_of(parent), within=20, what=f"the end of all in {parent}")
    finally:
        for pid in processes_of(parent):
            os.kill(pid, signal.SIGKILL)
        shutil.rmtree(parent)


@pytest.fixture
def folder() -> Iterator[Path]:
    with temporary_folder() as path:
        yield path


@pytest.fixture
def new_user(folder: Path, request: pytest.FixtureRequest) -> Iterator[Callable[[], User]]:
    """Starts a user; on the wheel's PostgreSQL, or on both where the test asks for `bindir`."""
    bindir = request.getfixturevalue("bindir") if "bindir" in request.fixturenames else None
    with ExitStack() as users:

        def join() -> User:
            user = User(folder, bindir)
            users.callback(user.close)
            return user

        yield join


def processes_of(folder: Path) -> list[int]:
    """Every living process that works in the folder or names it: guardian, server, backends."""
    return [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _belongs_to(pid, folder)]


def _belongs_to(pid: int, folder: Path) -> bool:
    if pid == os.getpid() or not proc.is_running(pid):
        return False
    try:
        cwd = Path(f"/proc/{pid}/cwd").readlink()
        cmdline = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    return cwd.is_relative_to(folder) or os.fsencode(folder) in cmdline


def ask(url: str, query: str = "SELECT 42") -> object:
    async def fetch() -> object:
        conn = await asyncpg.connect(url, timeout=10)
        try:
            return await conn.fetchval(query)
        finally:
            await conn.close()

    return run_in_thread(fetch())


def test_it_answers_on_its_socket_and_on_tcp(folder: Path, bindir: Path | None) -> None:
    with embedded.running(folder, bindir=bindir, settings=FAST) as server:
        assert ask(server.url) == 42
        assert ask(server.tcp_url) == 42
        assert ask(server.url, "SHOW max_connections") == "20"
    embedded.wait_until_stopped(folder)
    assert processes_of(folder) == []


def test_tcp_needs_the_password_and_the_socket_is_private(folder: Path) -> None:
    with embedded.running(folder, settings=FAST) as server:
        with pytest.raises(asyncpg.InvalidPasswordError):
            ask(server.tcp_url.replace(server.password, "guess"))
        assert Path(server.socket_dir).stat().st_mode & 0o077 == 0


def test_data_survives_a_restart(folder: Path, bindir: Path | None) -> None:
    with embedded.running(folder, bindir=bindir, settings=FAST) as server:
        ask(server.url, "CREATE TABLE kept AS SELECT 7 AS n")
    with embedded.running(folder, bindir=bindir, settings=FAST) as server:
        assert ask(server.url, "SELECT n FROM kept") == 7


def test_a_long_path_is_no_obstacle_to_the_socket(folder: Path) -> None:
    long = folder / ("x" * 90)
    with embedded.running(long, settings=FAST) as server:
        assert ask(server.url) == 42
        assert server.socket_dir != str(long / "pgdata")
    embedded.wait_until_stopped(long)
    assert not Path(server.socket_dir).exists()


def test_a_second_user_attaches_to_the_running_server(new_user: Callable[[], User]) -> None:
    assert new_user().server() == new_user().server()


@pytest.mark.usefixtures("bindir")
def test_users_that_start_at_once_get_one_server(new_user: Callable[[], User]) -> None:
    users = [new_user() for _ in range(6)]
    servers = {user.server() for user in users}
    assert len(servers) == 1
    assert ask(servers.pop().url) == 42


def test_the_server_outlives_the_user_that_started_it(new_user: Callable[[], User], folder: Path) -> None:
    first = new_user()
    server = first.server()
    second = new_user()
    second.server()
    first.kill()
    assert ask(server.url) == 42
    assert new_user().server() == server
    assert proc.is_running(server.postmaster_pid, with_arguments=["-D", str(folder / "pgdata")])


def test_the_server_goes_with_its_last_user(new_user: Callable[[], User], folder: Path) -> None:
    first, second = new_user(), new_user()
    server = first.server()
    second.server()
    first.leave()
    second.leave()
    embedded.wait_until_stopped(folder)
    assert not proc.is_running(server.postmaster_pid)
    assert processes_of(folder) == []


@pytest.mark.usefixtures("bindir")
def test_a_killed_owner_leaves_nothing_behind(new_user: Callable[[], User], folder: Path) -> None:
    owner = new_user()
    server = owner.server()
    owner.kill()
    embedded.wait_until_stopped(folder)
    assert not proc.is_running(server.postmaster_pid)
    assert processes_of(folder) == []


def test_an_owner_killed_while_the_server_starts_leaves_nothing_behind(
    new_user: Callable[[], User], folder: Path
) -> None:
    owner = new_user()
    eventually_sync((folder / "guardian.lock").exists, within=20)
    owner.kill()
    embedded.wait_until_stopped(folder)
    assert processes_of(folder) == []
    assert new_user().server().port


@pytest.mark.usefixtures("bindir")
def test_a_killed_guardian_takes_the_server_along_and_the_next_user_starts_another(
    new_user: Callable[[], User],
) -> None:
    server = new_user().server()
    os.kill(server.guardian_pid, signal.SIGKILL)
    successor = new_user().server()
    assert successor != server
    assert not proc.is_running(server.postmaster_pid)
    assert ask(successor.url) == 42


@pytest.mark.usefixtures("bindir")
def test_after_kill_9_of_everything_the_data_is_served_again(new_user: Callable[[], User], folder: Path) -> None:
    owner = new_user()
    server = owner.server()
    ask(server.url, "CREATE TABLE kept AS SELECT 7 AS n")
    ask(server.url, "CHECKPOINT")
    os.kill(server.guardian_pid, signal.SIGSTOP)  # so that the server is killed before anybody can stop it
    os.kill(server.postmaster_pid, signal.SIGKILL)
    os.kill(server.guardian_pid, signal.SIGKILL)
    owner.kill()
    assert (folder / "pgdata/postmaster.pid").exists()
    assert ask(new_user().server().url, "SELECT n FROM kept") == 7


def test_a_stale_pid_file_with_a_recycled_number_does_not_prevent_a_start(folder: Path) -> None:
    with embedded.running(folder, settings=FAST) as server:
        pid_file = folder / "pgdata/postmaster.pid"
        stale = pid_file.read_text()
    embedded.wait_until_stopped(folder)
    # The number now belongs to a living process of the server's own account: PostgreSQL alone would give up.
    owner = (folder / "pgdata").stat()
    bystander = subprocess.Popen(["sleep", "60"], user=owner.st_uid, group=owner.st_gid)
    try:
        pid_file.write_text(stale.replace(str(server.postmaster_pid), str(bystander.pid), 1))
        os.chown(pid_file, owner.st_uid, owner.st_gid)
        with embedded.running(folder, settings=FAST) as successor:
            assert ask(successor.url) == 42
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_an_initdb_that_was_cut_off_is_done_again(folder: Path) -> None:
    (folder / "pgdata.draft/base").mkdir(parents=True)
    with embedded.running(folder, settings=FAST) as server:
        assert ask(server.url) == 42


def test_a_server_that_crashed_is_replaced(folder: Path) -> None:
    with embedded.running(folder, settings=FAST) as server:
        os.kill(server.postmaster_pid, signal.SIGKILL)
        eventually_sync(lambda: not (folder / "server.json").exists(), within=10)
        with embedded.running(folder, settings=FAST) as successor:
            assert ask(successor.url) == 42


def test_users_that_come_and_go_always_find_a_server(new_user: Callable[[], User]) -> None:
    """The narrow moment: one attaches while the guardian is about to stop for want of users."""
    for _ in range(8):
        user = new_user()
        assert ask(user.server().url) == 42
        user.leave()


def test_a_setting_that_postgres_refuses_is_reported_with_its_words(folder: Path) -> None:
    with (
        pytest.raises(embedded.EmbeddedError, match="no_such_setting"),
        embedded.running(folder, settings={"no_such_setting": "1"}),
    ):
        pass


def test_data_of_another_version_is_refused_by_name(folder: Path) -> None:
    with embedded.running(folder, settings=FAST):
        pass
    embedded.wait_until_stopped(folder)
    (folder / "pgdata/PG_VERSION").write_text("9\n")
    with (
        pytest.raises(embedded.EmbeddedError, match="was made by PostgreSQL 9"),
        embedded.running(folder, settings=FAST),
    ):
        pass


def test_missing_binaries_are_reported(folder: Path, tmp_path: Path) -> None:
    with (
        pytest.raises(embedded.EmbeddedError, match="no postgres binary in"),
        embedded.running(folder, bindir=tmp_path),
    ):
        pass


as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can change to another account")


@as_root
def test_as_root_the_server_runs_as_somebody_else(folder: Path, bindir: Path | None) -> None:
    with embedded.running(folder, bindir=bindir, settings=FAST) as server:
        assert Path(f"/proc/{server.postmaster_pid}").stat().st_uid != 0
        assert (folder / "pgdata").stat().st_uid != 0


@as_root
def test_as_root_a_folder_that_only_root_can_enter_works_and_stays_closed(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o700)
    inside = folder / "deep"
    with embedded.running(inside, settings=FAST) as server:
        assert ask(server.url) == 42
        real = (inside / "pgdata").resolve()
        assert not real.is_relative_to(folder)
    assert folder.stat().st_mode & 0o777 == 0o700
    embedded.destroy(inside)
    assert not real.exists()
    assert not inside.exists()


def copy_wheel(target: Path) -> Path:
    """The wheel's PostgreSQL below `target`; answers the folder of its programs."""
    bindir = wheel_binaries()
    package = bindir.parents[1]
    libraries = package.with_name(f"{package.name}.libs")
    shutil.copytree(bindir.parent, target / package.name / bindir.parent.name, symlinks=True)
    shutil.copytree(libraries, target / libraries.name, symlinks=True)
    return target / bindir.relative_to(package.parent)


@as_root
def test_as_root_binaries_that_only_root_can_reach_are_used_through_a_copy(folder: Path) -> None:
    closed = folder.parent / "closed"
    closed.mkdir(mode=0o700)
    bindir = copy_wheel(closed)
    os.utime(bindir / "postgres")  # not to be taken for the copy that this test run itself may live on
    with embedded.running(folder, bindir=bindir, settings=FAST) as server:
        assert ask(server.url) == 42
        program = Path(Path(f"/proc/{server.postmaster_pid}/cmdline").read_text().split("\0")[0])
        assert not program.is_relative_to(closed)
    assert closed.stat().st_mode & 0o777 == 0o700
    embedded.wait_until_stopped(folder)
    shutil.rmtree(program.parents[3])


@as_root
def test_an_ordinary_user_runs_it_as_himself(folder: Path, bindir: Path | None) -> None:
    nobody = pwd.getpwnam("nobody")
    account = proc.Account("nobody", nobody.pw_uid, nobody.pw_gid)
    # This very checkout and its Python may lie where he cannot go.
    code = folder.parent / "code"
    shutil.copytree(ROOT / "accsd", code / "accsd", ignore=shutil.ignore_patterns("__pycache__"))
    if bindir is None:
        bindir = copy_wheel(code)
    pythons = [python for python in (sys.executable, "/usr/bin/python3") if can_reach(account, Path(python))]
    if not pythons:
        pytest.skip("no Python that an ordinary user can execute (apt-get install python3)")
    os.chown(folder.parent, account.uid, account.gid)
    user = User(folder, bindir, python=pythons[0], code=code, account=account)
    try:
        server = user.server()
        assert Path(f"/proc/{server.postmaster_pid}").stat().st_uid == account.uid
        assert ask(server.url) == 42
    finally:
        user.close()
    embedded.wait_until_stopped(folder)
    assert not proc.is_running(server.postmaster_pid)
