"""A herd of schedules, all due at once, beside events, while builders are killed, stopped and lose their database: one
row for each due time, one job for each firing, one decision for each event."""

import asyncio
import signal
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import asyncpg
import pytest

from tests.support import daemon
from tests.support.checker import check
from tests.support.cluster import Connection, open_connection
from tests.support.daemon import Daemon
from tests.support.eventually import eventually
from tests.support.factory import step, workflow
from tests.support.own_server import OwnServer, own_server
from tests.support.topics import emit

TOPICS = ("plain", "even", "gathered")
AWAY = (OSError, asyncpg.PostgresError, asyncpg.InterfaceError)  # what a caller meets while the server is restarted


@dataclass
class Builders:
    """Three of them: two are killed by turns and started anew, one is a zombie for a while."""

    folder: Path
    url: str
    _uses: ExitStack
    _running: dict[str, Daemon] = field(default_factory=dict)
    killed: int = 0

    def start(self, name: str) -> Daemon:
        made = daemon.running(self.folder / name, self.url, role="builder", node=name, ready=False)
        self._running[name] = self._uses.enter_context(made)
        return self._running[name]

    def kill_next(self) -> None:
        name = "ab"[self.killed % 2]
        self._running[name].kill()
        self.killed += 1
        self.start(name)

    def signal_zombie(self, number: signal.Signals) -> None:
        self._running["zombie"].signal(number)

    @property
    def crashes(self) -> list[str]:
        """Roles that met a bug: a database that is away is none."""
        return [str(line) for each in self._running.values() for line in each.log("role_crashed")]


@contextmanager
def builders(folder: Path, url: str) -> Generator[Builders]:
    with ExitStack() as uses:
        made = Builders(folder, url, uses)
        for name in ("a", "b", "zombie"):
            made.start(name).wait_for("listening", within=60)
        yield made


@dataclass
class Emitter:
    """Emits to the topics by turns, for as long as it is let. The key says that an event whose answer was lost is the
    same when it is emitted again."""

    url: str
    acknowledged: int = 0
    goes_on: bool = True

    async def emit(self) -> None:
        conn: Connection | None = None
        while self.goes_on:
            n = self.acknowledged
            try:
                conn = conn or await open_connection(self.url)
                await emit(conn, TOPICS[n % len(TOPICS)], {"n": n // len(TOPICS)}, key=str(n))
                self.acknowledged += 1
            except AWAY:  # whether it was emitted is not known: the same key again
                conn = None
            await asyncio.sleep(0.002)
        if conn is not None:
            await conn.close()

    def of(self, topic: str) -> list[int]:
        """The numbers that its events carry."""
        return [n // len(TOPICS) for n in range(TOPICS.index(topic), self.acknowledged, len(TOPICS))]


@asynccontextmanager
async def emitting(url: str) -> AsyncGenerator[Emitter]:
    emitter = Emitter(url)
    async with asyncio.TaskGroup() as group:
        group.create_task(emitter.emit())
        try:
            yield emitter
        finally:
            emitter.goes_on = False


async def listen(conn: Connection) -> None:
    await workflow(conn, step("a"), name="w")
    await conn.execute(
        "INSERT INTO schedules (name, schedule_kind, schedule_expr, workflow, overlap, filter, gather, options) VALUES"
        " ('plain', 'event', 'plain', 'w', 'allow', NULL, NULL, '{}'),"
        " ('even', 'event', 'even', 'w', 'allow', 'event.payload.n % 2 == 0', NULL, $1),"
        " ('gathered', 'event', 'gathered', 'w', 'allow', NULL, $2, '{}')",
        {"n": "${event.payload.n}"},
        {"size": 50, "quiet": "2s"},
    )


async def make_herd(conn: Connection, size: int) -> None:
    """Due at one moment, so far ahead that they can be planned by then."""
    await conn.execute(
        "INSERT INTO schedules (name, schedule_kind, schedule_expr, workflow)"
        " SELECT 's' || i, 'once', (now() + interval '5 s' + $1 * interval '2 ms')::text, 'w'"
        "   FROM generate_series(1, $1::int) i",
        size,
    )


async def settled(url: str) -> tuple[int, int]:
    """How much of the herd is settled, and how much of everything; as much as none while the database is away."""
    try:
        conn = await open_connection(url)
    except AWAY:
        return 0, 0
    try:
        herd, firings, filtered = await conn.fetchrow(
            "SELECT count(*) FILTER (WHERE s.schedule_kind = 'once'), count(*),"
            "       (SELECT coalesce(sum(filtered), 0)::int FROM accs.event_tallies)"
            "  FROM firings f JOIN schedules s ON s.id = f.schedule_id"
        ) or (0, 0, 0)
    finally:
        await conn.close()
    return herd, firings + filtered


async def harm(fleet: Builders, postgres: OwnServer, herd: int, killed_every: int) -> None:
    """By what was settled, and not by the clock: so each fault meets builders at work."""

    async def restart() -> None:
        await asyncio.to_thread(postgres.crash)
        await asyncio.sleep(timedelta(seconds=1).total_seconds())
        await asyncio.to_thread(postgres.start)

    async def stop() -> None:
        fleet.signal_zombie(signal.SIGSTOP)

    async def go_on() -> None:
        fleet.signal_zombie(signal.SIGCONT)

    faults = [(herd // 10, stop), (herd // 2, restart), (herd * 7 // 10, go_on)]
    seen = 0
    while faults:
        past = seen + killed_every

        async def progress(past: int = past) -> tuple[int, int] | None:
            of_herd, of_all = await settled(fleet.url)
            return (of_herd, of_all) if of_all >= past or of_herd == herd else None

        of_herd, seen = await eventually(progress, within=200, interval=0.02) or (0, 0)
        fleet.kill_next()
        while faults and of_herd >= faults[0][0]:
            await faults.pop(0)[1]()


async def is_over(conn: Connection) -> bool:
    return await conn.fetchval(
        "SELECT NOT EXISTS (SELECT FROM accs.inbox)"
        " AND NOT EXISTS (SELECT FROM schedules WHERE schedule_kind = 'once' AND state <> 'ended')"
    )


async def each_due_time_has_one_row_and_one_job(conn: Connection, herd: int) -> None:
    row = await conn.fetchrow(
        "SELECT count(*) AS rows, count(DISTINCT (f.schedule_id, f.nominal, f.fold)) AS nominals,"
        "       count(*) FILTER (WHERE f.outcome IN ('fired', 'caught_up')) AS fired, count(DISTINCT j.id) AS jobs"
        "  FROM firings f JOIN schedules s ON s.id = f.schedule_id LEFT JOIN jobs j ON j.id = f.job_id"
        " WHERE s.schedule_kind = 'once'"
    )
    assert row is not None
    assert dict(row) == {"rows": herd, "nominals": herd, "fired": herd, "jobs": herd}


async def each_event_is_decided_once(conn: Connection, emitted: Emitter) -> None:
    """One row for each event of each subscription, or its filter has counted it; a window has one job."""
    assert await conn.fetchval("SELECT count(*) FROM events") == emitted.acknowledged
    rows = await conn.fetch(
        "SELECT s.name, f.outcome, count(*), count(DISTINCT f.cause_id), count(DISTINCT f.job_id)"
        "  FROM firings f JOIN schedules s ON s.id = f.schedule_id WHERE s.schedule_kind = 'event' GROUP BY 1, 2"
    )
    found = {(name, outcome): tuple(counts) for name, outcome, *counts in rows}
    plain, gathered = len(emitted.of("plain")), len(emitted.of("gathered"))
    even = len([n for n in emitted.of("even") if n % 2 == 0])
    windows = found.pop(("gathered", "fired"))
    assert len(set(windows)) == 1, "each window has one job"
    assert found == {
        ("plain", "fired"): (plain, plain, plain),
        ("even", "fired"): (even, even, even),
        ("gathered", "merged"): (gathered, gathered, 0),
    }
    assert await conn.fetchval("SELECT sum(filtered) FROM accs.event_tallies") == len(emitted.of("even")) - even


async def lateness(conn: Connection) -> str:
    cuts = await conn.fetchval(
        "SELECT percentile_cont(ARRAY[0.5, 0.99, 1]) WITHIN GROUP (ORDER BY extract(epoch FROM settled_at - due_at))"
        "  FROM firings f JOIN schedules s ON s.id = f.schedule_id WHERE s.schedule_kind = 'once'"
    )
    return "settled late by p50 {:.1f} s, p99 {:.1f} s, at most {:.1f} s".format(*cuts)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("herd", "killed_every"),
    [
        pytest.param(1_000, 250, marks=pytest.mark.slow, id="1000"),
        pytest.param(10_000, 700, marks=pytest.mark.soak, id="10000"),
    ],
)
async def test_a_herd_and_events_are_settled_once_whatever_is_killed(tmp_path: Path, herd: int, killed_every: int):
    """13: SIGKILL at any moment; three schedulers, one a zombie; PostgreSQL restarted in the middle of a herd."""
    with own_server() as postgres:
        url = await postgres.with_schema()
        conn = await open_connection(url)
        await listen(conn)
        began = time.monotonic()
        with builders(tmp_path, url) as fleet:
            await make_herd(conn, herd)
            await conn.close()
            async with emitting(url) as emitted:
                await harm(fleet, postgres, herd, killed_every)
            conn = await open_connection(url)
            await eventually(lambda: is_over(conn), within=200, interval=0.2, what="the end of the herd and the events")
            assert fleet.crashes == []
        took = time.monotonic() - began
        print(f"{herd:,} due at once, {emitted.acknowledged:,} events, {fleet.killed} builders killed: {took:.0f} s")
        print(f"the herd was {await lateness(conn)}")
        await each_due_time_has_one_row_and_one_job(conn, herd)
        await each_event_is_decided_once(conn, emitted)
        await check(conn)
        await conn.close()
