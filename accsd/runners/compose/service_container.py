"""A service's long-running container, for the modes that work inside of it."""

import time
from datetime import timedelta
from typing import Final

from accsd.model.fence import Fence
from accsd.runners.base import Launch, Workdir
from accsd.runners.compose.container import Container
from accsd.runners.compose.declared import Declared
from accsd.runners.compose.images import ImageCheck
from accsd.runners.compose.project import Project

# A container that was seen ready so lately need not be asked about again: that would cost half as much as an exec.
_FRESH_SEC: Final = 2.0


class ServiceContainer:
    def __init__(self, project: Project, declared: Declared) -> None:
        self._project: Final = project
        self._declared: Final = declared
        self._image: Final = ImageCheck(project, declared)
        self.last: Container | None = None  # the one that was used last
        self._seen_at: float = float("-inf")  # monotonic

    def workdir(self, key: Fence) -> Workdir | None:
        source, seen = self._declared.workdir_source, self._declared.workdir
        return Workdir(source / str(key), f"{seen}/{key}") if source and seen else None

    async def check(self) -> None:
        await self._project.docker.answers()
        await self._image.check()

    async def ready(self, *, unasked_if_fresh: bool = False) -> Container:
        """The one that was used last, if it still runs: one question instead of two. Whoever asks for none looks at the
        container when his work fails: it may have gone since it was seen."""
        if unasked_if_fresh and self.last and time.monotonic() - self._seen_at < _FRESH_SEC:
            return self.last
        if self.last and (now := await self._project.docker.container(self.last.id)) and now.is_ready:
            self.see(now)
            return now
        await self._image.provide()
        container = await self._project.bring_up(self._declared.service)
        self.see(container)
        return container

    def see(self, container: Container) -> None:
        if container.is_ready:
            self.last, self._seen_at = container, time.monotonic()
        else:
            self._seen_at = float("-inf")

    async def running(self) -> list[Container]:
        return [each for each in await self._project.containers(self._declared.service) if each.is_running]

    async def rest(self, idle_for: timedelta | None) -> bool:
        """For when nothing is under way in it."""
        wanted = self._declared.idle_stop
        if idle_for is not None and (wanted is None or idle_for < wanted):
            return False
        self._seen_at = float("-inf")
        return await self._project.stop(self._declared.service)


def widen(launch: Launch, container: Container) -> None:
    """The container's user may be anybody. Whoever may enter the folder around it decides who gets there."""
    if launch.workdir is not None and not container.runs_as_root:
        launch.workdir.here.chmod(0o777)
