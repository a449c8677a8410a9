"""The folder of one task in pull mode: made on first use, its inputs fetched on first use, its announced files kept
before the task is finished. Most tasks have none, and pay nothing."""

from pathlib import Path
from typing import Any

from accsd.db import ClaimedTask, task_objects
from accsd.retry import until_answered
from accsd.runners.base import Workdir
from accsd.sdk.wire import Message
from accsd.work.context import AttemptContext
from accsd.work.files import failing_on_a_full_disk, keep_files, lay_files, lay_inputs
from accsd.work.protocol import ArtifactAnnounced
from accsd.work.workspace import remove_folder


class Files:
    __slots__ = ("_context", "_here", "_is_laid", "_is_made", "_task")

    def __init__(self, task: ClaimedTask, context: AttemptContext, here: Path) -> None:
        self._task = task
        self._context = context
        self._is_made: bool = False
        self._is_laid: bool = False
        self._here = here

    @property
    def is_laid(self) -> bool:
        return self._is_laid

    def make(self) -> Path:
        """Makes the folder in the caller's thread: two calls of mkdir."""
        if not self._is_made:
            with failing_on_a_full_disk(f"the folder {self._here} cannot be made"):
                self._here.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._is_made = True
        return self._here

    async def lay(self) -> dict[str, list[dict[str, Any]]]:
        """Fetches the files of earlier steps and those of the workflow; returns what the envelope says of them."""
        workdir, context = self._workdir(), self._context
        inputs, files = await until_answered(lambda: task_objects(context.db, self._task.fence, owner=context.name))
        laid = {
            "artifacts": await lay_inputs(context.store, workdir, inputs, patience=context.patience),
            "files": await lay_files(context, workdir, files),
        }
        self._is_laid = True
        return laid

    async def keep(self, announced: list[Message]) -> None:
        """Keeps announced files; the last announcement of each path counts."""
        wanted = {
            message["path"]: ArtifactAnnounced(
                message["path"], content_type=message["content_type"], required=message["required"]
            )
            for message in announced
        }
        await keep_files(self._context, self._task, self._workdir(), wanted.values())

    async def remove(self) -> None:
        if self._is_made:
            await remove_folder(self._here.parent)

    def _workdir(self) -> Workdir:
        return Workdir(self.make(), str(self._here))
