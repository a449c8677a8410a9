"""The part of the history that has left the database for the object store. Commands that tell the history of a job
read it by themselves."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar
from uuid import UUID

from accsd.cli.objects import objects
from accsd.cli.output import say
from accsd.db.history import Archive, archives_with, task_of
from accsd.db.months import TASK_EVENTS
from accsd.db.pool import Database
from accsd.errors import AccsdError
from accsd.settings import Settings

Answer = TypeVar("Answer")


@dataclass(slots=True)
class ArchivedLines:
    """The archived lines of a job. They are read from the store again only if another month has left the database."""

    db: Database
    settings: Settings
    job_id: UUID
    _known: list[int] = field(default_factory=list[int])
    _lines: dict[str | None, list[str]] = field(default_factory=dict[str | None, list[str]])  # by task

    async def ask(
        self, ask: Callable[[Sequence[str]], Awaitable[Answer]], tasks: Iterable[UUID] | None = None
    ) -> Answer:
        """Calls `ask` with the archived lines (of these tasks); again if a month has left the database meanwhile."""
        while True:
            await self._read(await archives_with(self.db, TASK_EVENTS, str(self.job_id)))
            wanted = self._lines if tasks is None else [str(task) for task in tasks]
            answer = await ask([line for task in wanted for line in self._lines.get(task, ())])
            if [one.id for one in await archives_with(self.db, TASK_EVENTS, str(self.job_id))] == self._known:
                return answer

    async def _read(self, known: Sequence[Archive]) -> None:
        ids = [one.id for one in known]
        if ids == self._known:
            return
        self._known, self._lines = ids, {}
        for line in await archived_lines(self.settings, known, str(self.job_id)):
            self._lines.setdefault(task_of(line), []).append(line)


async def archived_lines(settings: Settings, known: Sequence[Archive], subject: str) -> list[str]:
    """Reads the archives that may hold lines of the subject. If one can't be read, it says so and returns the rest."""
    if not known:
        return []
    from accsd.history.contents import lines_of

    found: list[str] = []
    try:
        async with objects(settings) as store:
            for archive in known:
                found += await lines_of(store, archive, subject)
    except AccsdError as error:
        say(f"accsd: the history is not whole: {error}", err=True)
        if error.hint:
            say(f"  → {error.hint}", err=True)
    return found
