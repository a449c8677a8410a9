"""Where the services of a node come from: its settings, its compose file. Another kind of runner is another source."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

from accsd.agent.node import AGENT, Node
from accsd.errors import ConfigError, DockerUnavailable
from accsd.log import get_logger
from accsd.model.fence import Fence
from accsd.runners.compose import (
    Docker,
    Project,
    compose_file,
    compose_runner,
    declared_services,
    remove_container,
)
from accsd.runners.process.runner import ProcessRunner, remove_process
from accsd.settings import Settings, environment
from accsd.values.labels import has_labels
from accsd.work.service import LocalService

_log = get_logger(component="services")


class ServiceSource(Protocol):
    async def services(self) -> Mapping[str, LocalService]:
        """The services of this node now, by name."""
        ...

    async def discard(self, fence: Fence, service: str) -> None:
        """Ends and removes what is left of an attempt whose service is not served here any more. Idempotent."""
        ...


class SettingsSource:
    """The commands of the settings; `base` is the folder that relative paths of a command refer to."""

    def __init__(self, node: Node, base: Path) -> None:
        self._node = node
        self._base = base

    async def services(self) -> Mapping[str, LocalService]:
        settings = self._node.settings
        return {
            name: LocalService(
                name=name,
                runner=ProcessRunner(name, service, base=self._base, attempts=self._node.attempts_folder),
                concurrency=settings.concurrency_of(name),
                timeout=service.timeout,
                stop_grace=service.stop_grace,
                idle_stop=None,
                output_limit=service.limits.output,
                probe=service.probe,
                tool=service.tool,
                tool_schema=None if service.tool_schema is None else self._base / service.tool_schema,
            )
            for name, service in settings.services.items()
            if service.runner == "process" and has_labels(settings.node.labels, service.requires)
        }

    async def discard(self, fence: Fence, service: str) -> None:
        await remove_process(self._node.folder(fence), fence)


class ComposeSource:
    """The labelled services of the compose file. A badly labelled one is reported, and the others are served."""

    def __init__(self, node: Node, base: Path) -> None:
        self._node = node

    async def services(self) -> Mapping[str, LocalService]:
        settings = self._node.settings
        if settings.compose.file is None:
            _tell_of(_orphans(settings))
            return {}
        docker = Docker(environment(), when_seen=self._tell_of_engine)
        declarations = await declared_services(docker, settings.compose, settings.services)
        _tell_of(declarations.problems)
        file = compose_file(settings.compose)
        project, folder = Project(docker, file, declarations.project), file.parent
        return {
            name: LocalService(
                name=name,
                runner=compose_runner(project, declared, settings.node.name),
                concurrency=settings.concurrency_of(name, default=declared.concurrency),
                timeout=declared.timeout,
                stop_grace=declared.stop_grace,
                idle_stop=declared.idle_stop,
                output_limit=declared.limits.output,
                probe=settings.services[name].probe if name in settings.services else None,
                tool=declared.tool,
                tool_schema=None if declared.tool_schema is None else folder / declared.tool_schema,
            )
            for name, declared in declarations.services.items()
            if has_labels(settings.node.labels, declared.requires)
        }

    async def discard(self, fence: Fence, service: str) -> None:
        if self._node.settings.compose.file is not None:
            await remove_container(Docker(environment()), self._node.name, service, fence)

    def _tell_of_engine(self, problem: DockerUnavailable | None) -> None:
        """Each agent looks at its runner when this changes, and tells its obstacle, also while its slots are taken."""
        self._node.health.engine(None if problem is None else str(problem))
        if problem is None:
            _log.info("engine_answers")
        else:
            _log.error("engine_away", error=str(problem), hint=problem.hint)
        self._node.wake_role(AGENT)


# Where two sources know the same name, the later one wins.
SOURCES: Final[tuple[Callable[[Node, Path], ServiceSource], ...]] = (SettingsSource, ComposeSource)


def _tell_of(problems: Iterable[ConfigError]) -> None:
    for problem in problems:
        _log.error("service_not_served", error=str(problem), hint=problem.hint)


async def check_services(settings: Settings) -> None:
    """Raises ConfigError if the compose file or the settings describe a service of this node wrongly. Without the
    docker command the compose file is not checked."""
    wrong = list(_orphans(settings))
    if settings.compose.file is not None:
        with suppress(DockerUnavailable):
            wrong += (await declared_services(Docker(environment()), settings.compose, settings.services)).problems
    if wrong:
        [hint, *others] = {problem.hint: None for problem in wrong}
        sentences = "\n".join(problem.message for problem in wrong)
        each = "`accsd config check" + (f" --compose {file}`" if (file := settings.compose.file) else "`")
        raise ConfigError(sentences, hint=hint if hint and not others else f"{each} has more about each of them")


def _orphans(settings: Settings) -> Iterator[ConfigError]:
    for name, service in settings.services.items():
        if service.runner == "compose" and settings.compose.file is None:
            yield ConfigError(
                f'service "{name}" has runner "compose", and no compose file is configured',
                hint='set compose.file (ACC_COMPOSE_FILE), or runner = "process"',
            )
