"""What this node knows of a service that it serves: from its settings, or from the labels of its compose file."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from accsd.runners.base import Runner


@dataclass(frozen=True, slots=True)
class LocalService:
    service: str
    runner: Runner
    concurrency: int
    timeout: timedelta | None  # where the step gives none
    stop_grace: timedelta
    idle_stop: timedelta | None
    output_limit: int
    probe: Sequence[str] | None = None  # whether this machine can serve it now
