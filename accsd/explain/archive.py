"""The part of a job's history that has left the database for the object store: who tells what happened in a job reads
it by itself."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import TypeVar
from uuid import UUID

from accsd.db.history import Archive, archives_with, task_of
from accsd.db.months import TASK_EVENTS
from accsd.db.pool import Database
from accsd.errors import AccsdError
from accsd.storage import ObjectStore

Answer = TypeVar("Answer")
Opened = Callable[[], AbstractAsyncContextManager[ObjectStore]]
Complain = Callable[[AccsdError], None]


@dataclass(slots=True)
class ArchivedLines:
    """The archived lines of a job. They are read from the store again only if another month has left the database.
    `complain` hears why a history is not whole."""

    db: Database
    job_id: UUID
    opened: Opened
    complain: Complain
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
        for line in await archived_lines(self.opened, known, str(self.job_id), self.complain):
            self._lines.setdefault(task_of(line), []).append(line)


async def archived_lines(opened: Opened, known: Sequence[Archive], subject: str, complain: Complain) -> list[str]:
    """Reads the archives that may hold lines of the subject. What can't be read is complained of; the rest is told."""
    found: list[str] = []
    if not known:
        return found
    from accsd.history import contents  # few commands need it

    try:
        async with opened() as store:
            for archive in known:
                found += await contents.lines_of(store, archive, subject)
    except AccsdError as error:
        complain(error)
    return found
