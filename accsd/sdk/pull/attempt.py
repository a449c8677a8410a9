"""One claimed task in pull mode: calls the author's function, and turns whatever it does into an outcome.

It is stopped for one of three reasons: its lease is gone (then nothing is written), its time is over, or the service
drains. An async function is cancelled; a plain one is asked, because a thread can't be stopped.
"""

import asyncio
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum, auto
from typing import Any, Final, cast

from pydantic import BaseModel

from accsd.db import ClaimedTask, Done, Failed
from accsd.errors import AttemptFailed, ConfigError, ServiceBusy, StorageUnavailable
from accsd.log import LoggedEvent, get_logger, redact
from accsd.model.outcome import ErrorCode
from accsd.model.state import Level
from accsd.retry import until_answered
from accsd.sdk.pull.task import CURRENT, PullTask
from accsd.sdk.pull.threads import Threads
from accsd.sdk.wire import Cancelled, Permanent, Task, Temporary
from accsd.values.json import sanitise
from accsd.work.context import AttemptContext
from accsd.work.finish import End, GivenBack
from accsd.work.lease import NOT_KEPT, Lease
from accsd.work.output import output_problem
from accsd.work.protocol import MAX_RESULT_BYTES, Infrastructure
from accsd.work.secrets import struck_out, with_secrets

_log = get_logger(component="pull")
_UNCUT: Final = 4 * MAX_RESULT_BYTES  # larger results were refused before
_LONGEST_MESSAGE: Final = 16_000


class Stop(Enum):
    LOST = auto()
    TIMEOUT = auto()
    DRAIN = auto()


@dataclass(frozen=True, slots=True)
class Handler:
    """The author's side: the function that is called, and how its parameters are read."""

    service: str
    function: Callable[[Task[Any]], Any]
    is_async: bool
    read_params: Callable[[dict[str, Any]], Any]
    timeout: timedelta | None  # for steps that give none
    stop_grace: timedelta


class PullAttempt(Lease):
    """An attempt is its own lease: there are thousands, and reference cycles would wait for the garbage collector."""

    __slots__ = (
        "_context",
        "_handler",
        "_stopped",
        "_threads",
        "claimed",
        "has_begun",
        "in_thread",
        "running",
        "stored_at",
        "task",
    )

    def __init__(
        self, claimed: ClaimedTask, handler: Handler, context: AttemptContext, threads: Threads, *, good_until: float
    ) -> None:
        super().__init__(claimed.fence, good_until)
        self.claimed = claimed
        self.stored_at: float = time.monotonic()
        self.has_begun: bool = False
        self.running: asyncio.Task[None] | None = None
        self.task: PullTask | None = None  # while its function runs
        self.in_thread: asyncio.Future[Any] | None = None
        self._handler = handler
        self._context = context
        self._threads = threads
        self._stopped: Stop | None = None

    def stop(self, why: Stop) -> None:
        """Stops the function. The first reason counts, unless the lease is lost."""
        if self._stopped is None or why is Stop.LOST:
            self._stopped = why
        if self.task is not None and not self.task.is_cancelled:
            self.task.cancel()

    def _lose_if_over(self) -> None:
        """Loses a lease that is over while no function runs: a task claimed before a suspend never begins after it."""
        if not self.is_good:
            super().lose(NOT_KEPT)
            self._stopped = Stop.LOST

    def lose(self, reason: str) -> None:
        super().lose(reason)
        self.stop(Stop.LOST)

    async def outcome(self) -> End | None:
        """Runs the function. None: the lease is gone, and nothing may be written."""
        self._lose_if_over()
        if self._stopped is not None:
            return self._because(self._stopped)
        self.has_begun = True
        task = self.task = PullTask(self.claimed, self._context, asyncio.get_running_loop())
        task.when_cancelled = self._cancel
        timer = self._timer()
        current = CURRENT.set(task)
        try:
            outcome = await self._outcome(task)
        except (asyncio.CancelledError, Cancelled) as error:
            outcome = self._cancelled(task, error)
        finally:
            CURRENT.reset(current)
            if timer is not None:
                timer.cancel()
            self.task = None  # from here on it can't be stopped: its outcome is known
            task.when_cancelled = _nothing
        if self._stopped is not None:
            uncancel()
            if self._stopped is not Stop.DRAIN or not isinstance(outcome, Done):
                outcome = self._because(self._stopped)
        if task.has_spoken and outcome is not None:
            await until_answered(self._context.reporter.flush)  # its events must be in before its lease is given up
        if task.has_files:
            await task.disk.remove()
        return outcome

    def refusal(self) -> LoggedEvent:
        """The database refused our heartbeat: the task's history says so, as it does for any other refusal."""
        claimed, said = self.claimed, f"heartbeat refused: {self.reason}"
        data = {
            "reason": self.reason,
            "said": "heartbeat",
            "owner": self._context.name,
            "attempt_id": claimed.attempt_id,
        }
        source = f"agent:{claimed.service_name}"
        return LoggedEvent(claimed.job_id, claimed.task_id, source, Level.WARN, "refused", said, data)

    # The call

    async def _outcome(self, task: PullTask) -> End:
        """An error that the author's code raises is this attempt's failure; any other error is the machine's."""
        try:
            if self.claimed.secrets:
                self.claimed = task.claimed = await asyncio.to_thread(with_secrets, self.claimed, self._context.secrets)
            task.params = self._read_params()
            results = await (self._handler.function(task) if self._handler.is_async else self._in_thread(task))
            if results is None and not task.answer and self.claimed.output_schema is None:
                return Done(self.fence)
            return await self._done(task, results)
        except Permanent as error:
            return self._failed(task, *error.args, permanent=True)
        except Temporary as error:
            return self._failed(task, *error.args)
        except AttemptFailed as failed:
            code = ErrorCode(failed.code)
            if code.is_infrastructure:
                return Infrastructure(code, failed.message)
            return Failed(self.fence, code, _clean(failed.message), failed.permanent)
        except ServiceBusy as busy:
            return GivenBack(busy.message, busy.again_in or None)
        except (StorageUnavailable, ConfigError) as error:
            return Infrastructure(ErrorCode.STORAGE_UNAVAILABLE, str(error))
        except (asyncio.CancelledError, Cancelled, KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:  # noqa: BLE001 - see above; a panic of an extension is no Exception
            task.log("".join(traceback.format_exception(error)), "error")
            return self._failed(task, f"{type(error).__name__}: {error}")

    def _read_params(self) -> Any:
        try:
            return self._handler.read_params(self.claimed.params)
        except (TypeError, ValueError) as error:
            raise Permanent(f"params: {error}") from error

    def _in_thread(self, task: PullTask) -> "asyncio.Future[Any]":
        self.in_thread = self._threads.call(self._begin, task)
        return asyncio.shield(self.in_thread)

    def _begin(self, task: PullTask) -> Any:
        """Runs in the function's thread, which may start late: by then the machine may have slept."""
        if not self.is_good:
            raise Cancelled
        return self._handler.function(task)

    async def _done(self, task: PullTask, results: object) -> Done:
        given = cast(
            "dict[str, Any] | None", results.model_dump(mode="json") if isinstance(results, BaseModel) else results
        )
        task.finish(given)
        if self.claimed.tool is not None or self.claimed.secrets:
            if (wrong := output_problem(self.claimed, given)) is not None:
                raise AttemptFailed(ErrorCode.OUTPUT_INVALID, wrong)
            given = struck_out(self.claimed, given)
        announced = [message for message in task.answer if message["type"] == "artifact"]
        if announced:
            await task.disk.keep(announced)
        return Done(self.fence, sanitise(given, max_bytes=_UNCUT) if given else None)

    def _failed(self, task: PullTask, *reasons: object, permanent: bool = False) -> Failed:
        for reason in reasons:
            task.log(reason, "error")
        said = "; ".join(map(str, reasons)) or ("permanent" if permanent else "temporary")
        return Failed(self.fence, ErrorCode.EXIT_NONZERO, _clean(said), permanent)

    # Stopped from outside

    def _timer(self) -> asyncio.TimerHandle | None:
        limit = self._limit()
        if limit is None:
            return None
        return asyncio.get_running_loop().call_later(limit.total_seconds(), self.stop, Stop.TIMEOUT)

    def _limit(self) -> timedelta | None:
        return self.claimed.timeout or self._handler.timeout

    def _cancel(self) -> None:
        """Cancels an async function. For a plain one, which can't be stopped, the wait for it ends after the grace."""
        assert self.running is not None
        if self.in_thread is None:
            self.running.cancel()
        else:
            grace = self._handler.stop_grace.total_seconds()
            asyncio.get_running_loop().call_later(grace, self._stop_waiting, self.running, self.in_thread)

    def _stop_waiting(self, running: "asyncio.Task[None]", in_thread: "asyncio.Future[Any]") -> None:
        if not in_thread.done() and self.task is not None:
            _log.error("function_goes_on", task_id=str(self.fence.task_id), attempt_id=self.fence.attempt_id)
            running.cancel()

    def _cancelled(self, task: PullTask, error: BaseException) -> End | None:
        self._lose_if_over()
        if self._stopped is not None:
            return self._because(self._stopped)
        running = asyncio.current_task()
        if isinstance(error, asyncio.CancelledError) and running is not None and running.cancelling():
            raise error  # the whole worker ends
        return self._failed(task, "cancelled")

    def _because(self, stopped: Stop) -> End | None:
        match stopped:
            case Stop.LOST:
                return None
            case Stop.DRAIN:
                return GivenBack("the service is stopping")
            case Stop.TIMEOUT:
                limit = self._limit() or timedelta()
                return Failed(self.fence, ErrorCode.TIMEOUT, f"it ran longer than {limit.total_seconds():g} s")


def uncancel() -> None:
    """Clears cancellations of the current task whose reason is known by now, so that it can wait again."""
    running = asyncio.current_task()
    while running is not None and running.cancelling():
        running.uncancel()


def _nothing() -> None:
    pass


def _clean(message: str) -> str:
    return sanitise(redact(message), max_bytes=_LONGEST_MESSAGE)
