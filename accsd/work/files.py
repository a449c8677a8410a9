"""The files of a task: inputs, laid into its folder before it starts, and announced files, taken into the store.

    inputs/{step}/{name}           what earlier steps made
    inputs/{step}/{item}/{name}    what the tasks of a step made that was multiplied
    inputs/_job/{name}             what came with the job
    files/{name}                   what the workflow's version gives to its tasks

The folder is hostile: an announced file may be a link, a pipe or a device, and may be swapped while we look at it.
"""

import errno
import os
import re
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar
from uuid import UUID

import anyio.to_thread

from accsd import failpoints
from accsd.db import ClaimedTask, TaskEvent, TaskFile, Verdict, record_task_artifact
from accsd.errors import AttemptFailed, InvalidValue, NotFound, StorageUnavailable, VerbRefused
from accsd.log import redact
from accsd.model.outcome import ErrorCode
from accsd.model.state import ArtifactKind, EventType, Level
from accsd.retry import Backoff, until_answered, while_away
from accsd.runners.base import Workdir
from accsd.storage import ChecksumMismatch, ObjectStore, StoredObject, TooLarge, build_key, local
from accsd.storage.base import check_key
from accsd.values.names import split_task_key
from accsd.work.context import AttemptContext
from accsd.work.protocol.wire import ArtifactAnnounced

INPUTS_FOLDER: Final = "inputs"
FILES_FOLDER: Final = "files"
JOB_FOLDER: Final = "_job"  # no step can have this name
LARGEST_INPUTS: Final = 100 * 1024**3  # bytes of all inputs together
MOST_INPUTS: Final = 10_000
LARGEST_OUTPUT: Final = 100 * 1024**3
PATIENCE: Final = timedelta(minutes=2)
_UPLOADS: Final = 4
_DOWNLOADS: Final = 4
_COPIED_AT_ONCE: Final = 256 * 1024**2  # after so many bytes a copy can be cancelled
_LONGEST_SHOWN: Final = 200
_PAUSES: Final = (timedelta(seconds=0.5), timedelta(seconds=15))

Parts = tuple[str, ...]
_FOLDERS: Final = frozenset(f"{kind}s" for kind in ArtifactKind)
_JOB: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_ATTEMPT: Final = re.compile(r"\d+")


class Input(Protocol):
    """An object that a task gets, as its row says: db.TaskInput, or an InputArtifact."""

    @property
    def task_key(self) -> str | None:
        """The step that the object belongs to; None: it is the job's own."""
        ...

    @property
    def kind(self) -> ArtifactKind: ...
    @property
    def bucket(self) -> str: ...
    @property
    def key(self) -> str: ...
    @property
    def size_bytes(self) -> int | None: ...
    @property
    def content_type(self) -> str | None: ...
    @property
    def checksum(self) -> str | None: ...


@dataclass(frozen=True, slots=True)
class InputArtifact:
    task_key: str | None
    kind: ArtifactKind
    bucket: str
    key: str
    size_bytes: int | None = None
    content_type: str | None = None
    checksum: str | None = None


async def lay_inputs(
    store: ObjectStore,
    workdir: Workdir,
    artifacts: Sequence[Input],
    *,
    largest: int = LARGEST_INPUTS,
    most: int = MOST_INPUTS,
    patience: timedelta = PATIENCE,
) -> list[dict[str, Any]]:
    """Fetches all inputs; returns the envelope's list of artifacts. A missing input is not the task's fault."""
    places = _places(artifacts)
    _check_caps(artifacts, largest, most)
    laid: list[dict[str, Any]] = []
    for parts, artifact in places.items():
        with _input_at_fault(artifact), failing_on_a_full_disk(f"input {artifact.key} cannot be fetched"):
            stored = await _lay(store, workdir.here, parts, artifact, largest, patience)
        largest -= stored.size_bytes
        laid.append(_in_envelope(artifact, parts, stored))
    return laid


async def _lay(
    store: ObjectStore, here: Path, parts: Parts, artifact: Input, largest: int, patience: timedelta
) -> StoredObject:
    if artifact.bucket != store.bucket:
        raise NotFound(f"it is in bucket {artifact.bucket}, and this node stores in {store.bucket}")
    folder = await anyio.to_thread.run_sync(_make_folder, here, parts[:-1])
    try:
        # By the folder's descriptor: in a folder that tasks share, its path could be made to lead elsewhere.
        target = Path(f"/proc/self/fd/{folder}", parts[-1])
        stored = await while_store_is_away(
            lambda: store.get_to(artifact.key, target, checksum=_checkable(artifact), limit=largest, mode=0o644),
            patience,
        )
    finally:
        os.close(folder)
    if artifact.size_bytes not in (None, stored.size_bytes):
        raise ChecksumMismatch(f"it has {stored.size_bytes} bytes instead of {artifact.size_bytes}")
    return stored


def _checkable(artifact: Input) -> str | None:
    """The checksum, if we can check it: rows that other programs wrote may have a checksum of another kind."""
    return artifact.checksum if artifact.checksum and artifact.checksum.startswith("sha256:") else None


def _make_folder(here: Path, parts: Parts) -> int:
    with local.opened(here) as root, local.folder(root, parts, make_mode=0o755) as folder:
        return os.dup(folder)


def _places(artifacts: Sequence[Input]) -> Mapping[Parts, Input]:
    places: dict[Parts, Input] = {}
    for artifact in artifacts:
        with _input_at_fault(artifact):
            place = (INPUTS_FOLDER, *_folder_of(artifact.task_key), *_name(artifact))
            if place in places:
                raise InvalidValue(f"{places[place].key} has the same name")
        places[place] = artifact
    return places


def _folder_of(task_key: str | None) -> Parts:
    if task_key is None:
        return (JOB_FOLDER,)
    step, item = split_task_key(task_key)
    return (step,) if item is None else (step, str(item))


def _name(artifact: Input) -> Parts:
    """The key behind `{kind}s/{job}/{step}/{attempt}/`. Of a key that accsd did not build, only the last part. The job,
    and the item of the step, may be others: of a cached result the file is where its task has put it."""
    parts = check_key(artifact.key)
    built = parts[0] in _FOLDERS and len(parts) > 1 and bool(_JOB.fullmatch(parts[1]))
    if artifact.task_key is None:
        return parts[2:] if built and len(parts) > 2 else parts[-1:]
    if not built or len(parts) < 4 or _step(parts[2]) != _step(artifact.task_key):
        return parts[-1:]
    return parts[4:] if len(parts) > 4 and _ATTEMPT.fullmatch(parts[3]) else parts[3:]


def _step(task_key: str) -> str:
    return task_key.partition("[")[0]


def _check_caps(artifacts: Sequence[Input], largest: int, most: int) -> None:
    if len(artifacts) > most:
        raise _refused(f"earlier steps made {len(artifacts)} artifacts; a task gets at most {most}")
    size = sum(artifact.size_bytes or 0 for artifact in artifacts)
    if size > largest:
        raise _refused(f"what earlier steps made has {size} bytes; a task gets at most {largest}")


def _in_envelope(artifact: Input, parts: Parts, stored: StoredObject) -> dict[str, Any]:
    return {
        "task_key": artifact.task_key,
        "kind": artifact.kind.value,
        "name": "/".join(parts[1 + len(_folder_of(artifact.task_key)) :]),
        "path": "/".join(parts),
        "content_type": artifact.content_type,
        "size_bytes": stored.size_bytes,
    }


@contextmanager
def _input_at_fault(artifact: Input) -> Generator[None]:
    what = f"input {artifact.key[:300]!a}"
    try:
        yield
    except NotFound as error:
        raise AttemptFailed(ErrorCode.STORAGE_UNAVAILABLE, f"{what} is gone: {error}") from error
    except ChecksumMismatch as error:
        raise AttemptFailed(ErrorCode.STORAGE_UNAVAILABLE, f"{what} is damaged: {error}") from error
    except TooLarge as error:
        raise _refused(f"{what} is larger than all inputs of a task may be") from error
    except (InvalidValue, NotADirectoryError, IsADirectoryError) as error:
        raise _refused(f"{what} has no place in the task's folder: {error}") from error


def _refused(message: str) -> AttemptFailed:
    """A permanent failure: the next attempt would meet the same."""
    return AttemptFailed(ErrorCode.ARTIFACT_MISSING, message, permanent=True)


async def lay_files(context: AttemptContext, workdir: Workdir, files: Sequence[TaskFile]) -> list[dict[str, Any]]:
    """Copies the files of the task's workflow into its folder; returns the envelope's list of files."""
    cache = context.files
    if cache is None or not files:
        return []

    async def lay(file: TaskFile) -> None:
        with _file_at_fault(file), failing_on_a_full_disk(f'file "{file.name}" of the workflow cannot be laid'):
            opened = await while_store_is_away(
                lambda: cache.opened(context.store, file.key, _digest(file), file.size_bytes), context.patience
            )
            try:
                await _copy(opened, file, workdir.here, (FILES_FOLDER, *file.name.split("/")))
            finally:
                os.close(opened)

    with cache.using(map(_digest, files)):
        await _all_of(lay, files, at_once=_DOWNLOADS)
    await anyio.to_thread.run_sync(cache.make_room)
    return [
        {
            "name": file.name,
            "path": f"{FILES_FOLDER}/{file.name}",
            "size_bytes": file.size_bytes,
            "sha256": _digest(file),
        }
        for file in files
    ]


def _digest(file: TaskFile) -> str:
    return file.checksum.removeprefix("sha256:")


async def _copy(opened: int, file: TaskFile, here: Path, parts: Parts) -> None:
    folder = await anyio.to_thread.run_sync(_make_folder, here, parts[:-1])
    try:
        async with local.arriving(folder) as arrival:
            left = file.size_bytes
            while left:
                copied = await anyio.to_thread.run_sync(arrival.copy, opened, min(left, _COPIED_AT_ONCE))
                if not copied:
                    raise AttemptFailed(ErrorCode.NODE_UNFIT, f'file "{file.name}" became shorter while it was copied')
                left -= copied
            arrival.chmod(0o644)
            arrival.move(parts[-1], folder)
    finally:
        os.close(folder)


@contextmanager
def _file_at_fault(file: TaskFile) -> Generator[None]:
    """A file that is not in the store is the fault of the workflow. Not for good: to apply it again mends it, and
    another node may see what this one does not, where a share is not mounted."""
    what = f'file "{file.name}" of the workflow'
    try:
        yield
    except NotFound as error:
        raise _no_file(f"{what} is not in the store: {error}") from error
    except (ChecksumMismatch, TooLarge) as error:
        raise _no_file(f"{what} is damaged in the store: {error}") from error
    except InvalidValue as error:
        raise _no_file(f"{what} can't be fetched: {error}") from error


def _no_file(message: str) -> AttemptFailed:
    return AttemptFailed(ErrorCode.FILE_MISSING, message)


async def keep_files(
    context: AttemptContext, task: ClaimedTask, workdir: Workdir, announced: Iterable[ArtifactAnnounced]
) -> None:
    """Keeps the files that a task announced. Required files are part of done: the first that can't be kept decides."""
    await _all_of(lambda artifact: _keep_file(context, task, workdir, artifact), announced, at_once=_UPLOADS)


async def _keep_file(context: AttemptContext, task: ClaimedTask, workdir: Workdir, artifact: ArtifactAnnounced) -> None:
    try:
        stored = await take_output(
            context.store,
            workdir,
            job_id=task.job_id,
            task_key=task.task_key,
            attempt_id=task.attempt_id,
            path=artifact.path,
            content_type=artifact.content_type,
            kind=artifact.kind,
            patience=context.patience,
        )
    except (AttemptFailed, StorageUnavailable) as error:
        if artifact.required:
            raise
        said = redact(f"{artifact.path} was not kept: {error}")
        context.reporter.event(TaskEvent(task.fence, said, Level.WARN, EventType.ARTIFACT))
        return
    await record_object(context, task, stored, artifact.kind)


async def record_object(
    context: AttemptContext,
    task: ClaimedTask,
    stored: StoredObject,
    kind: ArtifactKind,
    facts: Mapping[str, Any] | None = None,
) -> None:
    """Writes an artifact's row, after its object exists, and only from the attempt that holds the lease."""
    recorded = await until_answered(
        lambda: record_task_artifact(
            context.db,
            task.fence,
            owner=context.name,
            kind=kind,
            bucket=stored.bucket,
            key=stored.key,
            size_bytes=stored.size_bytes,
            content_type=stored.content_type,
            checksum=stored.checksum,
            facts=facts,
        )
    )
    failpoints.hit("artifact.row")
    if recorded.verdict is Verdict.REFUSED:
        raise VerbRefused("record_artifact", recorded.reason or "unknown", subject=stored.key)


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

    Once opened it is that file, whatever the task puts in its place. The protocol limits how many files there may be.
    """
    with _announcement_at_fault(path), failing_on_a_full_disk(f"artifact {_shown_path(path)} cannot be kept"):
        parts = _parts_beneath(workdir.seen, path)
        # Beside the segments of the task's own log, and never under the name of one.
        name = "/".join(("files", *parts) if kind is ArtifactKind.LOG else parts)
        key = build_key(job_id, task_key, kind, attempt_id=attempt_id, name=name)
        descriptor = await anyio.to_thread.run_sync(_open, workdir.here, parts, largest)
        try:
            stored = await while_store_is_away(
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
    with local.opened(here) as root:
        descriptor = local.open_regular(root, parts)
    if os.fstat(descriptor).st_size > largest:
        os.close(descriptor)
        raise TooLarge(f"has more than {largest} bytes")
    return descriptor


@contextmanager
def _announcement_at_fault(path: str) -> Generator[None]:
    """An announcement that cannot be honoured is the task's own failure."""
    try:
        yield
    except TooLarge as error:
        raise _not_taken(path, "is larger than an artifact may be") from error
    except InvalidValue as error:
        raise _not_taken(path, f"cannot be kept: {error}") from error
    except local.NotRegular as error:
        raise _not_taken(path, f"{error.strerror}; only regular files are kept") from error
    except FileNotFoundError as error:
        raise _not_taken(path, "is not there") from error
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.EXDEV):
            raise _not_taken(path, "is not there, or is a link or lies behind one; links are not followed") from error
        raise _not_taken(path, f"cannot be read: {error.strerror}") from error


def _not_taken(path: str, why: str) -> AttemptFailed:
    return AttemptFailed(ErrorCode.ARTIFACT_MISSING, f"artifact {_shown_path(path)} {why}")


def _shown_path(path: str) -> str:
    """A path that a task wrote, on one line and short."""
    printable = "".join(character if character.isprintable() else "?" for character in path)
    return f'"{printable if len(printable) <= _LONGEST_SHOWN else printable[:_LONGEST_SHOWN] + "…"}"'


T = TypeVar("T")


async def _all_of(work: Callable[[T], Awaitable[None]], items: Iterable[T], *, at_once: int) -> None:
    """Does it for all items, a few at once. The first error ends the others and is raised as it is."""
    limiter = anyio.CapacityLimiter(at_once)
    errors: list[Exception] = []

    async def one(item: T) -> None:
        async with limiter:
            try:
                await work(item)
            except Exception as error:  # noqa: BLE001 - raised again below, outside of the group
                errors.append(error)
                group.cancel_scope.cancel()

    async with anyio.create_task_group() as group:
        for item in items:
            group.start_soon(one, item)
    if errors:
        raise errors[0]


@contextmanager
def failing_on_a_full_disk(what: str) -> Generator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise AttemptFailed(ErrorCode.AGENT_DISK, f"{what}: {error.strerror}") from error


async def while_store_is_away(transfer: Callable[[], Awaitable[T]], patience: timedelta) -> T:
    """Repeats a transfer while the object store is away. An object that arrived damaged is not asked for again."""
    pauses = Backoff(*_PAUSES, spread=(0.5, 1))
    return await while_away(
        transfer, away=StorageUnavailable, except_for=(ChecksumMismatch,), pauses=pauses, patience=patience
    )
