"""Watching one execution to its end: its lines become progress, events, the log and the answer; its limits are kept.

The log goes to the object store while the work runs, the announced files when it has ended: a file is whole then, and
only the last announcement of a path counts.
"""

import asyncio
import time
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import anyio
import anyio.lowlevel
from anyio.abc import TaskGroup

from accsd import failpoints
from accsd.db import ClaimedTask, TaskEvent
from accsd.errors import AccsdError, AttemptFailed, Bug, ConfigError, StorageUnavailable
from accsd.log import get_logger, redact
from accsd.model.outcome import ErrorCode
from accsd.model.state import ArtifactKind, EventType, Level
from accsd.retry import Backoff, until_answered
from accsd.runners.base import Ending, Execution, Launch, Output, Stream
from accsd.storage.base import build_key
from accsd.work.context import AttemptContext
from accsd.work.files import keep_files, record_object
from accsd.work.output import output_problem
from accsd.work.protocol import (
    ArtifactAnnounced,
    Expected,
    Failure,
    Heartbeat,
    Infrastructure,
    LogLine,
    Message,
    ProgressLine,
    ProtocolViolation,
    Result,
    ResultTooLarge,
    Success,
    TaskAnswer,
    Verdict,
    parse_line,
    verdict_of,
)
from accsd.work.protocol.framing import LineSplitter, OutputLine
from accsd.work.secrets import struck_out
from accsd.work.service import LocalService
from accsd.work.tasklog import LogPosition, Segment, TaskLog

_log = get_logger(component="attempt")
_LOG_FOLDER: Final = "log"  # in the attempt's folder
# How many log lines become events too, for people who follow the job; all lines are in the log.
_REST_IN_LOG: Final = "the rest is in the log only"
_EVENTS: Final = 1000
_LOG_PATIENCE: Final = timedelta(seconds=20)  # with a store that accepts nothing
_AGAIN: Final = (timedelta(seconds=0.5), timedelta(seconds=5))
# A log can wait for both, also for a person who corrects the store's keys.
_STORE_PROBLEMS: Final = (StorageUnavailable, ConfigError)


class WatchedExecution:
    def __init__(
        self, task: ClaimedTask, service: LocalService, context: AttemptContext, launch: Launch, execution: Execution
    ) -> None:
        self._task = task
        self._service = service
        self._context = context
        self._launch = launch
        self._execution = execution
        self._tasklog: TaskLog = TaskLog(launch.folder / _LOG_FOLDER)
        self._output: OutputReader = OutputReader(Expected(task.job_id, task.attempt_id), self._tasklog)
        self._events_left: int = _EVENTS
        self._stopped: Failure | Infrastructure | None = None
        self._has_ended: bool = False
        self._is_cut_off: bool = False  # it wrote too much: the rest of its output is not read
        self._group: TaskGroup = anyio.create_task_group()

    async def verdict(self, ending: Ending) -> Verdict:
        """The verdict after the end: keeps the rest of the log and, if the task succeeded, its files."""
        for message in self._output.close():
            self._act(message)
        answer = self._output.answer
        verdict = self._checked(
            verdict_of(ending, answer.result, answer.violation, stopped=self._stopped, reason=answer.reason)
        )
        self._tell_usage(ending)
        await self._keep_log()
        if isinstance(verdict, Success):
            await self._keep_files()
        await self._flush()
        return verdict

    def _checked(self, verdict: Verdict) -> Verdict:
        if not isinstance(verdict, Success) or (self._task.output_schema is None and not self._task.secrets):
            return verdict
        if (wrong := output_problem(self._task, verdict.results)) is not None:
            return Failure(ErrorCode.OUTPUT_INVALID, wrong)
        return Success(struck_out(self._task, verdict.results))

    async def ending(self) -> Ending:
        """Watches to the end. Errors are carried out by hand, because a task group would wrap them."""
        found: list[Ending | Exception] = []

        async def watch() -> None:
            # A task of its own: a cancellation that a library has left counted on it must not come out of the group.
            try:
                with contained():
                    found.append(await self._execution.watch(self._take, self._output.cursor))
            except Exception as error:  # noqa: BLE001 - raised again below
                found.append(error)
            self._group.cancel_scope.cancel()

        async with self._group:
            self._group.start_soon(self._keep_time)
            self._group.start_soon(self._ship_log)
            self._group.start_soon(watch)
        self._has_ended = True
        if not found:
            raise Bug("its watch was cancelled, and nobody had asked for it")
        ending = found[0]
        if isinstance(ending, Exception):
            raise ending
        return ending

    # Its output

    async def _take(self, output: Output) -> None:
        if self._is_cut_off:
            return
        # A flood must not keep the loop to itself: heartbeats go on.
        await anyio.lowlevel.checkpoint()
        for message in self._output.hear(output):
            failpoints.hit("line.first")
            self._act(message)
        # Output that is not read yet counts too: long before a flood is read, it could have filled the disk.
        if self._output.output_bytes + output.waiting > self._service.output_limit:
            self._is_cut_off = True
            self._context.metrics.truncated(output.stream)
            said = f"it wrote more than {self._service.output_limit} bytes to stdout and stderr"
            self._event(Level.WARN, EventType.TRUNCATED, said)
            self._stop(Failure(ErrorCode.OUTPUT_LIMIT, said), timedelta(0))
        if self._tasklog.is_full:
            await self._output.seal()

    def _act(self, message: Message) -> None:
        match message:
            case LogLine():
                self._act_on_line(message)
            case ProgressLine():
                self._context.reporter.progress(self._task.fence, message.progress, message.message)
            case ProtocolViolation():
                self._context.metrics.protocol_error(self._task.service_name)
                self._stop(Failure(ErrorCode.PROTOCOL_ERROR, message.reason), self._service.stop_grace)
            case Result():
                if message.judgement is not None:
                    self._context.metrics.verdict(message.judgement.verdict)
            case ArtifactAnnounced() | Heartbeat() | ResultTooLarge():
                pass  # what the end depends on is in the answer

    def _act_on_line(self, line: LogLine) -> None:
        if line.problem is not None:
            self._context.metrics.protocol_error(self._task.service_name)
        self._events_left -= 1
        if self._events_left > 0:
            data = line.data if line.problem is None else {"problem": line.problem}
            self._event(line.level, EventType.LOG, line.message, data)
        elif self._events_left == 0:
            self._event(Level.INFO, EventType.LOG, f"more than {_EVENTS} lines: {_REST_IN_LOG}")

    def _event(self, level: Level, kind: str, message: str, data: object = None) -> None:
        self._context.reporter.event(TaskEvent(self._task.fence, redact(message), level, kind, data))

    # Its limits

    def _stop(self, verdict: Failure | Infrastructure, grace: timedelta) -> None:
        """Stops the execution. The first reason counts. `watch` returns when the execution is gone."""
        if self._stopped is None:
            self._stopped = verdict
            _log.warning("stopping", code=verdict.code, reason=verdict.message)
            if not self._has_ended:
                self._group.start_soon(self._end_it, grace)

    async def _end_it(self, grace: timedelta) -> None:
        """Ends the execution. An engine that does not answer now must not turn the reason for the stop into a loss."""
        pauses = Backoff(*_AGAIN)
        while True:
            try:
                return await self._execution.stop(grace)
            except (AccsdError, OSError) as error:
                _log.warning("not_stopped", error=str(error) or type(error).__name__)
                await pauses.pause()

    async def _keep_time(self) -> None:
        limit = self._task.timeout or self._service.timeout
        if limit is None:
            return
        # An adopted execution has spent some of its time already.
        await anyio.sleep(max(0.0, limit.total_seconds() - seconds_run(self._launch.folder)))
        said = f"it ran longer than {limit.total_seconds():g} s"
        self._stop(Failure(ErrorCode.TIMEOUT, said), self._service.stop_grace)

    def _tell_usage(self, ending: Ending) -> None:
        usage = {
            "exit_code": ending.exit_code,
            "max_rss_bytes": ending.max_rss_bytes,
            "cpu_seconds": None if ending.cpu is None else round(ending.cpu.total_seconds(), 3),
        }
        known = {name: value for name, value in usage.items() if value is not None}
        if known:
            self._event(Level.DEBUG, "usage", "what it used", known)

    # Its log

    async def _ship_log(self) -> None:
        """Ships parts of the log as they are sealed: here by their age, or by the reader of a flood when full."""
        pauses = Backoff(*_AGAIN)
        while True:
            await self._tasklog.due()
            try:
                if self._tasklog.is_old:
                    await self._output.seal()
                if self._tasklog.unshipped:
                    await self._tasklog.ship_next(self._ship)
                pauses.reset()
            except AttemptFailed as failed:
                self._stop(Infrastructure(ErrorCode(failed.code), failed.message), timedelta(0))
                return
            except _STORE_PROBLEMS as error:
                _log.warning("log_waits", error=str(error))
                await pauses.pause()

    async def _keep_log(self) -> None:
        """Ships the whole rest of the log, however long a store takes that goes on accepting. The verdict does not
        depend on it: an event says which part is missing, and why."""
        await self._output.seal()
        pauses, patience = Backoff(*_AGAIN), min(_LOG_PATIENCE, self._context.patience).total_seconds()
        progress_at = time.monotonic()
        while left := self._tasklog.unshipped:
            try:
                await self._tasklog.ship_next(self._ship)
                progress_at = time.monotonic()
                pauses.reset()
            except _STORE_PROBLEMS as error:
                _log.warning("log_waits", error=str(error))
                if time.monotonic() - progress_at > patience:
                    parts = "last part" if len(left) == 1 else f"last {len(left)} parts"
                    self._event(Level.WARN, EventType.TRUNCATED, f"the {parts} of the log could not be kept: {error}")
                    return
                await pauses.pause()

    async def _ship(self, segment: Segment) -> None:
        """Ships one segment. Only the store's time is limited: without the database no attempt could end either."""
        task = self._task
        key = build_key(task.job_id, task.task_key, ArtifactKind.LOG, attempt_id=task.attempt_id, name=segment.name)
        try:
            with anyio.fail_after(_LOG_PATIENCE.total_seconds()):
                stored = await self._context.store.put_file(key, segment.path, content_type="application/x-ndjson")
        except TimeoutError as error:
            within = _LOG_PATIENCE.total_seconds()
            raise StorageUnavailable(f"the object store did not take a part of it within {within:g} s") from error
        await record_object(self._context, self._task, stored, ArtifactKind.LOG, await segment.facts())

    # Its files

    async def _keep_files(self) -> None:
        announced = list(self._output.answer.artifacts.values())
        workdir = self._launch.workdir
        if announced and workdir is None:
            first = announced[0].path
            said = f"it announced {first}, and service {self._service.name} has no folder that both sides see"
            raise AttemptFailed(ErrorCode.ARTIFACT_MISSING, said, hint="give the service accs.workdir and a bind mount")
        if workdir is not None:
            await keep_files(self._context, self._task, workdir, announced)

    async def _flush(self) -> None:
        """Sends all events: they must be in the database before the lease is given up."""
        await until_answered(self._context.reporter.flush)


def is_rest_in_log(message: str | None) -> bool:
    """Whether an event is the last of an attempt that writes more lines than there are events for."""
    return (message or "").endswith(_REST_IN_LOG)


_BEGAN: Final = "began"  # in the attempt's folder


def seconds_run(folder: Path) -> float:
    """Seconds since the first call for this folder, over a restart of the agent too. The clock can't be set: the
    monotonic one goes on from one process to the next for as long as the machine runs, and no work outlives a boot."""
    now = time.monotonic()
    try:
        return max(0.0, now - float((folder / _BEGAN).read_text()))
    except (OSError, ValueError):
        with suppress(OSError):  # a full disk: an agent that adopts the attempt counts anew
            (folder / _BEGAN).write_text(str(now))
        return 0.0


@contextmanager
def contained() -> Generator[None]:
    """Raises Bug, with its cause, instead of a cancellation that no scope around this block asked for.

    A task group takes any cancellation of a child for its own end and silently cancels the other children. So code that
    runs a runner, a store or an attempt as the child of a group does it in this block."""
    try:
        yield
    except asyncio.CancelledError as stray:
        if anyio.get_current_task().has_pending_cancellation():
            raise
        raise Bug("it was cancelled, and nobody had asked for it") from stray


class OutputReader:
    """Reads the output of one attempt: it becomes messages, the log grows, and the answer is remembered. It begins
    where the log's last seal left off: watch the execution from `cursor`.

    Everything for one chunk happens in one synchronous step, and a seal saves the state between two chunks. So the
    cursor, the lines that have only begun, the answer and the log always agree, whenever the agent dies."""

    def __init__(self, expected: Expected, log: TaskLog) -> None:
        place = log.place
        self._expected = expected
        self._log = log
        self._splitters: dict[Stream, LineSplitter] = {
            stream: LineSplitter(place.partial.get(stream)) for stream in Stream
        }
        self.cursor = place.cursor
        self.output_bytes: int = place.carried.get("output_bytes", 0)
        self.answer: TaskAnswer = TaskAnswer.from_json(place.carried["answer"]) if place.carried else TaskAnswer()

    def hear(self, output: Output) -> list[Message]:
        """The messages that end in this chunk, for the caller to act on. Their log lines are in the log already."""
        self.output_bytes += len(output.data)
        self.cursor = output.cursor
        return list(self._take(output.stream, self._splitters[output.stream].feed(output.data)))

    def close(self) -> list[Message]:
        """The messages behind the last newlines, when the work has ended. Seal once more afterwards."""
        heard: list[Message] = []
        for stream, splitter in self._splitters.items():
            if (last := splitter.close()) is not None:
                heard += self._take(stream, [last])
        return heard

    async def seal(self) -> Segment | None:
        return await self._log.seal(self._place)

    def _place(self) -> LogPosition:
        partial = {stream: splitter.partial for stream, splitter in self._splitters.items()}
        carried = {"answer": self.answer.as_json(), "output_bytes": self.output_bytes}
        return LogPosition(self.cursor, partial, carried)

    def _take(self, stream: Stream, lines: Iterable[OutputLine]) -> Iterator[Message]:
        now = datetime.now(UTC)
        for line in lines:
            message = parse_line(line, stream, self._expected)
            if isinstance(message, LogLine):
                self._log.add(stream, message, now)
            self.answer.note(message)
            yield message
