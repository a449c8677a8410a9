"""Objects in the store that no row knows: left by attempts that were lost between their upload and their record, or
files of workflow versions that are gone.

An object younger than a day may still get its row, and objects of a job in motion are left alone. An object of a job
that this database does not hold may belong to another database that shares the bucket.
"""

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import UUID

from accsd.db import history
from accsd.db.files import named_files
from accsd.db.pool import Database
from accsd.history.archive import PREFIX
from accsd.model.state import ArtifactKind, JobStatus
from accsd.storage import Listed, ObjectStore
from accsd.storage.base import FILES

YOUNGEST: Final = timedelta(days=1)
_FOLDERS: Final = tuple(f"{kind}s/" for kind in ArtifactKind)
_BATCH: Final = 1000


@dataclass(frozen=True, slots=True)
class Orphan:
    key: str
    size_bytes: int
    modified: datetime
    is_of_known_job: bool


async def orphans(db: Database, store: ObjectStore) -> AsyncGenerator[Orphan]:
    for folder in _FOLDERS:
        async for batch in _old_objects(store, folder):
            for orphan in await _without_row(db, store, batch):
                yield orphan
    async for batch in _old_objects(store, FILES):
        named = await named_files(db, [listed.key for listed in batch])
        for listed in batch:
            if listed.key not in named:
                yield Orphan(listed.key, listed.size_bytes, listed.modified, is_of_known_job=False)
    recorded = {key for one in await history.archives(db) for key in (one.key, one.index_key)}
    async for batch in _old_objects(store, PREFIX):
        for listed in batch:
            if listed.key not in recorded:
                yield Orphan(listed.key, listed.size_bytes, listed.modified, is_of_known_job=False)


async def _old_objects(store: ObjectStore, folder: str) -> AsyncGenerator[list[Listed]]:
    batch: list[Listed] = []
    async for listed in store.list(folder):
        if datetime.now(UTC) - listed.modified > YOUNGEST:
            batch.append(listed)
        if len(batch) == _BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


async def _without_row(db: Database, store: ObjectStore, batch: list[Listed]) -> list[Orphan]:
    jobs = {listed.key: job_of(listed.key) for listed in batch}
    statuses = await history.statuses_of(db, [job for job in set(jobs.values()) if job is not None])
    unknown = set(await history.unknown_keys(db, store.bucket, list(jobs))) - await named_files(db, list(jobs))
    found: list[Orphan] = []
    for listed in batch:
        status = statuses.get(jobs[listed.key] or UUID(int=0))
        if listed.key in unknown and (status is None or JobStatus(status).is_terminal):
            found.append(Orphan(listed.key, listed.size_bytes, listed.modified, is_of_known_job=status is not None))
    return found


def job_of(key: str) -> UUID | None:
    """The job in an object's key, as build_key has put it there."""
    try:
        return UUID(key.split("/")[1])
    except (IndexError, ValueError):
        return None
