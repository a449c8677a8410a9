"""Moves a month of a table to the object store: written, recorded, read back, and only then dropped from the database.

Each step may be the last one before a crash: the same rows make the same object under the same key, its record is
found again, and the next archiver reads the object back before anything is dropped. Two archivers at once do the work
twice, no more.
"""

import hashlib
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import anyio.to_thread

from accsd import failpoints
from accsd.db import history
from accsd.db.history import Archive, ArchivedLine, index_key
from accsd.db.months import MONTHLY, months_of
from accsd.db.pool import Database
from accsd.errors import NotFound
from accsd.history.blocks import Damaged, Index, Packer, chained
from accsd.history.contents import contents
from accsd.settings import RetentionSettings
from accsd.storage import ObjectStore

PREFIX: Final = "history/"
_BATCH: Final = 1000


@dataclass(frozen=True, slots=True)
class ArchiveOutcome:
    """What became of a month. `refused`: why it is still in the database."""

    archive: Archive
    refused: str | None = None

    @property
    def sentence(self) -> str:
        what = f"{self.archive.partition} ({self.archive.rows} rows)"
        if self.refused is not None:
            return f"{what} is not dropped: {self.refused}"
        return f"{what} is in {self.archive.key}" + (", and dropped here" if self.archive.dropped_at else "")


async def months_to_archive(db: Database, kept: RetentionSettings) -> list[str]:
    """The months that have been kept long enough."""
    ages = kept.month_ages
    return [
        month
        for table in MONTHLY
        if (age := ages[table.name]) is not None
        for month in await months_of(db, table, older_than=age)
    ]


async def archive(
    db: Database, store: ObjectStore, partition: str, *, again: bool = False, keep: bool = False
) -> ArchiveOutcome:
    """Archives a partition, or goes on where a crash has left it. `again` writes it anew, `keep` does not drop it."""
    if not any([partition in await months_of(db, table) for table in MONTHLY]):
        raise NotFound(f"there is no partition {partition}", hint="`accsd history list` lists the months")
    recorded = next((one for one in await history.archives(db, partition=partition) if _is_open(one)), None)
    if recorded is None or again or recorded.bucket != store.bucket:
        recorded = await _write(db, store, partition)
    refused = await verify(db, store, recorded)
    failpoints.hit("archive.verified")
    if refused is None and not keep:
        refused = await history.drop_archived(db, recorded.id)
        after = await history.archive_of(db, recorded.id)
        if after.refused is not None:  # the object is fine, but rows have come since: all are archived once more
            recorded = await _write(db, store, partition)
            refused = await verify(db, store, recorded) or await history.drop_archived(db, recorded.id)
    return ArchiveOutcome(await history.archive_of(db, recorded.id), refused)


async def verify(db: Database, store: ObjectStore, archive: Archive) -> str | None:
    """Reads an archive back and notes the finding; None: it is as archived. A store that is away is no finding."""
    try:
        found = await contents(store, archive)
    except Damaged as damage:
        return await history.check_archive(db, archive.id, problem=damage.message)
    return await history.check_archive(db, archive.id, rows=found.rows, size=found.size, sha256=found.sha256)


def _is_open(archive: Archive) -> bool:
    return archive.dropped_at is None and archive.superseded_at is None


async def _write(db: Database, store: ObjectStore, partition: str) -> Archive:
    await store.check()  # before the work, not after it
    with tempfile.TemporaryFile(prefix="accsd-history-") as spool:
        packer = Packer(spool)
        marks = await _pack(db, partition, packer)
        await anyio.to_thread.run_sync(spool.flush)
        key = f"{PREFIX}{partition}/{packer.packed_sha256[:32]}.jsonl.gz"
        stored = await store.put_file(key, spool.fileno(), content_type="application/gzip")
    failpoints.hit("archive.put")
    previous = await history.digest_before(db, partition, store.bucket, key)
    index = Index(
        partition=partition,
        rows=packer.rows,
        size=packer.size,
        sha256=packer.sha256,
        previous=previous,
        digest=chained(previous, partition, packer.rows, packer.sha256),
        blocks=tuple(packer.blocks),
    )
    packed = index.packed()
    index_sha256 = hashlib.sha256(packed).hexdigest()
    await store.put_bytes(index_key(key, index_sha256), packed, content_type="application/json")
    recorded = await history.record_archive(
        db,
        partition,
        rows=packer.rows,
        mark_sum=marks,
        size=packer.size,
        sha256=packer.sha256,
        bucket=store.bucket,
        key=key,
        object_size=stored.size_bytes,
        index_sha256=index_sha256,
        subjects=packer.subjects,
        previous=previous,
    )
    failpoints.hit("archive.recorded")
    return await history.archive_of(db, recorded)


async def _pack(db: Database, partition: str, packer: Packer) -> int:
    """Packs the rows; returns the sum of their marks."""
    last, marks = None, 0
    while batch := await history.lines_after(db, partition, last, _BATCH):
        await anyio.to_thread.run_sync(_add, packer, batch)
        last = batch[-1]
        marks += sum(line.mark for line in batch)
    await anyio.to_thread.run_sync(packer.end)
    return marks


def _add(packer: Packer, batch: Sequence[ArchivedLine]) -> None:
    for line in batch:
        packer.add(line.subject, line.text)
