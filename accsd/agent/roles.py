"""The agent's side of the daemon: makes the node, has the table of its roles, and drains it."""

import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Final

import anyio

from accsd.agent.agent import Agent
from accsd.agent.discovery import Discovery
from accsd.agent.node import AGENT, Node
from accsd.agent.orders import Orders
from accsd.agent.poll import Poll
from accsd.agent.probe import Probe
from accsd.agent.registration import Registration
from accsd.agent.services import SOURCES, ServiceSource
from accsd.agent.settle import Leftovers
from accsd.agent.sleep import Sleeper
from accsd.db import Database, node_leaves
from accsd.db.listen import Listener
from accsd.db.orders import CHANNEL as ORDERS_CHANNEL
from accsd.db.quarantine import SHUT
from accsd.errors import AccsdError, ConfigError
from accsd.health import Health
from accsd.log import bind_event_sink, get_logger
from accsd.metrics import Metrics
from accsd.roles import Leaves, Role, Roles
from accsd.settings import Settings, environment
from accsd.storage.base import ObjectStore
from accsd.supervisor import Supervisor
from accsd.work.attempts import Attempts
from accsd.work.cache import FileCache, files_folder
from accsd.work.identity import NodeIdentity
from accsd.work.lease import LeaseKeeper
from accsd.work.reporter import Reporter

# How long the goodbye may take: a node that leaves without one is found to be gone when its heartbeat stays away.
_GOODBYE: Final = timedelta(seconds=3)
_log = get_logger(component="node")

ROLES: Final[tuple[Role["NodeAgent"], ...]] = (
    Role(
        "leases",
        "watches the deadlines: an attempt whose lease could not be extended is killed before the lease ends",
        lambda agent: agent.node.leases,
        leaves=Leaves.LAST,
    ),
    Role(
        "attempts",
        "holds the attempts under way",
        lambda agent: agent.node.attempts,
        leaves=Leaves.LAST,
    ),
    Role(
        "reports",
        "writes progress and log events in batches",
        lambda agent: agent.node.reporter,
        leaves=Leaves.LAST,
    ),
    Role(
        "discovery",
        "reads which services this node serves, at the start and at SIGHUP",
        lambda agent: Discovery(agent.node, agent.sources, agent.roles.choose),
    ),
    Role(
        "leftovers",
        "stops and releases attempts of services that this node no longer serves",
        lambda agent: Leftovers(agent.node, agent.sources),
    ),
    Role(
        "orders",
        "carries out node orders: to send a magic packet for a neighbour, or to sleep",
        lambda agent: Orders(agent.node),
        hears=ORDERS_CHANNEL,
        heeds=lambda agent, payload: agent.node.is_meant(payload),
        polls=True,
    ),
    Role(
        "probe",
        "checks quarantined services of this node ([quarantine](quarantine.md))",
        lambda agent: Probe(agent.node),
        hears=SHUT,
        heeds=lambda agent, payload: agent.node.is_meant(payload),
        polls=True,
    ),
    Role(
        "sleep",
        "puts the idle machine to sleep if no work needs it ([sleeping](sleeping.md)); only with a `[sleep]` method",
        lambda agent: Sleeper(agent.node),
        wanted=lambda agent: agent.node.sleeps,
    ),
    Role(
        "inhibitor",
        "holds a sleep inhibitor while there is a lease, where logind runs",
        lambda agent: agent.node.inhibitor,
        wanted=lambda agent: agent.node.settings.sleep.inhibit == "auto",
        leaves=Leaves.LAST,
    ),
    Role(
        "registration",
        "registers the node; one statement is the heartbeat of the node and all its leases",
        lambda agent: Registration(agent.node),
        wanted=lambda agent: agent.node.services is not None,
        leaves=Leaves.ATTEMPTS,
    ),
    Role(
        "poll",
        "asks in one query for all services of the node what is claimable and when the next retry is due",
        lambda agent: Poll(agent.node),
        polls=True,
        wanted=lambda agent: agent.node.services is not None,
    ),
    Role(
        AGENT,
        "claims up to its free slots, hands each task to an attempt, stops an idle container",
        leaves=Leaves.CLAIMS,
        each=lambda agent: agent.node.services or (),
        make_each=lambda agent, service: Agent(agent.node, service),
    ),
)


def make_node(
    settings: Settings,
    *,
    db: Database,
    beats: Database,  # a connection for heartbeats only
    store: ObjectStore,
    listener: Listener,
    metrics: Metrics,
    health: Health,
    attempts_folder: Path,
    stop: Callable[[], None],
) -> Node:
    name, identity = settings.node.name, NodeIdentity.of_this_machine(environment())
    leases = LeaseKeeper(
        beats, node=name, lease=settings.lease, every=settings.heartbeat, metrics=metrics, identity=identity
    )
    node = Node(
        secrets=settings.secrets,
        name=name,
        db=db,
        store=store,
        leases=leases,
        reporter=Reporter(db, owner=name, batches=settings.fallback.batching),
        metrics=metrics,
        attempts_folder=attempts_folder,
        patience=settings.storage.patience,
        backoff_base=settings.backoff_base,
        min_free_disk=settings.node.min_free_disk,
        files=FileCache(
            files_folder(attempts_folder), limit=settings.node.files_cache, min_free=settings.node.min_free_disk
        ),
        settings=settings,
        listener=listener,
        health=health,
        attempts=Attempts(),
        stop=stop,
    )
    leases.when_resumed = node.resume
    leases.when_changed = node.attempts.when_changed = node.count
    return node


class NodeAgent:
    """Runs the roles of a node. `base` is the folder that relative paths of the settings refer to."""

    def __init__(self, node: Node, supervisor: Supervisor, *, base: Path) -> None:
        self.node = node
        self.sources: list[ServiceSource] = [source(node, base) for source in SOURCES]
        self.roles: Roles[NodeAgent] = Roles(ROLES, self, supervisor, node.listener, node.settings)
        self._patience: anyio.CancelScope = anyio.CancelScope()  # for agents that end a pass
        node.wake_role = self.roles.wake

    def start(self) -> None:
        self.node.attempts_folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        bind_event_sink(self.node.reporter.event)
        self.roles.start()

    def reload(self, settings: Settings) -> None:
        """Reads services, their limits, labels and capacities anew; attempts under way go on as they are."""
        if settings.node.name != self.node.name:
            raise ConfigError(
                "node.name cannot change while the agent runs: it owns its tasks by that name", hint="restart"
            )
        before, self.node.settings = self.node.settings, settings
        self.node.min_free_disk = settings.node.min_free_disk
        if self.node.files is not None:
            self.node.files.limit, self.node.files.min_free = settings.node.files_cache, settings.node.min_free_disk
        self.roles.reload(before, settings)
        self.node.wake_role("sleep")
        self.node.wake_role("discovery")

    async def drain(self, grace: timedelta) -> None:
        """Stops claims; attempts may end, or are released. Heartbeats go on until the last attempt has ended."""
        self.node.must_stay = "its agent stops"
        ends = time.monotonic() + grace.total_seconds()
        self.roles.leave(Leaves.FIRST)
        claiming = self.roles.leave(Leaves.CLAIMS)
        with self._patience, anyio.move_on_after(grace.total_seconds()):
            for post in claiming:
                await post.ended()
        await self.node.attempts.drain(timedelta(seconds=max(0.0, ends - time.monotonic())))
        bind_event_sink(None)
        for post in self.roles.leave(Leaves.ATTEMPTS):
            await post.ended()  # before the goodbye: a later heartbeat would say that the node is back
        await self._say_goodbye()

    def hurry(self) -> None:
        self._patience.cancel()
        self.node.attempts.hurry()

    async def _say_goodbye(self) -> None:
        try:
            with anyio.fail_after(_GOODBYE.total_seconds()):
                await self.node.reporter.flush()
                if not self.node.has_said_goodbye:  # a machine that is switched off to sleep has said goodbye already
                    await node_leaves(self.node.db, self.node.name)
        except (AccsdError, TimeoutError) as error:
            _log.warning("left_unsaid", error=str(error) or "the database did not answer in time")
