"""`accsd up`: everything in one process, for one machine. PostgreSQL included, where none is configured."""

import asyncio
from contextlib import ExitStack, suppress
from pathlib import Path

import click

from accsd import embedded
from accsd.cli import log_format_option
from accsd.cli.daemon import run
from accsd.cli.output import say
from accsd.cli.session import embedded_folder, noted_gateway, operator
from accsd.db.access import create_code
from accsd.db.install import install
from accsd.db.pool import Database, connect
from accsd.errors import AccsdError, DatabaseUnavailable
from accsd.gateway.place import free_address, is_installed
from accsd.model.access import Scope
from accsd.runners.compose import Docker, Mode, Project, compose_file, declared_services
from accsd.settings import Settings, environment, load_settings


@click.command()
@click.option(
    "--compose",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Serve what is labelled accs.mode in this compose file.",
)
@click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where database, objects and state are kept.  [default: the node's state folder]",
)
@click.option("--no-gateway", is_flag=True, help="Without the HTTP API.")
@log_format_option
@click.pass_context
def up(ctx: click.Context, compose: Path | None, folder: Path | None, no_gateway: bool, log_format: str | None) -> None:
    """Run builder, agent and the HTTP API here, with an embedded PostgreSQL unless ACC_DB_URL names another.

    What is submitted stays: the next `accsd up` with the same folder goes on with it. Ctrl-C drains and stops.
    Containers of services in mode exec or http stay up, and it says which.

    A compose file or a label that is wrong ends it at the start (exit code 2); later it goes on, and its log says so.

    \b
    accsd up --compose compose.yaml
    accsd --config accsd.toml up --folder ./accsd-data
    """
    config: str | None = ctx.find_root().obj
    environ = environment()
    if compose is not None:
        environ["ACC_COMPOSE_FILE"] = str(compose.absolute())
    if folder is not None:
        environ["ACC_STATE_DIR"] = str(folder.absolute())
    with ExitStack() as stack:
        settings = load_settings(config)
        if settings.database.url is None:
            environ["ACC_DB_URL"] = stack.enter_context(embedded.running(embedded_folder(settings))).url
            settings = load_settings(config)
        asyncio.run(_installed(settings))
        if settings.gateway.listen is None and not no_gateway and (listen := _gateway_address()) is not None:
            environ["ACC_GATEWAY_LISTEN"] = listen
            settings = load_settings(config)
        if settings.gateway.listen is not None:
            stack.enter_context(noted_gateway(settings))
        exported = None if folder is None else settings.database.required_url  # otherwise the commands find it
        link = None if settings.gateway.listen is None else asyncio.run(_link(settings))
        run("all", config, log_format=log_format, is_strict=True, when_up=lambda: _tell(exported, link))
        asyncio.run(_tell_what_stays(settings))


def _gateway_address() -> str | None:
    """None: it is not installed, or this machine has no free port."""
    if not is_installed():
        say("the HTTP API is off: pip install 'accsd[web]' brings it", err=True)
        return None
    return free_address()


async def _link(settings: Settings) -> str:
    """A link that logs in once, within a minute."""
    db = await Database.open(settings.database, application="accsd cli")
    try:
        code = await create_code(db, actor=operator(), scopes=[Scope.ADMIN], by=operator())
    finally:
        await db.close()
    return f"{settings.gateway.url}#code={code}"


def _tell(url: str | None, link: str | None) -> None:
    say("accsd is up; Ctrl-C stops it. In another terminal:", err=True)
    if url is not None:
        say(f"  export ACC_DB_URL='{url}'", err=True)
    say("  accsd workflows apply FILE && accsd submit NAME --follow", err=True)
    if link is not None:
        say(f"The HTTP API is at {link.partition('#')[0]}api/v1; for curl:", err=True)
        say("  accsd tokens create curl --scope submit", err=True)
        say(
            f"A browser is logged in by this link, once and within a minute (`accsd open` makes another): {link}",
            err=True,
        )


async def _tell_what_stays(settings: Settings) -> None:
    """A service that loads for minutes is not stopped for a restart of accsd, and somebody else may use it."""
    if settings.compose.file is None:
        return
    docker = Docker(environment())
    with suppress(AccsdError):  # a courtesy: it has stopped, with or without an engine
        declarations = await declared_services(docker, settings.compose, settings.services)
        project = Project(docker, compose_file(settings.compose), declarations.project)
        names = [name for name, declared in declarations.services.items() if declared.mode is not Mode.RUN]
        up = [name for name in names if any(each.is_running for each in await project.containers(name))]
        if up:
            stop = f"docker compose --project-name {project.name} -f {project.file} stop {' '.join(up)}"
            say(f"containers of {', '.join(up)} stay up; to stop them: {stop}", err=True)


async def _installed(settings: Settings) -> None:
    try:
        connection = await connect(settings.database)
    except DatabaseUnavailable as error:
        raise DatabaseUnavailable(
            error.message, hint=f"{error.hint}; or unset ACC_DB_URL: `accsd up` then starts a PostgreSQL of its own"
        ) from error
    try:
        await install(
            connection, channel_prefix=settings.notify_channel_prefix, backoff_base_sec=settings.backoff_base_sec
        )
    finally:
        await connection.close(timeout=5)
