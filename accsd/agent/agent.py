"""The agent of one service on this node: claims up to its free slots and hands each task to an attempt (A14).

Before its first claim, and after any that ended unclearly, it settles: what this node holds according to the database
is compared with what is really here. An attempt that still runs under its fence is adopted; what was never started is
started; what left nothing behind is given back; and whatever is here without a lease is removed.
"""

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import timedelta

import anyio

from accsd import failpoints
from accsd.db import ClaimedTask, Fence, adopt_tasks, claim_tasks, release_tasks
from accsd.db.obstacles import note_obstacle
from accsd.errors import AccsdError, DatabaseUnavailable, NotFound, Unavailable
from accsd.log import get_logger
from accsd.passes import Pass
from accsd.wakeup import Backoff
from accsd.work.attempt import Attempt
from accsd.work.attempts import Attempts
from accsd.work.context import AttemptContext
from accsd.work.lease import boot_time
from accsd.work.preparing import clear_away
from accsd.work.service import LocalService

_SICK = (timedelta(seconds=2), timedelta(seconds=60))
_RECHECK = timedelta(seconds=5)
# A container may appear so long after the command that was to start it has died.
_LATE = timedelta(seconds=5)
_NAMED = 5
_FAILED_HERE = "the last attempt failed for a reason that is not the task's"
_NEXT = "; next claim in "
_UNKNOWN = ""  # what an agent before this one has told


class Agent:
    def __init__(
        self,
        served: LocalService,
        bench: AttemptContext,
        attempts: Attempts,
        *,
        wake: Callable[[], None],
        is_registered: Callable[[], bool],
        register: Callable[[], Awaitable[None]],
        yields: Callable[[], timedelta] = timedelta,  # how long others may claim first
        batches: bool = True,  # whether it claims for all its free slots at once
        adopts: bool = True,  # whether it takes up what an agent before it has left running
    ) -> None:
        self._served: LocalService = served
        self._bench: AttemptContext = bench
        self._attempts: Attempts = attempts
        self._is_registered: Callable[[], bool] = is_registered
        self._wake: Callable[[], None] = wake
        self._register: Callable[[], Awaitable[None]] = register
        self._yields: Callable[[], timedelta] = yields
        self._batches: bool = batches
        self._adopts: bool = adopts
        self._is_called: bool = False
        self._log = get_logger(role=f"agent:{served.service}", service=served.service)
        # What ended unclearly is counted: one that does so while an agent settles is not in what that one looks at.
        self._unclear: int = 1
        self._settled: int = 0  # so many of them
        self._settle_again_at: float | None = None  # monotonic
        self._active_at: float = time.monotonic()
        self._is_resting: bool = False
        self._sickness: Backoff = Backoff(*_SICK)
        self._well_at: float = 0.0
        self._ill_because: str = _FAILED_HERE
        self._said: str | None = None
        self._told: str | None = _UNKNOWN  # the obstacle that the database knows
        self._is_retrying: bool = False

    def update(self, served: LocalService) -> None:
        """The configuration was read again; attempts under way keep what they were started with."""
        self._served = served
        self._wake()

    def hear(self) -> None:
        """All nodes were told that there is work: at the next pass those who are at work already go first."""
        self._is_called = True

    def recover(self) -> None:
        """A probe has found this machine well: it need not wait to see."""
        self._sickness.reset()
        self._well_at = 0.0
        self._wake()

    async def run_once(self) -> Pass:
        gate = self._attempts.gate
        if not gate.is_open:
            return Pass()  # who opens it wakes us
        with gate.passing():
            done = await self._look()
        if self._settle_again_at is None:
            return done
        until = timedelta(seconds=max(0.0, self._settle_again_at - time.monotonic()))
        return replace(done, next_due=min(until, done.next_due or until))

    async def _look(self) -> Pass:
        if self._settle_again_at is not None and time.monotonic() >= self._settle_again_at:
            self._settle_again_at = None
            self._unclear += 1
        if not self._is_registered() or not self._attempts.is_open:
            return Pass()  # who registers the node wakes us
        if problem := await self._runner_problem():
            return await self._hindered(problem.message, problem.hint)
        if self._settled < self._unclear:
            return await self._settle()
        if self._bench.keeper.is_frozen:
            return self._waiting("leases are being asked about")
        if obstacle := self._obstacle():
            return await self._hindered(obstacle)
        self._said = None
        await self._try_again()
        await self._let_others_claim()
        free = self._served.concurrency - self._under_way()
        claimed = await self._claim(free if self._batches else 1) if free > 0 else []
        for task, granted in claimed:
            self._start(task, granted=granted)
        if claimed:
            keys = _some([task.task_key for task, _ in claimed])
            return Pass(did=f"claimed {keys}", more=free > 1 and not self._batches, next_due=self._recheck())
        rest = await self._rest()
        return Pass(next_due=min(filter(None, (rest, self._recheck())), default=None))

    # Claims

    async def _runner_problem(self) -> Unavailable | None:
        try:
            await self._served.runner.check()
        except Unavailable as error:
            return error
        problem = self._bench.folder_problem()
        return None if problem is None else Unavailable(problem)

    def _obstacle(self) -> str | None:
        """Why nothing may be claimed now; it passes by itself."""
        if (left := self._well_at - time.monotonic()) > 0:
            return f"{self._ill_because}{_NEXT}{left:.0f} s"
        return self._bench.disk_problem()

    async def _hindered(self, obstacle: str, hint: str | None = None) -> Pass:
        """Whoever asks why a task waits is told, for as long as it lasts."""
        self._is_retrying = False
        await self._tell(obstacle.partition(_NEXT)[0], hint)
        return self._waiting(obstacle)

    async def _try_again(self) -> None:
        """The first claim after an obstacle shows whether it is gone: only the look after that one says so, or an hour
        of refusals would be told as many short ones."""
        if self._is_retrying or self._told == _UNKNOWN:
            await self._tell(None)
        self._is_retrying = self._told is not None

    async def _tell(self, obstacle: str | None, hint: str | None = None) -> None:
        if obstacle != self._told:
            service, node = self._served.service, self._bench.node
            await note_obstacle(self._bench.db, node=node, service=service, reason=obstacle, hint=hint)
            self._told = obstacle

    def _recheck(self) -> timedelta | None:
        return _RECHECK if self._is_retrying else None

    def _waiting(self, obstacle: str) -> Pass:
        if self._said != obstacle.partition(";")[0]:
            self._said = obstacle.partition(";")[0]
            self._log.warning("no_claims", reason=obstacle)
        left = timedelta(seconds=max(0.05, self._well_at - time.monotonic()))
        return Pass(next_due=left if self._well_at > time.monotonic() else _RECHECK, obstacle=obstacle)

    async def _let_others_claim(self) -> None:
        is_called, self._is_called = self._is_called, False
        if is_called and (pause := self._yields()):
            await anyio.sleep(pause.total_seconds())

    async def _claim(self, free: int) -> list[tuple[ClaimedTask, float]]:
        granted = boot_time()
        failpoints.hit("claim.sent")
        node = self._bench.node
        try:
            claimed = await claim_tasks(
                self._bench.db, self._served.service, owner=node, node=node, limit=free, lease=self._bench.keeper.length
            )
        except DatabaseUnavailable:
            self._unclear += 1  # it may have been committed: ask what we hold before claiming more
            self._bench.metrics.claim_failed(self._served.service)
            raise
        except NotFound:
            await self._register()  # somebody deleted the node's row
            return []
        failpoints.hit("claim.committed")
        self._bench.metrics.claimed(self._served.service, len(claimed))
        return [(task, granted) for task in claimed]

    def _start(self, task: ClaimedTask, *, granted: float, adopted: bool = False) -> None:
        self._active_at = time.monotonic()
        self._is_resting = False
        attempt = Attempt(task, self._served, self._bench, granted=granted, adopted=adopted, when_decided=self._decided)
        self._attempts.start(attempt, self._ended)

    def _decided(self, attempt: Attempt) -> None:
        """What fails for a reason of this machine's, or is not taken now, is left to others for a while."""
        if (busy := attempt.turned_away) is not None:
            self._fall_ill(busy.message, at_least=busy.again_in)
        elif attempt.was_infrastructure:
            self._fall_ill(_FAILED_HERE)
        elif attempt.was_conclusive:
            self._sickness.reset()

    def _fall_ill(self, because: str, *, at_least: timedelta = timedelta(0)) -> None:
        """Of many that end alike at once only the first one makes the pause longer."""
        now = time.monotonic()
        pause = max(self._sickness.next() if now >= self._well_at else timedelta(0), at_least)
        self._well_at = max(self._well_at, now + pause.total_seconds())
        self._ill_because = because

    def _ended(self, attempt: Attempt) -> None:
        self._active_at = time.monotonic()
        if attempt.left_something:
            self._unclear += 1
        if attempt.was_infrastructure or attempt.start_was_cut:
            self._settle_again_at = time.monotonic() + _LATE.total_seconds()
        self._wake()

    def _under_way(self) -> int:
        return self._attempts.by_service()[self._served.service]

    # Settling

    async def _settle(self) -> Pass:
        runner, bench, unclear = self._served.runner, self._bench, self._unclear
        # Taken before the database is asked: one that ends meanwhile has settled itself.
        under_way = self._attempts.fences()
        here = set(await runner.survivors())
        granted = boot_time()
        held = await adopt_tasks(bench.db, owner=bench.node, node=bench.node, lease=bench.keeper.length)
        under_way |= self._attempts.fences()  # the service's last agent may have been at a claim when it was left
        ours = [each for each in held if each.service_name == self._served.service and each.fence not in under_way]
        kept = {task.fence for task in ours if self._take_up(task, task.fence in here, granted)}
        # A folder without an envelope may be that of another service's attempt, which has only just begun.
        known = under_way | self._attempts.fences()
        removed = await self._remove((here | bench.folders_of(self._served.service)) - known)
        lost = [task.fence for task in ours if task.fence not in kept]
        await self._give_back(lost)  # now that nobody can be at work at them
        self._settled = unclear
        said = {"taken up again": len(kept), "given back": len(lost), "removed": removed}
        return Pass(did=", ".join(f"{n} attempts {what}" for what, n in said.items() if n) or None, more=True)

    def _take_up(self, task: ClaimedTask, is_here: bool, granted: float) -> bool:
        never_started = task.status == "starting" and not self._bench.folder(task.fence).exists()
        is_taken = never_started or (is_here and self._adopts)
        if is_taken:
            self._start(task, granted=granted, adopted=not never_started)
        return is_taken

    async def _give_back(self, lost: list[Fence]) -> None:
        if lost:
            await release_tasks(
                self._bench.db,
                lost,
                owner=self._bench.node,
                reason=f"the agent on {self._bench.node} was restarted and {self._what_became()}",
                lost=True,
            )

    def _what_became(self) -> str:
        return "nothing is left of the attempt" if self._adopts else "takes up nothing (fallback.adoption)"

    async def _remove(self, keys: set[Fence]) -> int:
        for key in keys:
            try:
                await self._served.runner.discard(key, self._bench.folder(key))
                await clear_away(key, self._served, self._bench)
            except Unavailable:
                raise
            except (AccsdError, OSError, TimeoutError) as error:
                self._log.error("not_removed", attempt=str(key), error=str(error))
        return len(keys)

    # Idle

    async def _rest(self) -> timedelta | None:
        """Stops the service's container after its idle time; how long until then."""
        idle_stop = self._served.idle_stop
        if idle_stop is None or self._is_resting or self._under_way():
            return None
        idle_for = timedelta(seconds=time.monotonic() - self._active_at)
        if idle_for < idle_stop:
            return idle_stop - idle_for
        if await self._served.runner.rest(idle_for):
            self._log.info("service_stopped", idle_for=idle_for.total_seconds())
        self._is_resting = True
        return None


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")
