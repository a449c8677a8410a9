"""One compose project on this node: its file and name, always spelt out, what is started in it, and the images that its
services need."""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Final

from accsd import proc
from accsd.errors import AttemptFailed, ConfigError, DockerUnavailable
from accsd.model.outcome import ErrorCode
from accsd.runners.compose.declared import COMPLETED, Declared
from accsd.runners.compose.docker import ONEOFF_LABEL, PROJECT_LABEL, QUICK, SERVICE_LABEL, Container, Docker

_PROJECT_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
_UP_WITHIN: Final = timedelta(minutes=5)
_LOOK_EVERY: Final = 0.2
_LOOK_FOR_IMAGE_AGAIN: Final = timedelta(seconds=30)
_GET_IMAGE_AGAIN: Final = timedelta(minutes=5)  # the registry may be back


class Project:
    def __init__(
        self,
        docker: Docker,
        file: Path,
        name: str,
        *,
        image_within: timedelta = timedelta(minutes=30),
        ready_within: timedelta = timedelta(minutes=2),
    ) -> None:
        if not _PROJECT_NAME.fullmatch(name):
            raise ConfigError(f'"{name[:63]}" is not a name for a compose project', hint="set compose.project")
        self.docker: Final = docker
        self.file: Final = file
        self.name: Final = name
        self._image_within: Final = image_within
        self._ready_within: Final = ready_within
        # Two `up` at once make the same container twice, and one of them fails.
        self._changing: Final = asyncio.Lock()
        self._has_networks: bool = False

    async def compose(self, *arguments: str, override: Path | None = None, within: timedelta = QUICK) -> proc.Called:
        files = ["-f", str(self.file), *(["-f", str(override)] if override else [])]
        return await self.docker.call(
            "compose", "--project-name", self.name, *files, "--profile", "*", *arguments, within=within
        )

    async def run(self, *arguments: str, override: Path, clearance: Callable[[], Awaitable[object]]) -> proc.Called:
        """Runs `compose run`. The first one goes alone: it makes the project's networks, and two at once would make
        them twice."""
        if self._has_networks:
            await clearance()
            return await self.compose("run", *arguments, override=override, within=_UP_WITHIN)
        async with self._changing:
            await clearance()
            called = await self.compose("run", *arguments, override=override, within=_UP_WITHIN)
            self._has_networks = self._has_networks or called.code == 0
            return called

    async def containers(self, service: str) -> list[Container]:
        """The long-running containers of a service, in the order of their numbers."""
        ids = await self.docker.listed(
            f"label={PROJECT_LABEL}={self.name}", f"label={SERVICE_LABEL}={service}", f"label={ONEOFF_LABEL}=False"
        )
        return sorted(await self.docker.inspect(*ids), key=lambda container: container.name)

    async def bring_up(self, service: str, condition: str = "") -> Container:
        """A container of the service that is ready. Never restarts or recreates one that runs."""
        async with self._changing:
            for container in await self.containers(service):
                if _meets(container, condition):
                    return container
                if container.is_running:
                    return await self._until_ready(service, condition)
            called = await self.compose("up", "--detach", "--no-recreate", "--", service, within=_UP_WITHIN)
            if called.code:
                raise await self._why_not(service, called)
            return await self._until_ready(service, condition)

    async def stop(self, service: str) -> bool:
        """Stops the containers of a service. Returns whether there was something to stop."""
        async with self._changing:
            if not any(container.is_running for container in await self.containers(service)):
                return False
            called = await self.compose("stop", "--", service, within=_UP_WITHIN)
            if called.code:
                raise DockerUnavailable(f"service {service} could not be stopped: {called.said}")
            return True

    async def provide_image(self, declared: Declared) -> None:
        """Pulls or builds an image that is not here. Raises AttemptFailed(image_missing) where that does not help."""
        if await self.docker.has_image(declared.image):
            return
        verb = "build" if declared.is_built else "pull"
        async with self._changing:
            said = await self._get_image(verb, declared.service)
        if not await self.docker.has_image(declared.image):
            raise AttemptFailed(
                ErrorCode.IMAGE_MISSING,
                f"the image {declared.image} of service {declared.service} is not on this node, "
                f"and `docker compose {verb}` did not get it: {said}",
                hint=f"`docker compose -f {self.file} {verb} {declared.service}`",
            )

    async def _get_image(self, verb: str, service: str) -> str:
        try:
            return (await self.compose(verb, "--", service, within=self._image_within)).said
        except DockerUnavailable as error:
            await self.docker.ping()  # the registry may be the one that does not answer
            return error.message

    async def _until_ready(self, service: str, condition: str) -> Container:
        deadline = asyncio.get_running_loop().time() + self._ready_within.total_seconds()
        while True:
            containers = await self.containers(service)
            for container in containers:
                if _meets(container, condition):
                    return container
            over = asyncio.get_running_loop().time() > deadline
            if over or not any(container.is_running for container in containers):
                raise DockerUnavailable(
                    f"service {service} is not ready: {_described(containers)}", hint=f"docker compose logs {service}"
                )
            await asyncio.sleep(_LOOK_EVERY)

    async def _why_not(self, service: str, called: proc.Called) -> DockerUnavailable:
        await self.docker.ping()
        return DockerUnavailable(
            f"service {service} could not be started: {called.said}", hint=f"docker compose up {service}"
        )


def _meets(container: Container, condition: str) -> bool:
    if condition == COMPLETED:
        return container.status == "exited" and container.exit_code == 0
    return container.is_ready


def _described(containers: list[Container]) -> str:
    return (
        "; ".join(
            f"{each.name} is {each.status}" + (f" and {each.health}" if each.health else f" ({each.exit_code})")
            for each in containers
        )
        or "it has no container"
    )


@dataclass(eq=False, slots=True)
class ImageCheck:
    """Whether a service's image is here: asked before a start and, once it was found missing, before a claim."""

    project: Project
    declared: Declared
    _missing: AttemptFailed | None = field(init=False, default=None)
    _missed_at: float = field(init=False, default=0.0)
    _looked_at: float = field(init=False, default=0.0)

    async def provide(self) -> None:
        """Gets the image where it is not here. Raises AttemptFailed(image_missing)."""
        try:
            await self.project.provide_image(self.declared)
        except AttemptFailed as error:
            if error.code == ErrorCode.IMAGE_MISSING:
                self._missing, self._missed_at, self._looked_at = error, time.monotonic(), time.monotonic()
            raise
        self._missing = None

    async def check(self) -> None:
        """Raises DockerUnavailable while the image is missing: without this, a node would claim a task, release it and
        claim it again."""
        if self._missing is None:
            return
        if _is_past(self._looked_at, _LOOK_FOR_IMAGE_AGAIN):
            self._looked_at = time.monotonic()
            if _is_past(self._missed_at, _GET_IMAGE_AGAIN) or await self.project.docker.has_image(self.declared.image):
                self._missing = None
                return
        raise DockerUnavailable(self._missing.message, hint=self._missing.hint)


def _is_past(moment: float, limit: timedelta) -> bool:
    return time.monotonic() - moment > limit.total_seconds()
