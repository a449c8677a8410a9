"""The listener of a process: one connection that LISTENs on all its channels and knows when it is deaf.

NOTIFY is a hint and the poll is the truth; the listener must never believe that it listens while no notification can
arrive. A connection that was cut on its way stays open for ever on this side, so it is probed by a round trip: a
notification on a channel of its own has to come back. Behind a transaction pooler none does, and all roles poll.
"""

import random
import secrets
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final

import anyio
from anyio.abc import TaskStatus

from accsd.db.failures import FAILURES, translating
from accsd.db.pool import Connection, Database, Session, connect
from accsd.errors import AccsdError, DatabaseUnavailable
from accsd.model.state import ListenerState
from accsd.retry import Backoff
from accsd.settings import DatabaseSettings, Settings

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

Callback = Callable[[str], None]

NEWS: Final = ""  # look at the tables; also sent after a reconnect, because notifications may have been missed
CANCEL: Final = "cancel"  # on a service's channel: some of its tasks were cancelled, look at the leases

_GOODBYE_SEC: Final = 1.0
_UNHEARD_LIMIT: Final = 3  # fresh connections without a probe's echo: LISTEN can't work here
_SET_LISTEN_URL: Final = "set database.listen_url (ACC_DB_LISTEN_URL) to the server itself, past the pooler"


@dataclass(frozen=True, slots=True)
class ListenerStatus:
    hearing: ListenerState
    reason: str | None
    since: float  # time.monotonic()


@dataclass(frozen=True, slots=True)
class Rhythm:
    """Pauses and deadlines in seconds. Tests make them small."""

    probe_every: float = 15.0
    probe_within: float = 5.0
    first_pause: float = 0.1
    longest_pause: float = 2.0  # a server that comes back is listened to soon
    polling_pause: float = 300.0  # before another look whether LISTEN works by now

    def pauses(self) -> Backoff:
        """Pauses between zero and their full length: a fleet that lost its database together does not return
        together."""
        return Backoff(timedelta(seconds=self.first_pause), timedelta(seconds=self.longest_pause), spread=(0, 1))


class _Deaf(Exception):
    """Notifications can't arrive any more, or not yet; the text says why."""


class _CannotListen(_Deaf):
    """LISTEN can't work here on any connection: behind a pooler, or with another prefix. `hint` says what to do."""

    def __init__(self, reason: str, hint: str) -> None:
        super().__init__(reason)
        self.hint = hint


class Listener:
    """Call `subscribe`, then run `serve` in a task group for as long as the process lives."""

    def __init__(
        self,
        settings: DatabaseSettings,
        prefix: str,
        *,
        behind_pooler: bool,
        is_off: bool = False,
        db: Database | None = None,
        on_change: Callable[[ListenerStatus], None] | None = None,
        rhythm: Rhythm | None = None,
    ) -> None:
        """With `db` the probes are sent through the pool: that also shows a listen_url that leads to another server."""
        self._settings = settings
        self._target: DatabaseSettings = settings.model_copy(update={"url": settings.listen_url or settings.url})
        self._prefix = prefix
        self._is_pooled: bool = behind_pooler and settings.listen_url is None
        self._is_off = is_off  # switched off in the settings: it never connects, and all roles poll
        self._db = db
        self._on_change = on_change
        self._rhythm: Rhythm = rhythm or Rhythm()
        self._callbacks: defaultdict[str, list[Callback]] = defaultdict(list)
        self._listened: set[str] = set()  # the channels of the current connection
        self._probe_channel: str = f"{prefix}probe_{secrets.token_hex(8)}"
        self._expected: tuple[str, anyio.Event] | None = None
        self._stirred: anyio.Event = anyio.Event()
        self._current: Session | None = None
        self._unheard: int = 0
        self.probes: int = 0  # those that came back
        self._announced: ListenerState | None = None
        self._state: ListenerStatus = ListenerStatus(ListenerState.DEAF, "not connected yet", time.monotonic())

    @property
    def state(self) -> ListenerStatus:
        return self._state

    @property
    def is_listening(self) -> bool:
        return self._state.hearing is ListenerState.LISTENING

    def poll(self, settings: Settings) -> timedelta:
        """The time between polls: short while notifications do not arrive, long while they do."""
        return timedelta(seconds=settings.poll_sec if self.is_listening else settings.poll_deaf_sec)

    def subscribe(self, name: str, callback: Callback) -> None:
        """`name` is a channel without its prefix: a service, "builder", "orders", or one that begins with "_". The
        callback gets the payload in the event loop, and must return at once."""
        self._callbacks[self._prefix + name].append(callback)
        self._stirred.set()

    async def serve(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Listens for ever. It counts as started once it is known whether it listens."""
        told = False
        pauses = self._rhythm.pauses()
        while True:
            began = time.monotonic()
            try:
                async with self._connected() as connection:
                    self._become(ListenerState.LISTENING)
                    if not told:
                        task_status.started()
                        told = True
                    self._tell_everybody()
                    began = time.monotonic()
                    await self._watch(connection)
            except (_Deaf, AccsdError) as why:
                self._become(self._how_deaf(why), str(why), getattr(why, "hint", None))
            if not told:
                task_status.started()
                told = True
            if time.monotonic() - began > self._rhythm.probe_every:
                pauses.reset()  # it listened for a while: this is a new failure
            if self._state.hearing is ListenerState.POLLING:
                await anyio.sleep(random.uniform(0.5, 1.0) * self._rhythm.polling_pause)
            else:
                await pauses.pause()

    def _how_deaf(self, why: Exception) -> ListenerState:
        return (
            ListenerState.POLLING
            if isinstance(why, _CannotListen) or self._unheard >= _UNHEARD_LIMIT
            else ListenerState.DEAF
        )

    @asynccontextmanager
    async def _connected(self) -> AsyncGenerator[Session]:
        """A connection that listens to all channels and has passed a probe."""
        if self._is_off:
            raise _CannotListen("notifications are switched off (fallback.notify)", "set fallback.notify = true")
        if self._is_pooled:
            raise _CannotListen("behind a transaction pooler, where LISTEN hears nothing", _SET_LISTEN_URL)
        connection = await connect(self._target, application="accsd listener")
        try:
            with self._in_time():
                await self._refuse_what_can_not_work(connection)
                await self._listen(connection)
            await self._probe(connection, is_first=True)
            yield connection
        except (_Deaf, AccsdError):
            connection.terminate()
            raise
        finally:
            with anyio.move_on_after(_GOODBYE_SEC, shield=True), suppress(*FAILURES):
                await connection.close()
            connection.terminate()

    async def _refuse_what_can_not_work(self, connection: Session) -> None:
        row = await connection.fetchrow("SELECT pg_backend_pid() AS pid, accs.channel_prefix() AS prefix")
        assert row is not None
        if row["pid"] != connection.get_server_pid():  # a pooler announces an invented pid
            raise _CannotListen(
                f"{self._target.address} is a transaction pooler, where LISTEN hears nothing", _SET_LISTEN_URL
            )
        if row["prefix"] != self._prefix:
            raise _CannotListen(
                f'the schema notifies channels that begin with "{row["prefix"]}", not "{self._prefix}"',
                "give this process the notify_channel_prefix with which the schema was installed",
            )

    async def _listen(self, connection: Session) -> None:
        self._current = connection
        connection.add_termination_listener(self._note_loss)
        await connection.add_listener(self._probe_channel, self._note_echo)
        self._listened = set()
        await self._listen_to_new(connection)

    @contextmanager
    def _in_time(self) -> Generator[None]:
        with translating(self._target.address), anyio.fail_after(self._settings.connect_timeout_sec):
            yield

    async def _listen_to_new(self, connection: Session) -> None:
        """Listens to new channels, one by one: a role may subscribe while this waits for the server."""
        for channel in self._callbacks.keys() - self._listened:
            await connection.add_listener(channel, self._hear)
            self._listened.add(channel)

    async def _watch(self, connection: Session) -> None:
        """Probes from time to time; raises when notifications can't arrive any more."""
        while True:
            with anyio.move_on_after(self._rhythm.probe_every) as undisturbed:
                await self._stirred.wait()
            self._stirred = anyio.Event()
            if self._current is None:
                raise _Deaf("the connection was closed")
            if self._callbacks.keys() - self._listened:
                with self._in_time():
                    await self._listen_to_new(connection)
                self._tell_everybody()
            if undisturbed.cancelled_caught:
                await self._probe(connection)

    async def _probe(self, connection: Session, *, is_first: bool = False) -> None:
        token, echo = secrets.token_hex(8), anyio.Event()
        self._expected = (token, echo)
        try:
            with anyio.fail_after(self._rhythm.probe_within):
                await self._send_probe(connection, token)
                await echo.wait()
        except TimeoutError:
            self._unheard += is_first
            within = f"{self._rhythm.probe_within:g} s"
            raise _Deaf(f"a notification to itself did not come back within {within}") from None
        self._unheard = 0
        self.probes += 1

    async def _send_probe(self, connection: Connection, token: str) -> None:
        send = "SELECT pg_notify($1, $2)"
        if self._db is not None:
            with suppress(DatabaseUnavailable):  # an exhausted pool says nothing about this connection
                await self._db.fetch(send, self._probe_channel, token, within=self._rhythm.probe_within / 2)
                return
        with translating(self._target.address):
            await connection.execute(send, self._probe_channel, token)

    # Called by the connection

    def _note_loss(self, connection: Connection) -> None:
        if connection is self._current:
            self._current = None
            self._stirred.set()

    def _note_echo(self, _connection: Connection, _pid: int, _channel: str, payload: object) -> None:
        if self._expected is not None and payload == self._expected[0]:
            self._expected[1].set()

    def _hear(self, _connection: Connection, _pid: int, channel: str, payload: object) -> None:
        for callback in self._callbacks[channel]:
            self._call(callback, str(payload))

    # Told to others

    def _tell_everybody(self) -> None:
        for callbacks in self._callbacks.values():
            for callback in callbacks:
                self._call(callback, NEWS)

    def _call(self, callback: Callback, payload: str) -> None:
        try:
            callback(payload)
        except Exception:  # noqa: BLE001 - one subscriber's bug must not make the others deaf
            _log().exception("listen_callback_failed", payload=payload)

    def _become(self, hearing: ListenerState, reason: str | None = None, hint: str | None = None) -> None:
        """Changes the state. A new reason for the same state is kept, but not logged: it may change at every try."""
        before = self._state
        since = before.since if before.hearing is hearing else time.monotonic()
        self._state = ListenerStatus(hearing, reason, since)
        if hearing is self._announced:
            return
        self._announced = hearing
        match hearing:
            case ListenerState.LISTENING:
                _log().info("listening", channels=len(self._callbacks))
            case ListenerState.DEAF:
                _log().warning("deaf", reason=reason, hint=hint)
            case ListenerState.POLLING:
                _log().warning("polling", reason=reason, hint=hint or _SET_LISTEN_URL)
            case ListenerState.OFF:
                pass  # notifications are switched off: the settings say so
        if self._on_change is not None:
            self._on_change(self._state)


def _log() -> "FilteringBoundLogger":
    from accsd.log import get_logger  # imports structlog, a third of the start of a command that needs none

    return get_logger(component="listener")
