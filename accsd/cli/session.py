"""How a command reaches the database: opened, asked, closed; and who gives it. Errors become messages in accsd.cli."""

import asyncio
import getpass
import socket
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, TypeVar

import click

from accsd.db.install import require_schema
from accsd.db.pool import Database
from accsd.errors import NotPermitted
from accsd.settings import Settings, environment, load_settings, state_folder

AGENTS_LOGIN: Final = "this is an agent's login; ask on the control host"
Result = TypeVar("Result")


def settings_of(ctx: click.Context) -> Settings:
    """The settings of the environment and of --config, which stands before the command."""
    return read_settings(ctx.find_root().obj)


def read_settings(config: str | None) -> Settings:
    """If the settings name no database, the one of the `accsd up` that runs on this machine in its usual folder is
    used."""
    settings = load_settings(config)
    if settings.database.url is not None:
        return settings
    from accsd import embedded

    folder = embedded_folder(settings)
    if (server := embedded.find(folder)) is None:
        return settings
    found = settings.with_database(server.url, origin=f"the PostgreSQL of `accsd up` in {folder}")
    with suppress(OSError):
        if found.gateway.listen is None:
            found = found.with_gateway(_gateway_file(settings).read_text().strip(), origin="`accsd up`")
    return found


@contextmanager
def noted_gateway(settings: Settings) -> Generator[None]:
    """Lets the commands of this machine know where the gateway of `accsd up` listens."""
    note = _gateway_file(settings)
    note.parent.mkdir(parents=True, exist_ok=True)
    note.write_text(f"{settings.gateway.listen}\n")
    try:
        yield
    finally:
        note.unlink(missing_ok=True)


def _gateway_file(settings: Settings) -> Path:
    return embedded_folder(settings).parent / "gateway"


def embedded_folder(settings: Settings) -> Path:
    """Where `accsd up` keeps its PostgreSQL."""
    return state_folder(settings, environment()).parent / "postgres"


def with_database(
    ctx: click.Context, work: Callable[[Database], Awaitable[Result]], *, removes_history: bool = False
) -> Result:
    """Runs `work` on a database that has our schema, with the login of retention.database_url if it removes history."""
    settings = settings_of(ctx)

    async def opened() -> Result:
        login = settings.retention_database if removes_history else settings.database
        db = await Database.open(login, application="accsd cli", any_time=True)
        try:
            await require_schema(db)
            return await work(db)
        except NotPermitted as refused:
            from accsd.db.views.doctor import is_agents_login

            if await is_agents_login(db):
                raise NotPermitted(refused.message, hint=AGENTS_LOGIN) from refused
            raise
        finally:
            await db.close()

    return asyncio.run(opened())


def operator() -> str:
    """The person who gives this command, for the record: user@host."""
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (KeyError, OSError):  # a user id that no name belongs to
        return socket.gethostname()
