"""The poll of a node: one query for all its services, which wakes those that have something to claim.

It is the net under NOTIFY, and it knows when the next retry is due, so that nobody waits for the poll.
"""

import time
from collections.abc import Callable, Mapping
from datetime import timedelta

from accsd.db import Database, require_schema
from accsd.db.tasks import agent_outlook
from accsd.errors import SchemaMismatch
from accsd.passes import Pass

_SCHEMA_CHECK = timedelta(minutes=1)


class Poll:
    def __init__(
        self,
        db: Database,
        *,
        node: str,
        services: Callable[[], Mapping[str, Callable[[], None]]],  # how to wake each
        is_registered: Callable[[], bool],
        when_outdated: Callable[[SchemaMismatch], None],
    ) -> None:
        self._db: Database = db
        self._node: str = node
        self._services: Callable[[], Mapping[str, Callable[[], None]]] = services
        self._is_registered: Callable[[], bool] = is_registered
        self._when_outdated: Callable[[SchemaMismatch], None] = when_outdated
        self._schema_due: float = time.monotonic() + _SCHEMA_CHECK.total_seconds()

    async def run_once(self) -> Pass:
        await self._check_schema()
        services = self._services()
        if not services or not self._is_registered():
            return Pass()
        dues: list[timedelta] = []
        for seen in await agent_outlook(self._db, node=self._node, services=list(services)):
            if seen.claimable:
                services[seen.service]()
            if seen.next_due is not None:
                dues.append(seen.next_due)
        return Pass(next_due=min(dues, default=None))

    async def _check_schema(self) -> None:
        """Somebody upgraded the database: what this version does not know it must not touch."""
        if time.monotonic() < self._schema_due:
            return
        self._schema_due = time.monotonic() + _SCHEMA_CHECK.total_seconds()
        try:
            await require_schema(self._db)
        except SchemaMismatch as mismatch:
            self._when_outdated(mismatch)
