"""The poll of a node: one query for all its services, which wakes the agents of those that have something to claim.

It is the net under NOTIFY, and it knows when the next retry is due, so that no retry waits for the next poll.
"""

import time
from datetime import timedelta
from typing import Final

from accsd.agent.node import AGENT, Node
from accsd.db import require_schema
from accsd.db.claim import agent_outlook
from accsd.errors import SchemaMismatch
from accsd.log import get_logger
from accsd.supervisor import Pass

_SCHEMA_CHECK: Final = timedelta(minutes=1)
_log = get_logger(role="poll")


class Poll:
    def __init__(self, node: Node) -> None:
        self._node = node
        self._schema_due: float = time.monotonic() + _SCHEMA_CHECK.total_seconds()

    async def run_once(self) -> Pass:
        await self._check_schema()
        node = self._node
        if not node.services or not node.is_registered:
            return Pass()
        dues: list[timedelta] = []
        for seen in await agent_outlook(node.db, node=node.name, services=list(node.services)):
            if seen.claimable:
                node.wake_role(f"{AGENT}{seen.service}")
            if seen.next_due is not None:
                dues.append(seen.next_due)
        return Pass(next_due=min(dues, default=None))

    async def _check_schema(self) -> None:
        """The database may have been upgraded: then this version ends its attempts and leaves; it must not touch a
        schema that it does not know."""
        if time.monotonic() < self._schema_due:
            return
        self._schema_due = time.monotonic() + _SCHEMA_CHECK.total_seconds()
        try:
            await require_schema(self._node.db)
        except SchemaMismatch as mismatch:
            _log.error("schema_changed", error=str(mismatch), hint=mismatch.hint)
            self._node.stop()
