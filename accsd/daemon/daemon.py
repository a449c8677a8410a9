"""The daemon: builds what its roles need, runs them, and stops them in order.

SIGTERM (or Ctrl-C) drains: not ready, no new claims, attempts may end until the grace is over and are given back then;
the listener and the pool go last. A second one skips the grace. SIGHUP reads the configuration again. Signals are
heeded from the beginning: a daemon may wait for its database for hours.
"""

import asyncio
import gc
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Final

import anyio

from accsd import failpoints
from accsd.agent.roles import NodeAgent, make_node
from accsd.agent.services import check_services
from accsd.builder.roles import ROLES as BUILDER_ROLES
from accsd.builder.roles import ControlHost
from accsd.daemon.endpoint import HttpFace
from accsd.daemon.presence import Presence
from accsd.daemon.reload import before_the_start, left_behind, read_settings, taken_over, tell_reloaded
from accsd.daemon.state import locked_state, note_served
from accsd.daemon.systemd import Notifier
from accsd.db import Database, require_schema
from accsd.db.listen import Listener, ListenerStatus
from accsd.errors import AccsdError, ConfigError, DatabaseUnavailable
from accsd.health import Health
from accsd.log import configure_logging, get_logger, log_loop_errors
from accsd.metrics import Metrics
from accsd.model.state import ListenerState
from accsd.retry import Backoff
from accsd.roles import Leaves, Roles
from accsd.runners.compose import compose_file
from accsd.settings import Settings, environment, state_folder
from accsd.storage import ObjectStore, open_store
from accsd.supervisor import Post, RoleObserver, Supervisor

if TYPE_CHECKING:
    from accsd.gateway.context import GatewayContext

_log = get_logger(component="daemon")
_CLOSING_SEC: Final = 1.0


class RoleChoice(StrEnum):
    BUILDER = "builder"  # the roles of builder/roles.py
    AGENT = "agent"  # the roles of agent/roles.py
    GATEWAY = "gateway"  # the roles of gateway/roles.py
    ALL = "all"  # a gateway only where gateway.listen is set

    @property
    def builds(self) -> bool:
        return self in (RoleChoice.BUILDER, RoleChoice.ALL)

    @property
    def serves(self) -> bool:
        return self in (RoleChoice.AGENT, RoleChoice.ALL)

    def answers(self, settings: Settings) -> bool:
        """Whether this process is a gateway."""
        if self is RoleChoice.GATEWAY and settings.gateway.listen is None:
            raise ConfigError(
                "a gateway needs an address to listen at",
                hint='set gateway.listen = "127.0.0.1:8460" (ACC_GATEWAY_LISTEN)',
            )
        return self in (RoleChoice.GATEWAY, RoleChoice.ALL) and settings.gateway.listen is not None

    def parts(self, settings: Settings) -> list[str]:
        """What this process is, as accs.daemons says it."""
        whole = {"builder": self.builds, "agent": self.serves, "gateway": self.answers(settings)}
        return [part for part, is_there in whole.items() if is_there]


async def run_daemon(
    choice: RoleChoice,
    config: Path | None,
    *,
    is_strict: bool = False,
    when_up: Callable[[], None] = lambda: None,
) -> None:
    """Returns after an orderly stop; raises the error that keeps it from starting. With `is_strict` a service that
    can't be served is such an error, because a person is there to correct it. A node that boots at night serves the
    rest."""
    environ = environment()
    notifier = Notifier.from_environ(environ)
    settings = read_settings(config)
    configure_logging(settings.log_level, stream="stdout", format=settings.log_format)
    log_loop_errors(asyncio.get_running_loop())
    failpoints.arm(environ.get("ACC_FAILPOINTS"))
    async with AsyncExitStack() as resources:
        signals = resources.enter_context(anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP))
        state = state_folder(settings, environ) if choice.serves else None
        if state is not None:
            if settings.compose.file is not None:
                compose_file(settings.compose)  # a missing file is a mistake to be told at once
            resources.enter_context(locked_state(state, settings.node.name))
            note_served(state, settings.compose.file)
            if is_strict:
                await check_services(settings)
        waiting = _Waiting(choice, settings, config, notifier)
        databases = await waiting.for_databases(signals)
        if databases is None:
            _log.info("stopped")
            return
        resources.push_async_callback(databases.close)
        settings = waiting.settings
        daemon = Daemon(choice, settings, config, databases.db, notifier, when_up)
        # The nodes of one machine share it where no store is configured; a builder alone can't know their folder.
        nodes_here = (
            state if state is not None else state_folder(settings, environ) if choice.answers(settings) else None
        )
        store = open_store(
            settings.storage, default_folder=None if nodes_here is None else nodes_here.parent / "objects"
        )
        opened: ObjectStore | None = None
        answers = choice.answers(settings)
        if state is not None or answers or (choice.builds and settings.retention.removes_anything):
            opened = await resources.enter_async_context(store)
        if choice.builds:
            daemon.build_here(opened)
        if answers:
            await daemon.answer_here(opened, resources)
        if state is not None:
            assert opened is not None, "a node has a store"
            assert databases.beats is not None, "and a connection for its heartbeats"
            daemon.serve_here(opened, databases.beats, state / "attempts")
        await daemon.run(signals)


@dataclass(frozen=True, slots=True)
class _Databases:
    db: Database
    beats: Database | None  # in the pool they would wait behind calls that hang, and leases would be lost

    @classmethod
    async def open(cls, settings: Settings, *, serves: bool) -> "_Databases":
        """Opens all databases, with the right schema, or none."""
        application = f"accsd {settings.node.name}"
        async with AsyncExitStack() as opened:
            db = await Database.open(settings.database, application=application)
            opened.push_async_callback(db.close)
            await require_schema(db)
            alone = settings.database.model_copy(update={"pool_size": 1})
            beats = await Database.open(alone, application=application) if serves else None
            opened.pop_all()
        return cls(db, beats)

    async def close(self) -> None:
        """Closes the connections. No call is under way: only a server that does not answer would delay this."""
        if self.beats is not None:
            await self.beats.close(within=_CLOSING_SEC)
        await self.db.close(within=_CLOSING_SEC)


class _Waiting:
    """Waits for the database: a daemon outlives it, at the start too. Only the state folder's lock was made from the
    settings yet, so that they may change. An error that only a person can correct is raised at once."""

    def __init__(self, choice: RoleChoice, settings: Settings, config: Path | None, notifier: Notifier) -> None:
        self.settings = settings
        self._choice = choice
        self._config = config
        self._notifier = notifier
        self._is_stopped: bool = False
        self._try: anyio.CancelScope = anyio.CancelScope()

    async def for_databases(self, signals: AsyncIterator[signal.Signals]) -> _Databases | None:
        """Opens the databases; None: the daemon was told to stop before they were there."""
        found: _Databases | None = None
        failure: AccsdError | None = None  # the group would wrap it
        async with anyio.create_task_group() as group:
            group.start_soon(self._heed, signals, group.cancel_scope)
            try:
                found = await self._open()
            except AccsdError as error:
                failure = error
            group.cancel_scope.cancel()
        if failure is not None:
            raise failure
        if found is not None and self._is_stopped:
            await found.close()
        return None if self._is_stopped else found

    async def _open(self) -> _Databases:
        pauses = Backoff(timedelta(seconds=0.5), timedelta(seconds=5))
        while True:
            with anyio.CancelScope() as self._try:  # cancelled when there are new settings to try
                try:
                    return await _Databases.open(self.settings, serves=self._choice.serves)
                except DatabaseUnavailable as error:
                    _log.error("waiting_for_database", error=str(error), hint=error.hint)
                    self._notifier.status(f"waiting for the database: {error}")
                await pauses.pause()
            if self._try.cancelled_caught:
                pauses.reset()

    async def _heed(self, signals: AsyncIterator[signal.Signals], scope: anyio.CancelScope) -> None:
        async for number in signals:
            _log.info("signal", signal=number.name)
            if number is not signal.SIGHUP:
                self._is_stopped = True
                scope.cancel()
                return
            self._reload()

    def _reload(self) -> None:
        try:
            settings = read_settings(self._config)
        except AccsdError as error:
            _log.error("reload_failed", error=str(error), hint=error.hint)
            return
        self.settings, left = before_the_start(self.settings, settings)
        tell_reloaded(self.settings, left)
        self._try.cancel()


class Daemon:
    def __init__(
        self,
        choice: RoleChoice,
        settings: Settings,
        config: Path | None,
        db: Database,
        notifier: Notifier,
        when_up: Callable[[], None],
    ) -> None:
        self._choice = choice
        self._when_up = when_up
        self._settings = settings
        self._config = config
        self._db = db
        self._notifier = notifier
        self._metrics: Metrics = Metrics()
        self._health: Health = Health(settings.node.name)
        self._observer: RoleObserver = RoleObserver(self._health, self._metrics)
        db.observe(self._observer.asked)
        failpoints.when_cut(db.cut)
        self._supervisor: Supervisor = Supervisor(self._observer)
        self._listener: Listener = Listener(
            settings.database,
            settings.notify_channel_prefix,
            behind_pooler=db.behind_pooler,
            is_off=not settings.fallback.notify,
            db=db,
            on_change=self._heard,
        )
        self._presence: Post = Post("presence", lambda: Presence(db, self._health, choice.parts(settings)))
        self._host: ControlHost | None = None
        self._builder: Roles[ControlHost] | None = None
        self._agent: NodeAgent | None = None
        self._gateway: Roles[GatewayContext] | None = None
        self._has_listened: bool = False
        self._stops: int = 0
        self._stop: anyio.Event = anyio.Event()
        self._hurry: anyio.Event = anyio.Event()

    async def run(self, signals: AsyncIterator[signal.Signals]) -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(self._take_signals, signals)
            async with self._supervisor:
                self._supervisor.keep(Post("listener", lambda: self._listener))
                self._supervisor.keep(self._presence)
                if self._settings.http.listen:
                    self._supervisor.keep(
                        Post("http", lambda: HttpFace(self._settings.http, self._metrics, self._health))
                    )
                if self._builder is not None:
                    self._builder.start()
                if self._agent is not None:
                    self._agent.start()
                if self._gateway is not None:
                    self._gateway.start()
                group.start_soon(self._notifier.keep_alive)
                self._health.ready = True
                self._notifier.ready(f"{self._choice} as {self._settings.node.name}")
                self._when_up()
                _log.info("started", role=self._choice, node=self._settings.node.name)
                await self._stop.wait()
                await self._drain(group)
            group.cancel_scope.cancel()
        _log.info("stopped")

    def build_here(self, history_to: ObjectStore | None) -> None:
        """Makes this process a builder."""
        self._host = ControlHost(self._settings, self._db, self._listener, self._metrics, self._health, history_to)
        self._builder = Roles(BUILDER_ROLES, self._host, self._supervisor, self._listener, self._settings)
        self._host.know(self._builder)

    async def answer_here(self, store: ObjectStore | None, resources: AsyncExitStack) -> None:
        """Makes this process a gateway. What it serves with is an extra, and imported by nobody else."""
        try:
            from accsd.gateway.roles import open_gateway
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"the gateway needs {error.name}, which is not installed", hint="pip install 'accsd[web]'"
            ) from None
        self._gateway = await open_gateway(
            self._settings,
            listener=self._listener,
            metrics=self._metrics,
            health=self._health,
            store=store,
            supervisor=self._supervisor,
            observe=self._observer.asked,
            resources=resources,
        )
        # What is there now stays. A page of 5,000 tasks makes so many objects that all others were looked at with them
        # for garbage, which took a third of the time of the page.
        gc.collect()
        gc.freeze()

    def serve_here(self, store: ObjectStore, beats: Database, attempts: Path) -> None:
        """Makes this process a node."""
        base = Path.cwd() if self._config is None else self._config.absolute().parent
        beats.observe(self._observer.asked)
        failpoints.when_cut(beats.cut)
        node = make_node(
            self._settings,
            db=self._db,
            beats=beats,
            store=store,
            listener=self._listener,
            metrics=self._metrics,
            health=self._health,
            attempts_folder=attempts,
            stop=self._ask_to_stop,
        )
        self._agent = NodeAgent(node, self._supervisor, base=base)

    def _heard(self, state: ListenerStatus) -> None:
        """The listener's state has changed: all roles look for work, and poll as often as they must from now on."""
        if state.hearing is ListenerState.LISTENING and self._has_listened:
            self._metrics.listener_reconnected()
        self._has_listened = self._has_listened or state.hearing is ListenerState.LISTENING
        self._health.listener(state.hearing, state.reason)
        self._metrics.listener(state.hearing)
        for post in self._supervisor.posts:
            if post.poll is not None:
                self._health.role_paced(post.name, post.poll())
        self._supervisor.wake_pollers()
        self._presence.wakeup.set()

    def _ask_to_stop(self) -> None:
        self._stops += 1
        self._stop.set()
        if self._stops > 1:
            self._hurry.set()

    async def _take_signals(self, signals: AsyncIterator[signal.Signals]) -> None:
        async for number in signals:
            _log.info("signal", signal=number.name)
            if number is signal.SIGHUP:
                self._reload()
            else:
                self._ask_to_stop()

    def _reload(self) -> None:
        """Reads the settings again. A wrong configuration changes nothing."""
        self._notifier.reloading()
        try:
            self._take_over(read_settings(self._config))
        except AccsdError as error:
            _log.error("reload_failed", error=str(error), hint=error.hint)
        self._notifier.ready()

    def _take_over(self, settings: Settings) -> None:
        left = left_behind(self._settings, settings)
        settings = taken_over(self._settings, settings)
        if self._agent is not None:
            self._agent.reload(settings)  # the only step that may refuse
            note_served(state_folder(settings, environment()), settings.compose.file)
        if self._host is not None and self._builder is not None:
            self._host.settings = settings
            self._builder.reload(self._settings, settings)
            left += ["retention"] if settings.retention.removes_anything and self._host.store is None else []
        self._settings = settings
        tell_reloaded(settings, left)

    async def _drain(self, group: anyio.abc.TaskGroup) -> None:
        self._health.drain()
        grace = timedelta(seconds=self._settings.drain_sec)
        self._notifier.stopping("draining", within=grace + timedelta(seconds=60))
        _log.info("draining", grace_sec=grace.total_seconds())
        for roles in (self._gateway, self._builder):
            if roles is not None:
                roles.leave(Leaves.FIRST)
        if self._agent is not None:
            group.start_soon(self._hurry_up, self._agent)
            await self._agent.drain(grace)

    async def _hurry_up(self, agent: NodeAgent) -> None:
        await self._hurry.wait()
        agent.hurry()
