"""Mode run: a container for each attempt, detached, named and labelled, so that a restarted daemon can take it up.

Only `docker inspect` says that it ended: not the CLI that started it, nor the end of its log.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Final, TypeVar

from accsd import failpoints, proc
from accsd.errors import AttemptFailed, DockerUnavailable
from accsd.model.fence import Fence
from accsd.model.outcome import ErrorCode
from accsd.retry import Backoff, while_away
from accsd.runners.base import NO_CURSOR, TASK_FILE, WORK_FOLDER, Cursor, Ending, Launch, TakeOutput, Workdir
from accsd.runners.compose import ending
from accsd.runners.compose.container_log import CountedOutput, follow_log, read_log
from accsd.runners.compose.declared import Declared
from accsd.runners.compose.docker import PROJECT_LABEL, Container, Docker
from accsd.runners.compose.override import WORKDIR_SEEN, attempt_labels, write_override
from accsd.runners.compose.project import ImageCheck, Project

_START_WITHIN: Final = timedelta(minutes=5)
_AWAY_LIMIT: Final = timedelta(minutes=5)
_GONE_WITHIN: Final = timedelta(seconds=30)
_LOOK_EVERY: Final = 0.1
_PAUSES: Final = (timedelta(seconds=0.1), timedelta(seconds=5))
T = TypeVar("T")


def container_name(fence: Fence) -> str:
    return f"accsd-{fence}"


@dataclass(eq=False, slots=True)
class RunRunner:
    project: Project
    declared: Declared
    node: str
    away_limit: timedelta = field(default=_AWAY_LIMIT, kw_only=True)
    _docker: Docker = field(init=False)
    _image: ImageCheck = field(init=False)

    def __post_init__(self) -> None:
        self._docker = self.project.docker
        self._image = ImageCheck(self.project, self.declared)

    def workdir(self, fence: Fence, folder: Path) -> Workdir:
        return Workdir(folder / WORK_FOLDER, self.declared.workdir or WORKDIR_SEEN)

    async def check(self) -> None:
        await self._docker.answers()
        await self._image.check()

    async def start(self, launch: Launch) -> "RunExecution":
        execution = self._execution(launch.fence)
        container = await execution.container()
        if container is None:
            await self._prepare(launch)
            container = await self._create(launch, execution)
        failpoints.hit("runner.created")
        if container.status == "created":
            await launch.clearance()
            await self._start_created(container)
        failpoints.hit("runner.started")
        return execution

    async def survivors(self) -> Sequence[Fence]:
        ids = await self._docker.listed(
            f"label=accsd.node={self.node}",
            f"label=accsd.service={self.declared.service}",
            f"label={PROJECT_LABEL}={self.project.name}",
        )
        fences: list[Fence] = []
        for container in await self._docker.inspect(*ids):
            with suppress(ValueError):
                labels = container.labels
                fences.append(Fence.parse(f"{labels.get('accsd.task')}.{labels.get('accsd.attempt')}"))
        return fences

    async def adopt(self, launch: Launch) -> "RunExecution | None":
        """Adopts a container that was started: one that was only created has nothing to tell."""
        execution = self._execution(launch.fence)
        container = await execution.container()
        return execution if container and container.status != "created" else None

    async def discard(self, fence: Fence, folder: Path | None) -> None:
        execution = self._execution(fence)
        await execution.stop(self.declared.stop_grace)
        await execution.remove()

    async def rest(self, idle_for: timedelta | None) -> bool:
        return False

    def _execution(self, fence: Fence) -> "RunExecution":
        labels = attempt_labels(self.node, self.declared.service, fence)
        return RunExecution(self._docker, fence, labels, self.away_limit)

    async def _prepare(self, launch: Launch) -> None:
        await self._image.provide()
        for name, condition in self.declared.depends_on.items():
            await self.project.bring_up(name, condition)
        # The container's user may be anybody. The attempt's folder around these is closed to other users.
        (launch.folder / TASK_FILE).chmod(0o644)
        if launch.workdir is not None:
            launch.workdir.here.chmod(0o777)

    async def _create(self, launch: Launch, execution: "RunExecution") -> Container:
        """Creates and starts the container. --no-deps: what it depends on is up, and compose would recreate a
        dependency whose definition has changed."""
        override = write_override(self.declared, launch, self.node)
        arguments = ["--detach", "-T", "--no-deps", "--name", container_name(launch.fence), self.declared.service]
        command = self.declared.command or ()
        called = await self.project.run(*arguments, *command, override=override, clearance=launch.clearance)
        container = await execution.container()
        if container is None:
            raise await self._not_created(called)
        if called.code and container.status == "created" and container.error:
            raise _not_started(container)
        return container

    async def _not_created(self, called: proc.Called) -> AttemptFailed | DockerUnavailable:
        await self._docker.ping()
        await self._image.provide()
        if b"no space left on device" in called.stderr:
            return AttemptFailed(ErrorCode.AGENT_DISK, f"no container for {self.declared.service}: {called.said}")
        return DockerUnavailable(
            f"no container for {self.declared.service}: {called.said}", hint="docker compose config"
        )

    async def _start_created(self, container: Container) -> None:
        """Starts a container that an earlier start created and did not get to start."""
        called = await self._docker.call("start", container.id, within=_START_WITHIN)
        if called.code:
            now = await self._docker.container(container.id)
            raise _not_started(now) if now else DockerUnavailable(f"{container.name} was removed by somebody else")


async def remove_container(docker: Docker, node: str, service: str, fence: Fence) -> None:
    """Ends and removes the container of an attempt whose service has no runner here any more. Idempotent."""
    execution = RunExecution(docker, fence, attempt_labels(node, service, fence), _AWAY_LIMIT)
    await execution.stop(timedelta(0))
    await execution.remove()


def _not_started(container: Container) -> AttemptFailed:
    if "no space left on device" in container.error:
        return AttemptFailed(ErrorCode.AGENT_DISK, container.error)
    return AttemptFailed(ErrorCode.START_FAILED, container.error or f"{container.name} could not be started")


@dataclass(eq=False, slots=True)
class RunExecution:
    """One container. It holds nothing open: any number of these may look at the same one."""

    docker: Docker
    fence: Fence
    labels: Mapping[str, str]
    away_limit: timedelta
    _was_stopped: bool = field(default=False, init=False)
    _engine_was_away: bool = field(default=False, init=False)

    @property
    def _name(self) -> str:
        return container_name(self.fence)

    async def container(self) -> Container | None:
        """Raises DockerUnavailable where the name is taken by a container that is not ours."""
        container = await self.docker.container(self._name)
        if container is not None and not self._is_ours(container):
            raise DockerUnavailable(
                f"the container {self._name} does not bear this node's labels: it is somebody else's",
                hint="remove or rename it, if it is yours",
            )
        return container

    async def watch(self, take: TakeOutput, since: Cursor = NO_CURSOR) -> Ending:
        output = CountedOutput(take, since)
        pauses = Backoff(*_PAUSES)
        while (container := await self._while_engine_is_away(self.container)) and not container.has_ended:
            if container.status == "created":
                break
            before = output.cursor()
            await follow_log(self.docker, self._name, output, self._has_ended)
            # A stream that ends at once again and again must not become a busy loop.
            if output.cursor() != before:
                pauses.reset()
            if not await self._has_ended():
                await pauses.pause()
        if container is None:
            return ending.lost("its container is gone, or the Docker engine did not come back")
        if not await self._while_engine_is_away(lambda: self._read_rest(output)):
            return ending.lost("its container has ended, but the rest of its output cannot be read")
        return await self._ending(container)

    async def stop(self, grace: timedelta) -> None:
        container = await self._ours()
        if container is None or not container.is_running:
            return
        self._was_stopped = True
        seconds = math.ceil(grace.total_seconds())
        called = await self.docker.call(
            "stop", "--time", str(seconds), container.id, within=grace + timedelta(seconds=1) + _GONE_WITHIN
        )
        now = await self.docker.container(container.id)
        if now is not None and now.is_running:
            raise DockerUnavailable(f"the container {self._name} does not stop: {called.said}")

    async def remove(self) -> None:
        container = await self._ours()
        if container is None:
            return
        called = await self.docker.call("rm", "--force", "--volumes", container.id, within=2 * _GONE_WITHIN)
        deadline = asyncio.get_running_loop().time() + _GONE_WITHIN.total_seconds()
        while await self.docker.container(container.id):  # somebody else's removal may be under way
            if asyncio.get_running_loop().time() > deadline:
                raise DockerUnavailable(f"the container {self._name} cannot be removed: {called.said}")
            await asyncio.sleep(_LOOK_EVERY)

    def _is_ours(self, container: Container) -> bool:
        return self.labels.items() <= container.labels.items()

    async def _ours(self) -> Container | None:
        """The container, if it is ours. Whatever changes a container asks here: somebody else's container does not
        exist for us."""
        container = await self.docker.container(self._name)
        return container if container and self._is_ours(container) else None

    async def _has_ended(self) -> bool:
        try:
            container = await self.container()
        except DockerUnavailable:
            self._engine_was_away = True
            return False
        return container is None or not container.is_running

    async def _read_rest(self, output: CountedOutput) -> bool:
        """Reads what a stream that follows may have missed. False where the container is gone."""
        try:
            await read_log(self.docker, self._name, output)
        except DockerUnavailable:
            if await self.container() is None:
                return False
            raise
        return True

    async def _while_engine_is_away(self, ask: Callable[[], Awaitable[T]]) -> T | None:
        """Asks again through an absence of the engine; None if the absence lasts too long."""

        async def asked() -> T:
            try:
                return await ask()
            except DockerUnavailable:
                self._engine_was_away = True
                raise

        with suppress(DockerUnavailable):
            return await while_away(asked, away=DockerUnavailable, pauses=Backoff(*_PAUSES), patience=self.away_limit)
        return None

    async def _ending(self, container: Container) -> Ending:
        away = self._engine_was_away
        if not away and container.exit_code and container.started_at:
            with suppress(DockerUnavailable):
                engine = await self.docker.engine_started()
                away = engine is not None and engine > container.started_at
        return ending.of_container(container, was_stopped=self._was_stopped, engine_was_away=away)
