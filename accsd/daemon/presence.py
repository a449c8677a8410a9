"""Says that this process is there, whatever its roles are: `accs.daemons` is how others know of it.

Every half a minute, and when notifications begin or cease to arrive. Whether a builder runs is answered by who was seen
within a minute.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from accsd import __version__
from accsd.db import Database
from accsd.db.upkeep import DaemonRow, note_daemon
from accsd.health import Health
from accsd.supervisor import Pass

_EVERY: Final = timedelta(seconds=25)


class Presence:
    """`roles` are builder, agent, gateway."""

    def __init__(self, db: Database, health: Health, roles: Sequence[str]) -> None:
        self._db = db
        self._health = health
        self._roles = roles

    async def run_once(self) -> Pass:
        health = self._health
        await note_daemon(
            self._db,
            DaemonRow(health.node, self._roles, __version__, health.started_at, health.hearing, health.obstacles()),
        )
        return Pass(next_due=_EVERY)
