"""Mode exec: each attempt is a command inside the service's running container, through `docker exec`.

The command outlives the CLI, its output does not: so an attempt whose CLI died is stopped and given back, and one that
a crashed daemon left behind cannot be adopted. The CLI's exit code counts only if the command has really ended.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import KW_ONLY, dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from accsd import failpoints, proc
from accsd.errors import AttemptFailed, DockerUnavailable
from accsd.model.fence import Fence
from accsd.model.outcome import ErrorCode
from accsd.runners.base import NO_CURSOR, TASK_FILE, Cursor, Ending, Launch, Stream, TakeOutput, Workdir
from accsd.runners.compose import ending
from accsd.runners.compose.container_log import CountedOutput, Pipes
from accsd.runners.compose.declared import Declared
from accsd.runners.compose.docker import Container
from accsd.runners.compose.override import TASK_FILE_NAMED_BY
from accsd.runners.compose.processes import ATTEMPT_MARK, NODE_MARK, TASK_MARK, Processes
from accsd.runners.compose.project import Project
from accsd.runners.compose.service_container import ServiceContainer, widen

_STARTED_FILE: Final = "exec.started"
_HEAD: Final = 4096
_LATE_START: Final = timedelta(seconds=1)
# What the CLI itself reads: such a variable would reach it instead of the task.
_CLI_READS: Final = ("DOCKER_", "COMPOSE_", "LD_", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
_CLI_READS_TOO: Final = frozenset({"PATH", "HOME"})


@dataclass(eq=False, slots=True)
class ExecRunner:
    project: Project
    declared: Declared
    node: str
    look_from_host: bool = field(default=True, kw_only=True)
    _container: ServiceContainer = field(init=False)
    _processes: Processes = field(init=False)
    _executions: "dict[Fence, ExecExecution]" = field(init=False, default_factory=dict)
    _starting: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self._container = ServiceContainer(self.project, self.declared)
        self._processes = Processes(self.project.docker, self.node, from_host=self.look_from_host)

    def workdir(self, fence: Fence, folder: Path) -> Workdir | None:
        return self._container.workdir(fence)

    async def check(self) -> None:
        await self._container.check()

    async def start(self, launch: Launch) -> "ExecExecution":
        if launch.fence in self._executions:
            return self._executions[launch.fence]
        self._starting += 1
        try:
            return await self._start(launch)
        finally:
            self._starting -= 1

    async def survivors(self) -> Sequence[Fence]:
        """The attempts found in the service's containers, without those that this runner itself has under way."""
        found: set[Fence] = set()
        for container in await self._container.running():
            found |= (await self._processes.look(container)).fences()
        return sorted(found - self._executions.keys(), key=str)

    async def adopt(self, launch: Launch) -> None:
        return None

    async def discard(self, fence: Fence, folder: Path | None) -> None:
        for container in await self._container.running():
            await self._processes.end(container, fence, self.declared.stop_grace)

    async def rest(self, idle_for: timedelta | None) -> bool:
        return not (self._starting or self._executions) and await self._container.rest(idle_for)

    async def _start(self, launch: Launch) -> "ExecExecution":
        started = launch.folder / _STARTED_FILE
        if started.exists():
            await self.discard(launch.fence, launch.folder)
            raise AttemptFailed(ErrorCode.WORKER_LOST, f"attempt {launch.fence} was started before, its output is lost")
        container = await self._container.ready(unasked_if_fresh=True)
        widen(launch, container)
        execution = ExecExecution(
            self._processes, container, launch.fence, forget=self._forget, see=self._container.see
        )
        await launch.clearance()
        started.touch()
        await execution.begin(self._command(launch, container), self._environ(launch), _envelope(launch))
        self._executions[launch.fence] = execution
        return execution

    def _command(self, launch: Launch, container: Container) -> Sequence[str]:
        names = [part for name in self._marked(launch) for part in ("--env", name)]
        return self.project.docker.argv("exec", "--interactive", *names, container.id, *(self.declared.command or ()))

    def _environ(self, launch: Launch) -> dict[str, str]:
        """Variables are passed by name on the command line and by value in the CLI's environment, so that a list of
        processes shows no value."""
        marked = self._marked(launch)
        for name in marked:
            if name.upper().startswith(_CLI_READS) or name in _CLI_READS_TOO:
                raise AttemptFailed(ErrorCode.START_FAILED, f"a task in mode exec cannot be given the variable {name}")
        return self.project.docker.environ | marked

    def _marked(self, launch: Launch) -> dict[str, str]:
        fence = launch.fence
        marks = {NODE_MARK: self.node, TASK_MARK: str(fence.task_id), ATTEMPT_MARK: str(fence.attempt_id)}
        # The envelope comes on stdin: its file lies where only this machine sees it.
        return {name: value for name, value in launch.environ.items() if name != TASK_FILE_NAMED_BY} | marks

    def _forget(self, fence: Fence) -> None:
        self._executions.pop(fence, None)


def _envelope(launch: Launch) -> bytes:
    return (launch.folder / TASK_FILE).read_bytes()


@dataclass(eq=False, slots=True)
class ExecExecution:
    """One command, and the CLI that holds its output."""

    processes: Processes
    container: Container
    fence: Fence
    _: KW_ONLY
    forget: Callable[[Fence], None]
    see: Callable[[Container], None]
    _cli: AsyncExitStack = field(init=False, default_factory=AsyncExitStack)
    _child: proc.Streaming | None = field(init=False, default=None)
    _began: datetime = field(init=False, default_factory=lambda: datetime.now(UTC))
    _head: bytes = field(init=False, default=b"")
    _was_stopped: bool = field(init=False, default=False)

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
        output = CountedOutput(take, since)

        async def hand_on(stream: Stream, data: bytes) -> None:
            self._head = (self._head + data)[:_HEAD] if len(self._head) < _HEAD else self._head
            await output.hand_on(stream, data)

        # The pipes are the CLI's own: they end with it, and no process of the container can hold them open.
        await Pipes(child, hand_on).pump()
        return await self._ending(await child.wait())

    async def stop(self, grace: timedelta) -> None:
        self._was_stopped = True
        await self.processes.end(self.container, self.fence, grace, self._may_begin)

    async def remove(self) -> None:
        """Ends the command and whatever it left behind."""
        try:
            await self.processes.end(self.container, self.fence, timedelta(0), self._may_begin)
        finally:
            await self._cli.aclose()
        self.forget(self.fence)

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
        await self.processes.end(self.container, self.fence, timedelta(0), lambda: clock() < until)

    async def _looked_at(self, code: int) -> Ending:
        now = await self.processes.docker.container(self.container.id)
        if now is not None:
            self.see(now)
        if now is None or not now.is_same_run(self.container):
            return ending.with_its_container(self.container, now)
        if self._was_stopped:
            return Ending(code if code >= 0 else None)
        if (await self.processes.look(now)).still_works(self.fence):
            await self.processes.end(now, self.fence, timedelta(0))
            return ending.lost("its docker CLI lost the connection; the command was stopped")
        return ending.of_exec(code, self._head, saw_oom=code == ending.SIGKILL_CODE and await self._saw_oom())

    async def _saw_oom(self) -> bool:
        """Whether any process of the container was killed for its memory: with several attempts in it at once, the kill
        of one during the oom of another is taken for oom too."""
        return await self.processes.docker.saw_oom(self.container.id, self._began, datetime.now(UTC))
