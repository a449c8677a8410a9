"""Forcing a race: knowing that a session waits for another one's lock."""

from tests.support.cluster import Connection
from tests.support.eventually import eventually


async def blocked(waiter: Connection, watcher: Connection) -> None:
    """Returns once `waiter` waits for a lock. `watcher` is any other connection that is free to ask."""
    pid = waiter.get_server_pid()

    async def waits() -> bool:
        return await watcher.fetchval("SELECT cardinality(pg_blocking_pids($1)) > 0", pid)

    await eventually(waits, what="waiting for a lock")
