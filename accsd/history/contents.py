"""Reads archives: the lines of one subject, or all lines to check whether they are as archived."""

import hashlib
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Final

import anyio.to_thread

from accsd.db.history import Archive
from accsd.errors import NotFound
from accsd.history.blocks import Block, Damaged, Index, adjacent, chained, unpack
from accsd.storage import ObjectStore

_MOST_AT_ONCE: Final = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Contents:
    rows: int
    size: int
    sha256: str


async def lines_of(store: ObjectStore, archive: Archive, subject: str) -> list[str]:
    """The archived lines of one subject, in their order. Damaged: they are not as archived, or are missing."""
    _require_bucket(store, archive)
    mark = f'"{archive.table.subject}":"{subject}"'.encode()  # inside of JSON there is a space after the colon
    found: list[str] = []
    async for lines in _unpacked(store, archive, (await read_index(store, archive)).blocks_of(subject)):
        found += [line.decode() for line in lines.splitlines() if mark in line]
    return found


async def contents(store: ObjectStore, archive: Archive) -> Contents:
    """Reads every byte of an archive back. Damaged says what does not fit."""
    _require_bucket(store, archive)
    index = await read_index(store, archive)
    if (await _there(store, archive, archive.key)) != archive.size_bytes:
        raise Damaged(f"{archive.key} does not have the {archive.size_bytes} bytes that were written")
    digest, size, rows = hashlib.sha256(), 0, 0
    async for lines in _unpacked(store, archive, index.blocks):
        await anyio.to_thread.run_sync(digest.update, lines)
        size += len(lines)
        rows += lines.count(b"\n")
    return Contents(rows, size, digest.hexdigest())


async def read_index(store: ObjectStore, archive: Archive) -> Index:
    try:
        data = await store.get_bytes(archive.index_key)
    except NotFound as missing:
        raise Damaged(f"{archive.index_key} is not in the store") from missing
    if hashlib.sha256(data).hexdigest() != archive.index_sha256:
        raise Damaged(f"{archive.index_key} is not the one that was written")
    index = Index.unpacked(data)
    if index.digest != archive.digest:
        raise Damaged(f"{archive.index_key} has another digest than the database")
    return index


def broken_links(archives: Sequence[Archive]) -> list[str]:
    """Where the chain of digests does not hold, from its first archive to its last."""
    complaints: list[str] = []
    before = ""
    for archive in archives:
        if archive.previous != before:
            complaints.append(f"archive {archive.id} ({archive.partition}) does not follow the one before it")
        if archive.digest != chained(archive.previous, archive.partition, archive.rows, archive.sha256):
            complaints.append(f"archive {archive.id} ({archive.partition}) has a digest that is not its own")
        before = archive.digest
    return complaints


async def _unpacked(store: ObjectStore, archive: Archive, blocks: Sequence[Block]) -> AsyncGenerator[bytes]:
    for run in adjacent(blocks, _MOST_AT_ONCE):
        start, end = run[0].offset, run[-1].offset + run[-1].length
        try:
            stored = await store.get_bytes(archive.key, start=start, length=end - start)
        except NotFound as missing:
            raise Damaged(f"{archive.key} is not in the store") from missing
        for block in run:
            part = stored[block.offset - start : block.offset - start + block.length]
            try:
                yield await anyio.to_thread.run_sync(unpack, block, part)
            except Damaged as damage:
                raise Damaged(f"{archive.key}: {damage.message}") from damage


async def _there(store: ObjectStore, archive: Archive, key: str) -> int:
    try:
        return (await store.stat(key)).size_bytes
    except NotFound as missing:
        raise Damaged(f"{key} of archive {archive.id} is not in the store") from missing


def _require_bucket(store: ObjectStore, archive: Archive) -> None:
    if store.bucket != archive.bucket:
        raise Damaged(
            f'{archive.key} is in bucket "{archive.bucket}", and this store is "{store.bucket}"',
            hint="give it the storage settings with which it was archived",
        )
