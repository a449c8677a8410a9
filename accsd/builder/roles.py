"""The builder's side of the daemon: what moves jobs on, wakes and judges nodes, tells others and keeps history, and the
posts that run it."""

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from accsd.builder.archive import Archiver
from accsd.builder.calls_under_way import CallsUnderWay
from accsd.builder.cleanup import Cleanup
from accsd.builder.instantiate import Builder
from accsd.builder.judge import Judge
from accsd.builder.news import ServiceNews
from accsd.builder.outbox import Dispatcher
from accsd.builder.prune import Pruner
from accsd.builder.wake import Waker
from accsd.db import Database
from accsd.db.listen import Listener
from accsd.db.outbox import OUTBOX_CHANNEL
from accsd.db.quarantines import NEWS as HEALTH_CHANNEL
from accsd.history.clocks import Clocks
from accsd.metrics import Metrics
from accsd.settings import Settings
from accsd.storage import ObjectStore
from accsd.supervisor import PassingRole, Post, Supervisor

_BUILDER_CHANNEL: Final = "builder"
_OUTBOX_POST: Final = "outbox-"
# which section of the settings each role is made from; those of the outbox's targets are looked at one by one
_MADE_FROM: Final = {"wake": "wake", "judge": "quarantine", "prune": "outbox", "archive": "retention"}


@dataclass(eq=False, slots=True)
class BuilderSide:
    settings: Settings
    db: Database
    listener: Listener
    metrics: Metrics
    supervisor: Supervisor
    store: ObjectStore | None  # where history goes, if anything did when the daemon began
    poll: Callable[[], timedelta]
    _posts: dict[str, Post] = field(default_factory=dict[str, Post])
    _waker_hears: ServiceNews = field(init=False)
    _calls: CallsUnderWay = field(default_factory=CallsUnderWay)
    _clocks: Clocks = field(default_factory=Clocks)

    def __post_init__(self) -> None:
        self._waker_hears = ServiceNews(self.listener)

    def start(self) -> None:
        self._keep("builder", lambda: Builder(self.db), hears=_BUILDER_CHANNEL)
        self._keep("cleanup", self._make_cleanup, hears=_BUILDER_CHANNEL)
        self.supervisor.keep(Post("calls", lambda: self._calls))
        wake = self._keep("wake", self._make_waker, hears=_BUILDER_CHANNEL)
        self._waker_hears.when_heard = self._calls.when_ended = wake.wakeup.set
        self._keep("judge", self._make_judge, hears=HEALTH_CHANNEL)
        self._keep("prune", lambda: Pruner(self.db, self.settings.outbox))
        self.listener.subscribe(OUTBOX_CHANNEL, self._hear_of_events)
        self._choose_targets()
        self._choose_archive()

    def reload(self, settings: Settings) -> list[str]:
        """Roles whose settings have changed are made anew after the pass that they are in. What needs a restart."""
        before, self.settings = self.settings, settings
        for name, section in _MADE_FROM.items():
            if name in self._posts and getattr(before, section) != getattr(settings, section):
                self._posts[name].renew()
        if before.outbox != settings.outbox:
            self._choose_targets()
        self._choose_archive()
        return ["retention"] if settings.retention.removes_anything and self.store is None else []

    def leave(self) -> None:
        for post in self._posts.values():
            post.leave()

    def _keep(self, name: str, make: Callable[[], PassingRole], *, hears: str | None = None) -> Post:
        """One that hears of something polls too."""
        post = self._posts[name] = Post(name, make, poll=None if hears is None else self.poll)
        if hears is not None:
            self.listener.subscribe(hears, post.wakeup.set)
        self.supervisor.keep(post)
        return post

    def _choose_targets(self) -> None:
        """One role for each target: a slow receiver keeps only itself waiting."""
        wanted = {f"{_OUTBOX_POST}{name}": name for name in self.settings.outbox.targets}
        for post in [name for name in self._posts if name.startswith(_OUTBOX_POST)]:
            if post in wanted:
                self._posts[post].renew()
            else:
                self._posts.pop(post).leave()
        for post, target in wanted.items():
            if post not in self._posts:
                self._posts[post] = Post(post, lambda target=target: self._make_dispatcher(target), poll=self.poll)
                self.supervisor.keep(self._posts[post])

    def _hear_of_events(self, _payload: str) -> None:
        for name, post in self._posts.items():
            if name.startswith(_OUTBOX_POST):
                post.wakeup.set()

    def _choose_archive(self) -> None:
        store = self.store
        if store is not None and self.settings.retention.removes_anything and "archive" not in self._posts:
            self._keep("archive", lambda: self._make_archiver(store))
        elif "archive" in self._posts and not self.settings.retention.removes_anything:
            self._posts.pop("archive").leave()

    def _make_dispatcher(self, target: str) -> Dispatcher:
        return Dispatcher(self.db, target, self.settings.outbox, metrics=self.metrics)

    def _make_archiver(self, store: ObjectStore) -> Archiver:
        return Archiver(self._history_login, store, self.settings.retention, metrics=self.metrics, clocks=self._clocks)

    @asynccontextmanager
    async def _history_login(self) -> AsyncGenerator[Database]:
        if self.settings.retention.database_url is None:
            yield self.db
            return
        node = self.settings.node.name
        db = await Database.open(self.settings.retention_database, application=f"accsd {node} archive")
        try:
            yield db
        finally:
            await db.close()

    def _make_judge(self) -> Judge:
        return Judge(self.db, self.settings.quarantine, metrics=self.metrics)

    def _make_cleanup(self) -> Cleanup:
        return Cleanup(self.db, lease=self.settings.lease, grace=self.settings.grace, metrics=self.metrics)

    def _make_waker(self) -> Waker:
        return Waker(
            self.db,
            self.settings.wake,
            lease=self.settings.lease,
            calls=self._calls,
            node=self.settings.node.name,
            metrics=self.metrics,
            hear=self._waker_hears.listen_to,
        )
