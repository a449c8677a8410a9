"""Ending an attempt's processes in a service's container: TERM, grace, KILL, and a look whether they have gone."""

import asyncio
import signal
from collections.abc import Callable
from datetime import timedelta
from typing import Final

from accsd.errors import DockerUnavailable
from accsd.model.fence import Fence
from accsd.runners.compose.container import Container
from accsd.runners.compose.docker import Docker
from accsd.runners.compose.processes import ContainerProcess, Processes, View

_KILLED_WITHIN: Final = timedelta(seconds=15)
_LOOK_EVERY: Final = 0.1


class Reaper:
    def __init__(self, docker: Docker, processes: Processes) -> None:
        self._docker: Final = docker
        self._processes: Final = processes

    async def end(
        self, container: Container, key: Fence, grace: timedelta, may_begin: Callable[[], bool] = lambda: False
    ) -> None:
        """Returns when none of them is left and none can begin any more; raises DockerUnavailable where they stay."""
        now = asyncio.get_running_loop().time
        kill_from = now() + grace.total_seconds()
        give_up = kill_from + _KILLED_WITHIN.total_seconds()
        asked: set[int] = set()
        while True:
            view, left = await self._left(container, key)
            if not left and not may_begin():
                return
            if now() > give_up:
                if not left:
                    return
                raise DockerUnavailable(f"{len(left)} processes of attempt {key} in {container.name} survive SIGKILL")
            if now() >= kill_from:
                await self._processes.signal(container, view, left, signal.SIGKILL)
            elif fresh := [process for process in left if process.pid not in asked]:
                asked |= {process.pid for process in fresh}
                await self._processes.signal(container, view, fresh, signal.SIGTERM)
            await asyncio.sleep(_LOOK_EVERY)

    async def _left(self, container: Container, key: Fence) -> tuple[View, list[ContainerProcess]]:
        try:
            view = await self._processes.look(container)
        except DockerUnavailable:
            current = await self._docker.container(container.id)
            if current is not None and current.is_same_run(container):
                raise
            view = View((), from_host=True)  # the container ended, and they with it
        return view, view.of(key)
