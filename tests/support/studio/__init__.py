"""A studio that makes episodes: nine machines, five workflows, schedules, and a day of work, as the page shows it.

    async with server.cloned() as url:
        studio = await furnish(url, folder)

Whoever wants to see the page full uses it: the tests of accessibility, the pictures of the documents. The day is played
by the verbs themselves, each at its time, from a clock that the database is given; nothing in it is left to chance, so
that two studios are alike to the last id. At its end the clock stands still at NOW. The folder is an object store.

catalogue   the machines, the workflows, the schedules, and what a person would have written
stage       the clock, and who does what at which time
crew        the machines: woken, working, asleep again
work        what one attempt does: progress, log, files, its end
day         the bookings of the day, and what people did
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from accsd.settings import StorageSettings
from accsd.storage import open_store
from tests.support.cluster import open_connection
from tests.support.library import opened
from tests.support.studio.catalogue import NOW as NOW
from tests.support.studio.catalogue import ZONE as ZONE
from tests.support.studio.day import play
from tests.support.studio.stage import Stage

# What addresses of a page name, where they name something.
_SUBJECTS = {
    "/fleet": ("gpu-1", "gpu-3"),
    "/workflows": ("episode",),
    "/schedules": ("nightly-backup", "card-arrived", "archive-full"),
    "/services": ("render", "upload"),
    "/tools": ("chat.send",),
    "/triggers": ("card-arrived", "archive-full"),
    "/system": ("audit", "tokens", "outbox"),
}
_JOBS = ("failed", "running", "waiting", "fanned", "done")


@dataclass(frozen=True, slots=True)
class Studio:
    jobs: dict[str, UUID]  # by what they are called: see day.py
    operation: UUID

    def addresses(self, page: str) -> list[str]:
        """Addresses of a page as the gateway knows it, such as "/fleet/{subject}", with something to look at."""
        if page == "/compare":
            return [f"/compare?a={self.jobs['failed']}&b={self.jobs['done']}"]
        if "{" not in page:
            return [page]
        head, _, rest = page.partition("/{")
        return [f"{head}/{subject}{rest.partition('}')[2]}" for subject in self._subjects(head)]

    def _subjects(self, head: str) -> Sequence[str]:
        match head:
            case "/jobs":
                return [str(self.jobs[each]) for each in _JOBS]
            case "/operations":
                return [str(self.operation)]
            case _:
                return _SUBJECTS[head]


async def furnish(url: str, folder: Path) -> Studio:
    """Plays the day in a database of the tests. The connections are closed when it is over."""
    conn = await open_connection(url)
    try:
        async with opened(url) as db, open_store(StorageSettings(), default_folder=folder) as store:
            return Studio(*await play(Stage(conn, db, store)))
    finally:
        await conn.close()
