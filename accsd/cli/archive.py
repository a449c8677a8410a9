"""Archived history for commands: from the store of the settings, and what is missing is said."""

from collections.abc import Sequence
from functools import partial
from uuid import UUID

from accsd.cli.objects import objects
from accsd.cli.output import say
from accsd.db.history import Archive
from accsd.db.pool import Database
from accsd.errors import AccsdError
from accsd.explain import archive
from accsd.explain.archive import ArchivedLines
from accsd.settings import Settings


def archived_of(db: Database, settings: Settings, job_id: UUID) -> ArchivedLines:
    return ArchivedLines(db, job_id, partial(objects, settings), _complain)


async def archived_lines(settings: Settings, known: Sequence[Archive], subject: str) -> list[str]:
    return await archive.archived_lines(partial(objects, settings), known, subject, _complain)


def _complain(error: AccsdError) -> None:
    say(f"accsd: the history is not whole: {error}", err=True)
    if error.hint:
        say(f"  → {error.hint}", err=True)
