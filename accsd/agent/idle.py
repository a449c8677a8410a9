"""How long this node has been awake, and how long without work: that decides whether it may sleep.

Times are by the monotonic clock, which stands still while the machine is suspended.
"""

import time
from datetime import timedelta

from accsd.planning.sleep import IdleTime, SleepRules
from accsd.settings import SleepSettings


def rules_of(sleep: SleepSettings) -> SleepRules:
    """The rules of sleep. An idle time in the settings counts, however long waking takes."""
    if isinstance(sleep.idle, timedelta):
        return SleepRules(idle=sleep.idle, awake=sleep.awake, boots=float("inf"))
    return SleepRules(awake=sleep.awake)


class IdleClock:
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
