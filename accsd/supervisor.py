"""Keeps the roles running: the only loop of the daemon.

A role makes passes; between them it sleeps until it is notified, until the time at which it knows of something due, or
until the poll. A role that serves (it owns children) runs until it is stopped. A pass that fails because the world is
away is tried again soon and costs nothing; a role that crashes is made anew after a growing pause. The others go on.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Protocol, runtime_checkable

import anyio
from anyio.abc import TaskGroup

from accsd.errors import AccsdError, Bug, DatabaseUnavailable, Unavailable
from accsd.health import Health
from accsd.log import get_logger
from accsd.metrics import Metrics
from accsd.retry import Backoff, jittered
from accsd.wakeup import Wakeup

_log = get_logger(component="supervisor")
# A database that comes back finds its daemons asking within a second.
_OUTAGE_PAUSES = (timedelta(seconds=0.1), timedelta(seconds=1))
_CRASH_PAUSES = (timedelta(seconds=1), timedelta(seconds=60))
# A role that has served for this long counts as running again.
_HOLDS = timedelta(seconds=5)
# The database's clock and ours run side by side: a pass a little after the due time is better than two.
_AFTER_DUE = timedelta(milliseconds=2)


@dataclass(frozen=True)
class Pass:
    """A sentence saying what the role did, or None; whether there is more to do at once; when something is due next;
    and what keeps the role from its work, if anything does."""

    did: str | None = None
    more: bool = False
    next_due: timedelta | None = None
    obstacle: str | None = None


@runtime_checkable
class PassingRole(Protocol):
    async def run_once(self) -> Pass: ...


@runtime_checkable
class ServingRole(Protocol):
    async def serve(self) -> None: ...


class RoleObserver:
    """Tells the log, health and metrics what the roles do, and how the database answers them."""

    def __init__(self, health: Health, metrics: Metrics) -> None:
        self._health = health
        self._metrics = metrics
        self._away: set[str] = set()

    def started(self, role: str, poll: timedelta | None) -> None:
        self._health.role_started(role, pass_every=poll)
        if poll is not None:
            self._metrics.know_roles([role])

    def passed(self, role: str, done: Pass, took: timedelta) -> None:
        self._health.role_passed(role, done.did, obstacle=done.obstacle)
        self._metrics.passed(role, worked=done.did is not None)
        self._said_to_be_back(role)
        if done.did:
            _log.info("pass", role=role, did=done.did, took_ms=round(took.total_seconds() * 1000, 1))

    def away(self, role: str, error: Unavailable, pause: timedelta) -> None:
        """Logs an outage once, not once for each try."""
        self._health.role_failed(role, str(error), restarting=False)
        self._metrics.away(role)
        if isinstance(error, DatabaseUnavailable):
            self._health.database_away(str(error))
        if role not in self._away:
            self._away.add(role)
            _log.warning("role_waits", role=role, error=str(error), hint=error.hint)

    def crashed(self, role: str, error: Exception, pause: timedelta) -> None:
        self._health.role_failed(role, f"{type(error).__name__}: {error}")
        self._metrics.crashed(role)
        hint = error.hint if isinstance(error, AccsdError) else None
        again_in = round(pause.total_seconds(), 1)
        _log.error("role_crashed", role=role, error=str(error), hint=hint, again_in=again_in, exc_info=error)

    def resumed(self, role: str) -> None:
        self._health.role_resumed(role)
        self._said_to_be_back(role)

    def stopped(self, role: str) -> None:
        self._health.role_left(role)

    def asked(self, answered: bool, took: timedelta) -> None:
        self._metrics.queried("ok" if answered else "error", took)
        if answered:
            self._health.database_answered(took)
        else:
            self._health.database_away("a call was not answered")

    def _said_to_be_back(self, role: str) -> None:
        if role in self._away:
            self._away.discard(role)
            _log.info("role_back", role=role)


@dataclass(eq=False, slots=True)
class Post:
    """A role's place: how to make it, what wakes it, how often it polls (None: it only waits to be woken)."""

    name: str
    make: Callable[[], PassingRole | ServingRole]
    wakeup: Wakeup = field(default_factory=Wakeup)
    poll: Callable[[], timedelta] | None = None
    _leaving: Wakeup = field(default_factory=Wakeup)
    _left: bool = False
    _is_outdated: bool = False
    _serving: anyio.CancelScope | None = None
    _ended: anyio.Event = field(default_factory=anyio.Event)

    def leave(self) -> None:
        """Makes no further pass: the one under way ends; a role that serves is cancelled."""
        self._left = True
        self._leaving.set()
        self.wakeup.set()
        if self._serving is not None:
            self._serving.cancel()

    def renew(self) -> None:
        """The settings of a role that makes passes have changed: it is made anew after this pass."""
        self._is_outdated = True
        self.wakeup.set()

    def make_role(self) -> "PassingRole | ServingRole":
        self._is_outdated = False
        return self.make()

    async def ended(self) -> None:
        await self._ended.wait()

    @property
    def has_ended(self) -> bool:
        return self._ended.is_set()

    async def serve(self, role: "ServingRole") -> None:
        with anyio.CancelScope() as self._serving:
            await role.serve()

    def end(self) -> None:
        self._ended.set()

    @property
    def is_left(self) -> bool:
        return self._left

    @property
    def is_outdated(self) -> bool:
        return self._is_outdated

    async def pause(self, length: timedelta) -> None:
        """Pauses; only leaving interrupts it: a notification must not turn an outage into a busy loop."""
        await self._leaving.wait(length)


class Supervisor:
    """Runs posts in one task group. Its end cancels every role; let them `leave` first, to stop in order."""

    def __init__(self, observer: RoleObserver) -> None:
        self._observer = observer
        self._posts: set[Post] = set()
        self._group: TaskGroup = anyio.create_task_group()

    async def __aenter__(self) -> "Supervisor":
        await self._group.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> bool | None:
        self._group.cancel_scope.cancel()
        return await self._group.__aexit__(*exc)  # pyright: ignore[reportArgumentType]

    @property
    def posts(self) -> list[Post]:
        return list(self._posts)

    def keep(self, post: Post) -> None:
        """Starts a role and keeps it running."""
        self._posts.add(post)
        self._observer.started(post.name, None if post.poll is None else post.poll())
        self._group.start_soon(self._keep, post, name=post.name)

    def wake_pollers(self) -> None:
        """Wakes all roles that poll."""
        for post in self._posts:
            if post.poll is not None:
                post.wakeup.set()

    async def _keep(self, post: Post) -> None:
        crashes = Backoff(*_CRASH_PAUSES)
        outages = Backoff(*_OUTAGE_PAUSES)
        try:
            while not post.is_left:
                try:
                    await self._run(post.make_role(), post, crashes, outages)
                except Unavailable as error:
                    pause = outages.next()
                    self._observer.away(post.name, error, pause)
                    await post.pause(pause)
                except Exception as error:  # noqa: BLE001 - the other roles go on, and the observer hears of this one
                    pause = crashes.next()
                    self._observer.crashed(post.name, error, pause)
                    await post.pause(pause)
        finally:
            self._posts.discard(post)
            post.end()
            if all(other.name != post.name for other in self._posts):  # a role that left may have a successor by now
                self._observer.stopped(post.name)

    async def _run(self, role: PassingRole | ServingRole, post: Post, crashes: Backoff, outages: Backoff) -> None:
        match role:
            case PassingRole():
                await self._make_passes(role, post, crashes, outages)
            case ServingRole():
                await self._serve(role, post, crashes)

    async def _serve(self, role: ServingRole, post: Post, crashes: Backoff) -> None:
        began = time.monotonic()
        well = asyncio.get_running_loop().call_later(_HOLDS.total_seconds(), self._observer.resumed, post.name)
        try:
            await post.serve(role)
        finally:
            well.cancel()
            if time.monotonic() - began > _CRASH_PAUSES[1].total_seconds():
                crashes.reset()  # it ran for a while: this is a new failure
        if not post.is_left:
            raise Bug(f"{post.name} ended by itself")

    async def _make_passes(self, role: PassingRole, post: Post, crashes: Backoff, outages: Backoff) -> None:
        while not post.is_left and not post.is_outdated:
            post.wakeup.clear()  # before the role reads the tables
            began = time.monotonic()
            try:
                done = await role.run_once()
            except Unavailable as error:  # the role keeps its state
                pause = outages.next()
                self._observer.away(post.name, error, pause)
                await post.pause(pause)
                continue
            crashes.reset()
            outages.reset()
            self._observer.passed(post.name, done, timedelta(seconds=time.monotonic() - began))
            if not done.more:
                await post.wakeup.wait(_sleep(post, done))


def _sleep(post: Post, done: Pass) -> timedelta | None:
    waits = [jittered(post.poll())] if post.poll is not None else []
    if done.next_due is not None:
        waits.append(done.next_due + _AFTER_DUE)
    return min(waits, default=None)
