"""The connections to PostgreSQL: one pool per process, a deadline on every call, errors translated, retried where safe.

Everything that speaks SQL goes through `Database`. A call whose answer was lost is only sent again when the verb is
*repeatable*, that is when the state machine answers "repeated" to the second one. A call that the server has certainly
rolled back (a deadlock, a serialization failure) may always be sent again.
"""

import asyncio
import contextlib
import copy
import json
import socket
import time
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from typing import Any, Final, Self, cast

import asyncpg
import orjson
from asyncpg.pool import PoolConnectionProxy

from accsd.db.failures import FAILURES, OVERTAKEN, ROLLED_BACK, translating
from accsd.errors import AccsdError, DatabaseBusy, DatabaseUnavailable
from accsd.retry import Backoff
from accsd.settings import DatabaseSettings
from accsd.values.json import sanitise
from accsd.values.times import from_microseconds, in_microseconds

Session = asyncpg.Connection  # a connection that its user opens and closes
Connection = Session | PoolConnectionProxy
Record = asyncpg.Record

# Half-open connections are noticed within these seconds; without them a cut cable hung a call for more than 40 s.
_TCP_TIMEOUT_SEC: Final = 5
_TCP_OPTIONS: Final = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _TCP_TIMEOUT_SEC),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _TCP_TIMEOUT_SEC * 1000),
)
_PAUSES: Final = (timedelta(seconds=0.05), timedelta(seconds=1))
# A call past its deadline is cancelled on the server; a server that does not answer to that either is given up.
_CANCEL_SEC: Final = 2.0
_OVERTAKEN_TRIES: Final = 3
_MOST_AT_HAND: Final = 2  # a claim and a finish at once; what more calls need comes from the pool
_ACTING: Final = "SELECT set_config('accs.via', $1, true), set_config('accs.request_id', $2, true)"
_LARGEST_READ: Final = 256 * 1024 * 1024  # jsonb's own limit: no stored value is cut for its size
_LONGEST_INTEGER: Final = 4000  # digits; Python itself refuses 4,300


class Database:
    """A pool, or one connection that the caller owns (then it works in the caller's transaction, without retries)."""

    def __init__(
        self,
        settings: DatabaseSettings,
        *,
        pool: asyncpg.Pool | None = None,
        connection: Connection | None = None,
        behind_pooler: bool = False,
    ) -> None:
        self._settings = settings
        self._address: str = "the database" if settings.url is None else settings.address
        self._pool = pool
        self._at_hand: _AtHand | None = None if pool is None else _AtHand(pool)
        self._connection = connection
        # Behind a pooler LISTEN does not work: use settings.listen_url, or poll.
        self.behind_pooler = behind_pooler
        self._observer: Callable[[bool, timedelta], None] | None = None
        self._acting: tuple[str, str] | None = None
        self._patience: float | None = None

    @classmethod
    async def open(
        cls, settings: DatabaseSettings, *, application: str = "accsd", any_time: bool = False, read_only: bool = False
    ) -> Self:
        """Connects, or raises DatabaseUnavailable with the address and what to do. With `any_time` rows may hold times
        that datetime can't (FarTime); with `read_only` nothing can be written by mistake."""
        behind_pooler = await _is_behind_pooler(settings)
        with translating(settings.address):
            pool = await asyncpg.create_pool(
                settings.required_url,
                min_size=0,  # or asyncpg reconnects in a task of its own, which logs in its own way
                max_size=settings.pool_size,
                timeout=settings.connect_timeout_sec,
                command_timeout=settings.statement_timeout_sec,
                statement_cache_size=0 if behind_pooler else 256,
                server_settings={"application_name": application}
                | ({"default_transaction_read_only": "on"} if read_only and not behind_pooler else {}),
                init=_prepare_for_any_time if any_time else _prepare,
                reset=_nothing_to_reset,
            )
        db = cls(settings, pool=pool, behind_pooler=behind_pooler)
        async with db.acquire():
            return db

    @classmethod
    def over(cls, connection: Connection, *, like: "Database | None" = None) -> Self:
        """Runs the verbs on the caller's own connection, inside the caller's transaction; `like`: in whose way."""
        within = cls(DatabaseSettings(), connection=connection)
        within._acting = None if like is None else like._acting
        return within

    def acting(self, via: str, request_id: str | None = None) -> Self:
        """The same connections, for one request: what people do through them is in the audit with this way (http, mcp)
        and this request. Each call is a transaction of its own with three short round trips more, so it is not for
        reads. Who acts is another matter: each verb takes `by`."""
        same = copy.copy(self)
        same._acting = via, request_id or ""
        return same

    def impatient(self, seconds: float) -> Self:
        """The same connections, for callers that would rather be refused (DatabaseBusy) than wait longer than this for
        one that is free."""
        same = copy.copy(self)
        same._patience = seconds
        return same

    async def close(self, *, within: float | None = None) -> None:
        """Waits for calls under way, `within` seconds or until their own deadline; then they are cut off."""
        if self._pool is None or self._at_hand is None:
            return
        with contextlib.suppress(*FAILURES):
            async with asyncio.timeout(within or self._settings.statement_timeout_sec):
                await self._at_hand.close()
                await self._pool.close()
        self._pool.terminate()

    @property
    def pool_free(self) -> int:
        """The number of unused connections, for health and tests."""
        return 0 if self._pool is None or self._at_hand is None else self._pool.get_idle_size() + len(self._at_hand)

    @asynccontextmanager
    async def acquire(self, *, within: float | None = None) -> AsyncGenerator[Connection]:
        """A connection for several statements of one caller. Their errors are translated."""
        with translating(self._address):
            if self._pool is None or self._at_hand is None:
                assert self._connection is not None
                yield self._connection
                return
            connection = await self._at_hand.take()
            if connection is None:
                with self._at_hand.left_to_the_pool():
                    connection = await self._acquired(self._pool, within)
            is_at_hand = False
            try:
                yield connection
                is_at_hand = self._at_hand.keep(connection)
            except asyncpg.InternalClientError:
                connection.terminate()  # the pool must not hand it out again
                raise
            finally:
                if not is_at_hand:
                    # A cancelled caller does not wait for this task, which ends by itself and logs nothing.
                    await asyncio.shield(_release(self._pool, connection))

    async def _acquired(self, pool: asyncpg.Pool, within: float | None) -> PoolConnectionProxy:
        patience = (
            self._settings.connect_timeout_sec if within is None else min(within, self._settings.connect_timeout_sec)
        )
        is_full = pool.get_idle_size() == 0 and pool.get_size() >= pool.get_max_size()
        if self._patience is None or not is_full:
            return await pool.acquire(timeout=patience)
        try:
            return await pool.acquire(timeout=min(patience, self._patience))
        except TimeoutError:
            raise DatabaseBusy(
                f"all {pool.get_max_size()} connections to {self._address} are in use", hint="ask again in a moment"
            ) from None

    def cut(self) -> None:
        """Cuts all connections, as if the network had gone: for failpoints."""
        for holder in getattr(self._pool, "_holders", ()):
            connection: Session | None = getattr(holder, "_con", None)
            if connection is not None:
                connection.terminate()

    def observe(self, observer: Callable[[bool, timedelta], None]) -> None:
        """`observer` hears of every call: whether it was answered, and how long that took, repetitions included."""
        self._observer = observer

    async def fetch(
        self, sql: str, *args: object, repeatable: bool = False, within: float | None = None
    ) -> Sequence[Record]:
        """One statement, one round trip, `within` seconds. `repeatable`: sending it a second time does no harm."""
        if self._observer is None:
            return await self._fetch(sql, args, repeatable, within)
        began = time.monotonic()
        answered = True
        try:
            return await self._fetch(sql, args, repeatable, within)
        except DatabaseUnavailable:
            answered = False
            raise
        finally:
            self._observer(answered, timedelta(seconds=time.monotonic() - began))

    async def _fetch(
        self, sql: str, args: Sequence[object], repeatable: bool, within: float | None
    ) -> Sequence[Record]:
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + (within or self._settings.statement_timeout_sec)
        pauses = Backoff(*_PAUSES, spread=(0.5, 1))
        reason: AccsdError | None = None
        while True:
            try:
                async with self.acquire(within=ends_at - loop.time()) as connection:
                    if self._acting is None:
                        return await connection.fetch(sql, *args, timeout=max(ends_at - loop.time(), 0.001))
                    async with connection.transaction():  # the settings end with it, also behind a pooler
                        await connection.execute(_ACTING, *self._acting, timeout=max(ends_at - loop.time(), 0.001))
                        return await connection.fetch(sql, *args, timeout=max(ends_at - loop.time(), 0.001))
            except AccsdError as error:
                if reason is not None and isinstance(error.__cause__, TimeoutError):
                    raise reason from error  # the time ended in a later try: what went wrong before it tells more
                pause = pauses.next().total_seconds()
                if not self._may_send_again(error, repeatable, pauses.failures) or loop.time() + pause >= ends_at:
                    raise
                reason = error
            await asyncio.sleep(pause)

    def _may_send_again(self, error: AccsdError, repeatable: bool, tries: int) -> bool:
        if self._pool is None or self._pool.is_closing() or isinstance(error, DatabaseBusy):
            return False
        if isinstance(error.__cause__, OVERTAKEN):
            return tries < _OVERTAKEN_TRIES  # if it stays wrong it is a bug, and should show
        return isinstance(error.__cause__, ROLLED_BACK) or (repeatable and isinstance(error, DatabaseUnavailable))

    async def fetchrow(self, sql: str, *args: object, repeatable: bool = False) -> Record | None:
        rows = await self.fetch(sql, *args, repeatable=repeatable)
        return rows[0] if rows else None

    async def fetchval(self, sql: str, *args: object, repeatable: bool = False) -> Any:
        row = await self.fetchrow(sql, *args, repeatable=repeatable)
        return None if row is None else row[0]


class _AtHand:
    """Connections that the pool has lent and no call is using: the next call takes one as it is. To lend one and to
    take it back the pool starts three tasks, which a call that is answered at once would wait for. Whoever waits for
    the pool goes first: then a call gives its connection back."""

    def __init__(self, pool: asyncpg.Pool) -> None:
        self._pool = pool
        self._free: list[PoolConnectionProxy] = []
        self._waiting: int = 0
        self._is_closed: bool = False

    def __len__(self) -> int:
        return len(self._free)

    async def take(self) -> PoolConnectionProxy | None:
        while self._free:
            connection = self._free.pop()
            if _is_open(connection):
                return connection
            await asyncio.shield(_release(self._pool, connection))  # so that the pool has room for another
        return None

    @contextmanager
    def left_to_the_pool(self) -> Generator[None]:
        self._waiting += 1
        try:
            yield
        finally:
            self._waiting -= 1

    def keep(self, connection: PoolConnectionProxy) -> bool:
        """Keeps it for the next call. False: it has to go back to the pool, which rolls back what was left open."""
        if self._is_closed or self._waiting or len(self._free) >= _MOST_AT_HAND:
            return False
        if not _is_open(connection) or connection.is_in_transaction():
            return False
        self._free.append(connection)
        return True

    async def close(self) -> None:
        """Gives back what is at hand. What calls under way have goes back when they end."""
        self._is_closed = True
        while self._free:
            await _release(self._pool, self._free.pop())


def _is_open(connection: PoolConnectionProxy) -> bool:
    try:
        return not connection.is_closed()
    except asyncpg.InterfaceError:  # it was closed while it was lent, and the pool knows
        return False


async def _release(pool: asyncpg.Pool, connection: PoolConnectionProxy) -> None:
    """Releases a connection. The pool drops one that it can't reset, and the caller sees only its own error."""
    with contextlib.suppress(*FAILURES):
        await pool.release(connection, timeout=_CANCEL_SEC)


async def connect(settings: DatabaseSettings, *, application: str = "accsd") -> Session:
    """One connection outside the pool, for the installer and the listener."""
    with translating(settings.address):
        connection = await asyncpg.connect(
            settings.required_url,
            timeout=settings.connect_timeout_sec,
            command_timeout=settings.statement_timeout_sec,
            statement_cache_size=0,
            server_settings={"application_name": application},
        )
        try:
            await _prepare(connection)
        except BaseException:
            connection.terminate()
            raise
    return connection


async def _prepare(connection: Connection) -> None:
    """Prepares a connection: JSON as Python values, and a socket that notices a dead peer."""
    await speak_json(connection)
    # asyncpg has no setting for keepalives and no public access to the socket.
    transport: asyncio.Transport | None = getattr(connection, "_transport", None)
    link: socket.socket | None = None if transport is None else transport.get_extra_info("socket")
    if link is not None and link.family in (socket.AF_INET, socket.AF_INET6):
        for level, option, value in _TCP_OPTIONS:
            link.setsockopt(level, option, value)


async def _prepare_for_any_time(connection: Connection) -> None:
    await _prepare(connection)
    await speak_of_any_time(connection)


async def _nothing_to_reset(connection: Connection) -> None:
    """Replaces the pool's reset, a round trip for nothing: the verbs leave no session state behind."""


async def _is_behind_pooler(settings: DatabaseSettings) -> bool:
    """Whether a pooler is in between: it announces an invented process id; the server itself knows the true one."""
    if settings.pooler != "auto":
        return settings.pooler == "transaction"
    connection = await connect(settings)
    with translating(settings.address):
        try:
            true_pid: int = await connection.fetchval("SELECT pg_backend_pid()")
            return connection.get_server_pid() != true_pid
        finally:
            await connection.close(timeout=_CANCEL_SEC)


async def speak_json(connection: Connection) -> None:
    for name in ("json", "jsonb"):
        await connection.set_type_codec(name, schema="pg_catalog", encoder=to_json, decoder=from_json, format="text")


async def speak_of_any_time(connection: Connection) -> None:
    """Lets the connection read times that datetime can't hold: such a row must not hide the others in a list. It costs
    a call of Python for each time, so it is for people's questions; the daemon never reads such a column."""
    await connection.set_type_codec(
        "timestamptz",
        schema="pg_catalog",
        encoder=lambda moment: (in_microseconds(moment),),
        decoder=lambda sent: from_microseconds(sent[0]),
        format="tuple",
    )


def to_json(value: object) -> str:
    return orjson.dumps(value, default=_as_dict).decode()


def from_json(text: str) -> Any:
    """Reads JSON. jsonb holds numbers and nestings that no parser takes: the nearest readable value stands for such a
    value, so that it does not hide the other rows."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        pass
    try:
        return sanitise(json.loads(text, parse_int=_integer), max_bytes=_LARGEST_READ)
    except (ValueError, RecursionError):
        return {"<unreadable>": True}


def _as_dict(value: object) -> dict[Any, Any]:
    """A Mapping as a dict: the verbs take any Mapping; orjson knows only dict."""
    if isinstance(value, Mapping):
        return dict(cast("Mapping[Any, Any]", value))
    raise TypeError(f"{type(value).__name__} is no JSON")


def _integer(digits: str) -> int | str:
    return int(digits) if len(digits) <= _LONGEST_INTEGER else digits
