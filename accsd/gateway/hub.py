"""The hub: reads what has happened once, and tells all who look.

One per gateway. It reads events by id, woken by notifications and by a timer that is quick while something happens,
and makes messages for the topics that somebody watches. No client causes a query of its own, but for catching up after
it was away. What the hub tells is complete since the mark that each message carries (position.py). A client without a
mark opens its stream, awaits `hello`, and then loads what it shows.
"""

import asyncio
import time
from collections import defaultdict, deque
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Collection,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import zip_longest
from typing import Any, Final, NamedTuple
from uuid import UUID

import anyio
from anyio.abc import TaskStatus

from accsd import __version__
from accsd.db.feed import BATCH, Feed, FeedEvent, Head
from accsd.db.listen import Listener
from accsd.db.pool import Database
from accsd.db.views.fleet import NodeView
from accsd.errors import AccsdError, DatabaseUnavailable, InvalidValue, TooManyWaiting
from accsd.explain.redaction import Redaction
from accsd.gateway.messages import OVERVIEW, Facts, Message, Told, Topic, composed, facts_of, topics_of
from accsd.gateway.position import Mark, Position
from accsd.gateway.subscriptions import Ring, Subscription, Touches
from accsd.log import get_logger
from accsd.metrics import Metrics
from accsd.retry import Backoff

_log = get_logger(component="hub")

DOORS: Final = "_doors"  # a channel: something that is no event has changed, for doors
# Channels that are notified for others anyway: jobs were inserted; nodes came or went, were asked or quarantined.
# Nobody notifies of events as such: it costs every job more than the timer costs a gateway (bench/NOTES.md).
_HEARD: Final = ("builder", "orders", "_quarantines")
_STATES: Final = frozenset({"status", "retry", "progress"})  # after these a task's state is told
_OUTAGE_PAUSES: Final = (timedelta(seconds=0.1), timedelta(seconds=1))

Operations = Callable[[Sequence[UUID]], Awaitable[Mapping[UUID, Mapping[str, Any]]]]
EventsCallback = Callable[[Sequence[FeedEvent]], None]


@dataclass(frozen=True, slots=True)
class Pace:
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


class _Pressure:
    """Whether more happens than can be told one by one."""

    def __init__(self, pace: Pace) -> None:
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


@dataclass(slots=True)
class _Watched:
    """A topic that somebody watches, or has watched a moment ago. `since`: complete in the ring from here on."""

    since: int
    by: set[Subscription]
    left_at: float = 0.0


class Hub:
    """Serve it for as long as the gateway lives; it survives the database's absence. Everything but `serve` may be
    called before it serves."""

    def __init__(
        self,
        db: Database,
        listener: Listener,
        *,
        metrics: Metrics,
        silent: timedelta = timedelta(seconds=60),
        operations: Operations | None = None,
        pace: Pace | None = None,
        redaction: Redaction | None = None,
        clock: Callable[[], float] = time.monotonic,
        feed: Feed | None = None,
    ) -> None:
        """`silent`: a node that was not seen for so long is away. `operations` reads how far bulk operations are."""
        self._feed: Feed = feed or Feed(db)
        self._listener = listener
        self._metrics = metrics
        self._silent = silent
        self._operations = operations
        self._pace: Pace = pace or Pace()
        self._redaction = redaction
        self._clock = clock

        self._position: Position | None = None  # None: not begun, or nobody was there for a while
        self._ahead: float = 0.0  # the database's clock minus ours, which can't be set
        self._compared_at: float = float("-inf")  # when both were compared, and the ids had not gone back
        self._ring: Ring = Ring(0, most=self._pace.ring, most_bytes=self._pace.ring_bytes)
        self._touches: Touches = Touches(0, most=self._pace.ring)
        self._topics: dict[str, _Watched] = {}
        self._all: set[Subscription] = set()
        self._events: list[EventsCallback] = []
        self._waiters: defaultdict[str, set[asyncio.Event]] = defaultdict(set)
        self._waiting: int = 0
        self._pressure: _Pressure = _Pressure(self._pace)
        self._delayed: dict[UUID, FeedEvent] = {}  # by task: progress that is told a little later, the latest wins
        self._told_at: dict[UUID, float] = {}  # by task: its last progress
        self._lines: dict[str, int] = {}  # by log topic: how many lines there were
        self._catching_up: asyncio.Semaphore = asyncio.Semaphore(2)

        self._mode: str = "normal"
        self._hearing: dict[str, Any] = {"state": "deaf", "reason": "not begun"}
        self._lost: str | None = None  # why the database does not answer
        self._counts: dict[str, Any] | None = None
        self._dead: dict[str, Any] | None = None
        self._counts_at: float = float("-inf")
        self._counts_every: float = self._pace.counts
        self._nodes: dict[str, dict[str, Any]] = {}
        self._shown: set[str] = set()  # nodes that are machines: the others are told to those who ask for them
        self._nodes_at: float = float("-inf")
        self._nodes_stirred: bool = True
        self._known_operations: dict[UUID, Mapping[str, Any]] = {}
        self._operations_at: float = float("-inf")

        self._nodes_every: float = self._pace.counts
        self._quiet_up_to: int = 0  # what was there before it began is kept for those who come back, and told to nobody
        self._wanted_until: float = float("-inf")  # somebody is about to wait
        self._stir: asyncio.Event = asyncio.Event()
        self._ready: asyncio.Event = asyncio.Event()
        self._turning: asyncio.Lock = asyncio.Lock()
        self._is_drained: bool = False
        self._timer: float = self._pace.quick
        self._turn_at: float = float("-inf")
        for channel in _HEARD:
            listener.subscribe(channel, self._hear)

    # For the gateway

    @property
    def mark(self) -> str | None:
        """All that was seen is told up to here; None: the hub has not begun, or nobody was there for a while."""
        return None if self._position is None else str(Mark(self._told_low(), self._database_time()))

    @property
    def is_drained(self) -> bool:
        """Whether the gateway stops: who is cut off now has not gone away."""
        return self._is_drained

    @property
    def facts(self) -> dict[str, Any]:
        """For the page of the system."""
        return {
            "streams": len(self._all),
            "waiters": self._waiting,
            "mode": self._mode,
            "hearing": self._hearing,
            "ring": len(self._ring),
            "holes": 0 if self._position is None else len(self._position.holes),
        }

    @asynccontextmanager
    async def subscribe(self, topics: Sequence[Topic], after: str | None = None) -> AsyncGenerator[Subscription]:
        """Everything of these topics from now on, and since the mark `after`. What can't be had any more is a
        `reset`."""
        subscription = Subscription(topics)
        if self._is_drained:
            subscription.end(self._resets(subscription, "restarted"))
            yield subscription
            return
        is_between = await self._register_between_turns(subscription)
        self._stir.set()  # the timer may be slow
        try:
            await self._woken()
            subscription.begin_with([self._hello(), *self._states(subscription)])
            if after is not None:
                missed = await self._missed(subscription, after) if is_between else None
                subscription.begin_with(self._resets(subscription, "too_old") if missed is None else missed)
            yield subscription
        finally:
            self._leave(subscription)

    async def now(self) -> str | None:
        """A mark for `changed`: take it, look at the tables, then wait. None: the database is away."""
        self._wanted_until = self._clock() + self._pace.linger
        await self._woken()
        return self.mark

    async def changed(self, topic: Topic, *, within: float, after: str | None = None) -> bool:
        """Waits until something of a topic is seen; False: nothing was, within so many seconds. With `after` (what
        `now` said before the caller looked at the tables) also what was seen since then counts."""
        if self._waiting >= self._pace.waiters:
            raise TooManyWaiting(
                f"{self._waiting} requests wait already", hint="ask again in a moment, or follow a stream"
            )
        if self._is_drained:
            return False
        if after is not None and ((mark := _parsed(after)) is None or self._touches.is_newer(topic, mark.low)):
            return True
        news = asyncio.Event()
        self._waiters[topic].add(news)
        self._waiting += 1
        if self._waiting == 1:
            self._stir.set()
        try:
            async with asyncio.timeout(within):
                await news.wait()
        except TimeoutError:
            return False
        finally:
            self._waiting -= 1
            self._waiters[topic].discard(news)
            if not self._waiters[topic]:
                del self._waiters[topic]
        return not self._is_drained

    @contextmanager
    def subscribe_events(self, callback: EventsCallback) -> Generator[None]:
        """For doors: every event, also in summary mode. The callback gets them in the order of their ids as far as they
        came together, none twice, and must return at once. An empty batch says that some may have been missed: look at
        the tables."""
        self._events.append(callback)
        self._stir.set()
        try:
            yield
        finally:
            self._events.remove(callback)

    def subscribe_doors(self, callback: Callable[[str], None]) -> None:
        """For doors: what changed without leaving an event, as the payload of its notification; "" may be anything."""
        self._listener.subscribe(DOORS, callback)

    def publish(self, topic: Topic, event: str, document: Mapping[str, Any]) -> None:
        """Tells something that is no event of a task, such as the progress of an operation in this process."""
        self._tell_state(event, (topic,), document)

    def stir(self) -> None:
        """Something was changed through this process: those who look see it at once."""
        if self._is_watched():
            self._stir.set()

    async def drain(self) -> None:
        """Ends all streams and waits, each with `reset: restarted`. Close the server after this."""
        self._is_drained = True
        for subscription in list(self._all):
            subscription.end(self._resets(subscription, "restarted"))
        for waiting in self._waiters.values():
            for news in waiting:
                news.set()

    # The loop

    async def serve(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Counts as started once it has begun, or knows that the database is away."""
        pauses = Backoff(*_OUTAGE_PAUSES)
        is_told = False
        while True:
            self._stir.clear()
            self._turn_at = self._clock()
            try:
                pause = await self.turn()
                pauses.reset()
            except AccsdError as error:
                self._lose(str(error))
                if not isinstance(error, DatabaseUnavailable):
                    raise
                pause = None
                await asyncio.sleep(pauses.next().total_seconds())
            if not is_told:
                task_status.started()
                is_told = True
            if pause is not None:
                await self._rest(pause)

    async def _rest(self, pause: float) -> None:
        """Waits for the timer or a notification; turns that were asked for keep their distance."""
        try:
            async with asyncio.timeout(pause):
                await self._stir.wait()
        except TimeoutError:
            return
        await asyncio.sleep(max(0.0, self._turn_at + self._pace.together - self._clock()))

    async def turn(self) -> float:
        """Reads, tells, and says how long to wait."""
        async with self._turning:
            return await self._turn()

    async def _turn(self) -> float:
        now = self._clock()
        self._forget(now)
        if not self._is_watched():
            return await self._doze()
        if self._position is None or self._lost is not None or now - self._compared_at >= self._pace.compare:
            self._begin(await self._feed.head(), now)
        self._hear_again()
        position = self._position
        assert position is not None
        # All is read before anything is told: a database that goes away in between loses nothing.
        fresh = await self._feed.after(position.seen, self._database_time())
        late: list[FeedEvent] = []
        horizon = None
        if holes := position.holes:
            horizon = await self._feed.horizon()
            late = await self._feed.missing(holes, self._database_time())
        batch = sorted([*late, *fresh], key=lambda event: event.id)
        self._pressure.note(now, sum(event.id > self._quiet_up_to for event in batch))
        summary = self._pressure.is_summary
        paced = self._paced(batch, now, summary=summary)
        facts = await facts_of(self._feed, paced.due, self._topics, self._lines, summary=summary)

        before = position.low
        position.filled([event.id for event in late], now)
        if horizon is not None:
            position.settle(horizon.ended, horizon.begun, now)
        position.read((event.id for event in fresh), now)
        self._note(batch, before, now)
        self._keep_pace(paced, now)
        self._change_mode(summary)
        self._tell(paced.due, facts, {event.id for event in late if event.id <= before}, before=before, summary=summary)
        self._ready.set()
        await self._tell_states(now, is_busy=bool(batch))
        return self._next_pause(len(fresh), now)

    def _next_pause(self, fresh: int, now: float) -> float:
        assert self._position is not None
        if fresh >= BATCH:
            return 0.0
        missing = self._position.youngest_hole(now)
        is_busy = fresh > 0 or self._delayed or (missing is not None and missing < self._pace.settles)
        self._timer = self._pace.quick if is_busy else min(self._timer * self._pace.slower, self._pace.idle)
        if not (self._all or self._waiting or self._events):  # only topics that linger
            return self._pace.alone
        return self._timer if self._listener.is_listening else min(self._timer, self._pace.deaf)

    def _begin(self, head: Head, now: float) -> None:
        """Begins a little before now, or goes on where it was. Ids that have gone back are another database's."""
        self._ahead = head.clock.timestamp() - now
        self._compared_at = now
        position = self._position
        if position is not None and head.last < position.seen:
            _log.warning("feed_went_back", seen=position.seen, last=head.last)
            for subscription in self._all:
                subscription.start_over(self._resets(subscription, "restarted"))
            self._miss_events()
            self._position = position = None
        if position is None:
            self._position = Position(head.recent)
            self._quiet_up_to = head.last
            self._ring = Ring(head.recent, most=self._pace.ring, most_bytes=self._pace.ring_bytes)
            self._touches = Touches(head.recent, most=self._pace.ring)
            self._delayed.clear()
            self._lines.clear()
            for watched in self._topics.values():
                watched.since = head.recent
            self._miss_events()
        self._lost = None

    async def _doze(self) -> float:
        """Nobody is there: only whether the database answers is looked at."""
        if self._position is not None or self._lost is not None:
            await self._feed.horizon()
            self._position = None
            self._lost = None
            self._ready.clear()
        self._hear_again()
        self._metrics.hub_lag(0.0)
        return self._pace.alone

    async def _woken(self) -> None:
        """The hub begins for the first who comes. Without a database nobody waits for it."""
        if not self._ready.is_set() and self._lost is None:
            self._stir.set()
            try:
                async with asyncio.timeout(self._pace.begin):
                    await self._ready.wait()
            except TimeoutError:
                pass

    # What is told

    def _paced(self, batch: Sequence[FeedEvent], now: float, *, summary: bool) -> "_Paced":
        """Of a task's progress the latest, a few times a second; everything else at once."""
        if summary:
            return _Paced(batch, {}, frozenset())
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
        return _Paced([due[each] for each in sorted(due)], delayed, frozenset(told))

    def _keep_pace(self, paced: "_Paced", now: float) -> None:
        self._delayed = paced.delayed
        self._told_at = {task: at for task, at in self._told_at.items() if now - at < self._pace.progress}
        self._told_at.update(dict.fromkeys(paced.told, now))

    def _note(self, batch: Sequence[FeedEvent], before: int, now: float) -> None:
        """Tells doors and those who wait for a change."""
        news = [event for event in batch if event.id > self._quiet_up_to]
        for event in batch:
            for topic in topics_of(event):
                self._touches.note(topic, max(event.id, before + 1))
        if self._waiters:
            for topic in {topic for event in news for topic in topics_of(event)}:
                self._release(topic)
        if batch:
            self._metrics.hub_lag(max(0.0, now + self._ahead - min(event.ts for event in batch).timestamp()))
        else:
            self._metrics.hub_lag(0.0)
        if news:
            for callback in self._events:
                self._call(callback, news)

    def _miss_events(self) -> None:
        for callback in self._events:
            self._call(callback, ())

    def _call(self, callback: EventsCallback, batch: Sequence[FeedEvent]) -> None:
        try:
            callback(batch)
        except Exception:  # noqa: BLE001 - a door's bug must not stop the others
            _log.exception("hub_callback_failed")

    def _tell(
        self, due: Sequence[FeedEvent], facts: Facts, overdue: Collection[int], *, before: int, summary: bool
    ) -> None:
        assert self._position is not None
        told = composed(
            due,
            facts,
            self._topics,
            self._lines,
            overdue=overdue,
            above=before,
            summary=summary,
            redaction=self._redaction,
        )
        if summary:
            self._ring.forget(self._position.seen)
        for message, each in marked(told, self._told_low(), self._database_time()):
            if not summary:
                self._ring.keep(each.key, each.topics, message)
            if each.key > self._quiet_up_to:
                self._offer(message, each.topics)
        self._quiet_up_to = 0

    def _offer(self, message: Message, topics: Iterable[str]) -> None:
        to: set[Subscription] = set()
        for topic in topics:
            if (watched := self._topics.get(topic)) is not None:
                to |= watched.by
        self._offer_to(to, message)

    def _offer_to(self, subscriptions: Iterable[Subscription], message: Message) -> None:
        n = 0
        for subscription in subscriptions:
            n += 1
            if not subscription.offer(message):
                subscription.lagged += 1
                self._metrics.stream_lagged()
                subscription.start_over(self._resets(subscription, "lagged"))
        self._metrics.stream_messages(n)

    def _tell_state(self, event: str, topics: Sequence[str], document: Mapping[str, Any]) -> None:
        """Something that is told as it is now: who comes later gets it first of all."""
        for topic in topics:
            self._release(topic)
        if any(topic in self._topics for topic in topics):
            self._offer(Message(event, document, self.mark), topics)

    def _tell_all(self, event: str, document: Mapping[str, Any]) -> None:
        if self._all:
            self._offer_to(list(self._all), Message(event, document, self.mark))

    def _release(self, topic: str) -> None:
        for news in self._waiters.get(topic, ()):
            news.set()

    def _change_mode(self, summary: bool) -> None:
        mode = "summary" if summary else "normal"
        if mode != self._mode:
            self._mode = mode
            _log.info("hub_mode", mode=mode)
            self._metrics.hub_mode(summary)
            self._tell_all("mode", {"mode": mode})

    def _hear_again(self) -> None:
        """Says how news arrive, when that has changed."""
        state = self._listener.state
        hearing = {"state": state.hearing.value, "reason": state.reason}
        if self._lost is not None:
            hearing = {"state": "lost", "reason": self._lost}
        if hearing["state"] != self._hearing["state"]:
            self._hearing = hearing
            self._tell_all("hearing", hearing)
        self._hearing = hearing

    def _lose(self, reason: str) -> None:
        if self._lost is None:
            _log.warning("hub_waits", error=reason)
        self._lost = reason
        self._hear_again()

    # What is not an event

    async def _tell_states(self, now: float, *, is_busy: bool) -> None:
        pace = self._pace
        if self._wants(OVERVIEW) and now - self._counts_at >= max(
            self._counts_every, pace.counts if is_busy else pace.counts_idle
        ):
            await self._look_at_counts(now)
        every = self._nodes_every if is_busy or self._nodes_stirred else max(pace.nodes, self._nodes_every)
        if self._wants(OVERVIEW, "node:") and now - self._nodes_at >= every:
            await self._look_at_nodes(now)
        if self._operations is not None and now - self._operations_at >= pace.counts:
            await self._look_at_operations(self._operations, now)

    async def _look_at_counts(self, now: float) -> None:
        self._counts_at = now
        counts = await self._feed.counts()
        self._counts_every = self._next_look(now)
        dead = counts.pop("dead")
        if counts != self._counts:
            self._counts = counts
            self._tell_state("counts", (OVERVIEW,), counts)
        if dead != self._dead:
            self._dead = dead
            self._tell_state("dead", (OVERVIEW,), dead)

    async def _look_at_nodes(self, now: float) -> None:
        self._nodes_at = now
        self._nodes_stirred = False
        found = {node.name: self._node(node) for node in await self._feed.nodes()}
        self._nodes_every = self._next_look(now)
        gone = {name: {"name": name, "state": "removed"} for name in self._nodes.keys() - found.keys()}
        known, self._nodes = self._nodes, found
        for name, document in (found | gone).items():
            if document != known.get(name):
                self._tell_state("node", self._topics_of_node(document), document)

    async def _look_at_operations(self, operations: Operations, now: float) -> None:
        watched = [UUID(topic.partition(":")[2]) for topic in self._topics if topic.startswith("operation:")]
        if not watched:
            return
        self._operations_at = now
        for operation, document in (await operations(watched)).items():
            if document != self._known_operations.get(operation):
                self._known_operations[operation] = document
                self._tell_state("operation", (Topic.operation(operation),), document)

    def _next_look(self, began: float) -> float:
        """How long an answer of this kind is good: one that took long is asked for less often."""
        return self._pace.counts_slow if self._clock() - began > self._pace.slow else self._pace.counts

    def _node(self, node: NodeView) -> dict[str, Any]:
        return {
            "name": node.name,
            "state": node.state(self._silent),
            "since": node.since(self._silent) if node.whereabouts(self._silent) != "away" else None,
            "because": node.because,
            "live": node.live,
            "slots": node.slots,
            "quarantines": sorted(node.quarantines),
            "obstacles": node.obstacles,
            "is_machine": node.is_machine,
        }

    def _topics_of_node(self, document: Mapping[str, Any]) -> tuple[str, ...]:
        """What is no machine is told only to those who ask for it."""
        own = Topic.node(document["name"])
        return (OVERVIEW, own) if document.get("is_machine", True) else (own,)

    def _wants(self, *beginnings: str) -> bool:
        return any(topic.startswith(beginnings) for topic in (*self._topics, *self._waiters))

    # Who is there

    def _is_watched(self) -> bool:
        return bool(self._topics or self._waiting or self._events or self._clock() < self._wanted_until)

    async def _register_between_turns(self, subscription: Subscription) -> bool:
        """What a turn reads for the topics that it knew must not count as told to a topic that came meanwhile. False: a
        turn takes too long, and whoever comes back has to start over."""
        try:
            async with asyncio.timeout(self._pace.begin):
                await self._turning.acquire()
        except TimeoutError:
            self._register(subscription)
            return False
        try:
            self._register(subscription)
        finally:
            self._turning.release()
        return True

    def _register(self, subscription: Subscription) -> None:
        self._all.add(subscription)
        seen = 0 if self._position is None else self._position.seen
        for topic in subscription.topics:
            watched = self._topics.setdefault(topic, _Watched(seen, set()))
            watched.by.add(subscription)
            if topic == OVERVIEW or topic.startswith("node:"):
                self._nodes_stirred = True
        self._metrics.stream_clients(len(self._all))

    def _leave(self, subscription: Subscription) -> None:
        self._all.discard(subscription)
        for topic in subscription.topics:
            watched = self._topics[topic]
            watched.by.discard(subscription)
            watched.left_at = self._clock()
        self._metrics.stream_clients(len(self._all))

    def _forget(self, now: float) -> None:
        """Topics that nobody watches any more, and what was kept for them."""
        for topic in [t for t, w in self._topics.items() if not w.by and now - w.left_at >= self._pace.linger]:
            del self._topics[topic]
            self._lines.pop(topic, None)
            if topic.startswith("operation:"):
                self._known_operations.pop(UUID(topic.partition(":")[2]), None)
        if not self._wants(OVERVIEW):
            self._counts = self._dead = None
        if not self._wants(OVERVIEW, "node:"):
            self._nodes = {}

    def _hello(self) -> Message:
        document = {
            "clock": None if self._position is None else self._database_time(),
            "mode": self._mode,
            "hearing": self._hearing,
            "mark": self.mark,
            "version": __version__,
        }
        return Message("hello", document, self.mark)

    def _states(self, subscription: Subscription) -> list[Message]:
        """What is known already of that which is told as it is now."""
        mark = self.mark
        states: list[Message] = []
        topics = frozenset(subscription.topics)
        if OVERVIEW in topics:
            states += [Message("counts", self._counts, mark)] if self._counts is not None else []
            states += [Message("dead", self._dead, mark)] if self._dead is not None else []
        states += [
            Message("node", document, mark)
            for document in self._nodes.values()
            if not topics.isdisjoint(self._topics_of_node(document))
        ]
        states += [
            Message("operation", document, mark)
            for operation, document in self._known_operations.items()
            if Topic.operation(operation) in topics
        ]
        return states

    def _resets(self, subscription: Subscription, why: str) -> list[Message]:
        mark = self.mark
        return [Message("reset", {"topic": topic, "why": why}, mark) for topic in subscription.topics]

    # For those who come back

    async def _missed(self, subscription: Subscription, after: str) -> list[Message] | None:
        """What was told since a mark: from the ring, else from the database; None: that can't be said any more."""
        mark, position = _parsed(after), self._position
        if mark is None:
            return None
        if position is None:
            return self._resets(subscription, "restarted")
        has_all = all(self._topics[topic].since <= mark.low for topic in subscription.topics)
        if self._ring.floor <= mark.low <= position.seen and has_all:
            return self._ring.since(mark.low, subscription.topics)
        try:
            async with asyncio.timeout(self._pace.catch_up_within):
                if mark.low > position.seen:  # another gateway has read further than this one, or another database
                    is_known = mark.low <= (await self._feed.head()).last
                    return [] if is_known else self._resets(subscription, "restarted")
                async with self._catching_up:
                    return await self._read_again(subscription, mark, position)
        except (TimeoutError, DatabaseUnavailable):
            return None

    async def _read_again(self, subscription: Subscription, mark: Mark, position: Position) -> list[Message] | None:
        """None: it is too much. What comes after `upto`, or commits after this, is in the queue."""
        upto, low, most = position.seen, self._told_low(), self._pace.catch_up
        jobs = [UUID(topic.name) for topic in subscription.topics if topic.kind == "job"]
        is_of_jobs = len(jobs) == len(subscription.topics)
        if upto - mark.low > 2 * most and not is_of_jobs:  # ids of rolled back transactions are not events
            return None
        events = await self._feed.after(
            mark.low,
            mark.ts,
            upto=upto,
            limit=most + 1,
            jobs=jobs if is_of_jobs else None,
            within=self._pace.catch_up_within,
        )
        if len(events) > most:
            return None
        topics = frozenset(subscription.topics)
        facts = await facts_of(self._feed, events, topics, {})
        told = composed(events, facts, topics, {}, redaction=self._redaction)
        return [message for message, _ in marked(told, low, self._database_time())]

    # Small things

    def _told_low(self) -> int:
        assert self._position is not None
        return min(self._position.low, min((event.id - 1 for event in self._delayed.values()), default=2**63))

    def _database_time(self) -> datetime:
        """What the database's clock shows, as far as is known."""
        return datetime.fromtimestamp(self._clock() + self._ahead, UTC)

    def _hear(self, _payload: str) -> None:
        self._nodes_stirred = True
        self.stir()


class _Paced(NamedTuple):
    due: Sequence[FeedEvent]
    delayed: dict[UUID, FeedEvent]
    told: frozenset[UUID]  # tasks whose progress is told now


def marked(told: Sequence[Told], low: int, ts: datetime) -> Iterator[tuple[Message, Told]]:
    """Messages in their order, each with the mark up to which all was told when its reader has it: below the next one,
    and never above `low`. (All that one event leads to is told before the mark reaches that event.)"""
    for each, following in zip_longest(told, told[1:]):
        mark = low if following is None else min(low, following.key - 1)
        yield Message(each.event, each.document, str(Mark(mark, ts))), each


def _parsed(text: str) -> Mark | None:
    try:
        return Mark.parse(text)
    except InvalidValue:
        return None
