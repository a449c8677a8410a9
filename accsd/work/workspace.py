"""The folder of one attempt: made, given its envelope and inputs, and removed.

    attempts/{task}.{attempt}/      0700: no other user of this machine gets through
        task.json                   0644: the envelope; the container's user reads it where it is mounted
        work/                       0777: the task's own; that user writes there, and the folder above keeps others out
            inputs/{step}/{name}    what earlier steps made
            files/{name}            files of the workflow

A full disk is AttemptFailed(agent_disk), wherever it shows. A task does what it likes in its folder (read-only
folders, links to elsewhere, a depth without end), so the removal follows no link and enters no folder that another
file system is mounted on. Folders are moved to the top before they are emptied: a tree of any depth takes two
descriptors, and the move also fails for a mount.
"""

import os
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import anyio.to_thread

from accsd import failpoints
from accsd.db import ClaimedTask, task_objects
from accsd.errors import AttemptFailed
from accsd.log import get_logger
from accsd.model.fence import Fence
from accsd.model.outcome import ErrorCode
from accsd.retry import until_answered
from accsd.runners.base import TASK_FILE, WORK_FOLDER, Launch, Workdir
from accsd.storage import local
from accsd.storage.local import opened
from accsd.values.json import MAX_DEPTH, is_too_deep
from accsd.work.context import AttemptContext
from accsd.work.files import failing_on_a_full_disk, lay_files, lay_inputs
from accsd.work.lease import Lease
from accsd.work.protocol import envelope, environment
from accsd.work.protocol.wire import trace_of
from accsd.work.secrets import with_secrets
from accsd.work.service import LocalService

_log = get_logger(component="workspace")
_LOOK = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LIST = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


async def prepare(task: ClaimedTask, service: LocalService, context: AttemptContext, lease: Lease) -> Launch:
    launch = launch_of(task, service, context, lease)
    await make_folder(context.attempts_folder, task.fence)
    laid: list[dict[str, object]] = []
    files: list[dict[str, object]] = []
    if launch.workdir is not None:
        await make_workdir(launch.workdir.here)
        inputs, wanted = await until_answered(lambda: task_objects(context.db, task.fence, owner=context.name))
        laid = await lay_inputs(context.store, launch.workdir, inputs, patience=context.patience)
        files = await lay_files(context, launch.workdir, wanted)
    given = await anyio.to_thread.run_sync(with_secrets, task, context.secrets) if task.secrets else task
    await write_envelope(launch.folder, _envelope(given, launch, laid, files))
    failpoints.hit("prepared")
    return launch


def launch_of(task: ClaimedTask, service: LocalService, context: AttemptContext, lease: Lease) -> Launch:
    """The launch of an attempt that is adopted: the same as it was started with."""
    folder = context.folder(task.fence)
    workdir = service.runner.workdir(task.fence, folder)
    trace = trace_of(task.trace_id, task.job_id)
    return Launch(
        fence=task.fence,
        job_id=task.job_id,
        folder=folder,
        workdir=workdir,
        environ=environment(
            job_id=task.job_id,
            job_task_id=task.task_id,
            attempt_id=task.attempt_id,
            trace_id=trace.trace_id,
            traceparent=trace.traceparent(),
            task_file=str(folder / TASK_FILE),
            workdir=_seen(workdir),
        ),
        clearance=partial(context.leases.confirmed, lease),
    )


def _envelope(
    task: ClaimedTask, launch: Launch, laid: Sequence[Mapping[str, object]], files: Sequence[Mapping[str, object]]
) -> bytes:
    """The envelope. Accsd has not checked everything in the database: a task whose values can't be encoded fails."""
    try:
        return envelope(
            job_id=task.job_id,
            job_task_id=task.task_id,
            attempt_id=task.attempt_id,
            task_key=task.task_key,
            service=task.service_name,
            params=task.params,
            options=task.options,
            inputs=task.inputs,
            omitted=task.omitted,
            trace_id=trace_of(task.trace_id, task.job_id).trace_id,
            workdir=_seen(launch.workdir),
            artifacts=laid,
            files=files,
            attempt=task.attempt,
            max_attempts=task.max_attempts,
            trigger=task.trigger,
        )
    except (TypeError, ValueError) as error:
        given = {"params": task.params, "options": task.options, "results of earlier steps": task.inputs}
        deep = " and ".join(what for what, value in given.items() if is_too_deep(value))
        why = f"its {deep} are nested deeper than {MAX_DEPTH} levels" if deep else str(error)
        raise AttemptFailed(ErrorCode.PROTOCOL_ERROR, f"the task cannot be given: {why}", permanent=True) from error


def _seen(workdir: Workdir | None) -> str | None:
    return None if workdir is None else workdir.seen


async def clear_away(fence: Fence, service: LocalService, context: AttemptContext) -> None:
    """Removes an attempt's folders, wherever they lie. Idempotent."""
    folder = context.folder(fence)
    workdir = service.runner.workdir(fence, folder)
    if workdir is not None:
        await remove_folder(workdir.here)
    await remove_folder(folder)


async def make_folder(attempts: Path, fence: Fence) -> Path:
    """Makes the attempt's folder with the task's own in it. A folder that is there already is kept as it is."""
    folder = attempts / str(fence)
    with failing_on_a_full_disk(f"the folder of attempt {fence} cannot be made"):
        await anyio.to_thread.run_sync(_make, folder, 0o700)
        await make_workdir(folder / WORK_FOLDER)
    return folder


async def make_workdir(here: Path) -> None:
    """Makes the task's own folder. Called for a runner that has it outside of the attempt's folder."""
    with failing_on_a_full_disk(f"the folder {here} cannot be made"):
        await anyio.to_thread.run_sync(_make_parent, here.parent)
        await anyio.to_thread.run_sync(_make, here, 0o777)


async def write_envelope(folder: Path, envelope: bytes) -> None:
    """Writes the envelope, which appears complete or not at all: an adopting agent may read it at any time."""
    with failing_on_a_full_disk(f"the envelope in {folder} cannot be written"):
        await anyio.to_thread.run_sync(_write, folder / TASK_FILE, envelope)


async def remove_folder(folder: Path) -> bool:
    """Returns whether nothing is left. Files that can't be removed are logged and stay: they don't fail an attempt."""
    left = await anyio.to_thread.run_sync(remove_tree, folder)
    if left:
        _log.warning("folder_not_removed", folder=str(folder), left=dict(list(left.items())[:10]), count=len(left))
    return not left


def _make(folder: Path, mode: int) -> None:
    folder.mkdir(mode=mode, exist_ok=True)
    with local.opened(folder) as made:
        os.fchmod(made, mode)  # whatever the umask says


def _make_parent(folder: Path) -> None:
    """Makes the folder that a service mounts. Docker makes it too, but only when the service starts."""
    if not folder.exists():
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o755)  # the container's user must be able to pass through it


def _write(path: Path, data: bytes) -> None:
    unfinished = path.with_name(f".{path.name}.part")
    try:
        with open(unfinished, "wb") as file:
            os.fchmod(file.fileno(), 0o644)
            file.write(data)
        unfinished.rename(path)
    except OSError:
        unfinished.unlink(missing_ok=True)
        raise


def remove_tree(folder: Path) -> dict[str, str]:
    """Returns what could not be removed, and why. Calling it again goes on where it stopped."""
    try:
        with opened(folder.parent, _LIST) as parent:
            return _remove_from(parent, folder.name)
    except FileNotFoundError:
        return {}
    except OSError as error:
        return {folder.name: error.strerror or str(error)}


def _remove_from(parent: int, name: str) -> dict[str, str]:
    try:
        top = _enter(name, parent)
    except NotADirectoryError:  # a file or a link: the link itself, not its target
        os.unlink(name, dir_fd=parent)
        return {}
    try:
        left = _empty(top)
    finally:
        os.close(top)
    if not left:
        os.rmdir(name, dir_fd=parent)
    return left


def _empty(top: int) -> dict[str, str]:
    left: dict[str, str] = {}
    while names := [name for name in os.listdir(top) if name not in left]:
        waiting = [(name, False) for name in names]
        while waiting:
            name, is_aside = waiting.pop()
            try:
                name = name if is_aside else _move_aside(top, name, top)
                waiting.extend((moved, True) for moved in _remove_entry(top, name))
            except OSError as error:
                left[name] = error.strerror or str(error)
    return left


def _remove_entry(top: int, name: str) -> list[str]:
    """Removes a file. Of a folder, removes the files and moves its folders to the top; returns their new names."""
    try:
        folder = _enter(name, top)
    except NotADirectoryError:
        os.unlink(name, dir_fd=top)
        return []
    moved: list[str] = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    moved.append(_move_aside(folder, entry.name, top))
                else:
                    os.unlink(entry.name, dir_fd=folder)
    finally:
        os.close(folder)
    os.rmdir(name, dir_fd=top)
    return moved


def _move_aside(folder: int, name: str, top: int) -> str:
    aside = f".{secrets.token_hex(8)}.gone"
    try:
        os.rename(name, aside, src_dir_fd=folder, dst_dir_fd=top)
    except PermissionError:  # moving a folder writes into it
        os.close(_enter(name, folder))
        os.rename(name, aside, src_dir_fd=folder, dst_dir_fd=top)
    return aside


def _enter(name: str, parent: int) -> int:
    """Opens a folder and makes it writable for its owner: its mode may deny listing and deleting."""
    with opened(name, _LOOK, at=parent) as looked_at:
        with suppress(PermissionError):
            os.chmod(f"/proc/self/fd/{looked_at}", 0o700)
        return os.open(f"/proc/self/fd/{looked_at}", _LIST)
