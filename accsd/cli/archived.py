"""What has left the database, for commands that tell the history of a job: they find it by themselves."""

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar
from uuid import UUID

import click

from accsd.cli.objects import objects
from accsd.db.archives import Archive, archives_with
from accsd.db.pool import Database
from accsd.errors import AccsdError
from accsd.settings import Settings

Answer = TypeVar("Answer")


async def with_archived(
    db: Database, settings: Settings, job_id: UUID, ask: Callable[[Sequence[str]], Awaitable[Answer]]
) -> Answer:
    """What `ask` makes of a job's archived lines and of the database; asked again if a month has moved meanwhile."""
    known = await archives_with(db, job_id)
    while True:
        answer = await ask(await archived_lines(settings, known, job_id))
        now = await archives_with(db, job_id)
        if [one.id for one in now] == [one.id for one in known]:
            return answer
        known = now


async def archived_lines(settings: Settings, known: Sequence[Archive], job_id: UUID) -> list[str]:
    """From each archive that may hold some. What can't be had is missed aloud, and the rest is shown."""
    if not known:
        return []
    from accsd.history.reading import lines_of

    found: list[str] = []
    try:
        async with objects(settings) as store:
            for archive in known:
                found += await lines_of(store, archive, job_id)
    except AccsdError as error:
        click.echo(f"accsd: the history is not whole: {error}", err=True)
        if error.hint:
            click.echo(f"  → {error.hint}", err=True)
    return found
