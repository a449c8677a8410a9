"""Finds out which services this node serves: what its settings name, and what its compose file labels.

Looked at when the daemon starts, when it is told to read its configuration again, and for as long as the compose file
or the docker command cannot be used: what needs no container is served meanwhile, and what the file said before.
"""

from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta

from accsd.errors import AccsdError, ConfigError, DockerUnavailable
from accsd.log import get_logger
from accsd.passes import Pass
from accsd.work.service import LocalService

_AGAIN = timedelta(seconds=5)
_log = get_logger(role="offering")


class Discovery:
    def __init__(
        self,
        *,
        of_settings: Callable[[], Mapping[str, LocalService]],
        of_compose: Callable[[], Awaitable[Mapping[str, LocalService]]],
        apply: Callable[[Mapping[str, LocalService]], Awaitable[None]],
        when_known: Callable[[], None] = lambda: None,  # all of it was applied
    ) -> None:
        self._of_settings: Callable[[], Mapping[str, LocalService]] = of_settings
        self._of_compose: Callable[[], Awaitable[Mapping[str, LocalService]]] = of_compose
        self._apply: Callable[[Mapping[str, LocalService]], Awaitable[None]] = apply
        self._when_known: Callable[[], None] = when_known
        self._labelled: Mapping[str, LocalService] = {}
        self._said: str | None = None

    async def run_once(self) -> Pass:
        plain = self._of_settings()
        try:
            self._labelled = await self._of_compose()
        except (DockerUnavailable, ConfigError) as error:
            self._tell_once(error)
            await self._apply({**plain, **self._labelled})
            return Pass(next_due=_AGAIN)
        self._said = None
        await self._apply({**plain, **self._labelled})
        self._when_known()
        names = ", ".join(sorted({*plain, *self._labelled})) or "no service"
        return Pass(did=f"serving {names}")

    def _tell_once(self, error: AccsdError) -> None:
        if self._said != str(error):
            self._said = str(error)
            _log.error("compose_unavailable", error=str(error), hint=error.hint)
