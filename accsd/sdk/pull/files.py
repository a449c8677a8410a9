"""The folder of one task in pull mode: made when it is first asked for, its inputs fetched when they are, its announced
files kept before the task is finished. Most tasks have none, and pay nothing."""

from pathlib import Path
from typing import Any, Final

import anyio

from accsd.db import ClaimedTask, TaskEvent, Verdict, record_task_artifact, task_inputs
from accsd.errors import AttemptFailed, StorageUnavailable, VerbRefused
from accsd.model.state import ArtifactKind, EventType, Level
from accsd.retry import until_answered
from accsd.runners.base import Workdir
from accsd.sdk.wire import Message
from accsd.storage.base import StoredObject
from accsd.work.context import AttemptContext
from accsd.work.faults import failing_on_a_full_disk
from accsd.work.files import lay_inputs, take_output
from accsd.work.workspace import remove_folder

_UPLOADS: Final = 4


class Files:
    __slots__ = ("_context", "_here", "_is_laid", "_is_made", "_task")

    def __init__(self, task: ClaimedTask, context: AttemptContext, here: Path) -> None:
        self._task: ClaimedTask = task
        self._context: AttemptContext = context
        self._is_made: bool = False
        self._is_laid: bool = False
        self._here: Path = here

    @property
    def is_laid(self) -> bool:
        return self._is_laid

    def make(self) -> Path:
        """In the caller's thread: two calls of mkdir."""
        if not self._is_made:
            with failing_on_a_full_disk(f"the folder {self._here} cannot be made"):
                self._here.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._is_made = True
        return self._here

    async def lay(self) -> list[dict[str, Any]]:
        """Fetches what earlier steps made; answers the envelope's list of artifacts."""
        workdir, context = self._workdir(), self._context
        inputs = await until_answered(lambda: task_inputs(context.db, self._task.fence, owner=context.name))
        laid = await lay_inputs(context.store, workdir, inputs, patience=context.patience)
        self._is_laid = True
        return laid

    async def keep(self, announced: list[Message]) -> None:
        """Of each path the last announcement counts. The first file that cannot be kept decides."""
        wanted = {message["path"]: message for message in announced}
        errors: list[Exception] = []
        limiter = anyio.CapacityLimiter(_UPLOADS)

        async def keep(message: Message) -> None:
            async with limiter:
                try:
                    await self._keep(message)
                except Exception as error:  # noqa: BLE001 - raised again below, outside of the group
                    errors.append(error)
                    group.cancel_scope.cancel()

        async with anyio.create_task_group() as group:
            for message in wanted.values():
                group.start_soon(keep, message)
        if errors:
            raise errors[0]

    async def remove(self) -> None:
        if self._is_made:
            await remove_folder(self._here.parent)

    def _workdir(self) -> Workdir:
        return Workdir(self.make(), str(self._here))

    async def _keep(self, message: Message) -> None:
        task, context = self._task, self._context
        try:
            stored = await take_output(
                context.store,
                self._workdir(),
                job_id=task.job_id,
                task_key=task.task_key,
                attempt_id=task.attempt_id,
                path=message["path"],
                content_type=message["content_type"],
                patience=context.patience,
            )
        except (AttemptFailed, StorageUnavailable) as error:
            if message["required"]:
                raise
            said = f"{message['path']} was not kept: {error}"
            context.reporter.event(TaskEvent(task.fence, said, Level.WARN, EventType.ARTIFACT))
            return
        await self._record(stored)

    async def _record(self, stored: StoredObject) -> None:
        """The row comes after its object, and only from the attempt that holds the lease."""
        recorded = await until_answered(
            lambda: record_task_artifact(
                self._context.db,
                self._task.fence,
                owner=self._context.name,
                kind=ArtifactKind.OUTPUT,
                bucket=stored.bucket,
                key=stored.key,
                size_bytes=stored.size_bytes,
                content_type=stored.content_type,
                checksum=stored.checksum,
            )
        )
        if recorded.verdict is Verdict.REFUSED:
            raise VerbRefused("record_artifact", recorded.reason or "unknown", subject=stored.key)
