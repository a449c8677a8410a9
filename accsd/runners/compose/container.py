"""A container as `docker inspect` tells it: the part that accsd looks at."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, cast

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
    published: Mapping[int, tuple[str, int]] = field(default_factory=dict[int, tuple[str, int]])  # its port → ours
    addresses: Sequence[str] = ()
    environ: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)

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
            published=dict(_published(document.get("NetworkSettings") or {})),
            addresses=tuple(_addresses(document)),
            environ=dict(entry.partition("=")[::2] for entry in config.get("Env") or ()),
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


def _published(network: Mapping[str, Any]) -> Iterator[tuple[int, tuple[str, int]]]:
    ports = cast("dict[str, list[dict[str, str]] | None]", network.get("Ports") or {})
    for port, bound in ports.items():
        number, _, protocol = port.partition("/")
        if bound and protocol == "tcp":
            yield int(number), (bound[0]["HostIp"], int(bound[0]["HostPort"]))


def _addresses(document: Mapping[str, Any]) -> Iterator[str]:
    if (document.get("HostConfig") or {}).get("NetworkMode") == "host":
        yield "127.0.0.1"
    networks = cast("dict[str, dict[str, Any]]", (document.get("NetworkSettings") or {}).get("Networks") or {})
    yield from filter(None, (network.get("IPAddress") for network in networks.values()))


def moment(written: str) -> datetime | None:
    """The engine writes the year 1 for never."""
    return None if written.startswith("0001-") else datetime.fromisoformat(written)
