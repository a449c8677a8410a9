"""How an archive is packed: JSON lines in blocks, each a gzip member of its own, and an index of where they are.

The object as a whole is an ordinary .gz file (`zcat` reads it). Lines are sorted by subject (task events by their job),
so the index finds those of one subject with a few reads of a part; it knows the checksum of every block.
"""

import gzip
import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import IO, Final

import orjson

from accsd.errors import UserError

BLOCK: Final = 1024 * 1024  # bytes of JSON lines
FORMAT: Final = 1


class Damaged(UserError):
    """An object of an archive is not as it was archived."""


@dataclass(frozen=True, slots=True)
class Block:
    first: str  # subject
    last: str
    offset: int
    length: int
    rows: int
    sha256: str  # of the bytes as they are stored


@dataclass(frozen=True, slots=True)
class Index:
    """The index of an archive, and a record beside the database: the chain of archives can be followed in the store."""

    partition: str
    rows: int
    size: int  # of the JSON lines, whose checksum follows
    sha256: str
    previous: str
    digest: str
    blocks: tuple[Block, ...]
    format: int = FORMAT

    def packed(self) -> bytes:
        return orjson.dumps(asdict(self), option=orjson.OPT_APPEND_NEWLINE)

    @classmethod
    def unpacked(cls, data: bytes) -> "Index":
        try:
            document = orjson.loads(data)
            blocks = tuple(Block(**block) for block in document.pop("blocks"))
            index = cls(**document, blocks=blocks)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise Damaged(f"the index is not readable: {error}") from error
        if index.format != FORMAT:
            raise Damaged(f"the index has format {index.format}, and this accsd reads {FORMAT}", hint="upgrade accsd")
        return index

    def blocks_of(self, subject: str) -> list[Block]:
        return [block for block in self.blocks if block.first <= subject <= block.last]


def chained(previous: str, partition: str, rows: int, sha256: str) -> str:
    """The digest of a link of the chain, as accs.archive_digest computes it."""
    return hashlib.sha256("\n".join((previous, partition, str(rows), sha256)).encode()).hexdigest()


class Packer:
    """Takes lines in the order of their subjects; never holds more than one block of them."""

    def __init__(self, target: IO[bytes]) -> None:
        self.blocks: list[Block] = []
        self.rows: int = 0
        self.size: int = 0
        self._target = target
        self._sha256 = hashlib.sha256()
        self._packed = hashlib.sha256()
        self._offset = 0
        self._lines: list[bytes] = []
        self._held = 0
        self._first = ""
        self._last = ""

    def add(self, subject: str, line: str) -> None:
        if not self._lines:
            self._first = subject
        self._last = subject
        self._lines.append(line.encode() + b"\n")
        self._held += len(self._lines[-1])
        if self._held >= BLOCK:
            self._write()

    def end(self) -> None:
        """Writes the last block. An archive without lines has an empty one, so that it is a .gz file too."""
        if self._lines or not self.blocks:
            self._write()

    @property
    def sha256(self) -> str:
        return self._sha256.hexdigest()

    @property
    def packed_sha256(self) -> str:
        """The checksum of the object: another version of zlib packs the same lines in another way."""
        return self._packed.hexdigest()

    @property
    def subjects(self) -> tuple[str, str] | None:
        return (self.blocks[0].first, self.blocks[-1].last) if self.rows else None

    def _write(self) -> None:
        lines = b"".join(self._lines)
        # without a time, so that the same lines make the same object
        stored = gzip.compress(lines, compresslevel=6, mtime=0)
        self._target.write(stored)
        self._sha256.update(lines)
        self._packed.update(stored)
        self.blocks.append(
            Block(
                self._first,
                self._last,
                self._offset,
                len(stored),
                len(self._lines),
                hashlib.sha256(stored).hexdigest(),
            )
        )
        self.rows += len(self._lines)
        self.size += len(lines)
        self._offset += len(stored)
        self._lines, self._held = [], 0


def unpack(block: Block, stored: bytes) -> bytes:
    """The lines of a block, once its checksum is right."""
    if hashlib.sha256(stored).hexdigest() != block.sha256:
        raise Damaged(f"the {block.length} bytes from {block.offset} on are not those that were written")
    return gzip.decompress(stored)


def adjacent(blocks: Sequence[Block], most_bytes: int) -> list[list[Block]]:
    """Runs of blocks that one read can fetch."""
    runs: list[list[Block]] = []
    for block in blocks:
        last = runs[-1] if runs else []
        size = block.offset + block.length - last[0].offset if last else 0
        if last and last[-1].offset + last[-1].length == block.offset and size <= most_bytes:
            last.append(block)
        else:
            runs.append([block])
    return runs
