"""The hub: reads what has happened once, and tells all who look.

One per gateway. It reads events by id, woken by notifications and by a timer that is quick while something happens,
and makes messages for the topics that somebody watches. No client causes a query of its own, but for catching up after
it was away. What the hub tells is complete since the mark that each message carries (position.py). A client without a
mark opens its stream, awaits `hello`, and then loads what it shows.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from itertools import zip_longest
from typing import Any, Final
from uuid import UUID

import anyio
from anyio.abc import TaskStatus

from accsd import __version__
from accsd.db.feed import BATCH, Feed, FeedEvent, Head
from accsd.db.listen import Listener
from accsd.db.pool import Database
from accsd.errors import AccsdError, DatabaseUnavailable, InvalidValue
from accsd.explain.redaction import Redaction
from accsd.gateway.audience import Audience
from accsd.gateway.messages import OVERVIEW, Message, MessageFacts, Told, Topic, composed, facts_of, topics_of
from accsd.gateway.pace import HubPace, Pressure, ProgressPace
from accsd.gateway.position import Mark, Position
from accsd.gateway.present import Operations, Present
from accsd.gateway.subscriptions import Ring, Subscription, Touches
from accsd.log import get_logger
from accsd.metrics import Metrics
from accsd.retry import Backoff

_log = get_logger(component="hub")

DOORS: Final = "_doors"  # a channel: something that is no event has changed, for doors
# Channels that are notified for others anyway: jobs were inserted; nodes came or went, were asked or quarantined.
# Nobody notifies of events as such: it costs every job more than the timer costs a gateway (bench/NOTES.md).
_HEARD: Final = ("builder", "orders", "_quarantines")
_OUTAGE_PAUSES: Final = (timedelta(seconds=0.1), timedelta(seconds=1))

EventsCallback = Callable[[Sequence[FeedEvent]], None]


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
        pace: HubPace | None = None,
        redaction: Redaction | None = None,
        clock: Callable[[], float] = time.monotonic,
        feed: Feed | None = None,
    ) -> None:
        """`silent`: a node that was not seen for so long is away. `operations` reads how far bulk operations are."""
        self._feed: Feed = feed or Feed(db)
        self._listener = listener
        self._metrics = metrics
        self._pace: HubPace = pace or HubPace()
        self._redaction = redaction
        self._clock = clock

        self._position: Position | None = None  # None: not begun, or nobody was there for a while
        self._ahead: float = 0.0  # the database's clock minus ours, which can't be set
        self._compared_at: float = float("-inf")  # when both were compared, and the ids had not gone back
        self._quiet_up_to: int = 0  # what was there before it began is kept for those who come back, and told to nobody
        self._ring: Ring = Ring(0, most=self._pace.ring, most_bytes=self._pace.ring_bytes)
        self._touches: Touches = Touches(0, most=self._pace.ring)
        self._audience: Audience = Audience(self._pace, metrics)
        self._events: list[EventsCallback] = []
        self._drains: list[Callable[[], None]] = []
        self._pressure: Pressure = Pressure(self._pace)
        self._progress: ProgressPace = ProgressPace(self._pace)
        self._present: Present = Present(self._feed, self._pace, silent=silent, operations=operations, clock=clock)
        self._lines: dict[str, int] = {}  # by log topic: how many lines there were
        self._catching_up: asyncio.Semaphore = asyncio.Semaphore(2)

        self._mode: str = "normal"
        self._hearing: dict[str, Any] = {"state": "deaf", "reason": "not begun"}
        self._lost: str | None = None  # why the database does not answer
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
            "streams": len(self._audience.streams),
            "waiters": self._audience.waiting,
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
            self._audience.leave(subscription, self._clock())

    async def now(self) -> str | None:
        """A mark for `changed`: take it, look at the tables, then wait. None: the database is away."""
        self._wanted_until = self._clock() + self._pace.linger
        await self._woken()
        return self.mark

    async def changed(self, topic: Topic, *, within: float, after: str | None = None) -> bool:
        """Waits until something of a topic is seen; False: nothing was, within so many seconds. With `after` (what
        `now` said before the caller looked at the tables) also what was seen since then counts."""
        self._audience.require_room()
        if self._is_drained:
            return False
        if after is not None and ((mark := _parsed(after)) is None or self._touches.is_newer(topic, mark.low)):
            return True
        if self._audience.waiting == 0:
            self._stir.set()  # the timer may be slow
        return await self._audience.wait(topic, within=within) and not self._is_drained

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

    def subscribe_drain(self, callback: Callable[[], None]) -> None:
        """For doors with requests that wait for something else than the hub: the gateway stops, answer them now."""
        self._drains.append(callback)

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
        for subscription in self._audience.streams:
            subscription.end(self._resets(subscription, "restarted"))
        self._audience.release_all()
        for callback in self._drains:
            callback()

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
        paced = self._progress.paced(batch, now, summary=summary)
        facts = await facts_of(self._feed, paced.due, self._audience.topics, self._lines, summary=summary)

        before = position.low
        position.filled([event.id for event in late], now)
        if horizon is not None:
            position.settle(horizon.ended, horizon.begun, now)
        position.read((event.id for event in fresh), now)
        self._note(batch, before, now)
        self._progress.keep(paced, now)
        self._change_mode(summary)
        self._tell(paced.due, facts, {event.id for event in late if event.id <= before}, before=before, summary=summary)
        self._ready.set()
        async for event, topics, document in self._present.changes(self._audience.wanted, now, is_busy=bool(batch)):
            self._tell_state(event, topics, document)
        return self._next_pause(len(fresh), now)

    def _next_pause(self, fresh: int, now: float) -> float:
        assert self._position is not None
        if fresh >= BATCH:
            return 0.0
        missing = self._position.youngest_hole(now)
        is_waiting = self._progress.first_delayed is not None
        is_busy = fresh > 0 or is_waiting or (missing is not None and missing < self._pace.settles)
        self._timer = self._pace.quick if is_busy else min(self._timer * self._pace.slower, self._pace.idle)
        if not (self._audience.is_there or self._events):  # only topics that linger
            return self._pace.alone
        return self._timer if self._listener.is_listening else min(self._timer, self._pace.deaf)

    def _begin(self, head: Head, now: float) -> None:
        """Begins a little before now, or goes on where it was. Ids that have gone back are another database's."""
        self._ahead = head.clock.timestamp() - now
        self._compared_at = now
        position = self._position
        if position is not None and head.last < position.seen:
            _log.warning("feed_went_back", seen=position.seen, last=head.last)
            for subscription in self._audience.streams:
                subscription.start_over(self._resets(subscription, "restarted"))
            self._miss_events()
            self._position = position = None
        if position is None:
            self._position = Position(head.recent)
            self._quiet_up_to = head.last
            self._ring = Ring(head.recent, most=self._pace.ring, most_bytes=self._pace.ring_bytes)
            self._touches = Touches(head.recent, most=self._pace.ring)
            self._progress.forget()
            self._lines.clear()
            self._audience.begin_again(head.recent)
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

    def _note(self, batch: Sequence[FeedEvent], before: int, now: float) -> None:
        """Tells doors and those who wait for a change."""
        news = [event for event in batch if event.id > self._quiet_up_to]
        for event in batch:
            for topic in topics_of(event):
                self._touches.note(topic, max(event.id, before + 1))
        if self._audience.waiting:
            self._audience.release({topic for event in news for topic in topics_of(event)})
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
        self, due: Sequence[FeedEvent], facts: MessageFacts, overdue: Collection[int], *, before: int, summary: bool
    ) -> None:
        assert self._position is not None
        told = composed(
            due,
            facts,
            self._audience.topics,
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
        self._start_over(self._audience.offer(message, topics))

    def _tell_all(self, event: str, document: Mapping[str, Any]) -> None:
        if self._audience.streams:
            self._start_over(self._audience.offer_to_all(Message(event, document, self.mark)))

    def _start_over(self, laggards: Iterable[Subscription]) -> None:
        for subscription in laggards:
            subscription.start_over(self._resets(subscription, "lagged"))

    def _tell_state(self, event: str, topics: Sequence[str], document: Mapping[str, Any]) -> None:
        """Something that is told as it is now: who comes later gets it first of all."""
        self._audience.release(topics)
        if any(topic in self._audience.topics for topic in topics):
            self._offer(Message(event, document, self.mark), topics)

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

    # Who is there

    def _is_watched(self) -> bool:
        return bool(self._audience.lingers or self._events or self._clock() < self._wanted_until)

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
        self._audience.join(subscription, 0 if self._position is None else self._position.seen)
        if any(topic == OVERVIEW or topic.kind == "node" for topic in subscription.topics):
            self._present.stir()

    def _forget(self, now: float) -> None:
        """Topics that nobody watches any more, and what was kept for them."""
        for topic in self._audience.forget(now):
            self._lines.pop(topic, None)
        self._present.forget(self._audience.wanted)

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
        return [Message(event, document, self.mark) for event, _, document in self._present.known(subscription.topics)]

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
        has_all = self._audience.has_watched(subscription.topics, mark.low)
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
        delayed = self._progress.first_delayed
        return self._position.low if delayed is None else min(self._position.low, delayed - 1)

    def _database_time(self) -> datetime:
        """What the database's clock shows, as far as is known."""
        return datetime.fromtimestamp(self._clock() + self._ahead, UTC)

    def _hear(self, _payload: str) -> None:
        self._present.stir()
        self.stir()


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
