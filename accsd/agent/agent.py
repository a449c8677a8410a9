"""The agent of one service on this node: claims up to its free slots and hands each task to an attempt."""

import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Final

import anyio

from accsd.agent.node import AGENT, Node, rules_of
from accsd.agent.obstacle import Hindrance
from accsd.agent.registration import register
from accsd.agent.settle import ServiceSettlement
from accsd.db import ClaimedTask
from accsd.errors import DatabaseUnavailable, Unavailable
from accsd.log import get_logger
from accsd.planning.sleep import yields_for
from accsd.supervisor import Pass
from accsd.work.attempt import Attempt
from accsd.work.claims import Granted, claim
from accsd.work.service import LocalService

_NAMED: Final = 5


class Agent:
    def __init__(self, node: Node, service: str) -> None:
        assert node.services is not None, "an agent is made for a service that is served"
        self._node = node
        self._service: LocalService = node.services[service]  # attempts under way keep the one they were started with
        self._log = get_logger(role=f"{AGENT}{service}", service=service)
        self._obstacle: Hindrance = Hindrance(node, service)
        self._settlement: ServiceSettlement = ServiceSettlement(node, self._start)
        self._active_at: float = time.monotonic()
        self._is_resting: bool = False

    async def run_once(self) -> Pass:
        gate = self._node.attempts.gate
        if not gate.is_open:
            return Pass()  # the role that opens the gate wakes this one
        with gate.passing():
            done = await self._look()
        again = self._settlement.again_in
        return done if again is None else replace(done, next_due=min(again, done.next_due or again))

    async def _look(self) -> Pass:
        node, name = self._node, self._service.name
        self._service = (node.services or {}).get(name, self._service)
        self._settlement.look_at_the_clock()
        if name in node.well:
            node.well.discard(name)
            self._obstacle.recover()
        if not node.is_registered or not node.attempts.is_open:
            return Pass()  # the role that registers the node wakes this one
        if problem := await self._runner_problem():
            return await self._obstacle.tell(problem.message, problem.hint)
        if self._settlement.is_due:
            return await self._settlement.settle(self._service)
        if node.leases.is_frozen:
            return self._obstacle.wait("leases are being asked about")
        if obstacle := self._obstacle.found():
            return await self._obstacle.tell(obstacle)
        await self._obstacle.try_again()
        await self._let_others_claim()
        return await self._take()

    async def _take(self) -> Pass:
        free, batches = self._service.concurrency - self._under_way(), self._node.settings.fallback.batching
        granted = await self._claim(free if batches else 1) if free > 0 else None
        if granted is not None and granted.tasks:
            for task in granted.tasks:
                self._start(task, granted.at)
            keys = _some([task.task_key for task in granted.tasks])
            return Pass(did=f"claimed {keys}", more=free > 1 and not batches, next_due=self._obstacle.recheck)
        rest = await self._rest()
        return Pass(next_due=min(filter(None, (rest, self._obstacle.recheck)), default=None))

    async def _runner_problem(self) -> Unavailable | None:
        try:
            await self._service.runner.check()
        except Unavailable as error:
            return error
        problem = self._node.folder_problem()
        return None if problem is None else Unavailable(problem)

    async def _let_others_claim(self) -> None:
        """All nodes were told that there is work. Nodes that are at work claim first, so that this one may sleep."""
        node, name = self._node, self._service.name
        is_called = name in node.called
        node.called.discard(name)
        if is_called and node.sleeps and (pause := yields_for(node.idle.now, rules_of(node.settings.sleep))):
            await anyio.sleep(pause.total_seconds())

    async def _claim(self, free: int) -> Granted | None:
        node = self._node
        try:
            return await claim(node, self._service.name, limit=free, register=partial(register, node))
        except DatabaseUnavailable:
            self._settlement.call_for()
            raise

    def _start(self, task: ClaimedTask, granted: float, *, adopted: bool = False) -> None:
        self._active_at = time.monotonic()
        self._is_resting = False
        attempt = Attempt(
            task, self._service, self._node, granted=granted, adopted=adopted, when_decided=self._obstacle.judge
        )
        self._node.attempts.start(attempt, self._ended)

    def _ended(self, attempt: Attempt) -> None:
        self._active_at = time.monotonic()
        if attempt.left_something:
            self._settlement.call_for()
        if attempt.was_infrastructure or attempt.start_was_cut:
            self._settlement.call_for_later()
        self._node.wake_role(f"{AGENT}{self._service.name}")
        # An attempt that ended here may have freed a step of another service, or set a retry whose time only we know.
        self._node.wake_role("poll")

    def _under_way(self) -> int:
        return self._node.attempts.by_service()[self._service.name]

    async def _rest(self) -> timedelta | None:
        """Stops the service's container after its idle time; returns how long until then."""
        idle_stop = self._service.idle_stop
        if idle_stop is None or self._is_resting or self._under_way():
            return None
        idle_for = timedelta(seconds=time.monotonic() - self._active_at)
        if idle_for < idle_stop:
            return idle_stop - idle_for
        if await self._service.runner.rest(idle_for):
            self._log.info("service_stopped", idle_for=idle_for.total_seconds())
        self._is_resting = True
        return None


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")
