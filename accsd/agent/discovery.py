"""Finds out which services this node serves, at the start and whenever its settings were read again.

A source that is away (Docker) or wrong (a compose file) keeps its last services, and is asked again.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Final

from accsd.agent.node import AGENT, Node
from accsd.agent.registration import register
from accsd.agent.services import ServiceSource
from accsd.errors import AccsdError, ConfigError, EngineUnavailable
from accsd.log import get_logger
from accsd.supervisor import Pass
from accsd.work.service import LocalService

_AGAIN: Final = timedelta(seconds=5)
_log = get_logger(role="discovery")


class Discovery:
    """`choose` starts and ends roles after the services have changed, unless the node leaves: then it answers False."""

    def __init__(self, node: Node, sources: Sequence[ServiceSource], choose: Callable[[], bool]) -> None:
        self._node = node
        self._sources = sources
        self._choose = choose
        self._found: dict[ServiceSource, Mapping[str, LocalService]] = {}
        self._said: str | None = None

    async def run_once(self) -> Pass:
        problem: AccsdError | None = None
        for source in self._sources:
            try:
                self._found[source] = await source.services()
            except (EngineUnavailable, ConfigError) as error:
                problem = error
        self._tell_once(problem)
        await self._apply({name: each for found in self._found.values() for name, each in found.items()})
        if problem is not None:
            return Pass(next_due=_AGAIN)
        self._node.is_certain = True
        self._node.wake_role("leftovers")
        return Pass(did=f"serving {', '.join(sorted(self._node.services or ())) or 'no service'}")

    async def _apply(self, services: Mapping[str, LocalService]) -> None:
        node = self._node
        is_first, node.services = node.services is None, services
        node.metrics.know_services(services)
        node.listen_to(services)
        if not self._choose():
            return  # a registration would say, after its goodbye, that the node is there
        for service in services:
            node.wake_role(f"{AGENT}{service}")  # the limits of the service may have changed
        if not is_first:
            await register(node)
        node.wake_role("poll")

    def _tell_once(self, problem: AccsdError | None) -> None:
        if problem is not None and self._said != str(problem):
            _log.error("compose_unavailable", error=str(problem), hint=problem.hint)
        self._said = None if problem is None else str(problem)
