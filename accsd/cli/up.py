"""`accsd up`: everything in one process, for one machine. PostgreSQL included, where none is configured."""

import asyncio
from contextlib import ExitStack
from pathlib import Path

import click

from accsd import embedded
from accsd.cli.daemon import run
from accsd.cli.session import embedded_folder
from accsd.db.install import install
from accsd.db.pool import connect
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
@click.pass_context
def up(ctx: click.Context, compose: Path | None, folder: Path | None) -> None:
    """Run builder and agent here, with an embedded PostgreSQL unless ACC_DB_URL names another.

    What is submitted stays: the next `accsd up` with the same folder goes on with it. Ctrl-C drains and stops.

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
        click.echo("accsd is up; Ctrl-C stops it. In another terminal:", err=True)
        if folder is not None:  # otherwise the commands find it
            click.echo(f"  export ACC_DB_URL='{settings.database.required_url}'", err=True)
        click.echo("  accsd workflows apply FILE && accsd submit NAME --follow", err=True)
        run("all", config)


async def _installed(settings: Settings) -> None:
    connection = await connect(settings.database)
    try:
        await install(
            connection, channel_prefix=settings.notify_channel_prefix, backoff_base_sec=settings.backoff_base_sec
        )
    finally:
        await connection.close(timeout=5)
