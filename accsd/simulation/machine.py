"""One machine of a rehearsal: its state, what it has drawn, and what is known of it as the database would know it."""

from collections import Counter
from enum import StrEnum
from random import Random

from accsd.planning.energy import Use, kilowatt_hours
from accsd.simulation.fleet import Machines


class Power(StrEnum):
    ASLEEP = "asleep"
    BOOTING = "booting"
    READY = "ready"
    SUSPENDING = "suspending"


class SimulatedMachine:
    def __init__(self, name: str, kind: Machines, random: Random) -> None:
        self.name = name
        self.kind = kind
        self.is_dead: bool = random.random() < kind.dead
        self.power: Power = Power.ASLEEP
        self.live: Counter[str] = Counter()
        self.tasks: int = 0
        self.ready_since: float = 0.0
        self.idle_since: float = 0.0
        self.left_at: float | None = None  # when it said that it goes to sleep
        self.calls: int = 0  # since it was last seen
        self.called_at: float = 0.0
        self.call_ok: bool | None = None
        self.latency: float | None = None
        self.seconds: dict[Use, float] = dict.fromkeys(Use, 0.0)
        self._random = random
        self._counted_until: float = 0.0

    def has_room(self, service: str) -> bool:
        return self.live[service] < self.kind.services.get(service, 0)

    def count(self, now: float) -> None:
        """Before each change: the time since the last one was of this use."""
        self.seconds[self.use] += now - self._counted_until
        self._counted_until = now

    @property
    def use(self) -> Use:
        match self.power:
            case Power.ASLEEP:
                return Use.ASLEEP
            case Power.READY:
                return Use.BUSY if self.tasks else Use.IDLE
            case Power.BOOTING | Power.SUSPENDING:
                return Use.BOOTING

    def boot_seconds(self) -> float | None:
        """None: it hears the call and does not come up."""
        if self.is_dead or self._random.random() < self.kind.never_boots:
            return None
        seconds = self._random.gauss(self.kind.boot.total_seconds(), self.kind.jitter.total_seconds())
        factor = self.kind.slow_factor if self._random.random() < self.kind.slow else 1.0
        return max(1.0, seconds) * factor

    def hears(self) -> bool:
        return self._random.random() >= self.kind.call_fails

    def measured(self, seconds: float) -> None:
        """As the database keeps it."""
        self.latency = seconds if self.latency is None else self.latency + (seconds - self.latency) * 0.3

    def kilowatt_hours(self) -> float:
        return kilowatt_hours(self.kind.watts, self.seconds)

    def hours_awake(self) -> float:
        return sum(seconds for use, seconds in self.seconds.items() if use is not Use.ASLEEP) / 3600
