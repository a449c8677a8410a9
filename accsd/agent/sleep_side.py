"""What lets a node sleep, put together: since when it rests, who objects, how it is done, the lock while it works."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

import anyio

from accsd.agent.idle import IdleClock, rules_of
from accsd.agent.sleep import Sleeper
from accsd.agent.suspend import Suspension
from accsd.db import Database
from accsd.db.orders import Order
from accsd.errors import AccsdError
from accsd.log import get_logger
from accsd.planning.sleep import yields_for
from accsd.power.inhibitor import Inhibitor
from accsd.power.sleeping import fall_asleep
from accsd.power.vetoes import veto
from accsd.settings import Settings, SleepSettings
from accsd.supervisor import Post, Supervisor
from accsd.work.attempts import Attempts
from accsd.work.lease import LeaseKeeper
from accsd.work.reporter import Reporter
from accsd.work.service import LocalService

_STOPPING_SEC: Final = 60.0
_log = get_logger(component="sleeping")


@dataclass(eq=False, slots=True)
class SleepSide:
    settings: Callable[[], Settings]
    db: Database
    supervisor: Supervisor
    attempts: Attempts
    keeper: LeaseKeeper
    reporter: Reporter
    services: Callable[[], Iterable[LocalService]]
    is_registered: Callable[[], bool]
    when_back: Callable[[], None]
    _wakefulness: IdleClock = field(default_factory=IdleClock)
    _inhibitor: Inhibitor = field(default_factory=Inhibitor)
    _departure: Suspension = field(init=False)
    _sleeper: Sleeper = field(init=False)
    _post: Post = field(init=False)
    _inhibitor_post: Post = field(init=False)
    _kept: set[str] = field(default_factory=set[str])
    _absences: int = 0

    def __post_init__(self) -> None:
        node = self._node
        self._departure = Suspension(
            self.db,
            node=node,
            attempts=self.attempts,
            keeper=self.keeper,
            reporter=self.reporter,
            stop_containers=self._stop_containers,
            when_back=self.when_back,
        )
        self._sleeper = Sleeper(
            self.db,
            node=node,
            lease=self.settings().lease,
            settings=lambda: self._rules,
            wakefulness=self._wakefulness,
            departure=self._departure,
            veto=lambda: veto(self._rules, node, ours=self._inhibitor.pid),
            way=self._fall_asleep,
            is_ready=lambda: self.is_registered() and not self.keeper.is_frozen,
            wake=self.look,
        )
        self._post = Post("sleep", lambda: self._sleeper)
        self._inhibitor_post = Post("inhibitor", lambda: self._inhibitor)

    def start(self) -> None:
        """Also when the settings were read again: what was not wanted before may be now."""
        if self.is_configured:
            self._keep(self._post)
        if self._rules.inhibit == "auto":
            self._keep(self._inhibitor_post)
        self.look()

    @property
    def is_configured(self) -> bool:
        """This node goes to sleep by itself, or when it is asked to."""
        return self._rules.method != "none"

    @property
    def has_said_goodbye(self) -> bool:
        return self._departure.has_said_goodbye

    @property
    def ask(self) -> Callable[[Order], str | None] | None:
        """Who takes a person's order and answers it, or says what to; None: this node does not sleep by itself."""
        return self._sleeper.ask if self.is_configured else None

    def look(self) -> None:
        self._post.wakeup.set()

    def count(self) -> None:
        """Attempts have begun or ended."""
        busy = bool(len(self.attempts) or self.keeper.held)
        if self._wakefulness.see(busy=busy):
            self._inhibitor.want(busy=busy and self._rules.inhibit == "auto")
            self.look()

    def came_back(self) -> None:
        """Its leases have been asked about: after a sleep, whoever sent it there, or after one that came to nothing."""
        if self.keeper.absences > self._absences:
            self._absences = self.keeper.absences
            self._wakefulness.begin_anew()
        self.look()

    def hear_of_work(self) -> None:
        self._departure.hear()

    def leave(self) -> None:
        """The agent stops: it does not go to sleep as well, unless that was said already."""
        self._departure.call_off("its agent stops")
        self._post.leave()

    def yields(self) -> timedelta:
        """How long others who are at work may claim first."""
        if not self.is_configured:
            return timedelta(0)
        return yields_for(self._wakefulness.now, rules_of(self._rules))

    @property
    def _rules(self) -> SleepSettings:
        return self.settings().sleep

    @property
    def _node(self) -> str:
        return self.settings().node.name

    def _keep(self, post: Post) -> None:
        if post.name not in self._kept:
            self._kept.add(post.name)
            self.supervisor.keep(post)

    async def _fall_asleep(self) -> str | None:
        await self._inhibitor.let_go()
        return await fall_asleep(self._rules, self._node, self.settings().wake.providers)

    async def _stop_containers(self) -> None:
        """One that does not stop is no reason to burn power: it sleeps with the machine."""
        for served in self.services():
            try:
                with anyio.fail_after(_STOPPING_SEC):
                    await served.runner.rest(None)
            except (AccsdError, OSError) as error:  # TimeoutError is an OSError
                _log.warning("not_stopped", service=served.service, error=str(error) or type(error).__name__)
