"""A file that a task announced, taken from its folder into the store.

The folder is hostile: what is announced may be a link, a pipe or a device, and may be swapped while we look at it.
"""

import errno
import os
import re
from collections.abc import Generator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Final
from uuid import UUID

import anyio.to_thread

from accsd import failpoints
from accsd.errors import AttemptFailed, InvalidValue
from accsd.model.outcome import ErrorCode
from accsd.model.state import ArtifactKind
from accsd.runners.base import Workdir
from accsd.storage import ObjectStore, StoredObject, TooLarge, beneath, build_key
from accsd.work.faults import PATIENCE, failing_on_a_full_disk, patiently

LARGEST_OUTPUT: Final = 100 * 1024**3

Parts = tuple[str, ...]
_LONGEST_SHOWN: Final = 200


async def take_output(
    store: ObjectStore,
    workdir: Workdir,
    job_id: UUID,
    task_key: str,
    attempt_id: int,
    path: str,
    content_type: str | None = None,
    *,
    kind: ArtifactKind = ArtifactKind.OUTPUT,
    largest: int = LARGEST_OUTPUT,
    patience: timedelta = PATIENCE,
) -> StoredObject:
    """Keeps a file; `path` is relative to the task's folder, or absolute as the task sees it.

    Once opened it is that file, whatever is put in its place. How many there may be is the protocol's to limit.
    """
    with _blamed(path), failing_on_a_full_disk(f"artifact {_shown(path)} cannot be kept"):
        parts = _parts_beneath(workdir.seen, path)
        # Beside the segments of the task's own log, and never under the name of one.
        name = "/".join(("files", *parts) if kind is ArtifactKind.LOG else parts)
        key = build_key(job_id, task_key, kind, attempt_id=attempt_id, name=name)
        descriptor = await anyio.to_thread.run_sync(_open, workdir.here, parts, largest)
        try:
            stored = await patiently(
                lambda: store.put_file(key, descriptor, content_type=content_type, limit=largest), patience
            )
        finally:
            os.close(descriptor)
    failpoints.hit("artifact.put")
    return stored


def _parts_beneath(seen: str, path: str) -> Parts:
    path = re.sub("/+", "/", path)
    if path.startswith("/"):
        root = f"{seen.rstrip('/')}/"
        if not path.startswith(root):
            raise InvalidValue(f"lies outside of the task's folder {seen}")
        path = path.removeprefix(root)
    parts = tuple(part for part in path.split("/") if part not in ("", "."))
    if not parts or ".." in parts:
        raise InvalidValue(f"lies outside of the task's folder {seen}" if parts else "is the task's folder itself")
    return parts


def _open(here: Path, parts: Parts, largest: int) -> int:
    with beneath.opened(here) as root:
        descriptor = beneath.open_regular(root, parts)
    if os.fstat(descriptor).st_size > largest:
        os.close(descriptor)
        raise TooLarge(f"has more than {largest} bytes")
    return descriptor


@contextmanager
def _blamed(path: str) -> Generator[None]:
    """An announcement that cannot be honoured is the task's own failure."""
    try:
        yield
    except TooLarge as error:
        raise _not_taken(path, "is larger than an artifact may be") from error
    except InvalidValue as error:
        raise _not_taken(path, f"cannot be kept: {error}") from error
    except beneath.NotRegular as error:
        raise _not_taken(path, f"{error.strerror}; only regular files are kept") from error
    except FileNotFoundError as error:
        raise _not_taken(path, "is not there") from error
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.EXDEV):
            raise _not_taken(path, "is not there, or is a link or lies behind one; links are not followed") from error
        raise _not_taken(path, f"cannot be read: {error.strerror}") from error


def _not_taken(path: str, why: str) -> AttemptFailed:
    return AttemptFailed(ErrorCode.ARTIFACT_MISSING, f"artifact {_shown(path)} {why}")


def _shown(path: str) -> str:
    """Whatever a task wrote: on one line, and short."""
    printable = "".join(character if character.isprintable() else "?" for character in path)
    return f'"{printable if len(printable) <= _LONGEST_SHOWN else printable[:_LONGEST_SHOWN] + "…"}"'
