"""What machines draw: kilowatt-hours from the time that each spent in each use. The rehearsal of a fleet and the
figures of a real one are counted by the same rules."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, Protocol

_JOULES: Final = 3.6e6  # of a kilowatt-hour


class Use(StrEnum):
    """What a machine's time is counted as. A machine that is called and not yet reached is asleep."""

    ASLEEP = "asleep"
    BOOTING = "booting"
    IDLE = "idle"
    BUSY = "busy"


class Watts(Protocol):
    """What a machine draws in each use."""

    @property
    def asleep(self) -> float: ...
    @property
    def booting(self) -> float: ...
    @property
    def idle(self) -> float: ...
    @property
    def busy(self) -> float: ...


def kilowatt_hours(watts: Watts, seconds: Mapping[Use, float]) -> float:
    """What was used."""
    drawn = {Use.ASLEEP: watts.asleep, Use.BOOTING: watts.booting, Use.IDLE: watts.idle, Use.BUSY: watts.busy}
    return sum(drawn[use] * spent for use, spent in seconds.items()) / _JOULES


def saved_kilowatt_hours(watts: Watts, asleep_seconds: float) -> float:
    """What sleeping has saved: a machine that does not sleep is idle for as long."""
    return max(0.0, watts.idle - watts.asleep) * asleep_seconds / _JOULES
