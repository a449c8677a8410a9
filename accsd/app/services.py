"""The services that this node serves: those of its settings, and those that its compose file labels."""

from collections.abc import Mapping
from pathlib import Path

from accsd.errors import DockerUnavailable
from accsd.health import Health
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
from accsd.runners.process import ProcessRunner
from accsd.settings import Service, Settings, environment
from accsd.work.served import Served

_log = get_logger(component="services")


def process_services(settings: Settings, *, base: Path, attempts: Path) -> dict[str, Served]:
    """Commands on this machine; `base` is what relative words of a command refer to."""
    return {
        name: Served(
            service=name,
            runner=ProcessRunner(name, service, base=base, attempts=attempts),
            concurrency=settings.concurrency_of(name),
            timeout=service.timeout,
            stop_grace=service.stop_grace,
            idle_stop=None,
            output_limit=service.limits.output,
            probe=service.probe,
        )
        for name, service in settings.services.items()
        if service.runner == "process" and _may_run_here(service.requires, settings.node.labels)
    }


async def discard_unserved(settings: Settings, attempts: Path, key: Fence, service: str) -> None:
    """What is left of an attempt whose service is not served here any more, whichever runner had started it."""
    command = Service(runner="process", command=["true"])  # it is not executed
    await ProcessRunner(service, command, base=attempts, attempts=attempts).discard(key, None)
    if settings.compose.file is not None:
        await remove_container(Docker(environment()), settings.node.name, service, key)


def _may_run_here(requires: Mapping[str, object], labels: Mapping[str, object]) -> bool:
    """A service that needs a label is not offered by a node that lacks it."""
    return all(labels.get(name) == value for name, value in requires.items())


async def compose_services(settings: Settings, health: Health) -> dict[str, Served]:
    """What the node's compose file labels. One badly labelled service is reported, and the others are served."""
    if settings.compose.file is None:
        _refuse_orphans(settings)
        return {}
    docker = Docker(environment(), when_seen=lambda problem: _tell_of_engine(health, problem))
    declarations = await declared_services(docker, settings.compose, settings.services)
    for problem in declarations.problems:
        _log.error("service_not_served", error=str(problem), hint=problem.hint)
    project = Project(docker, compose_file(settings.compose), declarations.project)
    return {
        name: Served(
            service=name,
            runner=compose_runner(project, declared, settings.node.name),
            concurrency=settings.concurrency_of(name, default=declared.concurrency),
            timeout=declared.timeout,
            stop_grace=declared.stop_grace,
            idle_stop=declared.idle_stop,
            output_limit=declared.limits.output,
            probe=settings.services[name].probe if name in settings.services else None,
        )
        for name, declared in declarations.services.items()
        if _may_run_here(declared.requires, settings.node.labels)
    }


def _tell_of_engine(health: Health, problem: DockerUnavailable | None) -> None:
    health.engine(None if problem is None else str(problem))
    if problem is None:
        _log.info("engine_answers")
    else:
        _log.error("engine_away", error=str(problem), hint=problem.hint)


def _refuse_orphans(settings: Settings) -> None:
    for name, service in settings.services.items():
        if service.runner == "compose":
            _log.error(
                "service_not_served",
                error=f'service "{name}" has runner "compose", and no compose file is configured',
                hint='set compose.file (ACC_COMPOSE_FILE), or runner = "process"',
            )
