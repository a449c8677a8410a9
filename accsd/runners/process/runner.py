"""The process runner: a command per task, for machines without Docker.

The command's parent is the shim (shim.py), not the daemon, and its output goes to files: so the daemon may die and its
successor goes on from the cursor. All that tells one attempt from another is in its folder and in /proc.
"""

import asyncio
import errno
import os
import signal
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import KW_ONLY, dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Final

from accsd import failpoints, proc
from accsd.errors import AttemptFailed, Unavailable
from accsd.model.fence import Fence
from accsd.model.outcome import ErrorCode
from accsd.runners.base import NO_CURSOR, TASK_FILE, WORK_FOLDER, Cursor, Ending, Launch, Stream, TakeOutput, Workdir
from accsd.runners.process import processes, shim
from accsd.runners.process.files import AttemptFiles, ExitRecord, Tail
from accsd.runners.process.processes import Identity
from accsd.settings import ServiceSettings, environment

FILE_VARIABLE: Final = "ACC_TASK_FILE"
SERVICE_VARIABLE: Final = "ACCSD_SERVICE"

_INHERITED: Final = ("HOME", "LANG", "TZ")
# First in a task's PATH: `python3` is the one that has accsd.sdk, wherever accsd was installed.
_OUR_PROGRAMS: Final = os.path.dirname(os.path.abspath(sys.executable))
_ANSWER_WITHIN: Final = timedelta(seconds=30)
_DISK: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS})
_FOLDER: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EIO, errno.ESTALE, errno.ENOTCONN})
_MACHINE: Final = frozenset({errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE})
_GONE_WITHIN: Final = timedelta(seconds=10)
_RECORD_WITHIN: Final = timedelta(seconds=5)  # the shim's last work, after all others are gone
_BY_SIGNAL: Final = 128  # as shells and containers say it


@dataclass(eq=False, slots=True)
class ProcessRunner:
    """`base` is the folder that relative words of the command refer to; `attempts` holds a folder for each attempt,
    named after its fence; of `environ` a task gets the few variables that any program needs."""

    service: str
    settings: ServiceSettings
    _: KW_ONLY
    base: Path
    attempts: Path
    environ: Mapping[str, str] = field(default_factory=environment)
    _shims: set[proc.Child] = field(init=False, default_factory=set[proc.Child])  # started by this daemon, to be reaped

    def __post_init__(self) -> None:
        self.attempts = self.attempts.absolute()

    def workdir(self, fence: Fence, folder: Path) -> Workdir:
        here = (folder / WORK_FOLDER).absolute()
        return Workdir(here, str(here))

    async def check(self) -> None:
        try:
            os.close(os.pidfd_open(os.getpid()))
        except (OSError, AttributeError) as error:
            raise Unavailable(f"no process can be watched here: {error}") from error

    async def start(self, launch: Launch) -> "ProcessExecution":
        files = AttemptFiles(launch.folder.absolute())
        is_new = not files.is_claimed
        if is_new:
            await self._start(launch, files)
        execution = self._execution(launch.fence, files)
        if files.shim() is None and not is_new:  # of a new one whose files have gone, the watch says so
            raise AttemptFailed(ErrorCode.WORKER_LOST, f"attempt {launch.fence} was removed and is not started again")
        if (record := files.exit()) and record.errno is not None:
            raise self._start_failed(record.errno)
        return execution

    async def survivors(self) -> Sequence[Fence]:
        return await asyncio.to_thread(lambda: list({*self._in_folders(), *self._in_the_process_table()}))

    async def adopt(self, launch: Launch) -> "ProcessExecution | None":
        files = AttemptFiles(launch.folder.absolute())
        identity = files.shim()
        if identity is None or identity.realm != shim.realm():
            return None
        is_running = processes.is_running(identity, launch.fence)  # before the next look: it may end in between
        has_ended = files.exit() is not None
        # An agent that died while it stopped this has left it stopped in the middle.
        if not has_ended and (not is_running or files.stop_was_asked):
            return None
        return self._execution(launch.fence, files)

    async def discard(self, fence: Fence, folder: Path | None) -> None:
        """Ends the attempt without grace: it has lost its lease, and another node may be at the same task by now."""
        files = AttemptFiles((folder or self.attempts / str(fence)).absolute())
        files.bury()
        await self._execution(fence, files).remove()

    async def rest(self, idle_for: timedelta | None) -> bool:
        return False

    def _execution(self, fence: Fence, files: AttemptFiles) -> "ProcessExecution":
        limit = self.settings.limits.memory
        return ProcessExecution(fence, files, memory_limit=limit, reap=self._reap)

    def _reap(self) -> None:
        self._shims = {child for child in self._shims if child.poll() is None}

    async def _start(self, launch: Launch, files: AttemptFiles) -> None:
        """Returns when the command runs, whichever shim started it."""
        begin_by = await launch.clearance()
        answers, report = os.pipe()
        try:
            try:
                child = self._spawn_shim(launch, files, report, begin_by)
            finally:
                os.close(report)
            self._reap()
            self._shims.add(child)
            failpoints.hit("runner.created")
            answer, _, number = (await _read_answer(answers)).partition(" ")
        finally:
            os.close(answers)
        if answer == shim.STARTED:
            failpoints.hit("runner.started")
        elif answer != shim.AGAIN:
            await self._explain(launch, files, answer, number)

    def _spawn_shim(self, launch: Launch, files: AttemptFiles, report: int, begin_by: float) -> proc.Child:
        try:
            with _in_memory(self._shim_task(launch, begin_by).pack()) as packed, _log_of(files) as log:
                return proc.spawn(
                    [sys.executable, "-I", "-S", shim.__file__, files.folder, str(packed), str(report)],
                    output=log,
                    cwd=Path("/"),
                    env=self._markers(launch),
                    keep_fds=[packed, report],
                    deaf=True,
                )
        except OSError as error:
            raise self._not_our_fault(launch, error.errno or 0) from error

    def _shim_task(self, launch: Launch, begin_by: float) -> shim.ShimTask:
        limits = self.settings.limits
        workdir = launch.workdir or self.workdir(launch.fence, launch.folder)
        environ = {
            **self._inherited(),
            "TMPDIR": str(_temporary(launch.folder)),
            **self.settings.environment,
            **launch.environ,
            **self._markers(launch),
        }
        argv = [self._absolute(word) for word in self.settings.command or ()]
        if any("\0" in text for text in (*argv, *environ, *environ.values())) or any("=" in name for name in environ):
            raise AttemptFailed(
                ErrorCode.START_FAILED, "a word of the command or a variable has an impossible character"
            )
        return shim.ShimTask(
            service=self.service,
            workdir=str(workdir.here),
            memory=limits.memory or 0,
            pids=limits.pids or 0,
            argv=argv,
            environ=environ,
            begin_by=begin_by,
        )

    def _inherited(self) -> dict[str, str]:
        found = {name: self.environ[name] for name in _INHERITED if name in self.environ}
        return found | {"PATH": f"{_OUR_PROGRAMS}:{self.environ.get('PATH', os.defpath)}"}

    def _markers(self, launch: Launch) -> dict[str, str]:
        """The variables by which an attempt's processes are known, the shim among them."""
        return {
            processes.TASK_VARIABLE: str(launch.fence.task_id),
            processes.ATTEMPT_VARIABLE: str(launch.fence.attempt_id),
            FILE_VARIABLE: str(launch.folder.absolute() / TASK_FILE),
            SERVICE_VARIABLE: self.service,
        }

    def _absolute(self, word: str) -> str:
        """Makes a word absolute that names a file beside the configuration, such as `render.py`: the task's current
        folder is its own."""
        path = os.path.abspath(self.base / word)
        return path if os.path.isfile(path) else word

    async def _explain(self, launch: Launch, files: AttemptFiles, answer: str, number: str) -> None:
        """Raises AttemptFailed. Nothing of the attempt is left that could still start."""
        if answer == shim.FAILED:
            raise self._start_failed(int(number))
        said = "its lease was over before the command could begin" if answer == shim.LATE else files.last_words()
        await self.discard(launch.fence, launch.folder)
        raise self._not_our_fault(launch, int(number or 0), said)

    def _start_failed(self, number: int) -> AttemptFailed:
        command = (self.settings.command or ["?"])[0]
        code = ErrorCode.WORKER_LOST if number in _MACHINE else ErrorCode.START_FAILED
        return AttemptFailed(
            code,
            f"cannot execute {command}: {os.strerror(number)}",
            hint=f"correct services.{self.service}.command, or install {command} on this node",
        )

    def _not_our_fault(self, launch: Launch, number: int, said: str = "") -> AttemptFailed:
        unfit = ErrorCode.NODE_UNFIT if number in _FOLDER else ErrorCode.WORKER_LOST
        code = ErrorCode.AGENT_DISK if number in _DISK else unfit
        reason = os.strerror(number) if number else said or "the shim did not answer"
        return AttemptFailed(code, f"attempt {launch.fence} could not be started: {reason}")

    def _in_folders(self) -> Iterator[Fence]:
        with suppress(OSError), os.scandir(self.attempts) as entries:
            for entry in entries:
                with suppress(ValueError):  # not an attempt's folder
                    fence = Fence.parse(entry.name)
                    if str(fence) == entry.name and AttemptFiles(Path(entry.path)).service() == self.service:
                        yield fence

    def _in_the_process_table(self) -> Iterator[Fence]:
        """The attempts whose folder has gone, or was never made. Those of another agent on this machine have other
        folders."""
        for process in proc.everyone().values():
            variables = processes.environment(process.pid)
            fence = processes.fence_of(variables)
            if fence is None or variables.get(SERVICE_VARIABLE) != self.service:
                continue
            if variables.get(FILE_VARIABLE) == str(self.attempts / str(fence) / TASK_FILE):
                yield fence


async def remove_process(folder: Path, fence: Fence) -> None:
    """Ends and removes an attempt whose service has no runner here any more, without grace. Idempotent."""
    files = AttemptFiles(folder)
    files.bury()
    await ProcessExecution(fence, files, memory_limit=None, reap=lambda: None).remove()


async def _read_answer(pipe: int) -> str:
    """The shim's answer; empty where the shim ended without one, or gave none in time."""
    loop = asyncio.get_running_loop()
    answered = asyncio.Event()
    loop.add_reader(pipe, answered.set)
    try:
        async with asyncio.timeout(_ANSWER_WITHIN.total_seconds()):
            await answered.wait()
    except TimeoutError:
        return ""
    finally:
        loop.remove_reader(pipe)
    return os.read(pipe, 100).decode()


def _temporary(folder: Path) -> Path:
    """The task's own temporary folder, which goes with its attempt: systemd empties the daemon's private /tmp at a
    restart, which the task outlives."""
    temporary = (folder / "tmp").absolute()
    temporary.mkdir(mode=0o700, exist_ok=True)
    return temporary


@contextmanager
def _in_memory(content: bytes) -> Generator[int]:
    """A file that is complete before the shim starts, and that nobody else can open: it may hold secrets."""
    file = os.memfd_create("accsd-task")
    try:
        with open(file, "wb", closefd=False) as writing:
            writing.write(content)
        yield file
    finally:
        os.close(file)


@contextmanager
def _log_of(files: AttemptFiles) -> Generator[int]:
    log = os.open(files.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
    try:
        yield log
    finally:
        os.close(log)


@dataclass(eq=False, slots=True)
class ProcessExecution:
    """One attempt under way, whether this daemon started it or an earlier one did. `reap` is called when the shim has
    ended: it may be this daemon's child."""

    fence: Fence
    files: AttemptFiles
    _: KW_ONLY
    memory_limit: int | None
    reap: Callable[[], None]
    _shim: Identity | None = field(init=False)
    _is_stopping: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        self._shim = self.files.shim()

    async def watch(self, take: TakeOutput, since: Cursor = NO_CURSOR) -> Ending:
        paths = {Stream.STDOUT: self.files.stdout, Stream.STDERR: self.files.stderr}
        with Tail(paths, since) as tail:
            with self._end_of_shim() as ended:
                await tail.follow(take, ended)
            self.reap()
            record = self.files.exit()
            if record is None or not record.nobody_left:
                with suppress(TimeoutError):  # the end is known all the same; remove() will say that somebody is left
                    await self._kill(with_shim=True)
            await tail.drain(take)
        return self._ending(record)

    async def stop(self, grace: timedelta) -> None:
        if self._is_over():
            return
        self._is_stopping = True
        self.files.note_stop()
        with self._end_of_shim() as ended:
            await asyncio.to_thread(self._ask_to_end)
            if not await _is_set_within(ended, grace):
                await self._kill(with_shim=False)
                await _is_set_within(ended, _RECORD_WITHIN)
        await self._kill(with_shim=True)
        self.reap()

    async def remove(self) -> None:
        await self.stop(timedelta(0))
        self.files.clear()

    def _is_over(self) -> bool:
        if self._shim is not None and processes.is_running(self._shim, self.fence):
            return False
        self.reap()
        record = self.files.exit()
        return record is not None and record.nobody_left

    def _ask_to_end(self) -> None:
        # The shim is deaf to the first, but a task may have stopped it, as it may have stopped itself.
        for process in self._members(with_shim=True):
            processes.send(process, signal.SIGTERM, signal.SIGCONT)

    async def _kill(self, *, with_shim: bool) -> None:
        """Raises TimeoutError where a process survives it."""
        await asyncio.to_thread(processes.kill_all, lambda: self._members(with_shim=with_shim), _GONE_WITHIN)

    def _members(self, *, with_shim: bool) -> list[proc.Process]:
        found = processes.members(self.fence, self.files.command())
        if with_shim or self._shim is None:
            return found
        return [process for process in found if not self._shim.names(process)]

    @contextmanager
    def _end_of_shim(self) -> Generator[asyncio.Event]:
        """An event that is set at once when the shim has ended. A pidfd also tells of processes that are not our
        children."""
        ended = asyncio.Event()
        pidfd = processes.open_if_running(self._shim, self.fence) if self._shim else None
        if pidfd is None:
            ended.set()
            yield ended
            return
        loop = asyncio.get_running_loop()
        loop.add_reader(pidfd, lambda: (ended.set(), loop.remove_reader(pidfd)))
        try:
            yield ended
        finally:
            loop.remove_reader(pidfd)
            os.close(pidfd)

    def _ending(self, record: ExitRecord | None) -> Ending:
        if record is None and not self.files.is_claimed:  # which the shim did: the mount has gone, or the task did it
            return Ending(cause=ErrorCode.NODE_UNFIT, detail=f"the files in {self.files.folder} have gone")
        if record is None:
            return Ending(cause=ErrorCode.WORKER_LOST, detail="the shim ended without saying how the command did")
        code = record.code if record.signal is None else _BY_SIGNAL + record.signal
        cause, detail = self._cause(record)
        return Ending(code, cause, detail, record.max_rss_bytes, record.cpu)

    def _cause(self, record: ExitRecord) -> tuple[ErrorCode | None, str | None]:
        if record.errno is not None:
            return ErrorCode.START_FAILED, os.strerror(record.errno)
        if record.limit == ErrorCode.OOM:
            return ErrorCode.OOM, f"used {record.seen} bytes of memory"
        if record.limit == ErrorCode.PIDS_LIMIT:
            return ErrorCode.PIDS_LIMIT, f"had {record.seen} processes"
        if self._is_stopping:
            return None, "stopped"
        if record.code != 0 and self.files.stop_was_asked:
            return ErrorCode.WORKER_LOST, "stopped by an agent that has gone since"
        return self._cause_of_signal(record) if record.signal is not None else (None, None)

    def _cause_of_signal(self, record: ExitRecord) -> tuple[ErrorCode, str]:
        # The kernel may have been quicker than the shim's look.
        if record.signal == signal.SIGKILL and (record.max_rss_bytes or 0) > (self.memory_limit or float("inf")):
            return ErrorCode.OOM, f"used {record.max_rss_bytes} bytes of memory"
        return ErrorCode.KILLED, f"ended by signal {record.signal}"


async def _is_set_within(event: asyncio.Event, limit: timedelta) -> bool:
    with suppress(TimeoutError):
        async with asyncio.timeout(limit.total_seconds()):
            await event.wait()
    return event.is_set()
