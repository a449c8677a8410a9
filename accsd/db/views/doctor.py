"""The questions of `accsd doctor` to a database: is it safe, is it ours, do notifications arrive."""

import asyncio
import secrets
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from accsd.db.failures import translating
from accsd.db.nodes import Hindered, together
from accsd.db.pool import Connection, Database, Session, connect
from accsd.db.views.health import BuilderView, builders, scheduler_health
from accsd.errors import DatabaseUnavailable
from accsd.health import SchedulerHealth
from accsd.settings import DatabaseSettings

_ROUND_TRIPS: Final = 5
_HEARD_WITHIN_SEC: Final = 3.0
_GOODBYE_SEC: Final = 2.0
# False before the schema is there: the role may exist all the same, for another database of this server.
_IS_AGENTS: Final = """
    SELECT coalesce(pg_has_role(session_user, to_regrole('accs_agent'), 'MEMBER')
                    AND NOT has_table_privilege(to_regclass('public.nodes'), 'SELECT'), false)"""
_DURABILITY: Final = ("fsync", "full_page_writes", "synchronous_commit")


@dataclass(frozen=True, slots=True)
class ServerFacts:
    version: str
    version_num: int
    is_read_only: bool
    is_pooled: bool
    unsafe: tuple[str, ...]  # settings with which a power cut loses committed data
    round_trip: timedelta
    clock_ahead: timedelta  # of this machine's clock


@dataclass(frozen=True, slots=True)
class Counts:
    nodes: int
    awake: int
    wakeable: dict[str, int]  # by wake_method
    dead_letters: int
    overdue_jobs: int
    daemons: int
    shared: dict[str, int]  # logins of several nodes, and how many nodes
    hindered: list[Hindered]
    scheduler: SchedulerHealth
    builders: list[BuilderView]


async def look_at_server(settings: DatabaseSettings) -> ServerFacts:
    connection = await connect(settings, application="accsd doctor")
    try:
        with translating(settings.address):
            round_trip, ahead = await _measure(connection)
            row = await connection.fetchrow(
                """SELECT current_setting('server_version') AS version,
                          current_setting('server_version_num')::int AS num,
                          pg_is_in_recovery() OR current_setting('default_transaction_read_only')::bool AS read_only,
                          pg_backend_pid() AS pid, ARRAY(SELECT s FROM unnest($1::text[]) s
                                                          WHERE current_setting(s) IN ('off', 'local')) AS unsafe""",
                list(_DURABILITY),
            )
        assert row is not None
        pooled = row["pid"] != connection.get_server_pid()  # a pooler announces an invented pid
        unsafe = tuple(row["unsafe"])
        return ServerFacts(row["version"], row["num"], row["read_only"], pooled, unsafe, round_trip, ahead)
    finally:
        await _leave(connection)


async def is_agents_login(db: Database | Session) -> bool:
    """Whether this login may carry attempts out, and read nothing."""
    return await db.fetchval(_IS_AGENTS)


async def _measure(connection: Session) -> tuple[timedelta, timedelta]:
    """The shortest round trip, and how far this clock is ahead: half a trip passes before the server reads its
    clock."""
    best: tuple[timedelta, timedelta] | None = None
    for _ in range(_ROUND_TRIPS):
        began, here = time.monotonic(), datetime.now(UTC)
        there: datetime = await connection.fetchval("SELECT clock_timestamp()")
        took = timedelta(seconds=time.monotonic() - began)
        if best is None or took < best[0]:
            best = took, here + took / 2 - there
    assert best is not None
    return best


async def hear_oneself(settings: DatabaseSettings, prefix: str) -> timedelta:
    """How long a notification takes from one connection to another that listens; DatabaseUnavailable: none came."""
    target = settings.model_copy(update={"url": settings.listen_url or settings.url})
    channel, token, heard = f"{prefix}doctor_{secrets.token_hex(4)}", secrets.token_hex(8), asyncio.Event()

    def hear(_connection: Connection, _pid: int, _channel: str, payload: object) -> None:
        if payload == token:
            heard.set()

    listening = await connect(target, application="accsd doctor")
    try:
        notifying = await connect(settings, application="accsd doctor")
        try:
            return await _heard_within(listening, notifying, channel, token, hear, heard)
        finally:
            await _leave(notifying)
    finally:
        await _leave(listening)


async def _heard_within(
    listening: Session, notifying: Session, channel: str, token: str, hear: object, heard: asyncio.Event
) -> timedelta:
    with translating("the database"):
        await listening.add_listener(channel, hear)  # type: ignore[arg-type]
        began = time.monotonic()
        await notifying.execute("SELECT pg_notify($1, $2)", channel, token)
    try:
        async with asyncio.timeout(_HEARD_WITHIN_SEC):
            await heard.wait()
    except TimeoutError:
        raise DatabaseUnavailable(
            f"a notification did not arrive within {_HEARD_WITHIN_SEC:g} s: everything works, but only by polling",
            hint="set database.listen_url (ACC_DB_LISTEN_URL) to the server itself, past the pooler",
        ) from None
    return timedelta(seconds=time.monotonic() - began)


async def count(settings: DatabaseSettings, silent: timedelta) -> Counts | None:
    """Counts what a database with our schema holds; None: this login is an agent's, which may not read."""
    connection = await connect(settings, application="accsd doctor")
    try:
        with translating(settings.address):
            if await is_agents_login(connection):
                return None
            row = await connection.fetchrow(
                """SELECT (SELECT count(*) FROM public.nodes) AS nodes,
                          (SELECT count(*) FROM public.nodes
                            WHERE awake_state <> 'sleep' AND last_seen > accs.clock() - $1::interval) AS awake,
                          (SELECT coalesce(jsonb_object_agg(m.wake_method, m.n), '{}')
                             FROM (SELECT wake_method, count(*) AS n FROM public.nodes
                                    WHERE wake_method IS NOT NULL GROUP BY wake_method) m) AS wakeable,
                          (SELECT count(*) FROM public.dead_letters
                            WHERE redriven_at IS NULL AND dismissed_at IS NULL) AS dead_letters,
                          (SELECT count(*) FROM accs.pending_jobs
                            WHERE due_at < accs.clock() - interval '1 min') AS overdue_jobs,
                          (SELECT coalesce(jsonb_object_agg(l.login, l.n), '{}')
                             FROM (SELECT login, count(*) AS n FROM public.nodes
                                    WHERE login IS NOT NULL GROUP BY login HAVING count(*) > 1) l) AS shared,
                          (SELECT count(*) FROM pg_stat_activity
                            WHERE datname = current_database() AND application_name = 'accsd listener') AS daemons""",
                silent,
            )
            obstacles = await connection.fetch(
                """SELECT o.node, o.service, o.reason FROM accs.obstacles o JOIN public.nodes n ON n.name = o.node
                    WHERE n.awake_state = 'awake' AND n.last_seen > accs.clock() - $1::interval
                    ORDER BY o.node, o.service""",
                silent,
            )
            db = Database.over(connection)
            health, there = await scheduler_health(db), await builders(db)
        assert row is not None
        return Counts(**dict(row), hindered=together(map(tuple, obstacles)), scheduler=health, builders=there)
    finally:
        await _leave(connection)


async def _leave(connection: Session) -> None:
    try:
        async with asyncio.timeout(_GOODBYE_SEC):
            await connection.close()
    except TimeoutError:
        connection.terminate()
