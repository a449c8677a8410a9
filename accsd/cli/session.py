"""How a command reaches the database: opened, asked, closed. Errors become messages in accsd.cli."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import click

from accsd.db.install import require_schema
from accsd.db.pool import Database
from accsd.settings import Settings, environment, load_settings, state_folder

Result = TypeVar("Result")


def settings_of(ctx: click.Context) -> Settings:
    """The settings of --config, which stands before the command, and of the environment."""
    return read_settings(ctx.find_root().obj)


def read_settings(config: str | None) -> Settings:
    """Where they name no database, it is that of the `accsd up` on this machine, if one runs in its usual folder."""
    settings = load_settings(config)
    if settings.database.url is not None:
        return settings
    from accsd import embedded

    server = embedded.find(embedded_folder(settings))
    if server is None:
        return settings
    environment()["ACC_DB_URL"] = server.url
    return load_settings(config)


def embedded_folder(settings: Settings) -> Path:
    """Where `accsd up` keeps its PostgreSQL."""
    return state_folder(settings, environment()).parent / "postgres"


def with_database(
    ctx: click.Context, work: Callable[[Database], Awaitable[Result]], *, removes_history: bool = False
) -> Result:
    """Runs `work` on a database that has our schema; with the login of retention.database_url where it removes."""
    settings = settings_of(ctx)

    async def opened() -> Result:
        login = settings.retention_database if removes_history else settings.database
        db = await Database.open(login, application="accsd cli", any_time=True)
        try:
            await require_schema(db)
            return await work(db)
        finally:
            await db.close()

    return asyncio.run(opened())
