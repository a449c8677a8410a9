"""The folder of one attempt: made, given its envelope and inputs, relieved of its outputs, removed.

    attempts/{task}.{attempt}/      0700: nobody else on this machine gets through
        task.json                   0644: the envelope; whoever is the container's user reads it where it is mounted
        work/                       0777: the task's own; that user writes there, and the folder above keeps others out
            inputs/{step}/{name}    what earlier steps made

A full disk is AttemptFailed(agent_disk), wherever it shows.
"""

import os
from pathlib import Path

import anyio.to_thread

from accsd.log import get_logger
from accsd.model.fence import Fence
from accsd.runners.base import TASK_FILE, WORK_FOLDER
from accsd.storage import beneath
from accsd.work.faults import failing_on_a_full_disk
from accsd.work.inputs import InputArtifact, lay_inputs
from accsd.work.outputs import take_output
from accsd.work.removal import remove_tree

__all__ = [
    "InputArtifact",
    "lay_inputs",
    "make_folder",
    "make_workdir",
    "remove_folder",
    "take_output",
    "write_envelope",
]

_log = get_logger(component="workspace")


async def make_folder(attempts: Path, key: Fence) -> Path:
    """The attempt's folder with the task's own in it. One that is there already is taken as it is."""
    folder = attempts / str(key)
    with failing_on_a_full_disk(f"the folder of attempt {key} cannot be made"):
        await anyio.to_thread.run_sync(_make, folder, 0o700)
        await make_workdir(folder / WORK_FOLDER)
    return folder


async def make_workdir(here: Path) -> None:
    """The task's own folder; called for a runner that has it elsewhere than in the attempt's."""
    with failing_on_a_full_disk(f"the folder {here} cannot be made"):
        await anyio.to_thread.run_sync(_make_parent, here.parent)
        await anyio.to_thread.run_sync(_make, here, 0o777)


async def write_envelope(folder: Path, envelope: bytes) -> None:
    """Appears complete or not at all: an agent that comes back may read it at any time."""
    with failing_on_a_full_disk(f"the envelope in {folder} cannot be written"):
        await anyio.to_thread.run_sync(_write, folder / TASK_FILE, envelope)


async def remove_folder(folder: Path) -> bool:
    """Whether nothing is left. What may not be removed is no reason to fail an attempt: it is logged, and stays."""
    left = await anyio.to_thread.run_sync(remove_tree, folder)
    if left:
        _log.warning("folder_not_removed", folder=str(folder), left=dict(list(left.items())[:10]), count=len(left))
    return not left


def _make(folder: Path, mode: int) -> None:
    folder.mkdir(mode=mode, exist_ok=True)
    with beneath.opened(folder) as made:
        os.fchmod(made, mode)  # whatever the umask says


def _make_parent(folder: Path) -> None:
    """The folder that a service mounts may not be there yet: Docker makes it too, but only when the service starts."""
    if not folder.exists():
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o755)  # the container's user goes through it


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
