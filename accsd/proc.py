"""Child processes, and the process table: the only module that spawns, and the one reader of /proc.

Every child leads a session of its own: a stop reaches its whole group, and a terminal's Ctrl-C does not.
A stop is a polite signal, a grace, SIGKILL, and then a look whether the group has really gone.

`spawn`, `run` and `stop` are for synchronous code; `call` and `streaming` for the event loop. `look`, `everyone` and
`environment` read /proc; the shim and the vendored serving have readers of their own, because they import nothing.
"""

import asyncio
import ctypes
import os
import signal
import subprocess
import time
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final

_LIBC = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG = 1
_POLL_SECONDS = 0.01
_GONE_WITHIN = timedelta(seconds=10)

# What any program needs, for programs that are not tasks: the daemon's own environment has its secrets in it.
PLAIN_ENVIRON: Final[Mapping[str, str]] = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LANG": "C.UTF-8",
}

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
    deaf: bool = False,
) -> Child:
    """Start `argv` in a session of its own; stdin is empty, stdout and stderr go to the descriptor `output`.

    The kernel sends `when_parent_dies` when the *thread* that called this ends: call it from the main thread.
    A `deaf` child has every signal blocked from its first moment: only SIGKILL and SIGSTOP reach it.
    """
    with _all_signals_blocked() if deaf else nullcontext():
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


@dataclass(frozen=True, slots=True)
class Called:
    """A short command's end: its exit code (negative: the signal that ended it) and what it wrote."""

    code: int
    stdout: bytes
    stderr: bytes

    @property
    def said(self) -> str:
        """The last words of the command, for an error message."""
        return (self.stderr or self.stdout).decode(errors="replace").strip()[-2000:]


async def call(
    argv: Sequence[str | Path],
    *,
    within: timedelta,
    stdin: bytes = b"",
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    keep: int = 8 * 1024 * 1024,
) -> Called:
    """Run a short command to its end without blocking the loop. What it writes beyond `keep` bytes is dropped.

    Raises TimeoutError (and the whole group is gone), or OSError where it can't be executed.
    """
    async with streaming(argv, stdin=stdin, env=env, cwd=cwd) as child:
        try:
            async with asyncio.timeout(within.total_seconds()):
                stdout, stderr, code = await asyncio.gather(
                    _read_at_most(child.stdout, keep), _read_at_most(child.stderr, keep), child.wait()
                )
        except TimeoutError as error:
            raise TimeoutError(f"{argv[0]} did not end within {within}") from error
    return Called(code, stdout, stderr)


@dataclass(frozen=True, slots=True)
class Streaming:
    """A child whose output is read while it runs. Read with read(n): a line may be longer than any buffer."""

    process: asyncio.subprocess.Process
    stdout: asyncio.StreamReader
    stderr: asyncio.StreamReader

    @property
    def pid(self) -> int:
        return self.process.pid

    async def wait(self) -> int:
        """The exit code; negative: the signal that ended the child. It does not wait for the output to end."""
        return await self.process.wait()


@asynccontextmanager
async def streaming(
    argv: Sequence[str | Path],
    *,
    stdin: bytes = b"",
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    grace: timedelta = timedelta(0),
    keep_stdin: bool = False,
    stdin_from: int | None = None,
) -> AsyncGenerator[Streaming]:
    """A child for as long as the block lasts; afterwards its whole group is gone (TERM and `grace` first, if any).

    It dies with this process: what shall outlive it is started by `spawn`. With `keep_stdin` its stdin does not end
    before the block does, so that its own children can tell, too. `stdin_from` is a descriptor that it reads instead.
    """
    process = await asyncio.create_subprocess_exec(
        *[os.fspath(part) for part in argv],
        stdin=asyncio.subprocess.PIPE if stdin_from is None else stdin_from,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=env,
        cwd=cwd,
        start_new_session=True,
        preexec_fn=_death_wish(signal.SIGKILL),
    )
    assert process.stdout is not None
    assert process.stderr is not None
    writing = asyncio.ensure_future(_write_all(process.stdin, stdin, and_close=not keep_stdin))
    try:
        yield Streaming(process, process.stdout, process.stderr)
    finally:
        writing.cancel()
        import anyio  # not above: `accsd up` runs its PostgreSQL with the machine's own Python too, which may lack it

        # Shielded twice: anyio cancels what waits in a cancelled scope again and again, and a task may be cancelled
        # twice. A process that waits for a dead disk is left behind in the end.
        with anyio.move_on_after((grace + _GONE_WITHIN).total_seconds(), shield=True):
            await asyncio.shield(_end(process, grace))


async def _write_all(pipe: asyncio.StreamWriter | None, data: bytes, *, and_close: bool) -> None:
    if pipe is None:
        return
    with suppress(OSError):  # a child that does not read its stdin is not an error
        pipe.write(data)
        await pipe.drain()
        if and_close:
            pipe.close()


async def _read_at_most(pipe: asyncio.StreamReader, keep: int) -> bytes:
    kept = bytearray()
    while chunk := await pipe.read(65536):
        kept += chunk[: max(0, keep - len(kept))]
    return bytes(kept)


async def _end(process: asyncio.subprocess.Process, grace: timedelta) -> None:
    if process.returncode is None and grace:
        _signal_group(process.pid, signal.SIGTERM)
        with suppress(TimeoutError):
            async with asyncio.timeout(grace.total_seconds()):
                await process.wait()
    # The leader may have ended and been reaped; while a member of its group lives, the group's id is not reused.
    _signal_group(process.pid, signal.SIGKILL)
    await process.wait()


@dataclass(frozen=True, slots=True)
class Process:
    """A line of the process table. `started` is in ticks since boot: with the id it names a process for good, because
    ids are used again."""

    pid: int
    parent: int
    group: int
    session: int
    started: int
    has_ended: bool


def look(pid: int) -> Process | None:
    """The process with this id; None where there is none, or none that we may see."""
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    # Counted after the name, which may itself contain blanks and brackets.
    fields = text.rpartition(b")")[2].split()
    # A process whose main thread has ended looks like a zombie but for its other threads.
    has_ended = fields[0] in (b"Z", b"X") and int(fields[17]) <= 1
    return Process(pid, int(fields[1]), int(fields[2]), int(fields[3]), int(fields[19]), has_ended)


def pids() -> list[int]:
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]


def everyone() -> dict[int, Process]:
    seen = map(look, pids())
    return {process.pid: process for process in seen if process is not None}


def environment(pid: int) -> dict[str, str]:
    """The variables that the program was started with; empty for a zombie, and for a process that has gone. Raises
    PermissionError for a process that we may not look into."""
    try:
        text = os.fsdecode(Path(f"/proc/{pid}/environ").read_bytes())
    except (FileNotFoundError, ProcessLookupError):
        return {}
    return {name: value for name, _, value in (pair.partition("=") for pair in text.split("\0"))}


def is_running(pid: int, *, with_arguments: Sequence[str] = ()) -> bool:
    """Whether `pid` is a living process whose command line has these arguments, one after the other."""
    process = look(pid)
    if process is None or process.has_ended:
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


@contextmanager
def _all_signals_blocked() -> Generator[None]:
    """Blocks all signals in this thread for a moment. A child inherits the mask; signals that arrive meanwhile are
    delivered afterwards."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _signal_group(group: int, wanted: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, wanted)


def _has_exited(pid: int) -> bool:
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _living_members(group: int) -> list[int]:
    """The processes of a group. Zombies do not count: the process that inherited them reaps them in its own time."""
    return [process.pid for process in everyone().values() if process.group == group and not process.has_ended]


def _wait_until(condition: Callable[[], bool], limit: timedelta) -> bool:
    deadline = time.monotonic() + limit.total_seconds()
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True
