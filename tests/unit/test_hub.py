"""The hub over a feed that is a list: transactions take ids, and commit, roll back or linger in any order."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, cast
from uuid import UUID

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from accsd.db.feed import BATCH, Feed, FeedEvent, Head, Horizon, JobState, TaskState, gathered
from accsd.db.listen import Listener
from accsd.db.pool import Database
from accsd.errors import DatabaseUnavailable, InvalidValue, TooManyWaiting
from accsd.gateway.hub import Hub
from accsd.gateway.messages import JOBS, OVERVIEW, Message, Topic
from accsd.gateway.pace import HubPace
from accsd.gateway.position import Mark, Position
from accsd.gateway.subscriptions import MOST_QUEUED, Subscription
from accsd.metrics import Metrics
from accsd.settings import DatabaseSettings

BEGAN = datetime(2026, 11, 18, tzinfo=UTC)
JOB, OTHER_JOB = UUID(int=1), UUID(int=2)
WATCHED = Topic.job(JOB)
TASKS = [UUID(int=100 + n) for n in range(3)]


@dataclass
class FakeFeed:
    """Ids are given when a transaction writes, and seen when it commits."""

    now: float = 1000.0
    visible: dict[int, FeedEvent] = field(default_factory=dict[int, FeedEvent])
    open: dict[int, list[FeedEvent]] = field(default_factory=dict[int, list[FeedEvent]])
    last: int = 0
    transactions: int = 0
    is_away: bool = False
    gate: asyncio.Event | None = None  # a read of jobs waits for it
    reads: int = 0

    def clock(self) -> float:
        return self.now

    def begin(self, *kinds: str, job: UUID = JOB) -> int:
        self.transactions += 1
        self.open[self.transactions] = [self._event(kind, job) for kind in kinds]
        return self.transactions

    def _event(self, kind: str, job: UUID) -> FeedEvent:
        self.last += 1
        ts = BEGAN + timedelta(seconds=self.now)
        task = TASKS[self.last % 3]
        return FeedEvent(self.last, ts, job, task, 1, "agent:x", "info", kind, f"{kind} {self.last}", None)

    def commit(self, transaction: int) -> None:
        self.visible |= {event.id: event for event in self.open.pop(transaction)}

    def roll_back(self, transaction: int) -> None:
        del self.open[transaction]

    def write(self, *kinds: str, job: UUID = JOB) -> None:
        self.commit(self.begin(*kinds, job=job))

    def latest(self, **of: UUID) -> int:
        return max((e.id for e in self.visible.values() if all(getattr(e, k) == v for k, v in of.items())), default=0)

    # What the hub asks

    def _asked(self) -> None:
        self.reads += 1
        if self.is_away:
            raise DatabaseUnavailable("the database is away")

    async def head(self, *, most: int = BATCH) -> Head:
        self._asked()
        under_way = [events[0].id - 1 for events in self.open.values()]
        return Head(self.last, max(0, min([self.last - 3, *under_way])), BEGAN + timedelta(seconds=self.now))

    async def horizon(self) -> Horizon:
        self._asked()
        begun = self.transactions + 1
        return Horizon(min(self.open, default=begun), begun, BEGAN + timedelta(seconds=self.now))

    async def after(
        self,
        seen: int,
        since: datetime,
        *,
        upto: int | None = None,
        limit: int = BATCH,
        jobs: Sequence[UUID] | None = None,
        within: float | None = None,
    ) -> list[FeedEvent]:
        self._asked()
        found = (self.visible[i] for i in sorted(self.visible) if seen < i <= (upto or 2**62))
        return [event for event in found if jobs is None or event.job_id in jobs][:limit]

    async def missing(self, holes: Sequence[tuple[int, int]], since: datetime) -> list[FeedEvent]:
        self._asked()
        return [self.visible[i] for i in sorted(self.visible) if any(a <= i <= b for a, b in holes)]

    async def jobs(self, ids: Iterable[UUID]) -> dict[UUID, JobState]:
        self._asked()
        if self.gate is not None:
            await self.gate.wait()
        return {i: JobState(i, "w", "running", self.latest(job_id=i), None, 1, 1, None, BEGAN) for i in ids}

    async def tasks(self, ids: Iterable[UUID]) -> dict[UUID, TaskState]:
        self._asked()
        return {
            i: TaskState(i, JOB, "a", "x", "running", 1, "n", self.latest(task_id=i), None, None, None) for i in ids
        }

    async def counts(self) -> dict[str, Any]:
        return {"live": 0, "dead": {"open": 0}}

    async def nodes(self) -> list[Any]:
        return []

    async def log_lines(self, task_id: UUID, attempt_id: int) -> list[FeedEvent]:
        return [e for e in self.visible.values() if e.type == "log" and e.task_id == task_id]

    async def sealed_lines(self, task_id: UUID, attempt_id: int) -> int:
        return 5000


class Held(Listener):
    def __init__(self) -> None:
        super().__init__(DatabaseSettings(), "accs_", behind_pooler=False, is_off=True)


def hub_over(feed: FakeFeed, **pace: Any) -> Hub:
    """Without its loop: a test makes the turns."""
    return Hub(
        cast("Database", None),
        Held(),
        metrics=Metrics(),
        pace=replace(HubPace(begin=0.01), **pace),
        clock=feed.clock,
        feed=cast("Feed", feed),
    )


class Client:
    """A client that takes messages one by one, may be cut at any of them, and comes back with the last mark."""

    def __init__(self, hub: Hub, *topics: Topic) -> None:
        self.hub = hub
        self.topics = topics or (WATCHED,)
        self.got: list[Message] = []
        self.subscription: Subscription | None = None

    async def connect(self, hub: Hub | None = None) -> None:
        self.hub = hub or self.hub
        self._context = self.hub.subscribe(self.topics, self.got[-1].mark if self.got else None)
        self.subscription = await self._context.__aenter__()

    async def take(self, at_most: int | None = None) -> None:
        assert self.subscription is not None
        taken: list[Message] = []
        while self.subscription.waiting and (at_most is None or len(taken) < at_most):
            taken += await self.subscription.batch()
        self.got += taken[:at_most]

    async def leave(self) -> None:
        await self._context.__aexit__(None, None, None)

    def told(self, kind: str) -> list[Any]:
        return [orjson.loads(message.data) for message in self.got if message.event == kind]

    @property
    def events(self) -> list[int]:
        return [entry["event"] for entry in self.told("event")]


KINDS = st.sampled_from(["status", "status", "wake", "progress", "log"])
ACTIONS = st.one_of(
    st.tuples(st.just("begin"), st.lists(KINDS, min_size=1, max_size=4)),
    st.tuples(st.just("commit"), st.integers(0, 5)),
    st.tuples(st.just("roll_back"), st.integers(0, 5)),
    st.tuples(st.just("turn"), st.sampled_from([0.0, 0.1, 0.3, 1.5])),
)


async def act(feed: FakeFeed, hub: Hub, action: tuple[str, Any]) -> None:
    what, how = action
    if what == "begin":
        feed.begin(*how)
    elif what == "turn":
        feed.now += how
        await hub.turn()
    elif feed.open:
        chosen = sorted(feed.open)[how % len(feed.open)]
        feed.commit(chosen) if what == "commit" else feed.roll_back(chosen)


async def settle(feed: FakeFeed, hub: Hub) -> None:
    for transaction in list(feed.open):
        feed.commit(transaction)
    for _ in range(3):
        feed.now += 1.1
        await hub.turn()


def entries(feed: FakeFeed) -> list[int]:
    """What a timeline shows: log lines and progress have their own messages."""
    return [event.id for event in feed.visible.values() if event.type in ("status", "wake")]


def assert_states_are_the_latest(client: Client, feed: FakeFeed) -> None:
    """The last told state of each task is one that was read after its last change."""
    for task in TASKS:
        changes = [e.id for e in feed.visible.values() if e.task_id == task and e.type in ("status", "progress")]
        told = [state["progress"] for state in client.told("task") if state["id"] == str(task)]
        assert not changes or max(told) >= max(changes)


@given(st.lists(ACTIONS, max_size=40))
def test_in_whatever_order_transactions_commit_each_event_is_told_once(actions: list[tuple[str, Any]]) -> None:
    async def play() -> None:
        feed = FakeFeed()
        hub = hub_over(feed)
        await hub_begun(hub)
        client = Client(hub)
        await client.connect()
        for action in actions:
            await act(feed, hub, action)
        await settle(feed, hub)
        await client.take()
        assert sorted(client.events) == sorted(entries(feed))
        assert_states_are_the_latest(client, feed)
        assert hub.mark is not None
        assert Mark.parse(hub.mark).low == feed.last or not feed.visible or feed.last not in feed.visible

    asyncio.run(play())


async def hub_begun(hub: Hub) -> None:
    """As it is while somebody else watches."""
    hub._register(Subscription([WATCHED]))  # pyright: ignore[reportPrivateUsage]
    await hub.turn()


@given(
    before=st.lists(ACTIONS, max_size=25),
    away=st.lists(ACTIONS, max_size=25),
    after=st.lists(ACTIONS, max_size=10),
    cut=st.integers(0, 40),
    ring=st.sampled_from([20_000, 3, 0]),
    is_another=st.booleans(),
)
def test_a_client_that_is_cut_at_any_message_and_comes_back_has_missed_nothing(
    before: list[tuple[str, Any]],
    away: list[tuple[str, Any]],
    after: list[tuple[str, Any]],
    cut: int,
    ring: int,
    is_another: bool,
) -> None:
    async def play() -> None:
        feed = FakeFeed()
        hub = hub_over(feed, ring=ring)
        await hub_begun(hub)
        client = Client(hub)
        await client.connect()
        for action in before:
            await act(feed, hub, action)
        await client.take(1 + cut)  # hello at least
        await client.leave()
        for action in away:
            await act(feed, hub, action)
        if is_another:  # the gateway was restarted meanwhile
            hub = hub_over(feed)
            await hub_begun(hub)
        await client.connect(hub)
        for action in after:
            await act(feed, hub, action)
        await settle(feed, hub)
        await client.take()
        assert set(client.events) == set(entries(feed))
        assert client.told("reset") == []
        assert_states_are_the_latest(client, feed)

    asyncio.run(play())


@given(st.lists(st.tuples(st.integers(1, 30), st.integers(0, 8)), max_size=30), st.integers(1, 5))
def test_ranges_that_are_gathered_hold_all_ids(steps: list[tuple[int, int]], most: int) -> None:
    holes: list[tuple[int, int]] = []
    at = 0
    for gap, length in steps:
        holes.append((at + gap, at + gap + length))
        at += gap + length + 1
    wide = gathered(holes, most)
    assert len(wide) <= most or not holes
    assert all(any(a <= first and last <= b for a, b in wide) for first, last in holes)
    assert wide == sorted(wide)


# Positions


def test_an_id_that_commits_late_keeps_the_mark_down_until_it_comes() -> None:
    position = Position(9)
    position.read([11, 12], now=0)
    assert (position.low, position.seen, position.holes) == (9, 12, [(10, 10)])
    assert position.filled([10], now=1) == [10]
    assert (position.low, position.holes) == (12, [])


def test_a_rolled_back_id_is_given_up_when_all_transactions_of_its_time_are_over() -> None:
    position = Position(9)
    position.read([11], now=0)
    position.settle(ended=100, begun=101, now=0.5)  # too early: its transaction may not have had a number yet
    position.settle(ended=100, begun=105, now=2)
    position.settle(ended=104, begun=110, now=3)  # 104 still runs, and may have it
    assert position.low == 9
    position.settle(ended=105, begun=111, now=4)
    assert (position.low, position.holes) == (11, [])


def test_an_id_that_does_not_come_is_given_up_after_a_minute_and_still_taken_for_ten() -> None:
    position = Position(9)
    position.read([11], now=0)
    position.read([], now=59)
    assert position.low == 9
    position.read([], now=61)
    assert (position.low, position.holes) == (11, [(10, 10)])
    assert position.filled([10], now=62) == [10]
    position.read([13], now=100)
    position.read([], now=701)
    assert position.holes == []


@pytest.mark.parametrize("text", ["", "5", "5.", ".5", "-1.5", "5.x", "٥.٥", "9" * 30 + ".1", "1." + "9" * 20])
def test_what_is_no_mark_is_refused(text: str) -> None:
    with pytest.raises(InvalidValue):
        Mark.parse(text)


def test_a_mark_is_read_as_it_was_written() -> None:
    mark = Mark(1841, datetime(2026, 11, 18, 12, 0, 0, 345000, UTC))
    assert Mark.parse(str(mark)) == mark


@pytest.mark.parametrize(
    "text", ["", "job", "job:", "job:x", "jobs:1", "node:", "log:x:1", f"log:{JOB}", f"log:{JOB}:0"]
)
def test_what_is_no_topic_is_refused(text: str) -> None:
    with pytest.raises(InvalidValue):
        Topic.parse(text)


@pytest.mark.parametrize("text", ["overview", "jobs", f"job:{JOB}", "node:gpu-1", "node:a:b", f"log:{JOB}:12"])
def test_a_topic_is_read_as_it_is_written(text: str) -> None:
    assert Topic.parse(text) == text


# The hub


async def begun(feed: FakeFeed, *topics: Topic, **pace: Any) -> tuple[Hub, Client]:
    hub = hub_over(feed, **pace)
    client = Client(hub, *topics)
    await client.connect()
    await hub.turn()
    return hub, client


async def test_a_late_commit_is_told_once_and_does_not_move_the_mark_past_itself() -> None:
    feed = FakeFeed()
    hub, client = await begun(feed)
    first, second = feed.begin("status"), feed.begin("status")
    feed.commit(second)
    await hub.turn()
    await client.take()
    assert client.events == [2]
    assert Mark.parse(client.got[-1].mark or "").low == 0
    feed.commit(first)
    await hub.turn()
    await hub.turn()
    await client.take()
    assert client.events == [2, 1]
    assert Mark.parse(client.got[-1].mark or "").low == 2


async def test_an_id_that_was_given_up_is_still_told_to_those_who_are_there_and_who_come_back() -> None:
    feed = FakeFeed()
    hub, client = await begun(feed)
    late = feed.begin("status")
    feed.write("status")
    await hub.turn()
    feed.now += 61
    await hub.turn()
    feed.write("status")
    await hub.turn()
    await client.take()
    assert Mark.parse(client.got[-1].mark or "").low == 3
    away = Client(hub)
    away.got = list(client.got)
    feed.commit(late)
    await hub.turn()
    await client.take()
    assert client.events == [2, 3, 1]
    await away.connect()
    await away.take()
    assert away.events == [2, 3, 1]


async def test_a_client_that_does_not_keep_up_is_told_to_start_over_once_for_each_topic() -> None:
    feed = FakeFeed()
    hub, client = await begun(feed, WATCHED, JOBS)
    for _ in range(MOST_QUEUED + 10):
        feed.write("status")
    await hub.turn()
    await client.take()
    assert [(reset["topic"], reset["why"]) for reset in client.told("reset")] == [(WATCHED, "lagged"), (JOBS, "lagged")]
    feed.write("status")
    await hub.turn()
    await client.take()
    assert client.events[-1] == feed.last
    assert len(client.told("reset")) == 2


async def test_progress_is_told_four_times_a_second_and_the_last_value_is_told() -> None:
    feed = FakeFeed()
    hub, client = await begun(feed)
    for _ in range(100):
        feed.write("progress", "progress", "progress")  # one of each task
        feed.now += 0.02
        await hub.turn()
    feed.now += 0.3
    await hub.turn()
    await client.take()
    told = client.told("task")
    assert 3 * 7 <= len(told) <= 3 * 10
    assert_states_are_the_latest(client, feed)
    assert Mark.parse(client.got[-1].mark or "").low == feed.last


async def test_a_flood_is_told_in_summaries_and_everything_is_told_again_when_it_is_over() -> None:
    feed = FakeFeed()
    hub, client = await begun(feed, WATCHED, JOBS)
    whole: list[int] = []
    with hub.subscribe_events(lambda batch: whole.extend(event.id for event in batch)):
        await hub.turn()
        for _ in range(20):  # 100,000 events
            feed.write(*["status"] * BATCH, job=OTHER_JOB)
        feed.write("status")
        for _ in range(22):
            feed.now += 0.05
            await hub.turn()
            await client.take()
        assert [mode["mode"] for mode in client.told("mode")] == ["summary"]
        assert {job["id"] for job in client.told("job")[-1:]} == {str(JOB)}
        assert client.events == []
        for _ in range(30):
            feed.now += 0.3
            await hub.turn()
        feed.write("status")
        await hub.turn()
        await client.take()
        assert [mode["mode"] for mode in client.told("mode")] == ["summary", "normal"]
        assert client.events == [feed.last]
        assert whole == list(range(1, feed.last + 1))


async def test_whoever_comes_back_after_a_flood_is_told_to_start_over() -> None:
    feed = FakeFeed()
    hub, client = await begun(feed, JOBS)
    feed.write("status")
    await hub.turn()
    await client.take()
    await client.leave()
    for _ in range(5):
        feed.write(*["status"] * BATCH)
        await hub.turn()
    await client.connect()
    await client.take()
    assert [reset["why"] for reset in client.told("reset")] == ["too_old"]


async def test_a_mark_of_another_database_is_a_reset() -> None:
    _, client = await begun(FakeFeed())
    client.got.append(Message("job", {}, str(Mark(999, BEGAN))))
    await client.connect()
    await client.take()
    assert [reset["why"] for reset in client.told("reset")] == ["restarted"]


async def test_ids_that_have_gone_back_are_those_of_another_database() -> None:
    feed = FakeFeed()
    hub, client = await begun(feed)
    feed.write(*["status"] * 10)
    await hub.turn()
    await client.take()
    feed.is_away = True
    with pytest.raises(DatabaseUnavailable):
        await hub.turn()
    hub._lose("away")  # pyright: ignore[reportPrivateUsage]
    feed.is_away, feed.last, feed.visible = False, 3, {}
    await hub.turn()
    feed.write("status")
    await hub.turn()
    await client.take()
    assert [reset["why"] for reset in client.told("reset")] == ["restarted"]
    assert client.events[-1] == 4


async def test_whoever_comes_back_in_the_middle_of_a_turn_misses_nothing_of_it() -> None:
    feed = FakeFeed()
    hub, _ = await begun(feed, JOBS, begin=5)
    other = Client(hub)
    other.got = [Message("hello", {}, hub.mark)]
    feed.gate = asyncio.Event()
    feed.write("status")
    turn = asyncio.ensure_future(hub.turn())
    await asyncio.sleep(0)  # it reads jobs, and knows nothing of the other topic
    connecting = asyncio.ensure_future(other.connect())
    await asyncio.sleep(0)
    feed.gate.set()
    await turn
    await connecting
    await other.take()
    assert other.events == [1]
    assert [task["event"] for task in other.told("task")] == [1]


async def test_whoever_comes_back_while_the_database_hangs_has_to_start_over() -> None:
    feed = FakeFeed()
    hub, _ = await begun(feed, JOBS, begin=0.01)
    other = Client(hub)
    other.got = [Message("hello", {}, hub.mark)]
    feed.gate = asyncio.Event()
    feed.write("status")
    turn = asyncio.ensure_future(hub.turn())
    await asyncio.sleep(0)
    await other.connect()
    await other.take()
    assert [reset["why"] for reset in other.told("reset")] == ["too_old"]
    feed.gate.set()
    await turn


async def two_turns(hub: Hub) -> None:
    await hub.turn()
    await hub.turn()


async def test_a_topic_that_nobody_watched_is_read_from_the_database() -> None:
    """What the ring has is complete only for topics that somebody watched."""
    feed = FakeFeed()
    hub, _ = await begun(feed, Topic.job(OTHER_JOB))
    other = Client(hub)
    other.got = [Message("hello", {}, hub.mark)]
    feed.write("status", "status")
    await hub.turn()
    await other.connect()
    await other.take()
    assert other.events == [1, 2]


async def test_a_database_that_goes_away_in_the_middle_of_a_turn_loses_nothing() -> None:
    feed = FakeFeed()
    hub, client = await begun(feed)
    for going in range(1, 5):
        feed.begin("status")
        feed.write("status", "progress")
        asked = FakeFeed._asked
        left = [going]

        def away(self: FakeFeed, left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] == 0:
                raise DatabaseUnavailable("gone")

        FakeFeed._asked = away
        try:
            with pytest.raises(DatabaseUnavailable):
                await two_turns(hub)
        finally:
            FakeFeed._asked = asked
        await hub.turn()
    await settle(feed, hub)
    await client.take()
    assert sorted(client.events) == sorted(entries(feed))
    assert_states_are_the_latest(client, feed)


async def test_log_lines_are_numbered_and_what_is_only_in_the_store_is_counted() -> None:
    feed = FakeFeed()
    task = TASKS[1]
    for _ in range(4):
        feed.write("log", "log", "log")
    hub, client = await begun(feed, Topic.log(task, 1))
    feed.write("log", "log", "log")
    await hub.turn()
    for _ in range(300):
        feed.write("log", "log", "log")
    await hub.turn()
    await client.take()
    first, second = client.told("log")
    assert [(line["n"], line["text"]) for line in first["lines"]] == [(5, "log 13")]
    assert (first["skipped"], first["last_line"]) == (0, 5)
    assert (second["skipped"], len(second["lines"]), second["last_line"]) == (100, 200, 305)


async def test_whoever_waits_for_a_change_is_released_by_it_and_by_nothing_else() -> None:
    feed = FakeFeed()
    hub, _ = await begun(feed)
    mark = hub.mark
    waiting = asyncio.ensure_future(hub.changed(WATCHED, within=5))
    other = asyncio.ensure_future(hub.changed(Topic.job(OTHER_JOB), within=0.05))
    await asyncio.sleep(0)
    feed.write("status")
    await hub.turn()
    assert await waiting is True
    assert await other is False
    assert await hub.changed(WATCHED, within=0, after=mark) is True  # it happened before the look at the table
    assert await hub.changed(Topic.job(OTHER_JOB), within=0, after=mark) is False
    assert await hub.changed(WATCHED, within=0, after=hub.mark) is False


async def test_what_happens_between_a_look_and_a_wait_is_not_missed_though_nobody_was_there() -> None:
    feed = FakeFeed()
    feed.write("status", job=OTHER_JOB)
    hub = hub_over(feed, begin=5)
    taken = asyncio.ensure_future(hub.now())
    await asyncio.sleep(0)
    await hub.turn()
    mark = await taken
    assert mark is not None
    feed.write("status")
    await hub.turn()
    assert await hub.changed(WATCHED, within=0, after=mark) is True
    assert await hub.changed(Topic.job(OTHER_JOB), within=0, after=mark) is False
    feed.now += 1000
    await hub.turn()
    assert hub.mark is None


async def test_what_was_there_before_the_hub_began_is_told_to_nobody_who_did_not_ask_for_it() -> None:
    feed = FakeFeed()
    feed.write("status", "status", "status")
    whole: list[int] = []
    hub = hub_over(feed)
    with hub.subscribe_events(lambda batch: whole.extend(event.id for event in batch)):
        client = Client(hub)
        await client.connect()
        await hub.turn()
        feed.write("status")
        await hub.turn()
        await client.take()
    assert client.events == [4]
    assert whole == [4]


async def test_only_so_many_may_wait() -> None:
    hub, _ = await begun(FakeFeed(), waiters=1)
    waiting = asyncio.ensure_future(hub.changed(WATCHED, within=5))
    await asyncio.sleep(0)
    with pytest.raises(TooManyWaiting):
        await hub.changed(WATCHED, within=5)
    await hub.drain()
    assert await waiting is False


async def test_draining_ends_every_stream_with_a_reset_and_takes_no_new_ones() -> None:
    feed = FakeFeed()
    hub, client = await begun(feed, WATCHED, OVERVIEW)
    await hub.drain()
    assert client.subscription is not None
    assert [message.event async for message in client.subscription][-2:] == ["reset", "reset"]
    late = Client(hub)
    await late.connect()
    await late.take()
    assert [(reset["topic"], reset["why"]) for reset in late.told("reset")] == [(WATCHED, "restarted")]
    assert late.subscription is not None
    assert late.subscription.is_ended


async def test_a_topic_that_nobody_watches_any_more_is_forgotten() -> None:
    feed = FakeFeed()
    hub, client = await begun(feed, WATCHED, JOBS, OVERVIEW, Topic.node("n"), Topic.log(TASKS[0], 1))
    feed.write("status", "log", "log", "log")
    await hub.turn()
    await client.leave()
    assert await hub.turn() == HubPace().alone
    reads = feed.reads
    feed.now += 10_000
    await hub.turn()
    await hub.turn()
    assert feed.reads == reads + 1  # that the database answers, once; then nobody is there
    assert hub.mark is None
    assert (hub.facts["streams"], hub.facts["waiters"], hub.facts["holes"]) == (0, 0, 0)
    assert not hub._audience.wanted  # pyright: ignore[reportPrivateUsage]
    assert not hub._lines  # pyright: ignore[reportPrivateUsage]
    assert hub._progress.first_delayed is None  # pyright: ignore[reportPrivateUsage]
    assert not list(hub._present.known({OVERVIEW, Topic.node("n")}))  # pyright: ignore[reportPrivateUsage]


async def test_who_waits_for_an_operation_hears_of_what_another_gateway_has_done_to_it() -> None:
    """Nobody streams it, and nothing of it passes through this process."""
    feed, operation = FakeFeed(), UUID(int=7)
    done = iter((1, 2))

    async def read(asked: Sequence[UUID]) -> dict[UUID, dict[str, int]]:
        return {each: {"done": next(done)} for each in asked}

    hub = Hub(
        cast("Database", None),
        Held(),
        metrics=Metrics(),
        operations=read,
        pace=HubPace(begin=0.01),
        clock=feed.clock,
        feed=cast("Feed", feed),
    )
    for _ in range(2):
        waiting = asyncio.ensure_future(hub.changed(Topic.operation(operation), within=5))
        await asyncio.sleep(0)
        await hub.turn()
        assert await asyncio.wait_for(waiting, 1)
        feed.now += 5


async def test_a_timer_is_quick_while_events_flow_and_slow_when_nobody_is_there() -> None:
    feed = FakeFeed()
    hub, client = await begun(feed)
    pace = HubPace()
    slow, _ = await begun(feed, idle=60)
    assert max([await slow.turn() for _ in range(20)]) == pace.deaf  # the listener hears nothing
    feed.write("status")
    assert await hub.turn() == pace.quick
    pauses = [await hub.turn() for _ in range(8)]
    assert pauses == sorted(pauses)
    assert pauses[-1] == pace.idle
    await client.leave()
    assert await hub.turn() == pace.alone


async def test_whoever_comes_first_does_not_wait_for_a_slow_timer() -> None:
    hub, client = await begun(FakeFeed())
    stirred = hub._stir  # pyright: ignore[reportPrivateUsage]
    await client.leave()
    stirred.clear()
    await client.connect()
    assert stirred.is_set()
    await client.leave()
    stirred.clear()
    waiting = asyncio.ensure_future(hub.changed(JOBS, within=5))
    await asyncio.sleep(0)
    assert stirred.is_set()
    await hub.drain()
    assert await waiting is False


def test_a_message_has_both_forms() -> None:
    message = Message("job", {"id": JOB, "at": BEGAN}, "5.7")
    data = b'{"id":"00000000-0000-0000-0000-000000000001","at":"2026-11-18T00:00:00Z"}'
    assert message.sse == b"id: 5.7\nevent: job\ndata: " + data + b"\n\n"
    assert message.ndjson == b'{"id":"5.7","event":"job","data":' + data + b"}\n"


@pytest.mark.parametrize("value", [2**80, float("nan"), {"a\nb": "\r\n\n"}, {1: 2}, "\ud800", object()])
def test_whatever_an_event_holds_is_one_line_of_json(value: Any) -> None:
    message = Message("event", {"data": value}, "1.1")
    assert message.data.count(b"\n") == 0
    assert message.data.count(b"\r") == 0
    orjson.loads(message.data)
