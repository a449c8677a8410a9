"""The gateway's table of roles, and how it is made."""

from collections.abc import Callable
from contextlib import AsyncExitStack
from datetime import timedelta
from functools import partial
from typing import Final

from accsd.db import Database
from accsd.db.listen import Listener
from accsd.db.operations import operation_documents
from accsd.explain.redaction import Redaction
from accsd.gateway.context import GatewayContext
from accsd.gateway.hub import Hub
from accsd.gateway.operations import OperationsWorker
from accsd.gateway.pace import HubPace
from accsd.gateway.paging import Cursors
from accsd.gateway.server import GatewayServer
from accsd.health import Health
from accsd.metrics import Metrics
from accsd.roles import Leaves, Role, Roles
from accsd.settings import Settings
from accsd.storage import ObjectStore
from accsd.supervisor import Supervisor

_READS: Final = 6  # connections
_VERBS: Final = 4
_READ_SEC: Final = 5.0
_PATIENCE_SEC: Final = 1.0  # for a free connection: whoever asks is told to come back, and does not queue up
_CLOSES_SEC: Final = 1.0

ROLES: Final[tuple[Role[GatewayContext], ...]] = (
    Role(
        "hub",
        "reads what happens once, and tells all who look",
        lambda context: context.hub,
        leaves=Leaves.LAST,
    ),
    Role(
        "gateway",
        "answers requests over HTTP ([the API](http-api.md))",
        GatewayServer,
    ),
    Role(
        "operations",
        "does in chunks what people ask of more jobs or dead letters than fit into a request",
        lambda context: OperationsWorker(context.reads, context.verbs),
        hears="_operations",
        polls=True,
    ),
)


async def open_gateway(
    settings: Settings,
    *,
    listener: Listener,
    metrics: Metrics,
    health: Health,
    store: ObjectStore | None,
    supervisor: Supervisor,
    observe: Callable[[bool, timedelta], None],
    resources: AsyncExitStack,
) -> Roles[GatewayContext]:
    context = await make_context(
        settings,
        listener=listener,
        metrics=metrics,
        health=health,
        store=store,
        resources=resources,
        observe=observe,
    )
    rows = (*ROLES, *(role for door in context.doors for role in door.roles))
    return Roles(rows, context, supervisor, listener, settings)


async def make_context(
    settings: Settings,
    *,
    listener: Listener,
    metrics: Metrics,
    health: Health,
    store: ObjectStore | None,
    resources: AsyncExitStack,
    observe: Callable[[bool, timedelta], None] | None = None,
) -> GatewayContext:
    """Opens two pools of its own: one reads and is patient with nobody, the other carries out verbs."""
    name = f"accsd {settings.node.name} gateway"
    reading = settings.database.model_copy(update={"pool_size": _READS, "statement_timeout_sec": _READ_SEC})
    reads = await Database.open(reading, application=name, any_time=True, read_only=True)
    resources.push_async_callback(reads.close, within=_CLOSES_SEC)
    verbs = await Database.open(settings.database.model_copy(update={"pool_size": _VERBS}), application=name)
    resources.push_async_callback(verbs.close, within=_CLOSES_SEC)
    if observe is not None:
        for db in (reads, verbs):
            db.observe(observe)
    pace = HubPace(waiters=settings.gateway.limits.waiters)
    return GatewayContext(
        settings=settings,
        reads=reads.impatient(_PATIENCE_SEC),
        verbs=verbs,
        listener=listener,
        metrics=metrics,
        health=health,
        store=store,
        hub=Hub(
            reads,
            listener,
            metrics=metrics,
            silent=settings.lease,
            operations=partial(operation_documents, reads),
            pace=pace,
            redaction=Redaction(settings.gateway.redact),
        ),
        cursors=await Cursors.of(verbs),
    )
