"""What an object store must do, and the keys of objects; storage/file.py and storage/s3.py are the two that exist.

Errors are the same for both: StorageUnavailable while the store is away, slow or failing (it may come back),
ConfigError where a setting keeps us out, NotFound for a key that holds nothing, ChecksumMismatch and TooLarge as below.
An OSError is an error of this machine's disk: of the file that is sent, or of the one that is written.
"""

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final, Protocol
from uuid import UUID

from accsd.errors import InvalidValue, StorageUnavailable
from accsd.model.state import ArtifactKind
from accsd.values.names import check_task_key

DEFAULT_CONTENT_TYPE: Final = "application/octet-stream"
MOST_BYTES_AT_ONCE: Final = 64 * 1024 * 1024  # get_bytes holds at most so many in memory

_CONTENT_TYPE = re.compile(r"[!-~]{1,120}/[!-~]{1,120}(?:; ?[ -~]{1,120})?")


@dataclass(frozen=True, slots=True)
class Timing:
    """How long a store over the network may take before it counts as away."""

    connect: timedelta = timedelta(seconds=5)
    silence: timedelta = timedelta(seconds=20)  # between two bytes of an answer
    request: timedelta = timedelta(minutes=3)  # for one request (at most one part of a file) with all its tries
    tries: int = 3


class ChecksumMismatch(StorageUnavailable):
    """The bytes that came are not those that were stored. The next fetch may be whole: no attempt is spent on it."""


class TooLarge(InvalidValue):
    """The object has more bytes than the caller allowed; none were kept."""


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object whose bytes all passed through this process: the facts that `task_artifacts` holds about it."""

    bucket: str
    key: str
    size_bytes: int
    checksum: str  # sha256:<hex>
    content_type: str = DEFAULT_CONTENT_TYPE


@dataclass(frozen=True, slots=True)
class Listed:
    """An object as the store describes it."""

    key: str
    size_bytes: int
    modified: datetime


class ObjectStore(Protocol):
    """Objects by key in one bucket. A put is all or nothing, and replaces what was there."""

    @property
    def bucket(self) -> str: ...

    async def check(self) -> None:
        """Raises if the store can't be used, as every other call would; makes the bucket if it is missing."""
        ...

    async def put_file(
        self, key: str, source: Path | int, *, content_type: str | None = None, limit: int | None = None
    ) -> StoredObject:
        """Sends a regular file, given by its path or by a descriptor (read from its beginning, and left open).

        TooLarge when more than `limit` bytes come out of it, whatever its size was said to be."""
        ...

    async def put_bytes(self, key: str, data: bytes, *, content_type: str | None = None) -> StoredObject: ...

    async def get_to(
        self, key: str, target: Path, *, checksum: str | None = None, limit: int | None = None, mode: int = 0o600
    ) -> StoredObject:
        """Writes the object to `target`, which appears complete and verified or not at all."""
        ...

    async def get_bytes(
        self, key: str, *, start: int = 0, length: int | None = None, checksum: str | None = None
    ) -> bytes:
        """A part of an object or all of it; `checksum` is that of the part. TooLarge beyond MOST_BYTES_AT_ONCE."""
        ...

    async def stat(self, key: str) -> Listed: ...

    def list(self, prefix: str = "") -> AsyncIterator[Listed]:
        """The objects whose keys begin with `prefix`. Not every server sorts them."""
        ...

    async def delete(self, key: str) -> None:
        """Deletes an object. A key that holds nothing is no error."""
        ...


def content_type_or_default(written: str | None) -> str:
    """A task's content type becomes a header: a text that is not plainly a content type counts as unknown."""
    return written if written is not None and _CONTENT_TYPE.fullmatch(written) else DEFAULT_CONTENT_TYPE


def check_key(key: str) -> tuple[str, ...]:
    """The parts of a key. Raises InvalidValue unless it means the same everywhere: as S3 key, as path, in a URL."""
    parts = tuple(key.split("/"))
    for part in parts:
        if part in ("", ".", "..") or "\\" in part or not part.isprintable() or len(part.encode()) > 255:
            raise InvalidValue(f"{key[:200]!a} is not an object key")
    return parts


def check_prefix(prefix: str) -> tuple[str, ...]:
    """The complete parts of a prefix; its last part may be the beginning of a name."""
    folder, slash, _ = prefix.rpartition("/")
    return check_key(folder) if slash else ()


def check_span(start: int, length: int | None) -> None:
    if start < 0 or (length is not None and length < 0):
        raise InvalidValue("a part of an object begins at 0 or later and has 0 bytes or more")
    if length is not None and length > MOST_BYTES_AT_ONCE:
        raise TooLarge(f"at most {MOST_BYTES_AT_ONCE} bytes of an object are read at once")


# Object keys. Only accsd builds them, and no value that a caller gives can leave `{kind}s/{job_id}/{task_key}/`. With
# an attempt in it the key is fenced like every other write: two attempts at a task never touch each other's objects.

FILES: Final = "files/"  # files of workflow versions, by their content: two that are the same are one object

_EXTENSION = re.compile(r"[A-Za-z0-9]+(?:\.[A-Za-z0-9]+)*")
_LONGEST_EXTENSION = 16
_LONGEST_PART = 255  # bytes: the limit of file systems for a name
_LONGEST_KEY = 1024  # bytes: the limit of S3 for a key


def build_key(
    job_id: UUID | str,
    task_key: str,
    kind: ArtifactKind | str,
    ext: str | None = None,
    *,
    attempt_id: int | None = None,
    name: str | None = None,
) -> str:
    """`outputs/{job_id}/{task_key}/[{attempt_id}/]{name}[.ext]`; the name is the kind where none is given.

    `name` may have folders (`frames/001.png`). A log is `.jsonl` unless another extension is given.
    """
    kind = _kind(kind)
    parts = [f"{kind}s", _job(job_id), check_task_key(task_key)]
    if attempt_id is not None:
        parts.append(_attempt(attempt_id))
    parts.append(_name(name or kind.value) + _suffix(ext, kind, name))
    return _bounded("/".join(parts))


def build_file_key(sha256: str) -> str:
    """`files/sha256/{first two digits}/{sha256}`"""
    return f"{FILES}sha256/{sha256[:2]}/{sha256}"


def _kind(kind: ArtifactKind | str) -> ArtifactKind:
    try:
        return ArtifactKind(kind)
    except ValueError:
        raise InvalidValue("the kind of an artifact must be input, output or log") from None


def _job(job_id: UUID | str) -> str:
    try:
        return str(job_id if isinstance(job_id, UUID) else UUID(job_id))
    except ValueError:
        raise InvalidValue("the job id of an object key must be a UUID") from None


def _attempt(attempt_id: int) -> str:
    if attempt_id < 0:
        raise InvalidValue("the attempt of an object key must not be negative")
    return str(attempt_id)


def _name(name: str) -> str:
    for part in name.split("/"):
        if part in ("", ".", "..") or "\\" in part or not part.isprintable():
            raise InvalidValue(
                'the name of an object must be a relative path of printable characters, without "." or ".."'
            )
    return name


def _suffix(ext: str | None, kind: ArtifactKind, name: str | None) -> str:
    """The extension, unless the name ends with it already."""
    if ext is None:
        ext = "jsonl" if kind is ArtifactKind.LOG else ""
    suffix = ext.removeprefix(".")
    if not suffix:
        return ""
    if len(suffix) > _LONGEST_EXTENSION or not _EXTENSION.fullmatch(suffix):
        raise InvalidValue("the extension of an object must be letters and digits, such as wav or tar.gz")
    return "" if name is not None and name.endswith(f".{suffix}") else f".{suffix}"


def _bounded(key: str) -> str:
    if len(key.encode()) > _LONGEST_KEY or any(len(part.encode()) > _LONGEST_PART for part in key.split("/")):
        raise InvalidValue(f"the object key is too long: at most {_LONGEST_KEY} bytes, {_LONGEST_PART} in each part")
    return key
