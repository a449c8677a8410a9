"""The gateway: the facts that its roles and routes share."""

from dataclasses import dataclass, field
from typing import cast

from starlette.requests import Request

from accsd.db import Database
from accsd.db.listen import Listener
from accsd.explain.redaction import Redaction
from accsd.gateway.doors import Door, open_doors
from accsd.gateway.hub import Hub
from accsd.gateway.limits import Buckets
from accsd.gateway.paging import Cursors
from accsd.gateway.problems import HttpProblem
from accsd.health import Health
from accsd.metrics import Metrics
from accsd.model.access import Caller
from accsd.settings import Settings
from accsd.storage import ObjectStore


@dataclass(eq=False, slots=True)
class GatewayContext:
    settings: Settings
    reads: Database  # read only, and short: a page never takes a lock and never waits for a verb
    verbs: Database
    listener: Listener
    metrics: Metrics
    health: Health
    store: ObjectStore | None  # None: this machine has no store, or none is configured
    hub: Hub
    cursors: Cursors
    buckets: Buckets = field(init=False)
    redaction: Redaction = field(init=False)
    doors: tuple[Door, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.buckets = Buckets(self.settings.gateway.limits)
        self.redaction = Redaction(self.settings.gateway.redact)
        self.doors = open_doors(self)


def context_of(request: Request) -> GatewayContext:
    return cast("GatewayContext", request.state.context)


def caller_of(request: Request) -> Caller:
    """Who asks. Every route but the public ones has one."""
    return cast("Caller", request.state.caller)


def require_store(context: GatewayContext) -> ObjectStore:
    if context.store is None:
        raise HttpProblem("stored_elsewhere", "this gateway has no object store", hint="configure storage.url for it")
    return context.store
