"""The docker command line: every call of it, with a deadline, its failures told apart by class, and a container as
`docker inspect` shows it.

Which failure it was is decided by looking again (does the engine answer? is the plugin there?), because the texts
change from version to version.
"""

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar, cast

import orjson

from accsd import proc
from accsd.errors import DockerUnavailable

PROJECT_LABEL: Final = "com.docker.compose.project"
SERVICE_LABEL: Final = "com.docker.compose.service"
ONEOFF_LABEL: Final = "com.docker.compose.oneoff"

Problem = TypeVar("Problem", DockerUnavailable, None)
QUICK: Final = timedelta(seconds=30)
_PING_HOLDS: Final = timedelta(seconds=5)
_ENGINE_TROUBLE: Final = (
    b"cannot connect to the docker daemon",
    b"is the docker daemon running",
    b"error during connect",
    b"permission denied while trying to connect",
    b"failed to connect to the docker api",
)
# What would point compose at another project, or let it remove containers that nobody named.
_NOT_FOR_THE_CLI: Final = frozenset({"COMPOSE_FILE", "COMPOSE_PROJECT_NAME", "COMPOSE_PROFILES", "NOTIFY_SOCKET"})
_FOR_THE_CLI: Final = {
    "COMPOSE_IGNORE_ORPHANS": "1",
    "COMPOSE_REMOVE_ORPHANS": "0",
    "COMPOSE_PROGRESS": "plain",
    "COMPOSE_MENU": "0",
    "DOCKER_CLI_HINTS": "false",
}


@dataclass(frozen=True, slots=True)
class Container:
    """What accsd looks at of a container."""

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
    """A time of the engine, which writes the year 1 for never."""
    return None if written.startswith("0001-") else datetime.fromisoformat(written)


def cli_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """What the CLI needs of this process's environment. Never accsd's own variables: they hold secrets."""
    kept = {k: v for k, v in environ.items() if not k.startswith("ACC_") and k not in _NOT_FOR_THE_CLI}
    return kept | _FOR_THE_CLI


class Docker:
    """One engine, as the environment names it (DOCKER_HOST, or the local socket). `when_seen` is called with the
    problem when the engine goes away, and with None when it answers (again)."""

    def __init__(
        self,
        environ: Mapping[str, str],
        *,
        program: str = "docker",
        when_seen: Callable[[DockerUnavailable | None], None] = lambda problem: None,
    ) -> None:
        self.environ: Final = cli_environment(environ)
        self.program: Final = program
        self._answered_at: float | None = None
        self._asking: Final = asyncio.Lock()
        self._when_seen: Final = when_seen
        self._is_away: bool | None = None

    async def call(
        self, *arguments: str, within: timedelta = QUICK, env: Mapping[str, str] | None = None, stdin: bytes = b""
    ) -> proc.Called:
        """Runs the CLI, whatever its exit code. Raises DockerUnavailable where there is no CLI, no answer in time, or
        no engine."""
        try:
            called = await proc.call(
                self.argv(*arguments), within=within, env=self.environ | dict(env or {}), stdin=stdin
            )
        except TimeoutError as error:
            raise DockerUnavailable(
                f"`docker {_shown(arguments)}` did not end within {within}", hint="look at the engine's log"
            ) from error
        except OSError as error:
            raise _no_cli(self.program, error) from error
        if called.code < 0:
            raise DockerUnavailable(f"`docker {_shown(arguments)}` was killed by signal {-called.code}")
        if called.code and any(text in called.stderr.lower() for text in _ENGINE_TROUBLE):
            raise self._seen(_no_engine(called.said))
        return called

    def argv(self, *arguments: str) -> Sequence[str]:
        return (self.program, *arguments)

    async def ping(self) -> None:
        """Raises DockerUnavailable unless the engine answers now."""
        self._answered_at = None
        called = await self.call("version", "--format", "{{.Server.Version}}")
        if called.code:
            raise self._seen(_no_engine(called.said))
        self._seen(None)
        self._answered_at = time.monotonic()

    async def answers(self) -> None:
        """The same as ping, but cheap: an answer of a moment ago counts, and several callers at once ask once."""
        async with self._asking:
            if self._answered_at is None or time.monotonic() - self._answered_at > _PING_HOLDS.total_seconds():
                await self.ping()

    async def check_plugin(self) -> None:
        """Raises DockerUnavailable unless `docker compose` is there."""
        if (await self.call("compose", "version", "--short")).code:
            raise DockerUnavailable(
                "docker has no compose plugin (version 2)",
                hint="install docker-compose-plugin, or put docker-compose into ~/.docker/cli-plugins",
            )

    async def inspect(self, *names: str) -> list[Container]:
        """The containers of these names that exist."""
        if not names:
            return []
        called = await self.call("container", "inspect", *names)
        if called.code and b"no such" not in called.stderr.lower():
            await self._failed("container inspect", called)
        self._seen(None)
        found = cast("list[dict[str, Any]]", orjson.loads(called.stdout or b"[]"))
        return [Container.read(document) for document in found]

    async def container(self, name: str) -> Container | None:
        found = await self.inspect(name)
        return found[0] if found else None

    async def listed(self, *filters: str) -> list[str]:
        """The full ids of all containers, running or not, that pass these filters."""
        chosen = [part for each in filters for part in ("--filter", each)]
        called = await self.call("ps", "--all", "--quiet", "--no-trunc", *chosen)
        if called.code:
            await self._failed("ps", called)
        return called.stdout.decode().split()

    async def has_image(self, image: str) -> bool:
        called = await self.call("image", "inspect", "--format", "{{.Id}}", image)
        if called.code and b"no such" not in called.stderr.lower():
            await self._failed("image inspect", called)
        return called.code == 0

    async def engine_started(self) -> datetime | None:
        """When the engine that answers now was started, as far as it tells: it makes its default network anew at its
        start."""
        called = await self.call("network", "inspect", "--format", "{{json .Created}}", "bridge")
        return moment(orjson.loads(called.stdout)) if called.code == 0 else None

    async def saw_oom(self, container_id: str, since: datetime, until: datetime) -> bool:
        """Whether the kernel killed a process of the container for its memory. The engine remembers its last events."""
        called = await self.call(
            *("events", "--since", since.isoformat(), "--until", until.isoformat()),
            *("--filter", f"container={container_id}", "--filter", "event=oom", "--format", "{{.Action}}"),
        )
        return called.code == 0 and bool(called.stdout.strip())

    def _seen(self, problem: Problem) -> Problem:
        if problem is not None:
            self._answered_at = None
        if self._is_away is not (problem is not None):
            self._is_away = problem is not None
            self._when_seen(problem)
        return problem

    async def _failed(self, what: str, called: proc.Called) -> None:
        await self.ping()
        raise DockerUnavailable(f"`docker {what}` failed with exit code {called.code}: {called.said}")


def _no_cli(program: str, error: OSError) -> DockerUnavailable:
    return DockerUnavailable(
        f"the docker command cannot be executed ({program}: {error.strerror})",
        hint="install docker and its compose plugin, or remove the compose services from this node's settings",
    )


def _no_engine(said: str) -> DockerUnavailable:
    denied = "permission denied" in said.lower()
    return DockerUnavailable(
        f"the Docker engine does not answer: {said}",
        hint="add accsd's user to the group docker"
        if denied
        else "start it (`systemctl start docker`), or set DOCKER_HOST",
    )


def _shown(arguments: Sequence[str]) -> str:
    return " ".join(arguments[:2] if arguments[0] in ("container", "image", "network") else arguments[:1])
