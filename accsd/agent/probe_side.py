"""The node's own part in a quarantine: when one of its services is shut, it looks whether it could serve it again."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from accsd.agent.probe import Probe, Probing
from accsd.db import Database
from accsd.db.listen import NEWS, Listener
from accsd.db.quarantines import SHUT
from accsd.planning.quarantine import QuarantineRules
from accsd.settings import Settings
from accsd.supervisor import Post, Supervisor
from accsd.work.context import AttemptContext
from accsd.work.fitness import unfitness
from accsd.work.service import LocalService


@dataclass(eq=False, slots=True)
class ProbingSide:
    settings: Callable[[], Settings]
    db: Database
    supervisor: Supervisor
    listener: Listener
    bench: AttemptContext
    services: Callable[[], Mapping[str, LocalService]]
    when_well: Callable[[str], None]
    is_registered: Callable[[], bool]
    poll: Callable[[], timedelta]
    _post: Post = field(init=False)

    def __post_init__(self) -> None:
        self._post = Post("probing", self._make, poll=self.poll)

    def start(self) -> None:
        self.listener.subscribe(SHUT, self._hear)
        self.supervisor.keep(self._post)

    def look(self) -> None:
        self._post.wakeup.set()

    def leave(self) -> None:
        self._post.leave()

    def _make(self) -> Probing:
        return Probing(
            self.db,
            node=self.settings().node.name,
            rules=self._rules,
            probes=lambda: {name: self._probe_of(served) for name, served in self.services().items()},
            when_well=self.when_well,
            is_registered=self.is_registered,
        )

    def _rules(self) -> QuarantineRules:
        quarantine = self.settings().quarantine
        return QuarantineRules(probe=quarantine.probe, longest_probe=quarantine.longest_probe)

    def _probe_of(self, served: LocalService) -> Probe:
        return lambda: unfitness(served, self.bench)

    def _hear(self, payload: str) -> None:
        """All nodes hear of all quarantines: those of others cost nothing."""
        if payload in (NEWS, self.settings().node.name):
            self.look()
