"""Mode http: each attempt is a request to the running service, which keeps its output and tells it from any byte.

The work does not hang on the connection: a daemon that was killed, or cut off, asks again and reads on. The service
tells how an attempt ended; where it cannot any more, its container does, and the attempt is lost and given back.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from pathlib import Path
from typing import Final

from accsd import failpoints
from accsd.errors import DockerUnavailable, ServiceBusy
from accsd.model.fence import Fence
from accsd.retry import Backoff
from accsd.runners.base import NO_CURSOR, TASK_FILE, Cursor, Ending, Launch, Stream, TakeOutput, Workdir
from accsd.runners.compose import ending
from accsd.runners.compose.container_log import CountedOutput, together
from accsd.runners.compose.declared import Declared
from accsd.runners.compose.docker import Container, Docker
from accsd.runners.compose.http_client import LATER, HttpAnswer, NoAnswer, State, TasksApi, address_of
from accsd.runners.compose.project import Project
from accsd.runners.compose.service_container import ServiceContainer, widen

_READY_WITHIN: Final = timedelta(minutes=2)
_AWAY_LIMIT: Final = timedelta(minutes=2)
_GONE_WITHIN: Final = timedelta(seconds=15)
_TRIES: Final = 3
_ASK_EVERY: Final = 0.2
_CONTAINER_GONE_WITHIN: Final = timedelta(seconds=30)
_SILENT: Final = timedelta(seconds=30)  # then somebody looks whether the service is still there
_LOOK_EVERY: Final = 0.05
_PAUSES: Final = (timedelta(seconds=0.05), timedelta(seconds=2))


@dataclass(eq=False, slots=True)
class HttpRunner:
    project: Project
    declared: Declared
    node: str
    _: KW_ONLY
    ready_within: timedelta = _READY_WITHIN
    away_limit: timedelta = _AWAY_LIMIT
    gone_within: timedelta = _GONE_WITHIN
    _port: int = field(init=False)
    _container: ServiceContainer = field(init=False)
    _executions: "dict[Fence, HttpExecution]" = field(init=False, default_factory=dict)
    _starting: int = field(init=False, default=0)
    _untold: set[Fence] = field(init=False, default_factory=set[Fence])  # those that no service was asked to start
    _turned_away: deque[Fence] = field(init=False, default_factory=lambda: deque(maxlen=1000))  # the last not taken
    _answered: Container | None = field(init=False, default=None)  # the last one that did

    def __post_init__(self) -> None:
        assert self.declared.port is not None
        self._port = self.declared.port
        self._container = ServiceContainer(self.project, self.declared)

    def workdir(self, fence: Fence, folder: Path) -> Workdir | None:
        return self._container.workdir(fence)

    async def check(self) -> None:
        """A service that is up may say that it takes no task now. One that is down, or does not answer, is left to
        start()."""
        await self._container.check()
        if self._container.last is None:
            return
        try:
            answer = await self._api(self._container.last).health()
        except NoAnswer:
            self._container.last = None  # not to be asked again and again: one that has gone may take seconds to say so
            return
        if answer.status in LATER:
            raise self._busy(answer)

    async def start(self, launch: Launch) -> "HttpExecution":
        if launch.fence in self._executions:
            return self._executions[launch.fence]
        self._starting += 1
        self._untold.add(launch.fence)
        try:
            return await self._start(launch)
        except ServiceBusy:
            if launch.fence in self._untold:
                self._untold.discard(launch.fence)
                self._turned_away.append(launch.fence)
            raise
        finally:
            self._starting -= 1

    async def survivors(self) -> Sequence[Fence]:
        """The attempts that the service knows, without those that this runner itself has under way."""
        found: set[Fence] = set()
        for container in await self._container.running():
            try:
                found |= set(await self._api(container).known())
            except NoAnswer as why:
                raise self._not_answering(container, why) from why
        return sorted(found - self._executions.keys(), key=str)

    async def adopt(self, launch: Launch) -> "HttpExecution | None":
        for container in await self._container.running():
            try:
                if await self._api(container).state(launch.fence) is not None:
                    return self._keep(self._execution(container, launch.fence))
            except NoAnswer as why:
                raise self._not_answering(container, why) from why
        return None

    async def discard(self, fence: Fence, folder: Path | None) -> None:
        if fence in self._turned_away:
            return  # nothing was begun; one that says 503 to everything would be taken for one that does not stop it
        for container in await self._container.running():
            if fence in self._untold and not self._has_answered(container):
                continue  # it still loads what it needs: to stop it would only begin that anew
            execution = self._execution(container, fence)
            await execution.stop(self.declared.stop_grace)
            await execution.remove()

    async def rest(self, idle_for: timedelta | None) -> bool:
        return not (self._starting or self._executions) and await self._container.rest(idle_for)

    def _api(self, container: Container) -> TasksApi:
        return TasksApi(address_of(container, self._port), self.node)

    def _execution(self, container: Container, fence: Fence) -> "HttpExecution":
        return HttpExecution(
            self.project.docker,
            container,
            self._api(container),
            fence,
            forget=self._forget,
            away_limit=self.away_limit,
            gone_within=self.gone_within,
        )

    def _keep(self, execution: "HttpExecution") -> "HttpExecution":
        self._executions[execution.fence] = execution
        return execution

    async def _start(self, launch: Launch) -> "HttpExecution":
        container = await self._healthy()
        widen(launch, container)
        envelope = (launch.folder / TASK_FILE).read_bytes()
        for tries_left in reversed(range(_TRIES)):
            failpoints.hit("runner.created")
            await launch.clearance()
            self._untold.discard(launch.fence)
            try:
                await self._api(container).start(
                    envelope,
                    output_limit=self.declared.limits.output,
                    traceparent=launch.environ.get("TRACEPARENT"),
                )
                break
            except ServiceBusy:
                if tries_left == _TRIES - 1:  # an earlier try may have been taken before it went unanswered
                    self._untold.add(launch.fence)
                raise
            except NoAnswer as why:  # it may have been taken all the same: to ask again joins it
                if not tries_left:
                    raise self._not_answering(container, why) from why
                container = await self._healthy()
        failpoints.hit("runner.started")
        return self._keep(self._execution(container, launch.fence))

    async def _healthy(self) -> Container:
        """A container of the service that runs and answers."""
        container = await self._container.ready()
        deadline = asyncio.get_running_loop().time() + self.ready_within.total_seconds()
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
            container = await self._container.ready()

    def _has_answered(self, container: Container) -> bool:
        return self._answered is not None and container.is_same_run(self._answered)

    def _busy(self, answer: HttpAnswer) -> ServiceBusy:
        return ServiceBusy(f"the service takes no task now: {answer.said}", again_in=answer.retry_after)

    def _not_answering(self, container: Container, why: NoAnswer | str) -> DockerUnavailable:
        return DockerUnavailable(
            f"service {self.declared.service} does not answer at {address_of(container, self._port)}: {why}",
            hint=f"docker compose logs {self.declared.service}; does it listen on all addresses at port {self._port}?",
        )

    def _forget(self, fence: Fence) -> None:
        self._executions.pop(fence, None)


@dataclass(eq=False, slots=True)
class HttpExecution:
    """One attempt in one run of the service's container. It holds nothing open between two questions."""

    docker: Docker
    container: Container
    api: TasksApi
    fence: Fence
    _: KW_ONLY
    forget: Callable[[Fence], None]
    away_limit: timedelta
    gone_within: timedelta
    _began: datetime = field(init=False, default_factory=lambda: datetime.now(UTC))
    _was_stopped: bool = field(init=False, default=False)
    _ending: Ending | None = field(init=False, default=None)  # what could be found out without the service

    async def watch(self, take: TakeOutput, since: Cursor = NO_CURSOR) -> Ending:
        output = CountedOutput(take, since)
        await together(*(self._read_to_the_end(stream, output) for stream in Stream))
        state = await self._patient_state()
        if state is None:
            assert self._ending is not None
            return self._ending
        return await self._told(state)

    async def stop(self, grace: timedelta) -> None:
        """A service that does not stop the attempt is ended with its container: nothing else makes sure that the work
        has ended."""
        self._was_stopped = True
        deadline = _now() + (grace + self.gone_within).total_seconds()
        is_asked = False
        while await self._may_run():
            if _now() > deadline:
                return await self._end_container()
            if not is_asked:
                with suppress(NoAnswer):
                    await self.api.cancel(self.fence, grace)
                    is_asked = True
            await asyncio.sleep(_LOOK_EVERY)
        return None

    async def remove(self) -> None:
        await self.stop(timedelta(0))
        with suppress(NoAnswer):
            await self.api.forget(self.fence)
        self.forget(self.fence)

    # Its output

    async def _read_to_the_end(self, stream: Stream, output: CountedOutput) -> None:
        """Reads one stream until all of it was handed on, or no more can come. Each stream is read by itself: one that
        ended for the moment must not cut the other in the middle of a piece."""
        pauses, stuck_since = Backoff(*_PAUSES), _now()
        while self._ending is None:
            before = output.count(stream)
            await self._read(stream, output)
            state = await self._patient_state()
            if state is None or (state.has_ended and output.count(stream) >= state.sizes.get(stream, 0)):
                return
            is_moving = output.count(stream) > before
            stuck_since = _now() if is_moving or not state.has_ended else stuck_since
            if _now() > stuck_since + self.away_limit.total_seconds():
                said = f"{output.count(stream)} of {state.sizes.get(stream, 0)} bytes of its {stream}"
                self._ending = ending.lost(f"it has ended, and the service hands over only {said}")
            # A stream that ends at once again and again must not become a busy loop.
            if is_moving:
                pauses.reset()
            await pauses.pause()

    async def _read(self, stream: Stream, output: CountedOutput) -> None:
        """Reads until the service ends the stream, is silent for long, or is gone."""
        with suppress(NoAnswer, TimeoutError):
            async with self.api.output(self.fence, stream, output.count(stream)) as body:
                while body.status == HTTPStatus.OK and (data := await body.read(_SILENT)):
                    await output.hand_on(stream, data)

    # Its end

    async def _patient_state(self) -> State | None:
        """Asks for the state, through an absence of the service. None where the service will not tell any more;
        `_ending` says why."""
        deadline = _now() + self.away_limit.total_seconds()
        pauses = Backoff(*_PAUSES)
        while self._ending is None:
            try:
                state = await self.api.state(self.fence)
                if state is None:
                    self._ending = ending.lost("the service does not know it any more: it was restarted")
                return state
            except NoAnswer as why:
                await self._look_at_container()
                if self._ending is None and _now() > deadline:
                    self._ending = ending.lost(f"the service does not answer any more: {why}")
            await pauses.pause()
        return None

    async def _look_at_container(self) -> None:
        with suppress(DockerUnavailable):
            now = await self.docker.container(self.container.id)
            if now is None or not now.is_same_run(self.container):
                self._ending = ending.with_its_container(self.container, now)

    async def _told(self, state: State) -> Ending:
        if self._was_stopped:
            return Ending(state.exit_code)
        if state.lost is not None or state.exit_code is None:
            return ending.lost(state.lost or "the service does not say how it ended")
        code = state.exit_code
        return ending.of_exec(code, b"", saw_oom=code == ending.SIGKILL_CODE and await self._saw_oom())

    async def _saw_oom(self) -> bool:
        with suppress(DockerUnavailable):
            return await self.docker.saw_oom(self.container.id, self._began, datetime.now(UTC))
        return False

    async def _may_run(self) -> bool:
        """Whether the attempt may still be running, as far as one can tell."""
        try:
            state = await self.api.state(self.fence)
        except NoAnswer:
            now = await self.docker.container(self.container.id)
            return now is not None and now.is_same_run(self.container)
        return state is not None and not state.has_ended

    async def _end_container(self) -> None:
        called = await self.docker.call("stop", "--time", "1", self.container.id, within=_CONTAINER_GONE_WITHIN)
        now = await self.docker.container(self.container.id)
        if now is not None and now.is_same_run(self.container):
            raise DockerUnavailable(
                f"the service in {self.container.name} does not stop attempt {self.fence}: {called.said}"
            )


def _now() -> float:
    return asyncio.get_running_loop().time()
