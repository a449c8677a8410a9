"""How fast the hub goes: its times and limits, whether too much happens to tell it all, and which progress is told."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple
from uuid import UUID

from accsd.db.feed import FeedEvent

_STATES: Final = frozenset({"status", "retry", "progress"})  # after these a task's state is told


@dataclass(frozen=True, slots=True)
class HubPace:
    """Times in seconds, and limits. Tests make them small."""

    together: float = 0.1  # notifications within this time lead to one turn
    quick: float = 0.25  # the timer while events flow
    slower: float = 1.5
    settles: float = 2.0  # how long a missing id is looked for as quickly as that
    idle: float = 0.7
    deaf: float = 1.0
    alone: float = 10.0  # nobody is there
    begin: float = 2.0  # for the first who comes
    compare: float = 60.0  # the database's clock may be set, and its ids may go back
    linger: float = 120.0  # a topic is kept up after the last one who watched it left
    progress: float = 0.25  # between two messages of a task's progress
    counts: float = 1.0
    counts_idle: float = 2.0
    counts_slow: float = 10.0
    slow: float = 0.05  # a query that takes longer is asked less often
    nodes: float = 5.0  # without a reason to look at them
    flood: float = 2000.0  # events a second, over `flood_over`: only summaries
    flood_over: float = 2.0
    calm: float = 500.0  # for `calm_for`: everything again
    calm_for: float = 5.0
    ring: int = 20_000
    ring_bytes: int = 32 * 1024 * 1024
    catch_up: int = 10_000  # events, for a client that comes back
    catch_up_within: float = 1.0
    waiters: int = 2_000


class Pressure:
    """Whether more happens than can be told one by one."""

    def __init__(self, pace: HubPace) -> None:
        self._pace = pace
        self._read: deque[tuple[float, int]] = deque()
        self._busy_at: float | None = None  # when it was last too much for everything to be told again
        self.is_summary: bool = False

    def note(self, now: float, events: int) -> None:
        pace = self._pace
        self._read.append((now, events))
        while self._read and self._read[0][0] <= now - pace.flood_over:
            self._read.popleft()
        rate = sum(n for _, n in self._read) / pace.flood_over
        if rate > pace.calm:
            self._busy_at = now
        if rate > pace.flood:
            self.is_summary = True
        elif self.is_summary and self._busy_at is not None and now - self._busy_at >= pace.calm_for:
            self.is_summary = False


class Paced(NamedTuple):
    """Of some events: which are told now, and which progress then waits."""

    due: Sequence[FeedEvent]
    delayed: dict[UUID, FeedEvent]
    told: frozenset[UUID]  # tasks whose progress is told now


class ProgressPace:
    """Of a task's progress the latest is told, a few times a second; the others never."""

    def __init__(self, pace: HubPace) -> None:
        self._pace = pace
        self._delayed: dict[UUID, FeedEvent] = {}  # by task: told a little later, the latest wins
        self._told_at: dict[UUID, float] = {}  # by task

    @property
    def first_delayed(self) -> int | None:
        """The id of the first event that is still to be told."""
        return min((event.id for event in self._delayed.values()), default=None)

    def paced(self, batch: Sequence[FeedEvent], now: float, *, summary: bool) -> Paced:
        """Changes nothing: what is told may still fail to be read. `keep` does."""
        if summary:
            return Paced(batch, {}, frozenset())
        delayed = dict(self._delayed)
        due: dict[int, FeedEvent] = {}
        for event in batch:
            if event.task_id is None or event.type not in _STATES:
                due[event.id] = event
            elif event.type == "progress":
                delayed[event.task_id] = event
            else:
                delayed.pop(event.task_id, None)  # the state that is told has the progress
                due[event.id] = event
        told: set[UUID] = set()
        for task_id, event in list(delayed.items()):
            if now - self._told_at.get(task_id, float("-inf")) >= self._pace.progress:
                due[event.id] = delayed.pop(task_id)
                told.add(task_id)
        return Paced([due[each] for each in sorted(due)], delayed, frozenset(told))

    def keep(self, paced: Paced, now: float) -> None:
        self._delayed = paced.delayed
        self._told_at = {task: at for task, at in self._told_at.items() if now - at < self._pace.progress}
        self._told_at.update(dict.fromkeys(paced.told, now))

    def forget(self) -> None:
        self._delayed.clear()
