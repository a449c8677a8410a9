"""The fleet under test: a PostgreSQL of its own, agents and builders as real processes, each behind a cable of its own.

Node n4 has a small file system of its own, n1 and n2 serve containers, where the machine allows it.
"""

import asyncio
import json
import os
import signal
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, closing, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import asyncpg
import pytest

from tests.chaos import effects
from tests.support import daemon
from tests.support.cable import Cable
from tests.support.cluster import Connection, bindir_of, open_connection
from tests.support.compose import why_not
from tests.support.compose_node import ComposeNode
from tests.support.daemon import Daemon
from tests.support.eventually import eventually
from tests.support.own_server import OwnServer, own_server
from tests.support.privileged import mounted
from tests.support.tasks import toml_service

LEASE = timedelta(seconds=5)
SLOTS = 4
CONTAINERS = {"box": "run", "standing": "exec"}  # services in containers, and the mode of each
_SMALL_DISK = "48m"
_DRAIN_LIMIT = 60.0
# A statement failed because its connection or its server did: what became of it is unknown.
CONNECTION_LOST = (
    OSError,
    TimeoutError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # the end of the connection met the next statement on its way
    asyncpg.PostgresConnectionError,
    asyncpg.exceptions.OperatorInterventionError,
)


def boot_clock() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(slots=True)
class Span:
    """From one moment to another by the boot clock; open while it lasts."""

    start: float
    end: float = float("inf")

    def meets(self, start: float, end: float) -> bool:
        return self.start <= end and start <= self.end


@dataclass(eq=False)
class Member:
    """One daemon, its folder and its cable. Whoever harms it holds `lock` meanwhile."""

    name: str
    role: str
    folder: Path
    cable: Cable
    url: str
    config: str
    environ: dict[str, str]
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    absences: list[Span] = field(default_factory=list)  # dead or stopped
    outages: list[Span] = field(default_factory=list)  # without its database
    ended_by_itself: list[str] = field(default_factory=list)
    drains: list[tuple[float, int | None]] = field(default_factory=list)  # how long each took, and its exit code
    _uses: ExitStack = field(default_factory=ExitStack)
    _daemon: Daemon | None = None
    _log_from: int = 0

    @property
    def process(self) -> Daemon:
        assert self._daemon is not None, f"{self.name} was not started"
        return self._daemon

    @property
    def state(self) -> Path:
        return self.folder / "state"

    @property
    def attempts(self) -> Path:
        return self.state / self.name / "attempts"

    @property
    def notes(self) -> Path:
        return self.folder / "shared" / "notes"

    async def start(self) -> None:
        """Returns when it has its signal handlers, or a while later: its database may be away."""
        log = self.folder / f"{self.name}-{self.role}.log"
        self._log_from = log.stat().st_size if log.exists() else 0
        self._daemon = self._uses.enter_context(
            daemon.running(
                self.folder,
                self.url,
                role=self.role,
                node=self.name,
                config=self.config,
                environ=self.environ,
                ready=False,
            )
        )
        with suppress(AssertionError):
            await eventually(lambda: self.has_started or self.process.process.poll() is not None, within=10)
        self._return()

    @property
    def has_started(self) -> bool:
        with self.process.log_file.open("rb") as log:
            log.seek(self._log_from)
            return b'"started"' in log.read()

    def kill(self) -> None:
        self._leave()
        self.process.kill()

    def pause(self) -> None:
        self._leave()
        self.process.signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.process.signal(signal.SIGCONT)
        self._return()

    async def drain(self) -> None:
        """SIGTERM, and its end."""
        self._leave()
        began, had_started = time.monotonic(), self.has_started
        self.process.signal(signal.SIGTERM)
        with suppress(AssertionError):
            await eventually(
                lambda: self.process.process.poll() is not None, within=_DRAIN_LIMIT, interval=0.02, what="a drain"
            )
        code = self.process.process.poll()
        if had_started:  # before that it has no handlers to drain with
            self.drains.append((time.monotonic() - began, code))
        if code is None:
            self.process.kill()

    def notice_its_end(self) -> bool:
        """Whether it is gone although nobody harmed it."""
        if self.lock.locked() or self._daemon is None or (code := self.process.process.poll()) is None:
            return False
        self.ended_by_itself.append(f"{self.name} ended with {code}: {self.process.tail()[-500:]}")
        self._leave()
        return True

    def processes(self) -> list[int]:
        """All that name its folder: the daemon, shims, commands, docker's CLI."""
        return processes_naming(f"{self.folder}/")

    def _leave(self) -> None:
        self.absences.append(Span(boot_clock()))

    def _return(self) -> None:
        if self.absences and self.absences[-1].end == float("inf"):
            self.absences[-1].end = boot_clock()

    def close(self) -> None:
        self._uses.close()


def processes_naming(text: str) -> list[int]:
    """Those with this text in their arguments, but for ourselves."""
    return [int(entry.name) for entry, words in _command_lines() if text.encode() in words]


def executing(text: str) -> dict[int, tuple[str, int]]:
    """The processes of executions whose arguments have this text: the attempt of each."""
    found: dict[int, tuple[str, int]] = {}
    for entry, words in _command_lines():
        if text.encode() in words and effects.MARK.encode() in words and b"python" in words.partition(b"\0")[0]:
            with suppress(OSError, KeyError):
                pairs = (entry / "environ").read_text(errors="replace").split("\0")
                environ = {name: value for name, _, value in (pair.partition("=") for pair in pairs)}
                found[int(entry.name)] = environ["ACC_JOB_TASK_ID"], int(environ["ACC_ATTEMPT_ID"])
    return found


def _command_lines() -> Iterator[tuple[Path, bytes]]:
    for entry in Path("/proc").glob("[0-9]*"):
        if int(entry.name) != os.getpid():
            with suppress(OSError):
                yield entry, (entry / "cmdline").read_bytes()


class Desk:
    """The harness's own connection, past all cables, made anew when it is lost."""

    def __init__(self, url: str) -> None:
        self._url: str = url
        self._connection: Connection | None = None
        self._lock: asyncio.Lock = asyncio.Lock()

    async def ask(self, query: str, *values: Any) -> list[asyncpg.Record]:
        """Once: a lost connection is the caller's to bear."""
        async with self._lock:
            if self._connection is None or self._connection.is_closed():
                self._connection = await open_connection(self._url, timeout=5, command_timeout=20)
            try:
                return await self._connection.fetch(query, *values)
            except (TimeoutError, asyncio.CancelledError, asyncpg.InternalClientError):
                self._connection.terminate()  # a server that is frozen has not heard that nobody waits for its answer
                raise

    async def insist(self, query: str, *values: Any, within: float = 60) -> list[asyncpg.Record]:
        """Again and again, until the server answers."""
        deadline = time.monotonic() + within
        while True:
            try:
                return await self.ask(query, *values)
            except CONNECTION_LOST:
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(0.1)

    async def connection(self) -> Connection:
        await self.insist("SELECT 1")
        assert self._connection is not None
        return self._connection

    async def close(self) -> None:
        if self._connection is not None:
            self._connection.terminate()


@dataclass
class Fleet:
    root: Path
    postgres: OwnServer
    url: str
    desk: Desk
    agents: list[Member]
    builders: list[Member]
    submitting: Cable  # the submitters' own
    composed: dict[str, ComposeNode]  # by the name of the node
    small: Member | None  # with a small file system of its own
    left_out: list[str]  # what this machine has not, and why
    postgres_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    killed: set[tuple[str, int]] = field(default_factory=set)  # attempts whose command we killed

    @property
    def members(self) -> list[Member]:
        return [*self.agents, *self.builders]

    def member(self, name: str) -> Member:
        return next(each for each in self.members if each.name == name)

    async def start(self) -> None:
        await asyncio.gather(*(member.start() for member in self.members))
        await eventually(self._all_are_there, within=60, interval=0.1, what="a fleet that is ready")

    async def _all_are_there(self) -> bool:
        rows = await self.desk.insist("SELECT name FROM nodes")
        return {each.name for each in self.agents} <= {row["name"] for row in rows}

    async def revive(self) -> None:
        """Whoever has ended by itself is noted, and started again."""
        for member in self.members:
            if member.notice_its_end():
                async with member.lock:
                    await member.start()

    def folders_left(self) -> list[str]:
        """Attempts' folders, in the nodes' own and where standing containers have theirs mounted."""
        places = [agent.attempts for agent in self.agents] + [each.shared for each in self.composed.values()]
        return [str(found.relative_to(self.root)) for place in places for found in place.iterdir() if found.is_dir()]

    def executions_left(self) -> list[str]:
        return [f"process {pid} of {task}.{attempt}" for pid, (task, attempt) in executing(f"{self.root}/").items()]

    def containers_left(self) -> list[str]:
        return [f"{name}: {each}" for name, node in self.composed.items() for each in node.ours(name)]


@asynccontextmanager
async def fleet(
    root: Path, *, postgres: str, agents: int = 4, builders: int = 2, containers: bool = True
) -> AsyncGenerator[Fleet]:
    """Not started yet; all of it is gone at the end. `postgres` is pg18 or pg15."""
    async with AsyncExitStack() as uses:
        own = uses.enter_context(own_server(bindir_of(postgres)))
        url = await own.with_schema()
        desk = Desk(url)
        uses.push_async_callback(desk.close)
        await (await desk.connection()).execute(_LAST_LEASES)
        left_out = [reason] if (reason := "containers were not asked for" if not containers else why_not()) else []

        async def cable() -> Cable:
            return await uses.enter_async_context(Cable.to("127.0.0.1", own.port))

        made = Fleet(root, own, url, desk, [], [], await cable(), {}, None, left_out)
        for number in range(1, builders + 1):
            builder = _member(root, f"b{number}", "builder", await cable(), url, '[quarantine]\nprobe = "2s"\n')
            made.builders.append(uses.enter_context(closing(builder)))
        tag = uuid4().hex[:6]
        for number in range(1, agents + 1):
            # engines know nodes by their names only, and others may use this one
            agent = _member(root, f"n{number}-{tag}", "agent", await cable(), url, "")
            if not left_out and number <= 2:
                made.composed[agent.name] = uses.enter_context(closing(_composed(agent)))
            agent.config = _agent_config(agent, made.composed.get(agent.name))
            if number == agents:
                made.small = _on_small_disk(agent, uses, left_out)
            made.agents.append(uses.enter_context(closing(agent)))
        uses.callback(_end_all, root)
        yield made


def _end_all(root: Path) -> None:
    """Whatever a run that was cut short has left."""
    for pid in processes_naming(f"{root}/"):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _member(root: Path, name: str, role: str, cable: Cable, url: str, config: str) -> Member:
    folder = root / name
    folder.mkdir()
    environ = {
        "ACC_HEARTBEAT_TTL_SEC": str(LEASE.total_seconds()),
        "ACC_BACKOFF_BASE_SEC": "1",
        "ACC_DRAIN_SEC": "3",
        "ACC_LOG_LEVEL": "info",
        "ACC_STORAGE_URL": f"file://{root}/store",
    }
    return Member(name, role, folder, cable, cable.through(url), config, environ)


def _agent_config(agent: Member, composed: ComposeNode | None) -> str:
    agent.notes.parent.mkdir(exist_ok=True)
    text = effects.program(agent.name, agent.notes)
    compose = composed.config if composed is not None else ""
    return f'node.min_free_disk = "1m"\n{compose}{toml_service("work", text, concurrency=SLOTS, stop_grace="1s")}'


def with_slots(config: str, slots: int) -> str:
    """The same with another number of places, as somebody would edit the file."""
    return config.replace(f"concurrency = {json.dumps(SLOTS)}", f"concurrency = {json.dumps(slots)}")


def _composed(agent: Member) -> ComposeNode:
    node = ComposeNode(agent.folder)
    node.name = agent.name
    text = effects.program(agent.name, agent.notes)
    for service, mode in CONTAINERS.items():
        node.add(service, mode, text)
    return node


def _on_small_disk(agent: Member, uses: AsyncExitStack, left_out: list[str]) -> Member | None:
    try:
        uses.enter_context(mounted(agent.state, "-t", "tmpfs", "-o", f"size={_SMALL_DISK}", "tmpfs"))
    except pytest.skip.Exception as reason:
        left_out.append(f"no full disk: {reason}")
        return None
    return agent


# The lease with which each attempt was ended, whoever ended it: events do not say.
_LAST_LEASES = """
CREATE SCHEMA chaos;
CREATE TABLE chaos.leases (task_id uuid, attempt_id int, lease_until timestamptz);
CREATE FUNCTION chaos.keep_lease() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
BEGIN
  INSERT INTO chaos.leases VALUES (OLD.task_id, OLD.attempt_id, OLD.lease_until);
  RETURN NULL;
END $$;
CREATE TRIGGER keep_lease AFTER DELETE ON accs.live FOR EACH ROW EXECUTE FUNCTION chaos.keep_lease();
"""
