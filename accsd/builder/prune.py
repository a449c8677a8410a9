"""Removes outgoing events that were settled long ago, and those of forgotten targets. It also runs when the
settings have no target left, since no dispatcher looks at the events then."""

from datetime import timedelta
from typing import Final

from accsd.db import Database
from accsd.db.outbox import prune_events
from accsd.settings import OutboxSettings
from accsd.supervisor import Pass

_EVERY: Final = timedelta(hours=1)
_AT_ONCE: Final = 1000


class Pruner:
    """Several may run at once: events that one has removed the other does not find."""

    def __init__(self, db: Database, settings: OutboxSettings) -> None:
        self._db = db
        self._settings = settings

    async def run_once(self) -> Pass:
        gone = await prune_events(
            self._db, keep=self._settings.keep, keep_dead=self._settings.keep_dead, limit=_AT_ONCE
        )
        did = f"{gone} old events removed" if gone else None
        return Pass(did=did, more=gone >= _AT_ONCE, next_due=_EVERY)
