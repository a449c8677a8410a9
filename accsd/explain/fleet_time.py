"""The fleet over time: what each machine did between two moments, what that has cost and saved, and what is ahead.

Rows of the log of power and samples come in; lanes, figures and plans go out, as documents for programs. A lane is what
one machine did, piece by piece: asleep, waking (called, not reached yet), booting, idle, busy, or away (nobody knows:
its agent was not there).
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from itertools import pairwise
from typing import Any, Final, NamedTuple

from accsd.db.pool import Database
from accsd.db.power import KnownNode, NodeSample, PowerChange, known_nodes, next_firings, power_changes, samples
from accsd.db.views.jobs import clock
from accsd.db.wake import FleetNode, look
from accsd.planning.cover import Demand
from accsd.planning.energy import Use, kilowatt_hours, saved_kilowatt_hours
from accsd.planning.wake import WakePlan, WakePolicy, plan

MOST_INTERVALS: Final = 10_000
_MOST_ROWS: Final = 100_000
_MOST_FIRINGS: Final = 1000
_STATES: Final[Mapping[str, str]] = {
    "asleep": "asleep",
    "waking": "waking",
    "booting": "booting",
    "ready": "idle",
    "unknown": "away",
    "failed": "away",
}
# What a machine draws while it does this; what it draws while it is away nobody knows.
_USES: Final[Mapping[str, Use]] = {
    "asleep": Use.ASLEEP,
    "waking": Use.ASLEEP,
    "booting": Use.BOOTING,
    "idle": Use.IDLE,
    "busy": Use.BUSY,
}


class Interval(NamedTuple):
    """What a machine did from one moment to another, and why. (A tuple: a day of 50 machines has 10,000 of them.)"""

    state: str
    since: datetime
    until: datetime
    because: str | None = None

    @property
    def seconds(self) -> float:
        return (self.until - self.since).total_seconds()

    def document(self) -> dict[str, Any]:
        state, since, until, because = self
        return {"state": state, "from": since, "to": until, "because": because}


# Interval._make counts the members of each.
_interval: Final[Callable[[tuple[str, datetime, datetime, str | None]], Interval]] = partial(tuple.__new__, Interval)


@dataclass(frozen=True, slots=True)
class Lane:
    node: str
    watts: Mapping[str, float] | None
    intervals: Sequence[Interval]


@dataclass(frozen=True, slots=True)
class Timeline:
    """`complete`: no piece was left out because there were too many."""

    since: datetime
    until: datetime
    now: datetime
    lanes: Sequence[Lane]
    complete: bool

    def document(self) -> dict[str, Any]:
        return {
            "from": self.since,
            "to": self.until,
            "as_of": self.now,
            "complete": self.complete,
            "lanes": [
                {"node": lane.node, "intervals": [each.document() for each in lane.intervals]} for lane in self.lanes
            ],
        }


async def read_timeline(db: Database, since: datetime, until: datetime | None, *, silent: timedelta) -> Timeline:
    """`until` None: until now. `silent`: a node that has not been seen for so long is away. What lies ahead of now is
    no part of it."""
    now = await clock(db)
    until = until or now
    ends = min(until, now)
    known = await known_nodes(db)
    if since >= ends:
        return Timeline(since, until, now, [Lane(node.name, node.watts, ()) for node in known], complete=True)
    changes = await power_changes(db, since, ends, limit=_MOST_ROWS)
    taken = await samples(db, since, ends, limit=_MOST_ROWS)
    lanes = lanes_of(known, changes, taken, since, ends, silent=silent if ends == now else None)
    return _bounded(Timeline(since, until, now, lanes, complete=len(changes) < _MOST_ROWS and len(taken) < _MOST_ROWS))


def lanes_of(
    known: Iterable[KnownNode],
    changes: Iterable[PowerChange],
    taken: Iterable[NodeSample],
    since: datetime,
    until: datetime,
    *,
    silent: timedelta | None = None,
) -> list[Lane]:
    """Cuts the time of each machine into what it did. With `silent`, `until` is now: what a machine that has not been
    seen for so long does since then is not known."""
    by_node = _by_node(changes)
    busy = {node: _busy(its) for node, its in _by_node(taken).items()}
    return [
        Lane(
            node.name,
            node.watts,
            _lane(node, by_node.get(node.name, []), busy.get(node.name, []), since, until, silent),
        )
        for node in known
    ]


def _by_node(rows: Iterable[Any]) -> dict[str, list[Any]]:
    found: defaultdict[str, list[Any]] = defaultdict(list)
    for row in rows:
        found[row.node].append(row)
    return found


def _lane(
    node: KnownNode,
    changes: Sequence[PowerChange],
    busy: Sequence[tuple[datetime, bool]],
    since: datetime,
    until: datetime,
    silent: timedelta | None,
) -> list[Interval]:
    pieces = list(_by_power(changes, since, until))
    if silent is not None and node.unseen_for is not None and node.unseen_for >= silent and node.last_seen is not None:
        pieces = list(_away_since(pieces, node.last_seen))
    cut = [part for piece in pieces for part in (_by_use(piece, busy) if piece.state == "idle" else [piece])]
    if cut and silent is not None and cut[-1].state == "idle" and node.busy:
        cut[-1] = cut[-1]._replace(state="busy")  # the last sample is up to a minute old
    return list(_merged(cut))


def _by_power(changes: Sequence[PowerChange], since: datetime, until: datetime) -> Iterator[Interval]:
    for number, change in enumerate(changes):
        after = changes[number + 1] if number + 1 < len(changes) else None
        begins, ends = max(change.ts, since), until if after is None else min(after.ts, until)
        # only the record of a call says why it was made, and the call is under way before it
        because = after.because if change.because is None and after is not None else change.because
        if begins < ends:
            yield Interval(_STATES[change.state], begins, ends, because)


def _away_since(pieces: Sequence[Interval], seen: datetime) -> Iterator[Interval]:
    """A machine that counted as there and was not heard since: its last state ends then."""
    for piece in pieces:
        if piece.state != "idle" or piece.until <= seen:
            yield piece
            continue
        if piece.since < seen:
            yield piece._replace(until=seen)
        yield Interval("away", max(piece.since, seen), piece.until, "it was not seen any more")


def _busy(taken: Sequence[NodeSample]) -> list[tuple[datetime, bool]]:
    """From when on a node had something to do, or nothing."""
    at_work: set[str] = set()
    found: list[tuple[datetime, bool]] = []
    was_busy: bool | None = None
    for _, service, ts, live in taken:
        (at_work.add if live else at_work.discard)(service)
        if (is_busy := bool(at_work)) is not was_busy:
            found.append((ts, is_busy))
            was_busy = is_busy
    return found


def _by_use(piece: Interval, busy: Sequence[tuple[datetime, bool]]) -> Iterator[Interval]:
    """A time in which a machine was there, divided into idle and busy."""
    begin, end = bisect_right(busy, piece.since, key=_moment), bisect_left(busy, piece.until, key=_moment)
    marks = [(piece.since, busy[begin - 1][1] if begin else False), *busy[begin:end], (piece.until, False)]
    because = piece.because
    for (begins, is_busy), (ends, _) in pairwise(marks):
        yield _interval(("busy" if is_busy else "idle", begins, ends, because))


def _moment(mark: tuple[datetime, bool]) -> datetime:
    return mark[0]


def _merged(pieces: Iterable[Interval]) -> Iterator[Interval]:
    last: Interval | None = None
    for piece in pieces:
        if last is not None and last[0] == piece[0] and last[2] == piece[1]:  # the same state, without a gap
            last = last._replace(until=piece.until, because=last.because or piece.because)
            continue
        if last is not None:
            yield last
        last = piece
    if last is not None:
        yield last


def _bounded(timeline: Timeline) -> Timeline:
    """Each lane keeps its last pieces, as many as all may have."""
    if sum(len(lane.intervals) for lane in timeline.lanes) <= MOST_INTERVALS:
        return timeline
    each = MOST_INTERVALS // len(timeline.lanes)
    lanes = [replace(lane, intervals=lane.intervals[-each:] if each else ()) for lane in timeline.lanes]
    return replace(timeline, lanes=lanes, complete=False)


# Energy


@dataclass(frozen=True, slots=True)
class _Drawn:
    asleep: float
    booting: float
    idle: float
    busy: float


def energy_document(timeline: Timeline) -> dict[str, Any]:
    """What each machine has used and, by sleeping, saved; the machines whose watts nobody has said are named."""
    nodes = [energy_of(lane) for lane in timeline.lanes]
    counted = [node for node in nodes if node["kwh"] is not None]
    return {
        "from": timeline.since,
        "to": min(timeline.until, timeline.now),
        "complete": timeline.complete,
        "rule": "saved = time asleep × (idle watts − asleep watts)",
        "kwh": sum(node["kwh"] for node in counted),
        "saved_kwh": sum(node["saved_kwh"] for node in counted),
        "without_watts": [node["node"] for node in nodes if node["kwh"] is None],
        "nodes": nodes,
    }


def energy_of(lane: Lane) -> dict[str, Any]:
    """The seconds of each use, and what was drawn; None where nobody has said what the machine draws. What a machine
    drew while it was away is not counted: nobody knows it."""
    seconds = dict.fromkeys(Use, 0.0)
    away = 0.0
    for piece in lane.intervals:
        if piece.state in _USES:
            seconds[_USES[piece.state]] += piece.seconds
        else:
            away += piece.seconds
    watts = (
        None
        if lane.watts is None or not lane.watts.keys() >= set(Use)
        else _Drawn(**{use: float(lane.watts[use]) for use in Use})
    )
    return {
        "node": lane.node,
        "awake_seconds": sum(spent for use, spent in seconds.items() if use is not Use.ASLEEP),
        **{f"{use}_seconds": spent for use, spent in seconds.items()},
        "away_seconds": away,
        "watts": lane.watts,
        "kwh": None if watts is None else kilowatt_hours(watts, seconds),
        "saved_kwh": None if watts is None else saved_kilowatt_hours(watts, seconds[Use.ASLEEP]),
    }


# What is ahead


async def read_forecast(
    db: Database, within: timedelta, *, lease: timedelta, policy: WakePolicy, at_once: int | None = None
) -> dict[str, Any]:
    """Which machines will be woken, when and for what, as the planner sees it now; and what schedules will start."""
    now = await clock(db)
    demand, fleet = await look(db, within, silent=lease)
    ahead = forecast_of(demand, fleet, now, lease=lease, policy=policy, at_once=at_once)
    firings = await next_firings(db, within, limit=_MOST_FIRINGS)
    return {
        "as_of": now,
        "to": now + within,
        **ahead,
        "firings": [{"schedule": each.schedule, "workflow": each.workflow, "due_at": each.due_at} for each in firings],
        "complete": len(firings) < _MOST_FIRINGS,
    }


def forecast_of(
    demand: Sequence[Demand],
    fleet: Sequence[FleetNode],
    now: datetime,
    *,
    lease: timedelta,
    policy: WakePolicy,
    at_once: int | None = None,
) -> dict[str, list[dict[str, Any]]]:
    """Which machines this demand would wake, and what of it no machine can do."""
    known = {each.node.name: each for each in fleet}
    states = [replace(each.state, methods=_methods(each)) for each in fleet]
    made = plan(demand, states, lease=lease, policy=policy, at_once=at_once)
    return {
        "wakes": forecast_wakes(made, known, now),
        "unmet": [
            {
                "service": wanted.service,
                "requires": dict(wanted.requires),
                "node": wanted.node,
                "tasks": tasks,
                "due_at": now + wanted.due_in,
                "job_id": wanted.job_id,
                "schedule": wanted.schedule,
            }
            for wanted, tasks in made.unmet
        ],
    }


def forecast_wakes(made: WakePlan, known: Mapping[str, FleetNode], now: datetime) -> list[dict[str, Any]]:
    """The first first. `expected_at`: when the machine is there, if it takes as long as usual."""
    calls = [(choice.node, choice.because, timedelta(0)) for choice in made.wake]
    calls += [(node, wanted, call_in) for node, (wanted, call_in) in made.later.items()]
    return [
        {
            "node": node,
            "at": now + call_in,
            "expected_at": None if (usual := known[node].state.latency) is None else now + call_in + usual,
            "service": wanted.service,
            "due_at": now + wanted.due_in,
            "job_id": wanted.job_id,
            "schedule": wanted.schedule,
        }
        for node, wanted, call_in in sorted(calls, key=lambda call: (call[2], call[0]))
    ]


def _methods(known: FleetNode) -> tuple[str, ...]:
    """That a machine can be woken at all; by which way depends on the builder that will call it."""
    return () if known.node.wake_method is None else (str(known.node.wake_method),)
