"""Claims of one service: what the database grants this node, and which tasks it says that the node holds already.

The agent and a service in pull mode both claim through here. They decide how many, and what becomes of the tasks.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from accsd import failpoints
from accsd.clock import boot_time
from accsd.db import ClaimedTask, Fence, adopt_tasks, claim_tasks
from accsd.errors import DatabaseUnavailable, NotFound
from accsd.work.context import AttemptContext


@dataclass(frozen=True, slots=True)
class Granted:
    """Claimed tasks. Their leases were asked for `at` this time, by boot_time()."""

    tasks: list[ClaimedTask]
    at: float


async def claim(
    context: AttemptContext, service: str, *, limit: int, register: Callable[[], Awaitable[None]], start: bool = False
) -> Granted | None:
    """Claims tasks. None: the node's row had been deleted, and the node is registered again. DatabaseUnavailable: the
    claim may have been committed, so ask what this node holds before claiming more."""
    at = boot_time()
    failpoints.hit("claim.sent")
    try:
        claimed = await claim_tasks(
            context.db,
            service,
            owner=context.name,
            node=context.name,
            limit=limit,
            lease=context.leases.length,
            start=start,
        )
    except DatabaseUnavailable:
        context.metrics.claim_failed(service)
        raise
    except NotFound:
        await register()
        return None
    failpoints.hit("claim.committed")
    context.metrics.claimed(service, len(claimed))
    return Granted(claimed, at)


async def held_unknown(context: AttemptContext, known: Callable[[], set[Fence]]) -> Granted:
    """The tasks that the database has as this node's and that the node does not know. `known` is asked before and
    after: an attempt that ends meanwhile tells its own end, and one that began meanwhile is known."""
    before, at = known(), boot_time()
    held = await adopt_tasks(context.db, owner=context.name, node=context.name, lease=context.leases.length)
    before |= known()
    return Granted([task for task in held if task.fence not in before], at)
