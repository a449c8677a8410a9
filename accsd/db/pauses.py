"""Pauses of services, workflows and nodes, and the limits of concurrency keys.

The module is not called `pause`: the package has a function of that name, which the module would hide.
"""

from enum import StrEnum

from accsd.db.answers import Verdict
from accsd.db.pool import Database


class Pausable(StrEnum):
    SERVICE = "service"
    WORKFLOW = "workflow"  # by name, all versions
    NODE = "node"  # a drain: running tasks go on, nothing new is claimed


async def pause(
    db: Database, what: Pausable, name: str, *, reason: str | None = None, by: str | None = None
) -> Verdict:
    """Stops new claims. Running tasks go on."""
    return Verdict(await db.fetchval("SELECT accs.pause($1, $2, $3, $4)", what, name, reason, by, repeatable=True))


async def resume(
    db: Database, what: Pausable, name: str, *, reason: str | None = None, by: str | None = None
) -> Verdict:
    return Verdict(await db.fetchval("SELECT accs.resume($1, $2, $3, $4)", what, name, reason, by, repeatable=True))


async def set_concurrency_limit(
    db: Database, key: str, limit: int, *, by: str | None = None, reason: str | None = None
) -> Verdict:
    """Sets how many tasks with this concurrency key may run at once."""
    answer = await db.fetchval(
        "SELECT accs.set_concurrency_limit($1, $2, $3, $4)", key, limit, by, reason, repeatable=True
    )
    return Verdict(answer)


async def recheck_holds(db: Database) -> int:
    """The net under pauses and keys: frees tasks without a reason to be held, and returns how many."""
    return await db.fetchval("SELECT accs.recheck_holds()", repeatable=True)
