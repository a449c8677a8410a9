"""A process that serves one service: settings, connections, signals, the loop.

SIGTERM (or Ctrl-C) drains; a second one skips the grace; a third one ends the process where it stands.
"""

import asyncio
import gc
import logging
import os
import signal
import sys
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Final, TypeAlias

import uvloop

from accsd import failpoints
from accsd.db import Database, require_schema
from accsd.db.listen import Listener
from accsd.errors import AccsdError, ConfigError, DatabaseUnavailable
from accsd.log import configure_logging, get_logger, log_loop_errors, register_secret
from accsd.metrics import Metrics
from accsd.retry import Backoff
from accsd.sdk.pull.attempt import Handler
from accsd.sdk.pull.instance import Instance, locked_instance
from accsd.sdk.pull.stop import StopRequest
from accsd.sdk.pull.task import PullTaskLog
from accsd.sdk.pull.worker import Worker
from accsd.settings import DatabaseSettings, Settings, environment, load_settings, state_folder
from accsd.storage import open_store
from accsd.wakeup import Wakeup
from accsd.work.cache import FileCache, files_folder
from accsd.work.context import AttemptContext
from accsd.work.lease import LeaseKeeper
from accsd.work.reporter import Reporter

_log = get_logger(component="pull")
_DEFAULT_CONCURRENCY: Final = 16
_PATIENCE: Final = 2  # signals
_KILLED: Final = 137
MakeHandler: TypeAlias = Callable[[Settings], Handler]


def run(
    make: MakeHandler,
    *,
    concurrency: int | None,
    node: str | None,
    settings: Settings | Path | str | None,
    when_ready: Callable[[], None],
) -> None:
    """Serves until an orderly stop; SystemExit with a sentence where it can't begin or go on."""
    try:
        known = settings if isinstance(settings, Settings) else load_settings(settings)
        configure_logging(known.log_level, stream="stdout", format=known.log_format)
        for secret in known.secret_texts():
            register_secret(secret)
        failpoints.arm(environment().get("ACC_FAILPOINTS"))
        # Imported objects stay, and tasks make no reference cycles: a quarter of the worker's time went to the
        # collector, which found nothing.
        gc.freeze()
        gc.set_threshold(100_000, 20, 20)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_until_signalled(make(known), known, concurrency=concurrency, node=node, when_ready=when_ready))
    except AccsdError as error:
        sys.stderr.write(f"{error}\n" + (f"  → {error.hint}\n" if error.hint else ""))
        sys.exit(1)


async def serve_in_loop(
    make: MakeHandler,
    *,
    concurrency: int | None,
    node: str | None,
    settings: Settings | Path | str | None,
    when_ready: Callable[[], None],
) -> None:
    """Serves in the caller's process and loop: signals, logging and secrets are the caller's."""
    known = settings if isinstance(settings, Settings) else load_settings(settings)
    await serve(
        make(known), known, concurrency=concurrency, node=node, asked=StopRequest(), when_ready=lambda _: when_ready()
    )


async def _until_signalled(
    handler: Handler, settings: Settings, *, concurrency: int | None, node: str | None, when_ready: Callable[[], None]
) -> None:
    asked, serving, is_ready = StopRequest(), asyncio.current_task(), False
    log_loop_errors(asyncio.get_running_loop())

    def ask() -> None:
        asked.again()
        if asked.times > _PATIENCE:
            os._exit(_KILLED)
        if not is_ready and serving is not None:
            serving.cancel()  # it may wait for its database for hours, and holds no task yet

    def ready(_: str) -> None:
        nonlocal is_ready
        is_ready = True
        when_ready()

    asked.when_stuck = lambda: os._exit(_KILLED)  # or the process would keep its leases for ever
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ask)
    try:
        await serve(handler, settings, concurrency=concurrency, node=node, asked=asked, when_ready=ready)
    except asyncio.CancelledError:
        if is_ready or not asked.times:
            raise


async def serve(
    handler: Handler,
    settings: Settings,
    *,
    concurrency: int | None,
    node: str | None,
    asked: StopRequest,
    when_ready: Callable[[str], None],
) -> None:
    """Serves until it is asked to stop. If it is cancelled, it gives its tasks back without a grace. `when_ready` gets
    the name that this process has among the nodes."""
    if not settings.fallback.pull:
        raise ConfigError(
            f"service {handler.service} is not started: the pull mode is switched off (fallback.pull)",
            hint="set fallback.pull = true, or let an agent serve it as a process (docs/operations.md)",
        )
    slots = _concurrency(handler.service, settings, concurrency)
    root = state_folder(settings, environment()).parent
    with locked_instance(root, node or settings.node.name, handler.service) as instance:
        async with _context(instance, settings) as (context, listener, resumed):
            worker = Worker(handler, context, listener, settings, resumed, concurrency=slots, asked=asked)
            _log.info("starting", node=instance.name, service=handler.service, concurrency=slots)
            with _logging_to_tasks():
                await _run(worker, listener, lambda: when_ready(instance.name))
            _log.info("stopped", node=instance.name)


async def _run(worker: Worker, listener: Listener, when_ready: Callable[[], None]) -> None:
    """Raises an error that a person can correct as itself, and not as a group of one."""
    try:
        async with asyncio.TaskGroup() as group:
            listening = group.create_task(listener.serve())
            try:
                await worker.run(when_ready)
            finally:
                listening.cancel()
    except BaseExceptionGroup as group:
        if (known := known_error(group)) is None:
            raise
        raise known from None


def known_error(group: BaseExceptionGroup[BaseException]) -> AccsdError | None:
    """The first error in the group that is not a bug."""
    known = group.subgroup(AccsdError)
    while isinstance(known, BaseExceptionGroup):
        known = known.exceptions[0]
    return known


def _concurrency(service: str, settings: Settings, given: int | None) -> int:
    default = None if service in settings.services else _DEFAULT_CONCURRENCY
    slots = settings.concurrency_of(service, given if given is not None else default)
    if slots < 1:
        raise ConfigError(f"service {service} has a concurrency of {slots}; at least 1 is needed")
    return slots


@asynccontextmanager
async def _context(instance: Instance, settings: Settings) -> AsyncGenerator[tuple[AttemptContext, Listener, Wakeup]]:
    """The context, the listener, and a wake-up that is set after leases were asked about following a pause."""
    resumed = Wakeup()
    async with AsyncExitStack() as resources:
        db = await _connected(settings.database, instance.name)
        resources.push_async_callback(db.close)
        await require_schema(db)
        # In the pool heartbeats would wait behind calls that hang, and all leases would be lost.
        beats = await _connected(settings.database.model_copy(update={"pool_size": 1}), instance.name)
        resources.push_async_callback(beats.close)
        failpoints.when_cut(db.cut)
        failpoints.when_cut(beats.cut)
        store = await resources.enter_async_context(open_store(settings.storage, default_folder=instance.objects))
        metrics = Metrics()
        keeper = LeaseKeeper(
            beats,
            node=instance.name,
            lease=settings.lease,
            every=settings.heartbeat,
            metrics=metrics,
            when_resumed=resumed.set,
        )
        context = AttemptContext(
            name=instance.name,
            db=db,
            store=store,
            leases=keeper,
            reporter=Reporter(db, owner=instance.name),
            attempts_folder=instance.attempts,
            min_free_disk=settings.node.min_free_disk,
            files=FileCache(
                files_folder(instance.attempts), limit=settings.node.files_cache, min_free=settings.node.min_free_disk
            ),
            patience=settings.storage.patience,
            metrics=metrics,
            backoff_base=settings.backoff_base,
            secrets=settings.secrets,
        )
        prefix, pooled = settings.notify_channel_prefix, db.behind_pooler
        is_off = not settings.fallback.notify
        yield context, Listener(settings.database, prefix, behind_pooler=pooled, db=db, is_off=is_off), resumed


async def _connected(database: DatabaseSettings, name: str) -> Database:
    """Waits for the database: a service outlives it, at the start too."""
    pauses = Backoff(timedelta(seconds=0.5), timedelta(seconds=5))
    while True:
        try:
            return await Database.open(database, application=f"accsd {name}")
        except DatabaseUnavailable as error:
            _log.error("waiting_for_database", error=str(error), hint=error.hint)
            await pauses.pause()


@contextmanager
def _logging_to_tasks() -> Generator[None]:
    """Records of `logging` go to the task's log, unless the author has configured logging otherwise."""
    root = logging.getLogger()
    if root.handlers:
        yield
        return
    handler, level = PullTaskLog(), root.level
    root.addHandler(handler)
    root.setLevel(min(level, logging.INFO))
    try:
        yield
    finally:
        root.removeHandler(handler)
        root.setLevel(level)
