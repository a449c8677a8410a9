"""A container as `docker inspect` tells it: the part that accsd looks at."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

PROJECT_LABEL = "com.docker.compose.project"
SERVICE_LABEL = "com.docker.compose.service"
ONEOFF_LABEL = "com.docker.compose.oneoff"


@dataclass(frozen=True, slots=True)
class Container:
    id: str
    name: str
    labels: Mapping[str, str]
    status: str  # created, running, paused, restarting, removing, exited, dead
    health: str | None  # starting, healthy, unhealthy; None where nobody checks
    pid: int
    exit_code: int
    oom_killed: bool
    error: str
    started_at: datetime | None
    user: str

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> "Container":
        state, config = document["State"], document["Config"]
        return cls(
            id=document["Id"],
            name=document["Name"].removeprefix("/"),
            labels=config.get("Labels") or {},
            status=state["Status"],
            health=state["Health"]["Status"] if state.get("Health") else None,
            pid=state["Pid"],
            exit_code=state["ExitCode"],
            oom_killed=state["OOMKilled"],
            error=state["Error"],
            started_at=moment(state["StartedAt"]),
            user=config.get("User") or "",
        )

    @property
    def is_running(self) -> bool:
        return self.status in ("running", "paused", "restarting")

    @property
    def is_ready(self) -> bool:
        return self.status == "running" and self.health in (None, "", "none", "healthy")

    @property
    def has_ended(self) -> bool:
        return self.status in ("exited", "dead", "removing")

    @property
    def runs_as_root(self) -> bool:
        return self.user.partition(":")[0] in ("", "0", "root")

    def is_same_run(self, earlier: "Container") -> bool:
        """Whether it has been running without a break since `earlier` was looked at."""
        return self.is_running and (self.id, self.started_at) == (earlier.id, earlier.started_at)


def moment(written: str) -> datetime | None:
    """The engine writes the year 1 for never."""
    return None if written.startswith("0001-") else datetime.fromisoformat(written)
