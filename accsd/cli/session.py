"""How a command reaches the database: opened, asked, closed. Errors become messages in accsd.cli."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import click

from accsd.db.install import require_schema
from accsd.db.pool import Database
from accsd.settings import Settings, load_settings

Result = TypeVar("Result")


def settings_of(ctx: click.Context) -> Settings:
    """The settings of --config (which stands before the command) and the environment."""
    return load_settings(ctx.find_root().obj)


def with_database(ctx: click.Context, work: Callable[[Database], Awaitable[Result]]) -> Result:
    """Runs `work` on a database that has our schema."""
    settings = settings_of(ctx)

    async def opened() -> Result:
        db = await Database.open(settings.database, application="accsd cli")
        try:
            await require_schema(db)
            return await work(db)
        finally:
            await db.close()

    return asyncio.run(opened())
