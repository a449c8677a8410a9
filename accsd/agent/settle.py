"""Compares the attempts that the database has as this node's with those that are really here.

This happens before the first claim of a service, and after anything that ended unclearly. An attempt that still runs
under its fence is adopted, one that was never started is started, one that left nothing behind is released; executions
and folders without a lease are removed. Attempts of services that this node does not serve any more have no agent:
their role is here too.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Final, Protocol

from accsd.agent.node import Node
from accsd.agent.services import ServiceSource
from accsd.db import ClaimedTask, Fence, release_tasks
from accsd.errors import AccsdError, Unavailable
from accsd.log import get_logger
from accsd.supervisor import Pass
from accsd.work.claims import held_unknown
from accsd.work.service import LocalService
from accsd.work.workspace import clear_away, remove_folder

_log = get_logger(component="settle")
# A container may appear this long after the command that was to start it has died.
_LATE: Final = timedelta(seconds=5)


class Start(Protocol):
    def __call__(self, task: ClaimedTask, granted: float, *, adopted: bool = False) -> None: ...


class ServiceSettlement:
    """Settles the attempts of one service. `start` begins an attempt."""

    def __init__(self, node: Node, start: Start) -> None:
        self._node = node
        self._start = start
        # How many attempts ended unclearly. An attempt that ends so during a settling needs another settling.
        self._called_for: int = 1
        self._settled: int = 0  # how many of them are settled
        self._again_at: float | None = None  # monotonic

    def call_for(self) -> None:
        """An attempt has ended unclearly: settle in the next pass."""
        self._called_for += 1

    def call_for_later(self) -> None:
        """An execution may still appear: settle again later."""
        self._again_at = time.monotonic() + _LATE.total_seconds()

    @property
    def again_in(self) -> timedelta | None:
        return None if self._again_at is None else timedelta(seconds=max(0.0, self._again_at - time.monotonic()))

    def look_at_the_clock(self) -> None:
        """Makes a later settling due. It is called in every pass, also in one that can't settle: otherwise `again_in`
        would be zero, and the passes would follow each other without a pause."""
        if self._again_at is not None and time.monotonic() >= self._again_at:
            self._again_at = None
            self._called_for += 1

    @property
    def is_due(self) -> bool:
        return self._settled < self._called_for

    async def settle(self, service: LocalService) -> Pass:
        node, called_for = self._node, self._called_for
        # Taken before the database is asked: an attempt that ends meanwhile has settled itself.
        under_way = node.attempts.fences()
        here = set(await service.runner.survivors())
        held = await held_unknown(node, node.attempts.fences)
        ours = [task for task in held.tasks if task.service_name == service.name and task.fence not in under_way]
        kept = {task.fence for task in ours if self._take_up(task, task.fence in here, held.at)}
        # A folder without an envelope may be that of another service's attempt, which has only just begun.
        known = under_way | node.attempts.fences()
        removed = await self._remove((here | node.folders_of(service.name)) - known, service)
        lost = [task.fence for task in ours if task.fence not in kept]
        await _release(node, lost, f"the agent on {node.name} was restarted and {self._what_became()}", lost=True)
        self._settled = called_for
        said = {"taken up again": len(kept), "given back": len(lost), "removed": removed}
        return Pass(did=", ".join(f"{n} attempts {what}" for what, n in said.items() if n) or None, more=True)

    def _take_up(self, task: ClaimedTask, is_here: bool, granted: float) -> bool:
        never_started = task.status == "starting" and not self._node.folder(task.fence).exists()
        is_taken = never_started or (is_here and self._node.settings.fallback.adoption)
        if is_taken:
            self._start(task, granted, adopted=not never_started)
        return is_taken

    def _what_became(self) -> str:
        adopts = self._node.settings.fallback.adoption
        return "nothing is left of the attempt" if adopts else "takes up nothing (fallback.adoption)"

    async def _remove(self, fences: Iterable[Fence], service: LocalService) -> int:
        count = 0
        for fence in fences:
            count += 1
            try:
                await service.runner.discard(fence, self._node.folder(fence))
                await clear_away(fence, service, self._node)
            except Unavailable:
                raise
            except (AccsdError, OSError, TimeoutError) as error:
                _log.error("not_removed", attempt=str(fence), service=service.name, error=str(error))
        return count


class Leftovers:
    """Attempts of services that this node does not serve any more: executions are stopped, folders removed, and tasks
    released for nodes that serve them.

    They are looked for whenever it is certain which services are served. Attempts under way in this process go on.
    """

    def __init__(self, node: Node, sources: Sequence[ServiceSource]) -> None:
        self._node = node
        self._sources = sources

    async def run_once(self) -> Pass:
        node = self._node
        if not node.is_certain or node.services is None:
            return Pass()
        held = await held_unknown(node, node.attempts.fences)
        ours = {task.fence: task.service_name for task in held.tasks} | node.services_of_folders()
        under_way = node.attempts.fences()
        left = {fence: name for fence, name in ours.items() if name not in node.services and fence not in under_way}
        await self._remove(left)
        gone = [task.fence for task in held.tasks if task.fence in left]
        await _release(node, gone, f"{node.name} does not serve it any more")
        return Pass(did=f"{len(left)} attempts of services that are not served here removed" if left else None)

    async def _remove(self, left: Mapping[Fence, str]) -> None:
        for fence, service in left.items():
            try:
                for source in self._sources:
                    await source.discard(fence, service)
                await remove_folder(self._node.folder(fence))
            except Unavailable:
                raise
            except (AccsdError, OSError) as error:
                _log.error("not_removed", attempt=str(fence), service=service, error=str(error))


async def _release(node: Node, fences: list[Fence], reason: str, *, lost: bool = False) -> None:
    """Releases tasks. Call it only when no process can be at work at them."""
    if fences:
        await release_tasks(node.db, fences, owner=node.name, reason=reason, lost=lost)
