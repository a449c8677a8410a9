"""One claimed task, from the claim to its verdict, as a pipeline of named steps.

    prepare (folder, inputs, envelope) → start → watch (lines become progress, log and answer) → keep its files
    → finish (fenced) → clean up

An adopted attempt skips the first two steps and reads on where the last agent stopped. Whatever happens, one of three
things is written: the end of the attempt, that its task is given back, or nothing, because the lease is gone and the
task belongs to another owner.
"""

import errno
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import cast

import anyio
import anyio.to_thread
from structlog.contextvars import bound_contextvars

from accsd import failpoints
from accsd.db import ClaimedTask, start_tasks
from accsd.errors import (
    AccsdError,
    AttemptFailed,
    Bug,
    ConfigError,
    EngineUnavailable,
    ServiceBusy,
    StorageUnavailable,
)
from accsd.log import get_logger, log_event
from accsd.model.fence import Fence
from accsd.model.outcome import ErrorCode
from accsd.retry import DATABASE_PAUSES, Backoff, until_answered
from accsd.runners.base import Execution, Launch
from accsd.work.context import AttemptContext, Mark
from accsd.work.execution import WatchedExecution, contained
from accsd.work.finish import AttemptFinish, GivenBack, tell_refused
from accsd.work.lease import WatchedLease
from accsd.work.protocol import Failure, Infrastructure, Success, Verdict
from accsd.work.protocol.wire import trace_of
from accsd.work.secrets import with_secrets
from accsd.work.service import LocalService
from accsd.work.workspace import clear_away, launch_of, prepare

_log = get_logger(component="attempt")
_CLEANING = timedelta(seconds=60)
# Errors that a task can cause in the folder of its attempt. A disk or a mount that fails gives other errors.
_BY_THE_TASK = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.EACCES, errno.EPERM})


class Attempt:
    def __init__(
        self,
        task: ClaimedTask,
        service: LocalService,
        context: AttemptContext,
        *,
        granted: float,
        adopted: bool,
        when_decided: Callable[["Attempt"], None],
    ) -> None:
        self.fence: Fence = task.fence
        self.service: str = task.service_name
        self.was_infrastructure: bool = False
        self.was_conclusive: bool = False
        self.turned_away: ServiceBusy | None = None
        self.left_something: bool = False
        self.start_was_cut: bool = False
        self._task = task
        self._service = service
        self._context = context
        self._granted = granted
        self._adopted = adopted
        self._when_decided: Callable[[Attempt], None] = when_decided
        self._execution: Execution | None = None
        self._watching: WatchedExecution | None = None
        self._has_ended: bool = False
        self._mark: Mark | None = None  # of the folder of all attempts, taken when this attempt began
        self._finish_of: AttemptFinish = AttemptFinish(task.fence, context)
        self._asked_back: anyio.Event = anyio.Event()
        self._back_because: str = ""
        self._hurry: anyio.Event = anyio.Event()

    def give_back(self, reason: str, *, at_once: bool = False) -> None:
        """Stops the work and gives the task back, unless the work ends first. With `at_once` there is no grace."""
        self._back_because = reason
        self._asked_back.set()
        if at_once:
            self._hurry.set()

    async def run(self) -> None:
        task, began = self._task, time.monotonic()
        with bound_contextvars(
            job_id=str(task.job_id),
            task_id=str(task.task_id),
            attempt_id=task.attempt_id,
            task_key=task.task_key,
            service=task.service_name,
            trace_id=trace_of(task.trace_id, task.job_id).trace_id,
        ):
            self._context.metrics.started(self.service)
            result = "released"
            try:
                with self._context.leases.holding(self.fence, granted=self._granted) as lease:
                    try:
                        result = await self._decide(await self._verdict(lease), lease)
                    except Exception as error:  # noqa: BLE001 - a bug of ours: the task is given back, nothing is left
                        result = await self._decide(self._failed_here(error), lease)
                await self._clean_up(lease)
            finally:
                self._context.metrics.finished(self.service, result, timedelta(seconds=time.monotonic() - began))

    # The steps

    async def _verdict(self, lease: WatchedLease) -> Verdict | GivenBack | None:
        """Returns None if the lease is gone: then nothing may be written."""
        said: list[Verdict | GivenBack] = []

        async def carry_out() -> None:
            # A task of its own: a cancellation that a library has left counted on it must not come out of the group.
            try:
                with contained():
                    said.append(await self._carry_out(lease))
            except Bug as bug:
                said.append(self._failed_here(bug))
            group.cancel_scope.cancel()

        async with anyio.create_task_group() as group:
            group.start_soon(self._until_gone, lease, group.cancel_scope)
            group.start_soon(self._until_asked_back, group.cancel_scope)
            group.start_soon(self._until_hurried, group.cancel_scope)
            group.start_soon(carry_out)
        if lease.is_gone:
            return None
        if self._asked_back.is_set() and not (said and isinstance(said[0], Success)):
            return GivenBack(self._back_because)
        return said[0] if said else None

    async def _until_gone(self, lease: WatchedLease, scope: anyio.CancelScope) -> None:
        await lease.gone.wait()
        scope.cancel()

    async def _until_asked_back(self, scope: anyio.CancelScope) -> None:
        await self._asked_back.wait()
        if self._execution is None:
            scope.cancel()
            return
        try:
            await self._execution.stop(self._service.stop_grace)
        except (AccsdError, OSError) as error:
            _log.warning("not_stopped", error=str(error) or type(error).__name__)
            scope.cancel()  # `_end_it` ends the work without grace, and tries again if it must

    async def _until_hurried(self, scope: anyio.CancelScope) -> None:
        """Cancels whatever the attempt does, even an upload that waits for a store."""
        await self._hurry.wait()
        scope.cancel()

    async def _carry_out(self, lease: WatchedLease) -> Verdict | GivenBack:
        """Turns every failure into a verdict. An unforeseen error is a bug of ours, and spends no attempt either."""
        try:
            self._mark = self._context.mark()
            launch = await self._launch(lease)
            self._execution = await self._start(launch)
            await until_answered(lambda: self._tell_started(lease))
            self._watching = WatchedExecution(self._task, self._service, self._context, launch, self._execution)
            ending = await self._watching.ending()
            # The end of an execution that we lost sight of is not known: it may still run.
            self._has_ended = ending.cause not in (ErrorCode.WORKER_LOST, ErrorCode.NODE_UNFIT)
            verdict = await self._watching.verdict(ending)
            if ending.cause is ErrorCode.NODE_UNFIT and self._is_alone():
                verdict = _changed_its_files(ending.detail)
            return await self._blamed(verdict)
        except AttemptFailed as failed:
            code = ErrorCode(failed.code)
            if code.is_infrastructure:
                return Infrastructure(code, failed.message)
            return await self._blamed(Failure(code, failed.message, failed.permanent))
        except (StorageUnavailable, ConfigError) as error:  # only the store's settings can be wrong here
            return Infrastructure(ErrorCode.STORAGE_UNAVAILABLE, str(error))
        except ServiceBusy as busy:
            self.turned_away = busy
            return GivenBack(busy.message)
        except EngineUnavailable as error:
            return Infrastructure(ErrorCode.ENGINE_UNAVAILABLE, str(error))
        except Exception as error:  # noqa: BLE001 - the task is given back, and the log says where we failed
            return self._failed_here(error)

    def _failed_here(self, error: Exception) -> Failure | Infrastructure:
        error = _innermost(error)
        if isinstance(error, OSError) and self._is_of_its_files(error) and self._is_alone():
            return _changed_its_files(str(error))
        _log.error("attempt_failed_here", error=str(error), exc_info=error)
        # An OSError of this machine's own file or folder: a mount that has gone, a disk that fails.
        is_folder = isinstance(error, OSError) and not isinstance(error, TimeoutError | ConnectionError)
        code = ErrorCode.NODE_UNFIT if is_folder else ErrorCode.WORKER_LOST
        return Infrastructure(code, f"{type(error).__name__} on {self._context.name}: {error}")

    def _is_of_its_files(self, error: OSError) -> bool:
        folder = self._context.folder(self.fence)
        begun, path = self._execution is not None, Path(str(error.filename))
        return begun and error.errno in _BY_THE_TASK and path.is_relative_to(folder)

    def _is_alone(self) -> bool:
        """Whether only this attempt has lost its files: a mount that goes takes the folders of all attempts with it."""
        return self._context.folder_problem() is None and self._context.mark() == self._mark is not None

    async def _blamed(self, verdict: Verdict) -> Verdict:
        """Blames the machine for a failure if it lacks what the service needs: such a failure spends no attempt."""
        if not isinstance(verdict, Failure) or verdict.permanent:
            return verdict
        if self._context.is_disk_full():  # a write of the task may have failed where ours did not
            said = f"the disk of {self._context.attempts_folder} is full; {verdict.code}: {verdict.message}"
            return Infrastructure(ErrorCode.AGENT_DISK, said)
        problem = self._context.folder_problem() or await self._service.probe_problem()
        if problem is None:
            return verdict
        return Infrastructure(ErrorCode.NODE_UNFIT, f"{problem}; {verdict.code}: {verdict.message}")

    async def _launch(self, lease: WatchedLease) -> Launch:
        if self._adopted:
            if self._task.secrets:
                with suppress(AttemptFailed):  # known again, so that what the task says is struck out as before
                    await anyio.to_thread.run_sync(with_secrets, self._task, self._context.secrets)
            return launch_of(self._task, self._service, self._context, lease)
        return await prepare(self._task, self._service, self._context, lease)

    async def _start(self, launch: Launch) -> Execution:
        if not self._adopted:
            self.start_was_cut = True  # stays true if the start is cancelled: the engine may have been told already
            execution = await self._service.runner.start(launch)
            self.start_was_cut = False
            return execution
        execution = await self._service.runner.adopt(launch)
        if execution is None:
            raise AttemptFailed(ErrorCode.WORKER_LOST, "the agent was restarted, and how it ended cannot be known")
        _log.info("adopted")
        return execution

    async def _tell_started(self, lease: WatchedLease) -> None:
        answers = await start_tasks(self._context.db, [self.fence], owner=self._context.name)
        failpoints.hit("start.committed")
        answer = answers[self.fence.task_id]
        if not answer.is_effective:
            # The task was cancelled, or reclaimed, between claim and start. The lost lease ends this attempt.
            tell_refused(self._context, self.fence, "start", answer)
            lease.lose(answer.reason or "lease_lost_or_owner_mismatch")
            await anyio.sleep_forever()

    async def _decide(self, verdict: Verdict | GivenBack | None, lease: WatchedLease) -> str:
        if verdict is not None and not self._has_ended:
            await self._end_it()
        return await self._finish(verdict, lease)

    async def _end_it(self) -> None:
        """Ends what may still run or be half started: a task is given back only when no process works at it."""
        pauses, said = Backoff(*DATABASE_PAUSES), set[str]()
        with anyio.move_on_after(_CLEANING.total_seconds()):
            while not self._has_ended:
                try:
                    await self._stop_all(timedelta(0))
                    self._has_ended = True
                except (AccsdError, OSError) as error:
                    if str(error) not in said:
                        said.add(str(error))
                        _log.warning("not_stopped", error=str(error) or type(error).__name__)
                    await pauses.pause()
        if not self._has_ended:
            _log.error("given_back_unstopped", after_sec=_CLEANING.total_seconds())

    async def _finish(self, verdict: Verdict | GivenBack | None, lease: WatchedLease) -> str:
        """Finishes or releases the task; returns what to count the attempt as."""
        self.was_infrastructure = isinstance(verdict, Infrastructure)
        self.was_conclusive = isinstance(verdict, Success | Failure)
        self._when_decided(self)  # before other nodes hear of it: a task given back must not be claimed here at once
        if verdict is None:
            _log.warning("abandoned", reason=lease.reason)
            if not lease.is_cancelled and not lease.is_unanswered:
                self._tell_refusal(lease.reason)
            return "cancelled" if lease.is_cancelled else "lease_lost"
        return await self._finish_of.tell(verdict, lease)

    def _tell_refusal(self, reason: str | None) -> None:
        """The database refused our heartbeat: the task's history says so, as it does for any other refusal."""
        data = {"reason": reason, "said": "heartbeat", "owner": self._context.name, "attempt_id": self.fence.attempt_id}
        ids = {"job_id": self._task.job_id, "job_task_id": self._task.task_id}
        log_event("warn", "refused", f"heartbeat refused: {reason}", data, **ids, source=f"agent:{self.service}")

    async def _clean_up(self, lease: WatchedLease) -> None:
        """Removes what is left of the attempt here. What can't be removed now is found when the agent settles."""
        failpoints.hit("cleanup")
        grace = self._service.stop_grace if lease.is_cancelled else timedelta(0)
        try:
            with anyio.fail_after((grace + _CLEANING).total_seconds(), shield=True):
                await self._stop_all(grace)
                if lease.is_unanswered:
                    # The folder says that the attempt was begun: the database may still have it as ours and "starting".
                    self.left_something = True
                else:
                    await clear_away(self.fence, self._service, self._context)
        except (AccsdError, OSError) as error:  # TimeoutError is an OSError
            self.left_something = True
            _log.warning("not_cleaned_up", error=str(error) or type(error).__name__)

    async def _stop_all(self, grace: timedelta) -> None:
        if self._execution is not None:
            await self._execution.stop(grace)
            await self._execution.remove()
        else:
            await self._service.runner.discard(self.fence, self._context.folder(self.fence))


def _innermost(error: Exception) -> Exception:
    """The error that task groups have wrapped."""
    if not isinstance(error, ExceptionGroup):
        return error
    group = cast("ExceptionGroup[Exception]", error)
    wrapped = list(group.exceptions)
    return _innermost(wrapped[0]) if len(wrapped) == 1 else group


def _changed_its_files(what: str | None) -> Failure:
    return Failure(ErrorCode.PROTOCOL_ERROR, f"it removed or changed the files of its own attempt: {what}")
