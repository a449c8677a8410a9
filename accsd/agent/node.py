"""The agent's side of the daemon: everything that a node needs to serve its services, and the posts that run it."""

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import anyio

from accsd.agent.agent import Agent
from accsd.agent.discovery import Discovery
from accsd.agent.leftovers import Leftovers
from accsd.agent.orders import Orders
from accsd.agent.poll import Poll
from accsd.agent.probe_side import ProbingSide
from accsd.agent.registration import Offer, Registration
from accsd.agent.sleep_side import SleepSide
from accsd.db import Database, node_leaves
from accsd.db.listen import CANCEL, NEWS, Listener
from accsd.db.orders import CHANNEL as ORDERS
from accsd.errors import AccsdError, ConfigError, SchemaMismatch
from accsd.health import Health
from accsd.log import bind_event_sink, get_logger
from accsd.metrics import Metrics
from accsd.model.fence import Fence
from accsd.power import networks
from accsd.settings import Settings, environment
from accsd.storage.base import ObjectStore
from accsd.supervisor import Post, Supervisor
from accsd.work.attempts import Attempts
from accsd.work.context import AttemptContext
from accsd.work.identity import NodeIdentity
from accsd.work.lease import LeaseKeeper
from accsd.work.reporter import Reporter
from accsd.work.service import LocalService

_AGENT = "agent:"
# For its last words: a node that goes without them is found to be gone when its heartbeat stays away.
_GOODBYE = timedelta(seconds=3)
_log = get_logger(component="node")


@dataclass(eq=False, slots=True)
class _Kept:
    """An agent that runs: its place, itself once it was made, and what it serves."""

    post: Post
    served: LocalService
    agent: Agent | None = None

    def hear(self) -> None:
        """Of work, as all nodes do."""
        if self.agent is not None:
            self.agent.hear()
        self.post.wakeup.set()


@dataclass(eq=False, slots=True)
class NodeSide:
    settings: Settings
    db: Database
    beats: Database  # a connection for heartbeats only
    listener: Listener
    metrics: Metrics
    supervisor: Supervisor
    store: ObjectStore
    attempts_folder: Path
    of_settings: Callable[[Settings], Mapping[str, LocalService]]
    of_compose: Callable[[Settings], Awaitable[Mapping[str, LocalService]]]
    discard: Callable[[Settings, Fence, str], Awaitable[None]]
    when_outdated: Callable[[SchemaMismatch], None]
    poll: Callable[[], timedelta]
    health: Health
    attempts: Attempts = field(init=False)
    _agents: dict[str, _Kept] = field(default_factory=dict[str, _Kept])
    _listened_to: set[str] = field(default_factory=set[str])
    _patience: anyio.CancelScope = field(default_factory=anyio.CancelScope)  # with agents that end a pass
    _offer: Mapping[str, LocalService] | None = None
    _is_offer_known: bool = False
    keeper: LeaseKeeper = field(init=False)
    reporter: Reporter = field(init=False)
    _presence: Registration = field(init=False)
    _presence_post: Post = field(init=False)
    _offering_post: Post = field(init=False)
    _outlook_post: Post = field(init=False)
    _leftovers_post: Post = field(init=False)
    _orders_post: Post = field(init=False)
    _probing: ProbingSide = field(init=False)
    _sleep: SleepSide = field(init=False)
    _bench: AttemptContext = field(init=False)

    def __post_init__(self) -> None:
        node = self.settings.node.name
        self.attempts = Attempts(when_changed=self._count)
        self.keeper = LeaseKeeper(
            self.beats,
            node=node,
            lease=self.settings.lease,
            every=self.settings.heartbeat,
            metrics=self.metrics,
            identity=NodeIdentity.of_this_machine(environment()),
            when_resumed=self._came_back,
            when_changed=self._count,
        )
        self.reporter = Reporter(self.db, owner=node, batches=self.settings.fallback.batching)
        self._presence = Registration(
            self.db,
            node=node,
            offer=self._what_we_offer,
            keeper=self.keeper,
            when_registered=self._registered,
        )
        self._bench = AttemptContext(
            node=node,
            db=self.db,
            store=self.store,
            keeper=self.keeper,
            reporter=self.reporter,
            attempts_folder=self.attempts_folder,
            min_free_disk=lambda: self.settings.node.min_free_disk,
            patience=self.settings.storage.patience,
            metrics=self.metrics,
            backoff_base=self.settings.backoff_base,
        )
        self._sleep = SleepSide(
            settings=lambda: self.settings,
            db=self.db,
            supervisor=self.supervisor,
            attempts=self.attempts,
            keeper=self.keeper,
            reporter=self.reporter,
            services=lambda: [kept.served for kept in self._agents.values()],
            is_registered=lambda: self._presence.is_registered,
            when_back=self._registered,
        )
        self._presence_post = Post("presence", lambda: self._presence)
        self._offering_post = Post("offering", self._make_offering)
        self._outlook_post = Post("outlook", self._make_outlook, poll=self.poll)
        self._leftovers_post = Post("leftovers", self._make_leftovers)
        self._orders_post = Post("orders", self._make_orders, poll=self.poll)
        self._probing = ProbingSide(
            settings=lambda: self.settings,
            db=self.db,
            supervisor=self.supervisor,
            listener=self.listener,
            bench=self._bench,
            services=lambda: {name: kept.served for name, kept in self._agents.items()},
            when_well=self._recover,
            is_registered=lambda: self._presence.is_registered,
            poll=self.poll,
        )

    def start(self) -> None:
        self.attempts_folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        bind_event_sink(self.reporter.event)
        self.supervisor.keep(Post("leases", lambda: self.keeper))
        self.supervisor.keep(Post("attempts", lambda: self.attempts))
        self.supervisor.keep(Post("reports", lambda: self.reporter))
        self.supervisor.keep(self._offering_post)
        self.supervisor.keep(self._leftovers_post)
        self.listener.subscribe(ORDERS, self._hear_order)
        self.supervisor.keep(self._orders_post)
        self._probing.start()
        self._sleep.start()

    def reload(self, settings: Settings) -> None:
        """Services, their limits, labels and capacities are read anew; attempts under way go on as they are."""
        if settings.node.name != self.settings.node.name:
            raise ConfigError(
                "node.name cannot change while the agent runs: it owns its tasks by that name", hint="restart"
            )
        self.settings = settings
        self._sleep.start()
        self._offering_post.wakeup.set()

    def look_everywhere(self) -> None:
        """Each agent looks at its runner, and says what keeps it from its service, also while its slots are taken."""
        for kept in self._agents.values():
            kept.post.wakeup.set()

    async def drain(self, grace: timedelta) -> None:
        """No new claims; attempts may end, or are given back. Heartbeats go on until the last one has ended."""
        self._offering_post.leave()
        self._outlook_post.leave()
        self._leftovers_post.leave()
        self._orders_post.leave()
        self._probing.leave()
        self._sleep.leave()
        ends = time.monotonic() + grace.total_seconds()
        await self._stop_claiming(grace)
        await self.attempts.drain(timedelta(seconds=max(0.0, ends - time.monotonic())))
        bind_event_sink(None)
        await self._stop_heartbeat()
        try:
            with anyio.fail_after(_GOODBYE.total_seconds()):
                await self.reporter.flush()
                if not self._sleep.has_said_goodbye:  # a machine that is switched off to sleep says no other word
                    await node_leaves(self.db, self.settings.node.name)
        except (AccsdError, TimeoutError) as error:
            _log.warning("left_unsaid", error=str(error) or "the database did not answer in time")

    def hurry(self) -> None:
        self._patience.cancel()
        self.attempts.hurry()

    async def _stop_claiming(self, grace: timedelta) -> None:
        """A claim that is under way may bring tasks, which must be among those that end or are given back."""
        agents = [post for post in self.supervisor.posts if post.name.startswith(_AGENT)]
        for post in agents:
            post.leave()
        with self._patience, anyio.move_on_after(grace.total_seconds()):
            for post in agents:
                await post.ended()

    async def _stop_heartbeat(self) -> None:
        """Before the node says that it leaves: a heartbeat would say that it is back."""
        if self._offer is not None:
            self._presence_post.leave()
            await self._presence_post.ended()

    def _count(self) -> None:
        self.health.attempts_in_flight = len(self.attempts)
        self.health.leases_held = len(self.keeper.held)
        self._sleep.count()

    def _came_back(self) -> None:
        self._look()
        self._sleep.came_back()

    def _registered(self) -> None:
        self._look()
        self._probing.look()
        self._sleep.look()
        self.look_everywhere()

    def _look(self) -> None:
        self._outlook_post.wakeup.set()

    def _make_offering(self) -> Discovery:
        return Discovery(
            of_settings=lambda: self.of_settings(self.settings),
            of_compose=lambda: self.of_compose(self.settings),
            apply=self._apply,
            when_known=self._know_offer,
        )

    def _make_leftovers(self) -> Leftovers:
        return Leftovers(
            self._bench,
            self.attempts,
            served=lambda: self._agents.keys() if self._is_offer_known else None,
            discard=lambda fence, service: self.discard(self.settings, fence, service),
        )

    def _make_orders(self) -> Orders:
        return Orders(
            self.db,
            node=self.settings.node.name,
            wake=lambda: self.settings.wake,
            sleep=lambda: self._sleep.ask,
        )

    def _hear_order(self, payload: str) -> None:
        """All nodes hear all orders: those of others cost nothing."""
        if payload in (NEWS, self.settings.node.name):
            self._orders_post.wakeup.set()

    def _recover(self, service: str) -> None:
        kept = self._agents.get(service)
        if kept is not None and kept.agent is not None:
            kept.agent.recover()

    def _know_offer(self) -> None:
        self._is_offer_known = True
        self._leftovers_post.wakeup.set()

    def _make_outlook(self) -> Poll:
        return Poll(
            self.db,
            node=self.settings.node.name,
            services=lambda: {name: kept.post.wakeup.set for name, kept in self._agents.items()},
            is_registered=lambda: self._presence.is_registered,
            when_outdated=self.when_outdated,
        )

    def _what_we_offer(self) -> Offer:
        node = self.settings.node
        return Offer(
            labels=node.labels,
            max_concurrency={name: kept.served.concurrency for name, kept in self._agents.items()},
            wake_method=node.wake_method,
            mac=node.mac,
            provider_ref=node.provider_ref,
            script=node.script,
            networks=networks(),
        )

    async def _apply(self, offered: Mapping[str, LocalService]) -> None:
        if self._offering_post.is_left:
            return  # the pass had begun before the drain
        self.metrics.know_services(offered)
        for name in self._agents.keys() - offered.keys():
            self._agents.pop(name).post.leave()
        for name, served in offered.items():
            if name in self._agents:
                self._update(self._agents[name], served)
            else:
                self._add(served)
        if self._offer is None:
            self.supervisor.keep(self._presence_post)
            self.supervisor.keep(self._outlook_post)
        else:
            await self._presence.register()
        self._offer = offered
        self._look()

    def _update(self, kept: _Kept, served: LocalService) -> None:
        kept.served = served
        if kept.agent is not None:
            kept.agent.update(served)

    def _add(self, served: LocalService) -> None:
        post = Post(f"{_AGENT}{served.service}", lambda: self._make_agent(served.service))
        self._agents[served.service] = _Kept(post, served)
        self._listen_to(served.service)
        self.supervisor.keep(post)

    def _listen_to(self, service: str) -> None:
        """Once for ever: attempts go on, and may be cancelled, when their service is served no longer."""

        def heard(payload: str) -> None:
            if payload == CANCEL:
                self.keeper.ask_now()
            elif kept := self._agents.get(service):
                kept.hear()
                self._sleep.hear_of_work()

        if service not in self._listened_to:
            self._listened_to.add(service)
            self.listener.subscribe(service, heard)

    def _make_agent(self, service: str) -> Agent:
        kept = self._agents[service]
        kept.agent = Agent(
            kept.served,
            self._bench,
            self.attempts,
            wake=self._woken(kept.post),
            is_registered=lambda: self._presence.is_registered,
            register=self._presence.register,
            yields=self._sleep.yields,
            batches=self.settings.fallback.batching,
            adopts=self.settings.fallback.adoption,
        )
        return kept.agent

    def _woken(self, post: Post) -> Callable[[], None]:
        def wake() -> None:
            post.wakeup.set()
            # what has ended here may have freed a step of another service, or set a retry whose time only we know
            self._look()

        return wake
