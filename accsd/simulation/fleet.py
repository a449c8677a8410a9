"""The fleet file of a rehearsal (TOML): machines, rules, and the workload that is made up where there is no trace."""

import tomllib
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from accsd.errors import ConfigError, NotFound
from accsd.planning.sleep import SleepRules
from accsd.planning.wake import WakePolicy
from accsd.values.units import parse_duration
from accsd.values.validation import problems

Duration = Annotated[timedelta, BeforeValidator(parse_duration)]
Chance = Annotated[float, Field(ge=0, le=1)]
Label = bool | int | float | str
_RULES = SleepRules()
_WAKE_POLICY = WakePolicy()


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Watts(_Table):
    asleep: Annotated[float, Field(ge=0)] = 5.0
    booting: Annotated[float, Field(ge=0)] = 300.0
    idle: Annotated[float, Field(ge=0)] = 400.0
    busy: Annotated[float, Field(ge=0)] = 700.0


class Machines(_Table):
    """[[machines]]: `count` of them, alike. The chances are those of each call; `dead` is a machine's, for good."""

    name: str = Field(min_length=1, max_length=60)
    count: int = Field(default=1, ge=1, le=10_000)
    services: dict[str, Annotated[int, Field(ge=1, le=1000)]] = Field(min_length=1)
    labels: dict[str, Label] = Field(default_factory=dict)
    boot: Duration = timedelta(seconds=75)
    jitter: Duration = timedelta(seconds=8)
    suspend: Duration = timedelta(seconds=10)
    methods: list[str] = Field(default_factory=lambda: ["wol"], min_length=1)
    call_fails: Chance = 0.0
    never_boots: Chance = 0.0
    slow: Chance = 0.0
    slow_factor: float = Field(default=3.0, ge=1, le=100)
    dead: Chance = 0.0
    sleeps: bool = True
    watts: Watts = Field(default_factory=Watts)

    def names(self) -> Iterator[str]:
        digits = len(str(self.count))
        return (f"{self.name}-{number:0{digits}}" for number in range(1, self.count + 1))


class FleetPolicy(_Table):
    """[policy]: the settings of accsd that matter here; the defaults are the daemon's."""

    idle: Duration = _RULES.idle
    awake: Duration = _RULES.awake
    ahead: Duration = timedelta(minutes=5)
    at_once: int = Field(default=8, ge=1, le=1000)
    boot: Duration = _WAKE_POLICY.boot
    rounds: int = Field(default=_WAKE_POLICY.rounds, ge=1, le=100)
    rest: Duration = _WAKE_POLICY.rest
    longest_rest: Duration = _WAKE_POLICY.longest_rest
    boots: float = Field(default=_RULES.boots, ge=0, le=100)

    def rules(self) -> SleepRules:
        return SleepRules(idle=self.idle, awake=self.awake, boots=self.boots)

    def wake_policy(self) -> WakePolicy:
        return WakePolicy(self.boot, self.rounds, self.rest, self.longest_rest)


class Slurm(_Table):
    """[slurm]: its power saving. Rates are nodes a minute; `down`: until a person returns a node that did not come."""

    suspend_time: Duration = timedelta(minutes=5)
    resume_timeout: Duration = timedelta(minutes=5)
    resume_rate: int = Field(default=300, ge=1)
    suspend_rate: int = Field(default=60, ge=1)
    down: Duration = timedelta(hours=1)


class Kind(_Table):
    """[[workload.kinds]]: jobs that are alike. Durations are log-normal with this mean and this sigma of the log."""

    service: str
    share: float = Field(default=1.0, gt=0)
    requires: dict[str, Label] = Field(default_factory=dict)
    duration: Duration = timedelta(minutes=8)
    sigma: float = Field(default=0.8, ge=0, le=3)


class Workload(_Table):
    """[workload]: bursty days and quiet nights, from a Monday at midnight. `night` and `weekend` are shares of the rate
    of a working day; `due`, of jobs that were submitted ahead for a time."""

    days: int = Field(default=7, ge=1, le=400)
    jobs: int = Field(default=10_000, ge=1, le=1_000_000)
    burst: float = Field(default=4.0, ge=1)
    night: Chance = 0.08
    weekend: Chance = 0.35
    due: Chance = 0.15
    kinds: list[Kind] = Field(min_length=1)


class Fleet(_Table):
    machines: list[Machines] = Field(min_length=1)
    policy: FleetPolicy = Field(default_factory=FleetPolicy)
    slurm: Slurm = Field(default_factory=Slurm)
    workload: Workload | None = None

    @model_validator(mode="after")
    def _named_apart(self) -> Self:
        names = [group.name for group in self.machines]
        if doubles := {name for name in names if names.count(name) > 1}:
            raise ValueError(f"two groups of machines have the name {min(doubles)}")
        return self


def read_fleet(path: Path) -> Fleet:
    if not path.is_file():
        raise NotFound(f"there is no file {path}", hint="examples/simulation/fleet.toml is one to begin with")
    try:
        return parse_fleet(tomllib.loads(path.read_text(encoding="utf-8")), str(path))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from None
    except OSError as error:
        raise ConfigError(f"{path} can't be read: {error.strerror}") from error


def parse_fleet(document: dict[str, Any], name: str) -> Fleet:
    try:
        return Fleet.model_validate(document)
    except ValidationError as error:
        raise ConfigError("\n".join(f"{name}: {problem}" for problem in problems(error, Fleet))) from None
