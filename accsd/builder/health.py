"""Looks how the installation does: for /health, the metrics and `accsd top`.

The endpoint answers from memory and never waits for the database; this role asks it every 20 s: at each poll
would add a sixth to what an idle daemon asks.
"""

from datetime import timedelta
from typing import Final

from accsd.db import Database
from accsd.db.views.health import scheduler_health
from accsd.explain.health import overdue
from accsd.health import Health
from accsd.metrics import Metrics
from accsd.supervisor import Pass

_EVERY: Final = timedelta(seconds=20)


class HealthCheck:
    def __init__(self, db: Database, *, health: Health, metrics: Metrics) -> None:
        self._db = db
        self._health = health
        self._metrics = metrics

    async def run_once(self) -> Pass:
        found = await scheduler_health(self._db)
        self._health.scheduler(found, list(overdue(found)))
        self._metrics.schedules({"overdue": found.overdue, "unplanned": found.unplanned, "broken": found.broken})
        return Pass(next_due=_EVERY)
