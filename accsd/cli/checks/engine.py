"""Docker and its compose plugin, as far as this node needs them; and the commands of plain services."""

import shutil
from collections.abc import AsyncIterator, Sequence

from accsd.cli.checks.finding import Finding, fail, ok, warn
from accsd.daemon.state import served_here
from accsd.errors import DockerUnavailable
from accsd.runners.compose import Declared, Docker, declared_services
from accsd.settings import Settings, environment, state_folder


async def docker(settings: Settings) -> AsyncIterator[Finding]:
    """Docker is needed only for a compose file: that of the settings, or of the agent that runs here."""
    engine = Docker(environment())
    settings = _as_served(settings)
    needed = settings.compose.file is not None
    try:
        client = (await engine.call("--version")).stdout.decode().strip()
        yield ok("docker", client)
        await engine.ping()
        yield ok("docker engine", "answers")
        await engine.check_plugin()
        version = (await engine.call("compose", "version", "--short")).stdout.decode().strip()
        yield ok("docker compose", f"version {version}")
    except DockerUnavailable as away:
        do = away.hint or "see `docker version`"
        if needed:
            yield fail("docker", away.message, do)
        else:
            yield warn("docker", away.message, f"only for compose services, of which this node has none; {do}")
        return
    if needed:
        async for finding in _compose_file(settings, engine):
            yield finding


def _as_served(settings: Settings) -> Settings:
    """The compose file of `accsd up --compose` stands in no settings: it is the one that is served here."""
    if settings.compose.file is not None or (served := served_here(state_folder(settings, environment()))) is None:
        return settings
    return settings.model_copy(update={"compose": settings.compose.model_copy(update={"file": served})})


async def _compose_file(settings: Settings, engine: Docker) -> AsyncIterator[Finding]:
    declared = await declared_services(engine, settings.compose, settings.services)
    for problem in declared.problems:
        yield fail("compose file", problem.message, problem.hint or "correct the labels accs.* of that service")
    if declared.services:
        yield ok("compose file", f"{settings.compose.file} offers {', '.join(declared.services)}")
    elif not declared.problems:
        do = "give a service the label accs.mode"
        yield warn("compose file", f"{settings.compose.file} offers no service", do)
    if missing := await _without_image(engine, list(declared.services.values())):
        do = f"docker compose -f {settings.compose.file} build, or pull"
        yield warn("images", f"not on this machine: {', '.join(missing)}", do)


async def _without_image(engine: Docker, services: Sequence[Declared]) -> list[str]:
    return [service.image for service in services if not await engine.has_image(service.image)]


async def commands(settings: Settings) -> AsyncIterator[Finding]:
    plain = {name: service.command for name, service in settings.services.items() if service.runner == "process"}
    missing = [name for name, command in plain.items() if command and not _is_there(command[0])]
    for name in missing:
        yield fail("services", f"{name}: its program is not there", f"install it, or correct services.{name}.command")
    if plain and not missing:
        yield ok("services", f"plain processes: {', '.join(plain)}")


def _is_there(program: str) -> bool:
    """Whether the program exists. A path is believed: it may be relative to the configuration, which only the runner
    knows."""
    return "/" in program or shutil.which(program) is not None
