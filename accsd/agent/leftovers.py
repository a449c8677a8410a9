"""Attempts of services that this node does not serve any more. No agent looks for them: what still runs is stopped,
their folders are removed, and their tasks are given back to those who do serve them.

Looked for whenever it is known for certain what is served. What is under way goes on: somebody looks after it.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping

from accsd.db import Fence, adopt_tasks, release_tasks
from accsd.errors import AccsdError, Unavailable
from accsd.log import get_logger
from accsd.passes import Pass
from accsd.work.attempts import Attempts
from accsd.work.context import AttemptContext
from accsd.work.workspace import remove_folder

_log = get_logger(role="leftovers")


class Leftovers:
    def __init__(
        self,
        bench: AttemptContext,
        attempts: Attempts,
        *,
        served: Callable[[], Collection[str] | None],  # None: not known for certain
        discard: Callable[[Fence, str], Awaitable[None]],  # whatever is left of an attempt of that service
    ) -> None:
        self._bench: AttemptContext = bench
        self._attempts: Attempts = attempts
        self._served: Callable[[], Collection[str] | None] = served
        self._discard: Callable[[Fence, str], Awaitable[None]] = discard

    async def run_once(self) -> Pass:
        served = self._served()
        if served is None:
            return Pass()
        bench = self._bench
        held = await adopt_tasks(bench.db, owner=bench.node, node=bench.node, lease=bench.keeper.length)
        ours = {task.fence: task.service_name for task in held} | bench.services_of_folders()
        under_way = self._attempts.fences()
        left = {fence: name for fence, name in ours.items() if name not in served and fence not in under_way}
        await self._remove(left)
        await self._give_back([task.fence for task in held if task.fence in left])
        return Pass(did=f"{len(left)} attempts of services that are not served here removed" if left else None)

    async def _remove(self, left: Mapping[Fence, str]) -> None:
        for fence, service in left.items():
            try:
                await self._discard(fence, service)
                await remove_folder(self._bench.folder(fence))
            except Unavailable:
                raise
            except (AccsdError, OSError) as error:
                _log.error("not_removed", attempt=str(fence), service=service, error=str(error))

    async def _give_back(self, fences: list[Fence]) -> None:
        if fences:
            reason = f"{self._bench.node} does not serve it any more"
            await release_tasks(self._bench.db, fences, owner=self._bench.node, reason=reason)
