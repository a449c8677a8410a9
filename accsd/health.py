"""What GET /health answers: the state of this process as one JSON document.

`Health` is passive: the supervisor, the listener and the agent tell it what happens, and the endpoint asks for a
`report`. It decides one thing, the status: *ok*, *degraded* (it works, but not as it should: the reasons say why), or
*stopping*.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final

import orjson

from accsd import __version__
from accsd.log import redact
from accsd.model.state import ListenerState
from accsd.values.json import sanitise

# A role has this many of its intervals to make a pass: one pass may be slow, and the poll is jittered.
_OVERDUE: Final = 3
_LONGEST_SENTENCE: Final = 500


class Status(StrEnum):
    OK = "ok"
    DEGRADED = "degraded"
    STOPPING = "stopping"


class RoleState(StrEnum):
    RUNNING = "running"
    RESTARTING = "restarting"  # it crashed, or the world is away: it is tried again after a pause


@dataclass(frozen=True, slots=True)
class RoleHealth:
    state: RoleState = RoleState.RUNNING
    restarts: int = 0
    passes: int = 0
    last_pass_at: datetime | None = None
    last_pass: str | None = None  # the newest sentence of a pass that did something
    last_error: str | None = None
    last_error_at: datetime | None = None
    obstacle: str | None = None  # what keeps the role from its work now


@dataclass(frozen=True, slots=True)
class ListenerHealth:
    state: ListenerState
    since: datetime
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class DatabaseHealth:
    reachable: bool
    since: datetime
    lag_seconds: float | None = None  # how long its last answer took
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class SchedulerHealth:
    """How the installation does, as accs.scheduler_health counts it; every count is bounded. `stuck_running` are live
    without a lease, or for more than 10 minutes; `overdue` are due times that nobody has settled for a minute,
    `unplanned` schedules that have waited for their plan as long; `hold` says why all schedules stand still."""

    pending: int
    running: int
    failed: int
    stuck_running: int
    poller_running: bool  # a builder was seen within a minute
    overdue: int
    overdue_seconds: float | None
    unplanned: int
    unplanned_seconds: float | None
    broken: int
    hold: str | None


@dataclass(frozen=True, slots=True)
class HealthReport:
    status: Status
    reasons: list[str]
    ready: bool
    draining: bool
    version: str
    node: str
    started_at: datetime
    roles: dict[str, RoleHealth]
    listener: ListenerHealth
    database: DatabaseHealth
    leases_held: int
    attempts_in_flight: int
    scheduler: SchedulerHealth | None  # None: not asked yet, or this process is no builder
    scheduler_at: datetime | None

    @property
    def http_status(self) -> int:
        """503 says: send nothing here. A degraded process still works, and a restart would not mend it."""
        return 200 if self.ready and self.status is not Status.STOPPING else 503

    def to_json(self) -> bytes:
        """The report as JSON, without secrets: an error's text may quote anything."""
        return orjson.dumps(sanitise(asdict(self), scrub=redact)) + b"\n"


@dataclass(eq=False, slots=True)
class _Role:
    shown: RoleHealth
    pass_every: timedelta | None
    alive_at: float  # monotonic


@dataclass(eq=False, slots=True)
class Health:
    """Keeps what the parts of the process report. Setters return at once."""

    node: str
    now: Callable[[], datetime] = field(default=lambda: datetime.now(UTC))
    monotonic: Callable[[], float] = field(default=time.monotonic)
    ready: bool = False
    leases_held: int = 0
    attempts_in_flight: int = 0
    _draining: bool = False
    _engine_problem: str | None = None
    _scheduler: SchedulerHealth | None = None
    _scheduler_at: datetime | None = None
    _scheduler_troubles: Sequence[str] = ()
    _roles: dict[str, _Role] = field(default_factory=dict[str, _Role])
    _started_at: datetime = field(init=False)
    _listener: ListenerHealth = field(init=False)
    _database: DatabaseHealth = field(init=False)

    def __post_init__(self) -> None:
        self._started_at = self.now()
        self._listener = ListenerHealth(ListenerState.OFF, self._started_at)
        self._database = DatabaseHealth(False, self._started_at, reason="not asked yet")

    def role_started(self, name: str, *, pass_every: timedelta | None = None) -> None:
        """With `pass_every`, a role that makes no pass for several of these intervals makes the status degraded."""
        self._roles[name] = _Role(RoleHealth(), pass_every, self.monotonic())

    def role_paced(self, name: str, pass_every: timedelta) -> None:
        """Sets how often the role looks from now on: the poll is rare while notifications arrive."""
        self._role(name).pass_every = pass_every

    def role_passed(self, name: str, did: str | None = None, *, obstacle: str | None = None) -> None:
        role = self._role(name)
        shown = role.shown
        role.alive_at = self.monotonic()
        role.shown = replace(
            shown,
            state=RoleState.RUNNING,
            passes=shown.passes + 1,
            last_pass_at=self.now(),
            last_pass=_sentence(did) if did else shown.last_pass,
            obstacle=_sentence(obstacle) if obstacle else None,
        )

    def role_failed(self, name: str, error: str, *, restarting: bool = True) -> None:
        """`restarting`: the role is made anew. Otherwise the world is away, and the same role tries again."""
        role = self._role(name)
        role.shown = replace(
            role.shown,
            state=RoleState.RESTARTING,
            restarts=role.shown.restarts + restarting,
            last_error=_sentence(error),
            last_error_at=self.now(),
        )

    def role_resumed(self, name: str) -> None:
        """A role without passes runs again."""
        role = self._role(name)
        role.shown = replace(role.shown, state=RoleState.RUNNING)

    def role_left(self, name: str) -> None:
        """The role was told to end, and is no role of this process any more."""
        self._roles.pop(name, None)

    def listener(self, state: ListenerState, reason: str | None = None) -> None:
        since = self._listener.since if self._listener.state is state else self.now()
        self._listener = ListenerHealth(state, since, _sentence(reason) if reason else None)

    def database_answered(self, took: timedelta) -> None:
        since = self._database.since if self._database.reachable else self.now()
        self._database = DatabaseHealth(True, since, round(took.total_seconds(), 6))

    def database_away(self, reason: str) -> None:
        known = self._database
        since = self.now() if known.reachable else known.since
        self._database = DatabaseHealth(False, since, known.lag_seconds, _sentence(reason))

    def engine(self, problem: str | None) -> None:
        """Why the container engine does not answer; None: it does, or no service needs it."""
        self._engine_problem = _sentence(problem) if problem else None

    def scheduler(self, found: SchedulerHealth, troubles: Sequence[str]) -> None:
        """What a builder counted a moment ago; `troubles` are what a person should see to."""
        self._scheduler, self._scheduler_at = found, self.now()
        self._scheduler_troubles = [_sentence(trouble) for trouble in troubles]

    def obstacles(self) -> dict[str, str]:
        """What keeps roles from their work, by role."""
        return {name: sentence for name, role in self._roles.items() if (sentence := self._about(name, role))}

    @property
    def hearing(self) -> str:
        """Whether notifications arrive; if not, why."""
        reason = self._listener.reason
        return f"{self._listener.state}: {reason}" if reason else str(self._listener.state)

    @property
    def started_at(self) -> datetime:
        return self._started_at

    def drain(self) -> None:
        """SIGTERM came; the status is `stopping` to the end."""
        self._draining = True

    def report(self) -> HealthReport:
        reasons = list(self._complaints())
        return HealthReport(
            status=Status.STOPPING if self._draining else Status.DEGRADED if reasons else Status.OK,
            reasons=reasons,
            ready=self.ready and not self._draining,
            draining=self._draining,
            version=__version__,
            node=self.node,
            started_at=self._started_at,
            roles={name: role.shown for name, role in self._roles.items()},
            listener=self._listener,
            database=self._database,
            leases_held=self.leases_held,
            attempts_in_flight=self.attempts_in_flight,
            scheduler=self._scheduler,
            scheduler_at=self._scheduler_at,
        )

    def _complaints(self) -> list[str]:
        found: list[str] = []
        if self._draining:
            found.append("draining: no new work is taken")
        elif not self.ready:
            found.append("not ready yet")
        if not self._database.reachable:
            found.append(f"the database is away: {self._database.reason}")
        if self._engine_problem:
            found.append(self._engine_problem)
        if self._listener.state is ListenerState.DEAF:
            found.append(f"notifications do not arrive ({self._listener.reason or 'deaf'}); work is polled")
        found.extend(self._scheduler_troubles)
        return found + [sentence for name, role in self._roles.items() if (sentence := self._about(name, role))]

    def _about(self, name: str, role: _Role) -> str | None:
        silent = timedelta(seconds=round(self.monotonic() - role.alive_at))
        match role.shown.state:
            case RoleState.RESTARTING:
                return f"{name} is restarting: {role.shown.last_error}"
            case RoleState.RUNNING if role.pass_every is not None and silent > _OVERDUE * role.pass_every:
                return f"{name} has made no pass for {silent}"
            case RoleState.RUNNING:
                return f"{name} takes no work: {role.shown.obstacle}" if role.shown.obstacle else None

    def _role(self, name: str) -> _Role:
        if name not in self._roles:
            self.role_started(name)
        return self._roles[name]


def _sentence(text: str) -> str:
    """Redacted before it is cut, or half a secret could survive at the cut."""
    return redact(text)[:_LONGEST_SENTENCE]
