"""A node: the facts that its roles share, and lookups; no decisions. The table of the roles is in roles.py."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from accsd.db.listen import CANCEL, NEWS, Listener
from accsd.db.orders import Order
from accsd.health import Health
from accsd.planning.sleep import IdleTime, SleepRules
from accsd.power.inhibitor import Inhibitor
from accsd.settings import Settings, SleepSettings
from accsd.work.attempts import Attempts
from accsd.work.context import AttemptContext
from accsd.work.service import LocalService

AGENT: Final = "agent:"  # followed by the service: the name of its role
GOES_TO_SLEEP: Final = "it goes to sleep"  # the answer to a node order to sleep


def rules_of(sleep: SleepSettings) -> SleepRules:
    """The rules of sleep. An idle time in the settings counts, however long waking takes."""
    if isinstance(sleep.idle, timedelta):
        return SleepRules(idle=sleep.idle, awake=sleep.awake, boots=float("inf"))
    return SleepRules(awake=sleep.awake)


class IdleClock:
    """How long this node has been awake, and how long without work: that decides whether it may sleep. Times are by
    the monotonic clock, which stands still while the machine is suspended."""

    def __init__(self) -> None:
        self.latency: timedelta | None = None  # how long waking this machine takes, as far as is known
        self._awake_since: float = time.monotonic()
        self._idle_since: float | None = self._awake_since

    def see(self, *, busy: bool) -> bool:
        """Returns whether the node has become busy or idle."""
        if busy == (self._idle_since is None):
            return False
        self._idle_since = None if busy else time.monotonic()
        return True

    def begin_anew(self) -> None:
        """Starts both times again after a suspend: the work that the node was woken for may still be on its way."""
        self._awake_since = time.monotonic()
        if self._idle_since is not None:
            self._idle_since = self._awake_since

    @property
    def now(self) -> IdleTime:
        now = time.monotonic()
        idle_for = None if self._idle_since is None else timedelta(seconds=now - self._idle_since)
        return IdleTime(idle_for, timedelta(seconds=now - self._awake_since), self.latency)


@dataclass(eq=False, slots=True, kw_only=True)
class Node(AttemptContext):
    """The node that this process is. (`model.Node` is a row: what the database knows of any node.)"""

    settings: Settings  # the newest: a reload replaces them
    listener: Listener
    health: Health
    attempts: Attempts
    stop: Callable[[], None]  # asks the whole daemon to drain
    wake_role: Callable[[str], None] = lambda _: None  # wakes a role, by name: what it looks at has changed
    is_registered: bool = False
    # The services of this node; None: not known yet. `is_certain`: every source has answered.
    services: Mapping[str, LocalService] | None = None
    is_certain: bool = False
    # Services that the node was notified of since their agent last looked, and those that a probe has found well.
    called: set[str] = field(default_factory=set[str])
    well: set[str] = field(default_factory=set[str])
    # Sleep: the node orders that ask for it, how far it is, and what was heard meanwhile.
    idle: IdleClock = field(default_factory=IdleClock)
    inhibitor: Inhibitor = field(default_factory=Inhibitor)
    sleep_orders: list[Order] = field(default_factory=list[Order])
    is_going_to_sleep: bool = False
    has_said_goodbye: bool = False
    has_news: bool = False  # of work, since the node last considered sleep
    must_stay: str | None = None
    _absences: int = 0
    _listened_to: set[str] = field(default_factory=set[str])

    @property
    def sleeps(self) -> bool:
        """This node goes to sleep by itself, or when a node order asks for it."""
        return self.settings.sleep.method != "none"

    @property
    def runs(self) -> Sequence[LocalService]:
        return list((self.services or {}).values())

    def is_meant(self, payload: str) -> bool:
        """Whether a notification is for this node: all nodes hear the channel, and its payload names one of them."""
        return payload in (NEWS, self.name)

    def count(self) -> None:
        """Counts attempts after one has begun or ended."""
        self.health.attempts_in_flight = len(self.attempts)
        self.health.leases_held = len(self.leases.held)
        busy = bool(len(self.attempts) or self.leases.held)
        if self.idle.see(busy=busy):
            self.inhibitor.want(busy=busy and self.settings.sleep.inhibit == "auto")
            self.wake_role("sleep")

    def look(self) -> None:
        """Wakes all roles that look for work: the node is known to the database, or back at work."""
        for role in ("poll", "probe", "sleep", AGENT):
            self.wake_role(role)

    def resume(self) -> None:
        """Goes on after its leases have been asked about: after a sleep, whatever caused it, or one that failed."""
        if self.leases.absences > self._absences:
            self._absences = self.leases.absences
            self.idle.begin_anew()
        self.wake_role("poll")
        self.wake_role("sleep")

    def listen_to(self, services: Iterable[str]) -> None:
        """Listens to services for ever: attempts go on, and may be cancelled, after their service is gone from here."""
        for service in set(services) - self._listened_to:
            self._listened_to.add(service)
            self.listener.subscribe(service, lambda payload, service=service: self._hear(service, payload))

    def _hear(self, service: str, payload: str) -> None:
        if payload == CANCEL:
            self.leases.ask_now()
        elif service in (self.services or {}):
            self.called.add(service)
            self.has_news = True
            self.wake_role(f"{AGENT}{service}")
