"""A service's long-running container, for the modes that work inside it."""

import time
from dataclasses import dataclass, field
from datetime import timedelta
from math import inf
from typing import Final

from accsd.model.fence import Fence
from accsd.runners.base import Launch, Workdir
from accsd.runners.compose.declared import Declared
from accsd.runners.compose.docker import Container
from accsd.runners.compose.project import ImageCheck, Project

# A container that was seen ready so lately need not be asked about again: that would cost half as much as an exec.
_FRESH_SEC: Final = 2.0


@dataclass(eq=False, slots=True)
class ServiceContainer:
    project: Project
    declared: Declared
    last: Container | None = field(init=False, default=None)  # the one that was used last
    _image: ImageCheck = field(init=False)
    _seen_at: float = field(init=False, default=-inf)  # monotonic

    def __post_init__(self) -> None:
        self._image = ImageCheck(self.project, self.declared)

    def workdir(self, fence: Fence) -> Workdir | None:
        source, seen = self.declared.workdir_source, self.declared.workdir
        return Workdir(source / str(fence), f"{seen}/{fence}") if source and seen else None

    async def check(self) -> None:
        await self.project.docker.answers()
        await self._image.check()

    async def ready(self, *, unasked_if_fresh: bool = False) -> Container:
        """The container that was used last, if it still runs: one question instead of two. A caller that passes
        `unasked_if_fresh` looks at the container when its work fails: it may have gone since it was seen."""
        if unasked_if_fresh and self.last and time.monotonic() - self._seen_at < _FRESH_SEC:
            return self.last
        if self.last and (now := await self.project.docker.container(self.last.id)) and now.is_ready:
            self.see(now)
            return now
        await self._image.provide()
        container = await self.project.bring_up(self.declared.service)
        self.see(container)
        return container

    def see(self, container: Container) -> None:
        if container.is_ready:
            self.last, self._seen_at = container, time.monotonic()
        else:
            self._seen_at = -inf

    async def running(self) -> list[Container]:
        return [each for each in await self.project.containers(self.declared.service) if each.is_running]

    async def rest(self, idle_for: timedelta | None) -> bool:
        """Stops the container when the service has been idle for long enough. Called only while no attempt is under way
        in it."""
        wanted = self.declared.idle_stop
        if idle_for is not None and (wanted is None or idle_for < wanted):
            return False
        self._seen_at = -inf
        return await self.project.stop(self.declared.service)


def widen(launch: Launch, container: Container) -> None:
    """Opens the task's folder to all users, because the container's user may be anybody. The permissions of the folder
    around it decide who gets there."""
    if launch.workdir is not None and not container.runs_as_root:
        launch.workdir.here.chmod(0o777)
