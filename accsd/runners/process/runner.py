"""The process runner: a command per task, for machines without Docker.

The command's parent is the shim (shim.py), not the daemon, and its output goes to files: so the daemon may die and its
successor goes on from the cursor. All that tells one attempt from another is in its folder and in /proc.
"""

import asyncio
import errno
import os
import sys
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Final

from accsd import failpoints, proc
from accsd.errors import AttemptFailed, Unavailable
from accsd.model.fence import Fence
from accsd.model.outcome import ErrorCode
from accsd.runners.base import TASK_FILE, WORK_FOLDER, Launch, Workdir
from accsd.runners.process import processes, shim
from accsd.runners.process.execution import ProcessExecution
from accsd.runners.process.files import AttemptFiles
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


class ProcessRunner:
    """`base` is the folder that relative words of the command refer to; `attempts` holds a folder for each attempt,
    named after its key; of `environ` a task gets the few variables that any program needs."""

    def __init__(
        self,
        service: str,
        settings: ServiceSettings,
        *,
        base: Path,
        attempts: Path,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self._service = service
        self._settings = settings
        self._base = base
        self._attempts = attempts.absolute()
        environ = environment() if environ is None else environ
        self._inherited = {name: environ[name] for name in _INHERITED if name in environ}
        self._inherited["PATH"] = f"{_OUR_PROGRAMS}:{environ.get('PATH', os.defpath)}"
        self._shims: set[proc.Child] = set()  # those that this daemon started and has to reap

    @property
    def service(self) -> str:
        return self._service

    def workdir(self, key: Fence, folder: Path) -> Workdir:
        here = (folder / WORK_FOLDER).absolute()
        return Workdir(here, str(here))

    async def check(self) -> None:
        try:
            os.close(os.pidfd_open(os.getpid()))
        except (OSError, AttributeError) as error:
            raise Unavailable(f"no process can be watched here: {error}") from error

    async def start(self, launch: Launch) -> ProcessExecution:
        files = AttemptFiles(launch.folder.absolute())
        is_new = not files.is_claimed
        if is_new:
            await self._start(launch, files)
        execution = self._execution(launch.key, files)
        if files.shim() is None and not is_new:  # of a new one whose files have gone, the watch says so
            raise AttemptFailed(ErrorCode.WORKER_LOST, f"attempt {launch.key} was removed and is not started again")
        if (record := files.exit()) and record.errno is not None:
            raise self._start_failed(record.errno)
        return execution

    async def survivors(self) -> Sequence[Fence]:
        return await asyncio.to_thread(lambda: list({*self._in_folders(), *self._in_the_process_table()}))

    async def adopt(self, launch: Launch) -> ProcessExecution | None:
        files = AttemptFiles(launch.folder.absolute())
        identity = files.shim()
        if identity is None or identity.realm != shim.realm():
            return None
        is_running = processes.is_running(identity, launch.key)  # before the next look: it may end in between
        has_ended = files.exit() is not None
        # An agent that died while it stopped this has left it stopped in the middle.
        if not has_ended and (not is_running or files.stop_was_asked):
            return None
        return self._execution(launch.key, files)

    async def discard(self, key: Fence, folder: Path | None) -> None:
        """Without grace: whoever is discarded has lost its lease, and another may be at the same task by now."""
        files = AttemptFiles((folder or self._attempts / str(key)).absolute())
        files.bury()
        await self._execution(key, files).remove()

    async def rest(self, idle_for: timedelta | None) -> bool:
        return False

    async def close(self) -> None:
        pass

    def _execution(self, key: Fence, files: AttemptFiles) -> ProcessExecution:
        limit = self._settings.limits.memory
        return ProcessExecution(key, files, memory_limit=limit, reap=self._reap)

    def _reap(self) -> None:
        self._shims = {child for child in self._shims if child.poll() is None}

    async def _start(self, launch: Launch, files: AttemptFiles) -> None:
        """Returns when the command runs, whoever started it."""
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
            with _in_memory(self._orders(launch, begin_by).pack()) as orders, _log_of(files) as log:
                return proc.spawn(
                    [sys.executable, "-I", "-S", shim.__file__, files.folder, str(orders), str(report)],
                    output=log,
                    cwd=Path("/"),
                    env=self._markers(launch),
                    keep_fds=[orders, report],
                    deaf=True,
                )
        except OSError as error:
            raise self._not_our_fault(launch, error.errno or 0) from error

    def _orders(self, launch: Launch, begin_by: float) -> shim.ShimTask:
        limits = self._settings.limits
        workdir = launch.workdir or self.workdir(launch.key, launch.folder)
        environ = {
            **self._inherited,
            "TMPDIR": str(_temporary(launch.folder)),
            **self._settings.environment,
            **launch.environ,
            **self._markers(launch),
        }
        argv = [self._absolute(word) for word in self._settings.command or ()]
        if any("\0" in text for text in (*argv, *environ, *environ.values())) or any("=" in name for name in environ):
            raise AttemptFailed(
                ErrorCode.START_FAILED, "a word of the command or a variable has an impossible character"
            )
        return shim.ShimTask(
            service=self._service,
            workdir=str(workdir.here),
            memory=limits.memory or 0,
            pids=limits.pids or 0,
            argv=argv,
            environ=environ,
            begin_by=begin_by,
        )

    def _markers(self, launch: Launch) -> dict[str, str]:
        """By these its processes are known, the shim among them."""
        return {
            processes.TASK_VARIABLE: str(launch.key.task_id),
            processes.ATTEMPT_VARIABLE: str(launch.key.attempt_id),
            FILE_VARIABLE: str(launch.folder.absolute() / TASK_FILE),
            SERVICE_VARIABLE: self._service,
        }

    def _absolute(self, word: str) -> str:
        """The task's current folder is its own, but `render.py` means the one beside the configuration."""
        path = os.path.abspath(self._base / word)
        return path if os.path.isfile(path) else word

    async def _explain(self, launch: Launch, files: AttemptFiles, answer: str, number: str) -> None:
        """Raises AttemptFailed. Nothing of it is left that could still start."""
        if answer == shim.FAILED:
            raise self._start_failed(int(number))
        said = "its lease was over before the command could begin" if answer == shim.LATE else files.last_words()
        await self.discard(launch.key, launch.folder)
        raise self._not_our_fault(launch, int(number or 0), said)

    def _start_failed(self, number: int) -> AttemptFailed:
        command = (self._settings.command or ["?"])[0]
        code = ErrorCode.WORKER_LOST if number in _MACHINE else ErrorCode.START_FAILED
        return AttemptFailed(
            code,
            f"cannot execute {command}: {os.strerror(number)}",
            hint=f"correct services.{self._service}.command, or install {command} on this node",
        )

    def _not_our_fault(self, launch: Launch, number: int, said: str = "") -> AttemptFailed:
        unfit = ErrorCode.NODE_UNFIT if number in _FOLDER else ErrorCode.WORKER_LOST
        code = ErrorCode.AGENT_DISK if number in _DISK else unfit
        reason = os.strerror(number) if number else said or "the shim did not answer"
        return AttemptFailed(code, f"attempt {launch.key} could not be started: {reason}")

    def _in_folders(self) -> Iterator[Fence]:
        with suppress(OSError), os.scandir(self._attempts) as entries:
            for entry in entries:
                with suppress(ValueError):  # not an attempt's folder
                    key = Fence.parse(entry.name)
                    if str(key) == entry.name and AttemptFiles(Path(entry.path)).service() == self._service:
                        yield key

    def _in_the_process_table(self) -> Iterator[Fence]:
        """Those whose folder has gone, or never got so far. Another agent's on this machine have other folders."""
        for process in processes.everyone().values():
            variables = processes.environment(process.pid)
            key = processes.key_of(variables)
            if key is None or variables.get(SERVICE_VARIABLE) != self._service:
                continue
            if variables.get(FILE_VARIABLE) == str(self._attempts / str(key) / TASK_FILE):
                yield key


async def remove_process(folder: Path, fence: Fence) -> None:
    """Ends and removes an attempt whose service has no runner here any more, without grace. Idempotent."""
    files = AttemptFiles(folder)
    files.bury()
    await ProcessExecution(fence, files, memory_limit=None, reap=lambda: None).remove()


async def _read_answer(pipe: int) -> str:
    """Empty where the shim ended without one, or gave none in time."""
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
    """Its own, and gone with it: systemd empties the daemon's private /tmp at a restart, which the task outlives."""
    temporary = (folder / "tmp").absolute()
    temporary.mkdir(mode=0o700, exist_ok=True)
    return temporary


@contextmanager
def _in_memory(content: bytes) -> Generator[int]:
    """A file that is complete before the shim starts, and that nobody else can open: it may hold secrets."""
    file = os.memfd_create("accsd-orders")
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
