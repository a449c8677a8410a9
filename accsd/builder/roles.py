"""The control host: the facts that its roles share, and the table of the roles."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

from accsd.builder.archive import Archiver
from accsd.builder.calls import CallsUnderWay
from accsd.builder.cleanup import Cleanup
from accsd.builder.events import Evaluator
from accsd.builder.health import HealthCheck
from accsd.builder.instantiate import Builder
from accsd.builder.judge import Judge
from accsd.builder.outbox import Dispatcher
from accsd.builder.planner import Planner
from accsd.builder.probes import Probes
from accsd.builder.prune import Pruner
from accsd.builder.resolver import Resolver
from accsd.builder.scheduler import Scheduler
from accsd.builder.statistics import Statistics
from accsd.builder.tools import Tools
from accsd.builder.wake import ServiceNews, Waker
from accsd.db import Database
from accsd.db.listen import Listener
from accsd.db.outbox import OUTBOX_CHANNEL
from accsd.db.quarantine import NEWS as HEALTH_CHANNEL
from accsd.db.resolve import CHANNEL as RESOLVE_CHANNEL
from accsd.db.schedules import CHANNEL as SCHEDULE_CHANNEL
from accsd.db.schedules import EVENT
from accsd.health import Health
from accsd.history.clocks import Clocks
from accsd.metrics import Metrics
from accsd.roles import Leaves, Role, Roles
from accsd.settings import Settings
from accsd.storage import ObjectStore

_BUILDER_CHANNEL: Final = "builder"


@dataclass(eq=False, slots=True)
class ControlHost:
    """The facts that the roles of the control host share, and lookups; no decisions."""

    settings: Settings  # the newest: a reload replaces them
    db: Database
    listener: Listener
    metrics: Metrics
    health: Health
    store: ObjectStore | None  # for history; None: retention removed nothing when the daemon began
    calls: CallsUnderWay = field(default_factory=CallsUnderWay)
    clocks: Clocks = field(default_factory=Clocks)
    news: ServiceNews = field(init=False)

    def __post_init__(self) -> None:
        self.news = ServiceNews(self.listener)

    def know(self, roles: "Roles[ControlHost]") -> None:
        """News of services and ended wake calls wake the waker."""
        self.news.when_heard = self.calls.when_ended = lambda: roles.wake("wake")

    @asynccontextmanager
    async def history_login(self) -> AsyncGenerator[Database]:
        """Opens the connection that may remove history: a login of its own, where one is configured."""
        if self.settings.retention.database_url is None:
            yield self.db
            return
        node = self.settings.node.name
        db = await Database.open(self.settings.retention_database, application=f"accsd {node} archive")
        try:
            yield db
        finally:
            await db.close()


def _cleanup(host: ControlHost) -> Cleanup:
    return Cleanup(
        host.db,
        lease=host.settings.lease,
        grace=host.settings.grace,
        metrics=host.metrics,
    )


def _tools(host: ControlHost) -> Tools:
    return Tools(host.db, host.settings, host.listener, store=host.store, metrics=host.metrics)


def _waker(host: ControlHost) -> Waker:
    return Waker(
        host.db,
        host.settings.wake,
        lease=host.settings.lease,
        calls=host.calls,
        node=host.settings.node.name,
        metrics=host.metrics,
        hear=host.news.listen_to,
    )


def _probes(host: ControlHost) -> Probes:
    return Probes(
        host.db,
        host.settings.probes,
        database=host.settings.database,
        node=host.settings.node.name,
        silent=host.settings.lease,
        metrics=host.metrics,
    )


def _archiver(host: ControlHost) -> Archiver:
    assert host.store is not None, "the role is wanted only with a store"
    return Archiver(host.history_login, host.store, host.settings.retention, metrics=host.metrics, clocks=host.clocks)


def _dispatcher(host: ControlHost, target: str) -> Dispatcher:
    return Dispatcher(host.db, target, host.settings.outbox, metrics=host.metrics)


def _is_no_event(_: ControlHost, news: str) -> bool:
    """Events come by the thousand: they wake the role that settles them, and no other."""
    return news != EVENT


ROLES: Final[tuple[Role[ControlHost], ...]] = (
    Role(
        "builder",
        "makes the tasks of jobs that were inserted plainly or are due",
        lambda host: Builder(host.db),
        hears=_BUILDER_CHANNEL,
        polls=True,
    ),
    Role(
        "cleanup",
        "reclaims tasks whose lease has run out, makes partitions, frees holds, recounts the narrow tables",
        _cleanup,
        hears=_BUILDER_CHANNEL,
        polls=True,
    ),
    Role(
        "resolver",
        "works out the conditions, inputs and lists of steps with expressions ([pipelines](pipelines.md))",
        lambda host: Resolver(host.db),
        hears=RESOLVE_CHANNEL,
        polls=True,
    ),
    Role(
        "tools",
        "does what steps ask of the control host: tools of kind http, and accsd's own ([tools](tools.md))",
        _tools,
    ),
    Role(
        "scheduler",
        "fires what is due: schedules, ends of pauses, backfills ([schedules](schedules.md))",
        lambda host: Scheduler(host.db, node=host.settings.node.name, metrics=host.metrics),
        hears=SCHEDULE_CHANNEL,
        heeds=_is_no_event,
        polls=True,
    ),
    Role(
        "planner",
        "plans the next occurrences of schedules ahead of time",
        lambda host: Planner(host.db, node=host.settings.node.name, spread=host.settings.scheduler.spread),
        hears=SCHEDULE_CHANNEL,
        heeds=_is_no_event,
        polls=True,
        made_from="scheduler",
    ),
    Role(
        "events",
        "settles events: evaluates filters and templates, starts what they cause ([events](events.md))",
        lambda host: Evaluator(host.db, node=host.settings.node.name, metrics=host.metrics),
        hears=SCHEDULE_CHANNEL,
        polls=True,
    ),
    Role(
        "probes",
        "measures the conditions that have a probe ([conditions](conditions.md))",
        _probes,
        hears=SCHEDULE_CHANNEL,
        heeds=_is_no_event,
        polls=True,
        made_from="probes",
    ),
    Role(
        "health",
        "counts what waits, is stuck or overdue ([health](metrics.md#health))",
        lambda host: HealthCheck(host.db, health=host.health, metrics=host.metrics),
    ),
    Role(
        "statistics",
        "counts how attempts end, how long steps take and how busy nodes are ([statistics](metrics.md#statistics))",
        lambda host: Statistics(host.db),
    ),
    Role(
        "calls",
        "makes the wake calls, side by side",
        lambda host: host.calls,
        leaves=Leaves.LAST,
    ),
    Role(
        "wake",
        "chooses the sleeping nodes that running or soon due jobs need ([waking](waking.md))",
        _waker,
        hears=_BUILDER_CHANNEL,
        polls=True,
        made_from="wake",
    ),
    Role(
        "judge",
        "compares failures on different nodes and decides on quarantines ([quarantine](quarantine.md))",
        lambda host: Judge(host.db, host.settings.quarantine, metrics=host.metrics),
        hears=HEALTH_CHANNEL,
        polls=True,
        made_from="quarantine",
    ),
    Role(
        "prune",
        "removes old outgoing events, once an hour",
        lambda host: Pruner(host.db, host.settings.outbox),
        made_from="outbox",
    ),
    Role(
        "outbox-",
        "sends events of jobs to one target ([outbox](outbox.md))",
        hears=OUTBOX_CHANNEL,
        polls=True,
        made_from="outbox",
        each=lambda host: host.settings.outbox.targets,
        make_each=_dispatcher,
    ),
    Role(
        "archive",
        "archives old months and removes old jobs ([history](history.md)); only with a `[retention]`",
        _archiver,
        made_from="retention",
        wanted=lambda host: host.store is not None and host.settings.retention.removes_anything,
    ),
)
