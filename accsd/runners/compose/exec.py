"""Mode exec: each attempt is a command inside the service's running container, through `docker exec`.

The command outlives the CLI, its output does not: so an attempt whose CLI died is stopped and given back, and one that
a crashed daemon left behind cannot be adopted. The CLI's exit code counts only if the command has really ended.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from accsd import failpoints, proc
from accsd.errors import AttemptFailed, DockerUnavailable
from accsd.model.fence import Fence
from accsd.model.outcome import ErrorCode
from accsd.runners.base import NO_CURSOR, TASK_FILE, Cursor, Ending, Launch, Stream, TakeOutput, Workdir
from accsd.runners.compose import ending
from accsd.runners.compose.container import Container
from accsd.runners.compose.container_log import Handed, Pipes
from accsd.runners.compose.declared import Declared
from accsd.runners.compose.docker import Docker
from accsd.runners.compose.override import TASK_FILE_NAMED_BY
from accsd.runners.compose.processes import ATTEMPT_MARK, NODE_MARK, TASK_MARK, Processes
from accsd.runners.compose.project import Project
from accsd.runners.compose.reaping import Reaper
from accsd.runners.compose.service_container import ServiceContainer, widen

_STARTED_FILE: Final = "exec.started"
_HEAD: Final = 4096
_LATE_START: Final = timedelta(seconds=1)
# What the CLI itself reads: such a variable would reach it instead of the task.
_CLI_READS: Final = ("DOCKER_", "COMPOSE_", "LD_", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
_CLI_READS_TOO: Final = frozenset({"PATH", "HOME"})


class ExecRunner:
    def __init__(self, project: Project, declared: Declared, node: str, *, look_from_host: bool = True) -> None:
        self._docker: Final = project.docker
        self._declared: Final = declared
        self._node: Final = node
        self._standing: Final = ServiceContainer(project, declared)
        self._processes: Final = Processes(project.docker, node, from_host=look_from_host)
        self._reaper: Final = Reaper(project.docker, self._processes)
        self._executions: Final[dict[Fence, ExecExecution]] = {}
        self._starting: int = 0

    @property
    def service(self) -> str:
        return self._declared.service

    def workdir(self, key: Fence, folder: Path) -> Workdir | None:
        return self._standing.workdir(key)

    async def check(self) -> None:
        await self._standing.check()

    async def start(self, launch: Launch) -> "ExecExecution":
        if launch.key in self._executions:
            return self._executions[launch.key]
        self._starting += 1
        try:
            return await self._start(launch)
        finally:
            self._starting -= 1

    async def survivors(self) -> Sequence[Fence]:
        """Without those that this runner itself has under way."""
        found: set[Fence] = set()
        for container in await self._standing.running():
            found |= (await self._processes.look(container)).keys()
        return sorted(found - self._executions.keys(), key=str)

    async def adopt(self, launch: Launch) -> None:
        return None

    async def discard(self, key: Fence, folder: Path | None) -> None:
        for container in await self._standing.running():
            await self._reaper.end(container, key, self._declared.stop_grace)

    async def rest(self, idle_for: timedelta | None) -> bool:
        return not (self._starting or self._executions) and await self._standing.rest(idle_for)

    async def close(self) -> None:
        return None

    async def _start(self, launch: Launch) -> "ExecExecution":
        started = launch.folder / _STARTED_FILE
        if started.exists():
            await self.discard(launch.key, launch.folder)
            raise AttemptFailed(ErrorCode.WORKER_LOST, f"attempt {launch.key} was started before, its output is lost")
        container = await self._standing.ready(unasked_if_fresh=True)
        widen(launch, container)
        execution = ExecExecution(
            self._docker,
            self._reaper,
            self._processes,
            container,
            launch.key,
            forget=self._forget,
            see=self._standing.see,
        )
        await launch.clearance()
        started.touch()
        await execution.begin(self._command(launch, container), self._environ(launch), _envelope(launch))
        self._executions[launch.key] = execution
        return execution

    def _command(self, launch: Launch, container: Container) -> Sequence[str]:
        names = [part for name in self._marked(launch) for part in ("--env", name)]
        return self._docker.argv("exec", "--interactive", *names, container.id, *(self._declared.command or ()))

    def _environ(self, launch: Launch) -> dict[str, str]:
        """By name on the command line, by value in the CLI's environment: a list of processes shows no value."""
        marked = self._marked(launch)
        for name in marked:
            if name.upper().startswith(_CLI_READS) or name in _CLI_READS_TOO:
                raise AttemptFailed(ErrorCode.START_FAILED, f"a task in mode exec cannot be given the variable {name}")
        return self._docker.environ | marked

    def _marked(self, launch: Launch) -> dict[str, str]:
        key = launch.key
        marks = {NODE_MARK: self._node, TASK_MARK: str(key.task_id), ATTEMPT_MARK: str(key.attempt_id)}
        # The envelope comes on stdin: its file lies where only this machine sees it.
        return {name: value for name, value in launch.environ.items() if name != TASK_FILE_NAMED_BY} | marks

    def _forget(self, key: Fence) -> None:
        self._executions.pop(key, None)


def _envelope(launch: Launch) -> bytes:
    return (launch.folder / TASK_FILE).read_bytes()


class ExecExecution:
    """One command, and the CLI that holds its output."""

    def __init__(
        self,
        docker: Docker,
        reaper: Reaper,
        processes: Processes,
        container: Container,
        key: Fence,
        *,
        forget: Callable[[Fence], None],
        see: Callable[[Container], None],
    ) -> None:
        self._docker: Final = docker
        self._reaper: Final = reaper
        self._processes: Final = processes
        self._container: Final = container
        self._key: Final = key
        self._forget: Final = forget
        self._see: Final = see
        self._cli: Final = AsyncExitStack()
        self._child: proc.Streaming | None = None
        self._began: Final = datetime.now(UTC)
        self._head: bytes = b""
        self._was_stopped: bool = False

    @property
    def key(self) -> Fence:
        return self._key

    async def begin(self, argv: Sequence[str], environ: dict[str, str], envelope: bytes) -> None:
        try:
            self._child = await self._cli.enter_async_context(proc.streaming(argv, stdin=envelope, env=environ))
        except OSError as error:
            raise DockerUnavailable(f"the docker command cannot be executed: {error.strerror}") from error
        failpoints.hit("runner.created")
        failpoints.hit("runner.started")

    async def watch(self, take: TakeOutput, since: Cursor = NO_CURSOR) -> Ending:
        child = self._child
        assert child is not None
        handed = Handed(take, since)

        async def hand_on(stream: Stream, data: bytes) -> None:
            self._head = (self._head + data)[:_HEAD] if len(self._head) < _HEAD else self._head
            await handed.hand_on(stream, data)

        # The pipes are the CLI's own: they end with it, and no process of the container can hold them open.
        await Pipes(child, hand_on).pump()
        return await self._ending(await child.wait())

    async def stop(self, grace: timedelta) -> None:
        self._was_stopped = True
        await self._reaper.end(self._container, self._key, grace, self._may_begin)

    async def remove(self) -> None:
        """What the command left behind goes too."""
        try:
            await self._reaper.end(self._container, self._key, timedelta(0), self._may_begin)
        finally:
            await self._cli.aclose()
        self._forget(self._key)

    def _may_begin(self) -> bool:
        """While the CLI runs, the command may be about to start."""
        return self._child is not None and self._child.process.returncode is None

    async def _ending(self, code: int) -> Ending:
        try:
            if code < 0 and not self._was_stopped:
                await self._stop_orphan()
                return ending.lost(f"its docker CLI was killed by signal {-code}; the command was stopped")
            return await self._looked_at(code)
        except DockerUnavailable as error:
            return ending.lost(f"the Docker engine went away while it ran: {error.message}")

    async def _stop_orphan(self) -> None:
        """The engine may have been told to start the command just before its CLI died."""
        clock = asyncio.get_running_loop().time
        until = clock() + _LATE_START.total_seconds()
        await self._reaper.end(self._container, self._key, timedelta(0), lambda: clock() < until)

    async def _looked_at(self, code: int) -> Ending:
        now = await self._docker.container(self._container.id)
        if now is not None:
            self._see(now)
        if now is None or not now.is_same_run(self._container):
            return ending.with_its_container(self._container, now)
        if self._was_stopped:
            return Ending(code if code >= 0 else None)
        if (await self._processes.look(now)).still_works(self._key):
            await self._reaper.end(now, self._key, timedelta(0))
            return ending.lost("its docker CLI lost the connection; the command was stopped")
        return ending.of_exec(code, self._head, saw_oom=code == ending.SIGKILL_CODE and await self._saw_oom())

    async def _saw_oom(self) -> bool:
        """Any process of the container: with several attempts in it at once, a kill of one during the oom of another
        is taken for oom too."""
        return await self._docker.saw_oom(self._container.id, self._began, datetime.now(UTC))
