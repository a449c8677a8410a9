"""This process among the nodes: registers, releases the tasks of an earlier process of its name, and says goodbye."""

import asyncio
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

from accsd.db import adopt_tasks, node_leaves, release_tasks, upsert_heartbeat
from accsd.errors import AccsdError
from accsd.log import get_logger
from accsd.work.context import AttemptContext

_log = get_logger(component="pull")
_GOODBYE: Final = timedelta(seconds=20)


class PullRegistration:
    def __init__(self, context: AttemptContext, service: str, labels: Mapping[str, Any]) -> None:
        self._context = context
        self._service = service
        self._labels = labels

    async def begin(self, capacity: int) -> None:
        """Registers. A dead process of this name has left nothing running: its tasks are released at once."""
        await self.register(capacity)
        context = self._context
        left = await adopt_tasks(context.db, owner=context.name, node=context.name, lease=context.leases.length)
        if left:
            reason = f"the process {context.name} was started anew, and nothing is left of the attempt"
            await release_tasks(context.db, [task.fence for task in left], owner=context.name, reason=reason, lost=True)
            _log.warning("given_back", tasks=len(left), reason=reason)

    async def register(self, capacity: int) -> None:
        keeper = self._context.leases
        await upsert_heartbeat(
            self._context.db,
            self._context.name,
            labels=self._labels,
            max_concurrency={self._service: capacity},
            instance=keeper.identity.instance,
            lease=keeper.length,
        )

    async def end(self) -> None:
        """Says goodbye, after the last heartbeat. A database that is away does not hold up the end for long."""
        try:
            async with asyncio.timeout(_GOODBYE.total_seconds()):
                await self._context.reporter.flush()
                await node_leaves(self._context.db, self._context.name)
        except (AccsdError, TimeoutError) as error:
            _log.warning("left_unsaid", error=str(error))
