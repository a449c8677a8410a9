"""Mode http: each attempt is a request to the running service, which keeps its output and tells it from any byte.

The work does not hang on the connection: a daemon that was killed, or cut off, asks again and reads on.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from datetime import timedelta
from http import HTTPStatus
from pathlib import Path
from typing import Final

from accsd import failpoints
from accsd.errors import DockerUnavailable, ServiceBusy
from accsd.model.fence import Fence
from accsd.runners.base import TASK_FILE, Launch, Workdir
from accsd.runners.compose.container import Container
from accsd.runners.compose.declared import Declared
from accsd.runners.compose.http_client import HttpAnswer, NoAnswer
from accsd.runners.compose.http_execution import HttpExecution
from accsd.runners.compose.project import Project
from accsd.runners.compose.service_container import ServiceContainer, widen
from accsd.runners.compose.tasks_api import LATER, TasksApi, address_of

_READY_WITHIN: Final = timedelta(minutes=2)
_AWAY_LIMIT: Final = timedelta(minutes=2)
_GONE_WITHIN: Final = timedelta(seconds=15)
_TRIES: Final = 3
_ASK_EVERY: Final = 0.2


class HttpRunner:
    def __init__(
        self,
        project: Project,
        declared: Declared,
        node: str,
        *,
        ready_within: timedelta = _READY_WITHIN,
        away_limit: timedelta = _AWAY_LIMIT,
        gone_within: timedelta = _GONE_WITHIN,
    ) -> None:
        assert declared.port is not None
        self._docker: Final = project.docker
        self._declared: Final = declared
        self._port: Final = declared.port
        self._node: Final = node
        self._standing: Final = ServiceContainer(project, declared)
        self._ready_within: Final = ready_within
        self._away_limit: Final = away_limit
        self._gone_within: Final = gone_within
        self._executions: Final[dict[Fence, HttpExecution]] = {}
        self._starting: int = 0
        self._untold: Final[set[Fence]] = set()  # those that no service was asked to start
        self._turned_away: Final[deque[Fence]] = deque(maxlen=1000)  # the last ones that it did not take
        self._answered: Container | None = None  # the last one that did

    @property
    def service(self) -> str:
        return self._declared.service

    def workdir(self, key: Fence, folder: Path) -> Workdir | None:
        return self._standing.workdir(key)

    async def check(self) -> None:
        """A service that is up may say that it takes none now. One that is down, or does not answer, is for start()."""
        await self._standing.check()
        if self._standing.last is None:
            return
        try:
            answer = await self._api(self._standing.last).health()
        except NoAnswer:
            self._standing.last = None  # not to be asked again and again: one that has gone may take seconds to say so
            return
        if answer.status in LATER:
            raise self._busy(answer)

    async def start(self, launch: Launch) -> HttpExecution:
        if launch.key in self._executions:
            return self._executions[launch.key]
        self._starting += 1
        self._untold.add(launch.key)
        try:
            return await self._start(launch)
        except ServiceBusy:
            if launch.key in self._untold:
                self._untold.discard(launch.key)
                self._turned_away.append(launch.key)
            raise
        finally:
            self._starting -= 1

    async def survivors(self) -> Sequence[Fence]:
        """Without those that this runner itself has under way."""
        found: set[Fence] = set()
        for container in await self._standing.running():
            try:
                found |= set(await self._api(container).known())
            except NoAnswer as why:
                raise self._not_answering(container, why) from why
        return sorted(found - self._executions.keys(), key=str)

    async def adopt(self, launch: Launch) -> HttpExecution | None:
        for container in await self._standing.running():
            try:
                if await self._api(container).state(launch.key) is not None:
                    return self._keep(self._execution(container, launch.key))
            except NoAnswer as why:
                raise self._not_answering(container, why) from why
        return None

    async def discard(self, key: Fence, folder: Path | None) -> None:
        if key in self._turned_away:
            return  # nothing was begun; one that says 503 to everything would be taken for one that does not stop it
        for container in await self._standing.running():
            if key in self._untold and not self._has_answered(container):
                continue  # it still loads what it needs: to stop it would only begin that anew
            execution = self._execution(container, key)
            await execution.stop(self._declared.stop_grace)
            await execution.remove()

    async def rest(self, idle_for: timedelta | None) -> bool:
        return not (self._starting or self._executions) and await self._standing.rest(idle_for)

    async def close(self) -> None:
        return None

    def _api(self, container: Container) -> TasksApi:
        return TasksApi(address_of(container, self._port), self._node)

    def _execution(self, container: Container, key: Fence) -> HttpExecution:
        return HttpExecution(
            self._docker,
            container,
            self._api(container),
            key,
            forget=self._forget,
            away_limit=self._away_limit,
            gone_within=self._gone_within,
        )

    def _keep(self, execution: HttpExecution) -> HttpExecution:
        self._executions[execution.key] = execution
        return execution

    async def _start(self, launch: Launch) -> HttpExecution:
        container = await self._healthy()
        widen(launch, container)
        envelope = (launch.folder / TASK_FILE).read_bytes()
        for tries_left in reversed(range(_TRIES)):
            failpoints.hit("runner.created")
            await launch.clearance()
            self._untold.discard(launch.key)
            try:
                await self._api(container).start(
                    envelope,
                    output_limit=self._declared.limits.output,
                    traceparent=launch.environ.get("TRACEPARENT"),
                )
                break
            except ServiceBusy:
                if tries_left == _TRIES - 1:  # an earlier try may have been taken before it went unanswered
                    self._untold.add(launch.key)
                raise
            except NoAnswer as why:  # it may have been taken all the same: to ask again joins it
                if not tries_left:
                    raise self._not_answering(container, why) from why
                container = await self._healthy()
        failpoints.hit("runner.started")
        return self._keep(self._execution(container, launch.key))

    async def _healthy(self) -> Container:
        """A container of the service that runs and answers."""
        container = await self._standing.ready()
        deadline = asyncio.get_running_loop().time() + self._ready_within.total_seconds()
        while True:
            try:
                answer = await self._api(container).health()
                if answer.status == HTTPStatus.OK:
                    self._answered = container
                    return container
                why = self._busy(answer) if answer.status in LATER else self._not_answering(container, answer.said)
            except NoAnswer as error:
                why = self._not_answering(container, error)
            if asyncio.get_running_loop().time() > deadline:
                raise why
            await asyncio.sleep(_ASK_EVERY)
            container = await self._standing.ready()

    def _has_answered(self, container: Container) -> bool:
        return self._answered is not None and container.is_same_run(self._answered)

    def _busy(self, answer: HttpAnswer) -> ServiceBusy:
        return ServiceBusy(f"the service takes no task now: {answer.said}", again_in=answer.retry_after)

    def _not_answering(self, container: Container, why: NoAnswer | str) -> DockerUnavailable:
        return DockerUnavailable(
            f"service {self.service} does not answer at {address_of(container, self._port)}: {why}",
            hint=f"docker compose logs {self.service}; does it listen on all addresses at port {self._port}?",
        )

    def _forget(self, key: Fence) -> None:
        self._executions.pop(key, None)
