"""Child processes: the only module that spawns.

Every child leads a session of its own: a stop reaches its whole group, and a terminal's Ctrl-C does not.
A stop is a polite signal, a grace, SIGKILL, and then a look whether the group has really gone.
"""

import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

_LIBC = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG = 1
_POLL_SECONDS = 0.01

Child = subprocess.Popen[bytes]


@dataclass(frozen=True, slots=True)
class Account:
    """The user that a child runs as when the parent is root."""

    name: str
    uid: int
    gid: int


def spawn(
    argv: Sequence[str | Path],
    *,
    output: int = subprocess.DEVNULL,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    account: Account | None = None,
    keep_fds: Sequence[int] = (),
    when_parent_dies: signal.Signals | None = None,
) -> Child:
    """Start `argv` in a session of its own; stdin is empty, stdout and stderr go to the descriptor `output`.

    The kernel sends `when_parent_dies` when the *thread* that called this ends: call it from the main thread.
    """
    return subprocess.Popen(
        [os.fspath(part) for part in argv],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        cwd=cwd,
        env=env,
        pass_fds=keep_fds,
        start_new_session=True,
        user=account.uid if account else None,
        group=account.gid if account else None,
        extra_groups=[] if account else None,
        # Two system calls and no lock: nothing that another thread could hold at the moment of the fork.
        preexec_fn=_death_wish(when_parent_dies) if when_parent_dies else None,  # noqa: PLW1509
    )


def run(
    argv: Sequence[str | Path],
    *,
    timeout: timedelta,
    env: Mapping[str, str] | None = None,
    account: Account | None = None,
) -> tuple[int, str]:
    """Run a short command to its end; answers its exit code and what it wrote."""
    child = spawn(argv, output=subprocess.PIPE, env=env, account=account, when_parent_dies=signal.SIGKILL)
    try:
        written, _ = child.communicate(timeout=timeout.total_seconds())
    except subprocess.TimeoutExpired as error:
        raise TimeoutError(f"{argv[0]} did not end within {timeout}") from error
    finally:
        stop(child, first=signal.SIGKILL)
    return child.returncode, written.decode(errors="replace")


def stop(
    child: Child,
    *,
    first: signal.Signals = signal.SIGTERM,
    grace: timedelta = timedelta(seconds=10),
    reap_within: timedelta = timedelta(seconds=5),
) -> int:
    """Stop the child's whole group and answer the child's exit code (negative: the signal that ended it)."""
    if child.returncode is None:  # otherwise it was reaped, and its id may be another's by now
        _signal_group(child.pid, first)
        _wait_until(lambda: _has_exited(child.pid), grace)
        # Not reaped yet, so the group's id cannot be anybody else's: now whoever outlived its leader.
        _signal_group(child.pid, signal.SIGKILL)
        child.wait(timeout=reap_within.total_seconds())
        if child.stdout is not None:
            child.stdout.close()
        if not _wait_until(lambda: not _living_members(child.pid), reap_within):
            raise TimeoutError(f"process group {child.pid} survived SIGKILL: {_living_members(child.pid)}")
    return child.wait()


def is_running(pid: int, *, with_arguments: Sequence[str] = ()) -> bool:
    """Whether `pid` is a living process whose command line has these arguments, one after the other."""
    if _state(pid) in (None, "Z"):
        return False
    try:
        cmdline = b"\0" + Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    wanted = b"".join(b"\0" + os.fsencode(argument) for argument in with_arguments)
    return wanted + b"\0" in cmdline if wanted else True


def _death_wish(wish: signal.Signals) -> Callable[[], None]:
    parent = os.getpid()

    def ask_the_kernel() -> None:
        # Runs between fork and exec, after the change of user (which would clear the wish again).
        if signal.getsignal(wish) is signal.SIG_IGN:
            # A shell starts what runs in its background with SIGINT ignored, and that is inherited.
            signal.signal(wish, signal.SIG_DFL)
        _LIBC.prctl(_PR_SET_PDEATHSIG, int(wish), 0, 0, 0)
        if os.getppid() != parent:  # the parent died before the wish was made
            os._exit(1)

    return ask_the_kernel


def _signal_group(group: int, wanted: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, wanted)


def _has_exited(pid: int) -> bool:
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _living_members(group: int) -> list[int]:
    """Zombies do not count: whoever inherited them reaps them in his own time."""
    pids = (int(entry) for entry in os.listdir("/proc") if entry.isdigit())
    return [pid for pid in pids if _group(pid) == group and _state(pid) not in (None, "Z")]


def _state(pid: int) -> str | None:
    return _stat(pid, 0)


def _group(pid: int) -> int | None:
    group = _stat(pid, 2)
    return int(group) if group is not None else None


def _stat(pid: int, field: int) -> str | None:
    """A field of /proc/PID/stat, counted after the name, which may itself contain blanks and brackets."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    return text.rpartition(")")[2].split()[field]


def _wait_until(condition: Callable[[], bool], limit: timedelta) -> bool:
    deadline = time.monotonic() + limit.total_seconds()
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True
