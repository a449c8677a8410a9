"""Tells the log, health and metrics what the roles do."""

from datetime import timedelta

from accsd.errors import AccsdError, DatabaseUnavailable, Unavailable
from accsd.health import Health
from accsd.log import get_logger
from accsd.metrics import Metrics
from accsd.supervisor import Pass

_log = get_logger(component="supervisor")


class RoleObserver:
    def __init__(self, health: Health, metrics: Metrics) -> None:
        self._health: Health = health
        self._metrics: Metrics = metrics
        self._away: set[str] = set()

    def started(self, role: str, poll: timedelta | None) -> None:
        self._health.role_started(role, pass_every=poll)
        if poll is not None:
            self._metrics.know_roles([role])

    def passed(self, role: str, done: Pass, took: timedelta) -> None:
        self._health.role_passed(role, done.did, obstacle=done.obstacle)
        self._metrics.passed(role, worked=done.did is not None)
        self._said_to_be_back(role)
        if done.did:
            _log.info("pass", role=role, did=done.did, took_ms=round(took.total_seconds() * 1000, 1))

    def away(self, role: str, error: Unavailable, pause: timedelta) -> None:
        """Logs an outage once, not once for each try."""
        self._health.role_failed(role, str(error), restarting=False)
        self._metrics.away(role)
        if isinstance(error, DatabaseUnavailable):
            self._health.database_away(str(error))
        if role not in self._away:
            self._away.add(role)
            _log.warning("role_waits", role=role, error=str(error), hint=error.hint)

    def crashed(self, role: str, error: Exception, pause: timedelta) -> None:
        self._health.role_failed(role, f"{type(error).__name__}: {error}")
        self._metrics.crashed(role)
        hint = error.hint if isinstance(error, AccsdError) else None
        again_in = round(pause.total_seconds(), 1)
        _log.error("role_crashed", role=role, error=str(error), hint=hint, again_in=again_in, exc_info=error)

    def resumed(self, role: str) -> None:
        self._health.role_resumed(role)
        self._said_to_be_back(role)

    def stopped(self, role: str) -> None:
        self._health.role_left(role)

    def _said_to_be_back(self, role: str) -> None:
        if role in self._away:
            self._away.discard(role)
            _log.info("role_back", role=role)
