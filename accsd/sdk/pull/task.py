"""The object that the author's function gets in pull mode: the same as in a process of its own, without the pipe.

Its messages go to the node's reporter. A task without messages and files pays for neither.
"""

import asyncio
import logging
import threading
from contextvars import ContextVar
from functools import cached_property
from pathlib import Path
from typing import Any, Final, cast

from accsd.db import ClaimedTask, TaskEvent, emit_event
from accsd.log import known_level, redact
from accsd.model.state import EventType, Level
from accsd.runners.base import WORK_FOLDER
from accsd.sdk.pull.files import Files
from accsd.sdk.wire import SCHEMA_VERSION, Message, Task
from accsd.work.context import AttemptContext
from accsd.work.protocol.wire import trace_of

_EVENTS: Final = 1000
_LEVELS: Final = ((logging.ERROR, "error"), (logging.WARNING, "warn"), (logging.INFO, "info"))
CURRENT: Final[ContextVar["PullTask | None"]] = ContextVar("accsd_task", default=None)


def _claimed(name: str) -> Any:
    return property(lambda task: getattr(task.claimed, name))


class PullTask(Task[Any]):
    options: dict[str, Any] = _claimed("options")
    upstream: dict[str, Any] = _claimed("inputs")
    envelope: dict[str, Any] = cast("Any", cached_property(lambda task: _envelope(task.claimed, task._context)))

    def __init__(self, claimed: ClaimedTask, context: AttemptContext, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(None, _said)
        self._files: Files | None = None
        self.has_spoken: bool = False
        self.claimed: ClaimedTask = claimed
        self._context: Final = context
        self._loop: Final = loop
        self._thread: Final = threading.get_ident()
        self._events_left: int = _EVENTS

    @property
    def disk(self) -> Files:
        if self._files is None:
            self._files = Files(self.claimed, self._context, Path(self.envelope["workdir"]))
        return self._files

    @property
    def has_files(self) -> bool:
        return self._files is not None

    @property
    def workdir(self) -> Path:
        return self.disk.make()

    def files(self, step: str | None = None, among: str = "artifacts") -> dict[str, Path]:
        if not self.disk.is_laid:
            self._fetch_inputs()
        return super().files(step, among)

    async def load_inputs(self) -> None:
        if not self.disk.is_laid:
            self.envelope.update(await self.disk.lay())

    def progress(self, fraction: float, message: str | None = None) -> None:
        """Reports progress without pacing: the reporter sends only the newest, and not too often."""
        super().progress(fraction, message)
        self.tell_progress()

    def emit(self, topic: str, payload: dict[str, Any] | None = None, *, key: str | None = None) -> int:
        """Emits an event of this task's job, and returns its id. With a key, a repeated attempt emits it once."""
        if self._is_in_loop():
            raise RuntimeError("an async function emits so: `await task.emit_event(…)`")
        emitting = self.emit_event(topic, payload, key=key)
        return asyncio.run_coroutine_threadsafe(emitting, self._loop).result()

    async def emit_event(self, topic: str, payload: dict[str, Any] | None = None, *, key: str | None = None) -> int:
        source = f"service:{self.claimed.service_name}"
        job_id = self.claimed.job_id
        return (await emit_event(self._context.db, topic, payload, key=key, source=source, job_id=job_id)).event_id

    def _fetch_inputs(self) -> None:
        if self._is_in_loop():
            raise RuntimeError("an async function fetches its inputs first: `await task.load_inputs()`")
        asyncio.run_coroutine_threadsafe(self.load_inputs(), self._loop).result()

    def _is_in_loop(self) -> bool:
        return threading.get_ident() == self._thread

    def say(self, message: Message) -> None:
        if message["type"] not in ("progress", "log"):
            return  # a file or the result: it is in the answer
        self.has_spoken = True
        if self._is_in_loop():
            self._tell(message)
        else:
            self._loop.call_soon_threadsafe(self._tell, message)

    def _tell(self, message: Message) -> None:
        if message["type"] == "progress":
            self._context.reporter.progress(self.claimed.fence, message["progress"], message.get("message"))
            return
        self._events_left -= 1
        if self._events_left > 0:
            self._event(known_level(message["level"]), message["message"], message.get("data"))
        elif self._events_left == 0:
            self._event(Level.WARN, f"more than {_EVENTS} lines: the rest is not kept")

    def _event(self, level: Level, message: str, data: object = None) -> None:
        self._context.reporter.event(TaskEvent(self.claimed.fence, redact(message), level, EventType.LOG, data))


def _said(_: Message) -> None:
    """PullTask overrides `say`: handing the bound method over would make a reference cycle of each task."""


def _envelope(claimed: ClaimedTask, context: AttemptContext) -> dict[str, Any]:
    job_id, task_id = claimed.job_id, str(claimed.task_id)
    return {
        "schema_version": SCHEMA_VERSION,
        "job_id": str(job_id),
        "job_task_id": task_id,
        "attempt_id": claimed.attempt_id,
        "attempt": claimed.attempt,
        "max_attempts": claimed.max_attempts,
        "task_key": claimed.task_key,
        "service": claimed.service_name,
        "params": claimed.params,
        "options": claimed.options,
        "inputs": claimed.inputs,
        "omitted": list(claimed.omitted),
        "artifacts": [],
        "files": [],
        "workdir": f"{context.attempts_folder}/{task_id}.{claimed.attempt_id}/{WORK_FOLDER}",
        "trace_id": trace_of(claimed.trace_id, job_id).trace_id if claimed.trace_id else job_id.hex,
        "trigger": claimed.trigger,
    }


class PullTaskLog(logging.Handler):
    """Takes records of `logging` that a task's function makes, in its thread or in its context."""

    def emit(self, record: logging.LogRecord) -> None:
        task = CURRENT.get()
        if task is None:
            if record.levelno >= logging.WARNING and logging.lastResort is not None:
                logging.lastResort.handle(record)  # where the record would have gone without us
            return
        level = next((name for least, name in _LEVELS if record.levelno >= least), "debug")
        task.log(self.format(record), level, logger=record.name)
