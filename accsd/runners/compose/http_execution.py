"""One attempt in a service of mode http: its output read to the end through cuts and absences, its end told by the
service, or by its container where the service cannot tell it any more. Then it is lost, and given back.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from typing import Final

from accsd.errors import DockerUnavailable
from accsd.model.fence import Fence
from accsd.retry import Backoff
from accsd.runners.base import NO_CURSOR, Cursor, Ending, Stream, TakeOutput
from accsd.runners.compose import ending
from accsd.runners.compose.container import Container
from accsd.runners.compose.container_log import Handed, together
from accsd.runners.compose.docker import Docker
from accsd.runners.compose.http_client import NoAnswer
from accsd.runners.compose.tasks_api import State, TasksApi

_CONTAINER_GONE_WITHIN: Final = timedelta(seconds=30)
_SILENT: Final = timedelta(seconds=30)  # then somebody looks whether the service is still there
_LOOK_EVERY: Final = 0.05
_PAUSES: Final = (timedelta(seconds=0.05), timedelta(seconds=2))


class HttpExecution:
    """One attempt in one run of the service's container. It holds nothing open between two questions."""

    def __init__(
        self,
        docker: Docker,
        container: Container,
        api: TasksApi,
        key: Fence,
        *,
        forget: Callable[[Fence], None],
        away_limit: timedelta,
        gone_within: timedelta,
    ) -> None:
        self._docker: Final = docker
        self._container: Final = container
        self._api: Final = api
        self._key: Final = key
        self._forget: Final = forget
        self._away_limit: Final = away_limit
        self._gone_within: Final = gone_within
        self._began: Final = datetime.now(UTC)
        self._was_stopped: bool = False
        self._ending: Ending | None = None  # what could be found out without the service

    @property
    def key(self) -> Fence:
        return self._key

    async def watch(self, take: TakeOutput, since: Cursor = NO_CURSOR) -> Ending:
        handed = Handed(take, since)
        await together(*(self._read_to_the_end(stream, handed) for stream in Stream))
        state = await self._patient_state()
        if state is None:
            assert self._ending is not None
            return self._ending
        return await self._told(state)

    async def stop(self, grace: timedelta) -> None:
        """A service that does not obey is ended with its container: nothing else makes sure that nobody is at work."""
        self._was_stopped = True
        deadline = _now() + (grace + self._gone_within).total_seconds()
        is_asked = False
        while await self._may_run():
            if _now() > deadline:
                return await self._end_container()
            if not is_asked:
                with suppress(NoAnswer):
                    await self._api.cancel(self._key, grace)
                    is_asked = True
            await asyncio.sleep(_LOOK_EVERY)
        return None

    async def remove(self) -> None:
        await self.stop(timedelta(0))
        with suppress(NoAnswer):
            await self._api.forget(self._key)
        self._forget(self._key)

    # Its output

    async def _read_to_the_end(self, stream: Stream, handed: Handed) -> None:
        """Until all of it was handed on, or it is known that no more can come. Each stream by itself: one that ended
        for the moment must not cut the other in the middle of a piece."""
        pauses, stuck_since = Backoff(*_PAUSES), _now()
        while self._ending is None:
            before = handed.count(stream)
            await self._read(stream, handed)
            state = await self._patient_state()
            if state is None or (state.has_ended and handed.count(stream) >= state.sizes.get(stream, 0)):
                return
            is_moving = handed.count(stream) > before
            stuck_since = _now() if is_moving or not state.has_ended else stuck_since
            if _now() > stuck_since + self._away_limit.total_seconds():
                said = f"{handed.count(stream)} of {state.sizes.get(stream, 0)} bytes of its {stream}"
                self._ending = ending.lost(f"it has ended, and the service hands over only {said}")
            # A stream that ends at once again and again must not become a busy loop.
            if is_moving:
                pauses.reset()
            await pauses.pause()

    async def _read(self, stream: Stream, handed: Handed) -> None:
        """What comes until the service ends the stream, is silent for long, or is gone."""
        with suppress(NoAnswer, TimeoutError):
            async with self._api.output(self._key, stream, handed.count(stream)) as body:
                while body.status == HTTPStatus.OK and (data := await body.read(_SILENT)):
                    await handed.hand_on(stream, data)

    # Its end

    async def _patient_state(self) -> State | None:
        """Through an absence of the service; None, and `_ending` says why, where it will not tell any more."""
        deadline = _now() + self._away_limit.total_seconds()
        pauses = Backoff(*_PAUSES)
        while self._ending is None:
            try:
                state = await self._api.state(self._key)
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
            now = await self._docker.container(self._container.id)
            if now is None or not now.is_same_run(self._container):
                self._ending = ending.with_its_container(self._container, now)

    async def _told(self, state: State) -> Ending:
        if self._was_stopped:
            return Ending(state.exit_code)
        if state.lost is not None or state.exit_code is None:
            return ending.lost(state.lost or "the service does not say how it ended")
        code = state.exit_code
        return ending.of_exec(code, b"", saw_oom=code == ending.SIGKILL_CODE and await self._saw_oom())

    async def _saw_oom(self) -> bool:
        with suppress(DockerUnavailable):
            return await self._docker.saw_oom(self._container.id, self._began, datetime.now(UTC))
        return False

    async def _may_run(self) -> bool:
        """Whether it may still be at work, as far as one can tell."""
        try:
            state = await self._api.state(self._key)
        except NoAnswer:
            now = await self._docker.container(self._container.id)
            return now is not None and now.is_same_run(self._container)
        return state is not None and not state.has_ended

    async def _end_container(self) -> None:
        called = await self._docker.call("stop", "--time", "1", self._container.id, within=_CONTAINER_GONE_WITHIN)
        now = await self._docker.container(self._container.id)
        if now is not None and now.is_same_run(self._container):
            raise DockerUnavailable(
                f"the service in {self._container.name} does not stop attempt {self._key}: {called.said}"
            )


def _now() -> float:
    return asyncio.get_running_loop().time()
