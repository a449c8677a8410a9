"""A service that claims by itself: claimer, handlers, finisher, leases and reports in one event loop.

    claimed → stored (claimed ahead) → running (a slot is taken) → ended, on its way to the database → settled
The drain is in this order: no new claims; stored tasks are given back; running ones may end within the grace, then
they are cancelled and given back; heartbeats go on until the last end is answered.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Final

from accsd.db import ClaimedTask, Database, Failed, claim_tasks, finish_many_tasks
from accsd.db.listen import CANCEL, Listener
from accsd.errors import NotFound
from accsd.log import get_logger
from accsd.model.outcome import ErrorCode
from accsd.retry import until_answered
from accsd.sdk.pull.attempt import Handler, PullAttempt, Stop, uncancel
from accsd.sdk.pull.claimer import Claimer
from accsd.sdk.pull.finisher import Ended, Finisher
from accsd.sdk.pull.registration import PullRegistration
from accsd.sdk.pull.slots import HeldTasks, Slots
from accsd.sdk.pull.stop import StopRequest
from accsd.sdk.pull.threads import Threads
from accsd.settings import Settings
from accsd.wakeup import Wakeup
from accsd.work.context import AttemptContext
from accsd.work.finish import GivenBack
from accsd.work.protocol import Infrastructure

_log = get_logger(component="pull")
_CLAIM_ENDS: Final = timedelta(seconds=5)  # with any grace: tasks of a claim that is cut wait until their lease ends
_ANSWERING: Final = timedelta(seconds=20)  # for the answers to ended attempts, when the drain is over
_CANCELLED: Final = timedelta(seconds=5)  # beyond its grace, for a function that was cancelled
_MACHINE_FAULTS: Final = (ErrorCode.STORAGE_UNAVAILABLE, ErrorCode.AGENT_DISK)
_STALE_SEC: Final = 5.0  # stored for this long: an idle node shall have it
_STALE_CHECK_SEC: Final = 1.0


class Worker:
    def __init__(
        self,
        handler: Handler,
        context: AttemptContext,
        listener: Listener,
        settings: Settings,
        resumed: Wakeup,
        *,
        concurrency: int,
        asked: StopRequest,
    ) -> None:
        self._handler = handler
        self._context = context
        self._listener = listener
        self._settings = settings
        self._resumed = resumed
        self._asked = asked
        self._held: HeldTasks = HeldTasks(concurrency)
        self._presence: PullRegistration = PullRegistration(context, handler.service, settings.node.labels)
        self._failure: Exception | None = None
        self._threads: Threads = Threads(concurrency)
        self._handlers: asyncio.TaskGroup = asyncio.TaskGroup()
        self._slots: Slots = Slots(self._held, self._handlers, self._perform, is_open=self._is_open)
        self._finisher: Finisher = Finisher(context, when_settled=self._settled)
        self._claimer: Claimer = Claimer(
            handler.service,
            context,
            self._held,
            poll=self._poll,
            take=self._take,
            known=lambda: {attempt.fence for attempt in (*self._held.known.values(), *self._held.running)},
            register=self._presence.register,
        )

    async def run(self, when_ready: Callable[[], None]) -> None:
        """Works until it is told to stop. The caller serves the listener meanwhile."""
        self._listener.subscribe(self._handler.service, self._hear)
        async with asyncio.TaskGroup() as group:
            await until_answered(lambda: self._presence.begin(self._held.concurrency))
            await until_answered(self._warm_up)
            when_ready()
            keeper = self._context.leases
            serving = [
                group.create_task(each)
                for each in (
                    self._finisher.serve(),
                    keeper.serve(),
                    self._context.reporter.serve(),
                    self._claimer.look_ahead(),
                    self._unstore(),
                    self._go_on(),
                )
            ]
            beats = group.create_task(keeper.beat_on())
            try:
                await self._work()
                if self._failure is not None:
                    raise self._failure
            finally:
                self._threads.close()
                beats.cancel()
                await asyncio.wait([beats])  # a later heartbeat would say that the node is back
                await self._presence.end()
                for task in serving:
                    task.cancel()

    async def _warm_up(self) -> None:
        """Opens a connection for the claimer and one for the finisher, and has both verbs planned on each before the
        first task comes: some 50 ms."""
        service, node, lease = self._handler.service, self._context.name, self._context.leases.length

        async def try_both() -> None:
            async with self._context.db.acquire() as connection:
                db = Database.over(connection)
                with suppress(NotFound):  # the node's row was deleted: the first claim registers it again
                    await claim_tasks(db, service, owner=node, node=node, limit=0, lease=lease, start=True)
                await finish_many_tasks(db, [], owner=node)

        await asyncio.gather(try_both(), try_both())

    async def _work(self) -> None:
        async with self._handlers:
            claiming = self._handlers.create_task(self._claim_on())
            try:
                while not self._asked.times:
                    await self._asked.changed.wait()
            except asyncio.CancelledError:
                self._asked.times += 2  # as if it was asked to stop twice
                raise
            finally:
                self._claimer.leave()
                await self._drain(claiming)

    async def _claim_on(self) -> None:
        """Claims. If that fails (the schema has changed, a right is missing), running attempts still come to their
        end."""
        try:
            await self._claimer.serve()
        except Exception as error:  # noqa: BLE001 - raised again when the drain is over
            _log.error("claims_failed", error=str(error), exc_info=error)
            self._failure = error
            self._asked.again()

    # The end

    async def _drain(self, claiming: "asyncio.Task[None]") -> None:
        grace = timedelta(seconds=self._settings.drain_sec)
        _log.info("draining", grace_sec=grace.total_seconds(), running=len(self._held.running))
        ends = time.monotonic() + grace.total_seconds()
        await asyncio.wait([claiming], timeout=max(grace, _CLAIM_ENDS).total_seconds())
        claiming.cancel()
        self._give_back_stored("the service is stopping")
        if not await self._idle_within(ends - time.monotonic(), unless_hurried=True):
            await self._cancel_running()
        if not await self._finisher.emptied(_ANSWERING):
            _log.error("ends_not_told", left=[str(attempt.fence) for attempt in self._held.known.values()])
        await self._cut_off([attempt.running for attempt in self._held.running if attempt.running is not None])

    async def _cut_off(self, left: Sequence["asyncio.Task[None]"]) -> None:
        for running in left:
            running.cancel()
        if left and (await asyncio.wait(left, timeout=_CANCELLED.total_seconds()))[1]:
            _log.error("drain_stuck", left=[str(attempt.fence) for attempt in self._held.running])
            self._asked.when_stuck()

    async def _cancel_running(self) -> None:
        for attempt in list(self._held.running):
            attempt.stop(Stop.DRAIN)
        patience = (timedelta() if self._asked.is_hurried else self._handler.stop_grace) + _CANCELLED
        if not await self._idle_within(patience.total_seconds()):
            _log.error("drain_incomplete", left=[str(attempt.fence) for attempt in self._held.running])

    async def _idle_within(self, seconds: float, *, unless_hurried: bool = False) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, seconds)):
                while self._held.running and not (unless_hurried and self._asked.is_hurried):
                    self._asked.changed.clear()
                    await self._asked.changed.wait()
        return not self._held.running

    # Tasks come in

    def _poll(self) -> timedelta:
        return self._listener.poll(self._settings)

    def _hear(self, payload: str) -> None:
        if payload == CANCEL:
            self._context.leases.ask_now()
        else:
            self._claimer.stir()

    def _take(self, claimed: list[ClaimedTask], granted: float) -> None:
        good_until = self._context.leases.good_until(granted)
        attempts = [
            PullAttempt(task, self._handler, self._context, self._threads, good_until=good_until) for task in claimed
        ]
        self._context.leases.hold(*attempts)
        self._held.known.update((attempt.fence.task_id, attempt) for attempt in attempts)
        self._held.store.extend(attempts)
        self._slots.fill()

    async def _go_on(self) -> None:
        """Goes on after leases were asked about following a pause: fills slots and claims."""
        while True:
            await self._resumed.wait()
            self._resumed.clear()
            self._slots.fill()
            self._claimer.stir()

    def _is_open(self) -> bool:
        """Whether a task may begin: not while leases are being asked about, nor during the drain."""
        return not (self._asked.times or self._context.leases.is_frozen)

    async def _perform(self, attempt: PullAttempt) -> None:
        began = time.monotonic()
        try:
            outcome = await attempt.outcome()
            if outcome is None:
                self._abandon(attempt)
            else:
                self._finisher.add(attempt, outcome)
            if attempt.in_thread is not None and not attempt.in_thread.done():
                await asyncio.wait([attempt.in_thread])  # a slot is taken for as long as its thread
        except asyncio.CancelledError:
            if self._asked.times:
                raise
            uncancel()  # the function cancelled itself: a stop would have been asked for
            self._finisher.add(attempt, Failed(attempt.fence, ErrorCode.EXIT_NONZERO, "it cancelled itself"))
        except Exception as error:  # noqa: BLE001 - a bug in one attempt must not end the others
            _log.error("attempt_failed_here", task_id=str(attempt.fence.task_id), exc_info=error)
            said = f"{type(error).__name__} on {self._context.name}: {error}"
            self._finisher.add(attempt, Infrastructure(ErrorCode.WORKER_LOST, said))
        finally:
            self._claimer.pace.count(time.monotonic() - began)
            if self._asked.times:
                self._asked.changed.set()

    # Tasks go out

    def _settled(self, ended: Sequence[Ended]) -> None:
        is_at_fault = retries = False
        for attempt, outcome in ended:
            self._forget(attempt)
            is_at_fault = is_at_fault or (isinstance(outcome, Infrastructure) and outcome.code in _MACHINE_FAULTS)
            retries = retries or isinstance(outcome, Failed)
        if is_at_fault:
            self._claimer.fell_sick()
        elif ended:
            self._claimer.recovered()
        if not self._listener.is_listening:
            self._claimer.stir()  # no notification says that a next step waits by now
        self._claimer.made_room(retries=retries)

    def _forget(self, attempt: PullAttempt) -> None:
        task_id = attempt.fence.task_id
        if self._held.known.get(task_id) is attempt:
            del self._held.known[task_id]

    def _abandon(self, attempt: PullAttempt) -> None:
        """The lease is gone: the task belongs to another owner, or was cancelled."""
        fence, reason = attempt.fence, attempt.reason
        _log.warning("abandoned", task_id=str(fence.task_id), attempt_id=fence.attempt_id, reason=reason)
        if attempt.is_unanswered:  # the database may still have it as ours: it must not be taken for a new claim
            said = "its lease could not be kept"
            lost = Infrastructure(ErrorCode.WORKER_LOST, said) if attempt.has_begun else GivenBack(said)
            self._finisher.add(attempt, lost)
            return
        if not attempt.is_cancelled:
            self._context.reporter.event(attempt.refusal())
        self._context.leases.let_go(attempt)
        self._forget(attempt)
        self._claimer.made_room(retries=False)

    def _give_back_stored(self, reason: str) -> None:
        for attempt in self._slots.empty():
            self._finisher.add(attempt, GivenBack(reason))

    async def _unstore(self) -> None:
        """Gives stored tasks back when running ones have become slow: other nodes may be idle."""
        while True:
            await asyncio.sleep(_STALE_CHECK_SEC)
            store = self._held.store
            if not store or self._context.leases.is_frozen:
                continue
            if time.monotonic() - store[0].stored_at > _STALE_SEC:
                self._claimer.pace.stall()
                self._give_back_stored("it waited behind tasks that take long")
