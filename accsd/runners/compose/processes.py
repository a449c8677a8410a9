"""An attempt's processes inside a container that is not its own: found by what their environment says, and signalled.

Two views. From the host: /proc of the container's processes, for root. From inside: a fixed script run by
`docker exec`, where the host's /proc does not let us look; it needs sh, tr and grep in the image.
An attempt's processes are those whose environment names it, their descendants, and whoever shares a session with them.
What cleans its environment, leaves its session and its parent is beyond that (a limit of mode exec).
"""

import asyncio
import os
import signal
from collections.abc import Iterable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from accsd.errors import DockerUnavailable
from accsd.model.fence import Fence
from accsd.runners.compose.container import Container
from accsd.runners.compose.docker import Docker

NODE_MARK: Final = "ACCSD_NODE"
TASK_MARK: Final = "ACC_JOB_TASK_ID"
ATTEMPT_MARK: Final = "ACC_ATTEMPT_ID"
_MARKS: Final = (NODE_MARK, TASK_MARK, ATTEMPT_MARK)

# One line for each process and one for each of its marks. A process may end while it is being looked at.
_LIST: Final = r"""
cd /proc || exit 1
for pid in [0-9]*; do
  { read -r line < "$pid/stat"; } 2>/dev/null || continue
  set -- ${line##*) }
  echo "process $pid $2 $4 $1"
  { tr '\000' '\n' < "$pid/environ" | grep -E '^(ACCSD_NODE|ACC_JOB_TASK_ID|ACC_ATTEMPT_ID)='; } 2>/dev/null
done
exit 0
"""
_KILL: Final = 'name=$1; shift; for pid; do kill -s "$name" "$pid" 2>/dev/null; done; exit 0'


class SignalRefused(Exception):
    """This view shows nothing to us."""


@dataclass(frozen=True, slots=True)
class ContainerProcess:
    pid: int
    parent: int
    session: int
    key: Fence | None  # which attempt of this node its environment names

    @property
    def is_outermost(self) -> bool:
        """Started by the engine, not by a process of the container."""
        return self.parent == 0


@dataclass(frozen=True, slots=True)
class View:
    """The processes of one container at one moment; `from_host` says whose process ids these are."""

    processes: Sequence[ContainerProcess]
    from_host: bool

    def keys(self) -> set[Fence]:
        return {process.key for process in self.processes if process.key}

    def of(self, key: Fence) -> list[ContainerProcess]:
        """The attempt's own, and all that came from them."""
        ours = {process.pid: process for process in self.processes if process.key == key}
        foreign = {process.session for process in self.processes if process.is_outermost and process.key != key}
        while more := [each for each in self.processes if _joins(each, ours, foreign)]:
            ours |= {process.pid: process for process in more}
        return list(ours.values())

    def still_works(self, key: Fence) -> bool:
        """Whether the command itself runs, not only what it may have left behind."""
        return any(process.is_outermost for process in self.of(key))


def _joins(process: ContainerProcess, ours: Mapping[int, ContainerProcess], foreign_sessions: Set[int]) -> bool:
    if process.pid in ours or process.key is not None:
        return False
    sessions = {each.session for each in ours.values()} - foreign_sessions - {0}
    return process.parent in ours or process.session in sessions


class Processes:
    """Looking into a service's containers, for one node."""

    def __init__(self, docker: Docker, node: str, *, from_host: bool = True) -> None:
        self._docker: Final = docker
        self._node: Final = node
        self._from_host: bool = from_host

    async def look(self, container: Container) -> View:
        if self._from_host:
            try:
                return View(await asyncio.to_thread(_seen_from_host, container, self._node), from_host=True)
            except SignalRefused:
                self._from_host = False
        return View(await self._seen_from_inside(container), from_host=False)

    async def signal(
        self, container: Container, view: View, chosen: Iterable[ContainerProcess], wanted: signal.Signals
    ) -> None:
        if view.from_host:
            for process in chosen:
                _signal_from_host(container, process, wanted)
            return
        pids = [str(process.pid) for process in chosen]
        for user in _users(container):
            await self._inside(container, user, _KILL, wanted.name.removeprefix("SIG"), *pids)

    async def _seen_from_inside(self, container: Container) -> list[ContainerProcess]:
        seen: dict[int, ContainerProcess] = {}
        for user in _users(container):
            for process in _read_list(await self._inside(container, user, _LIST), self._node):
                if process.key or process.pid not in seen:
                    seen[process.pid] = process
        return list(seen.values())

    async def _inside(self, container: Container, user: str | None, script: str, *arguments: str) -> str:
        as_user = ("--user", user) if user else ()
        called = await self._docker.call("exec", *as_user, container.id, "sh", "-c", script, "sh", *arguments)
        if called.code:
            raise DockerUnavailable(
                f"the processes in container {container.name} cannot be looked at: {called.said}",
                hint="mode exec needs sh, tr and grep in the image, unless accsd runs as root",
            )
        return called.stdout.decode(errors="replace")


def _users(container: Container) -> Sequence[str | None]:
    """Root in a container may signal all, but read the environment of its own processes only; so ask both."""
    return ("0",) if container.runs_as_root else (None, "0")


def _read_list(text: str, node: str) -> list[ContainerProcess]:
    """By lines: a mark's line cannot begin like a process's, whatever a task wrote into its environment."""
    heads: list[list[str]] = []
    marks: list[list[str]] = []
    for line in text.splitlines():
        if line.startswith("process "):
            heads.append(line.split()[1:])
            marks.append([])
        elif marks:
            marks[-1].append(line)
    return [
        ContainerProcess(int(pid), int(parent), int(session), _key(its, node))
        for (pid, parent, session, state), its in zip(heads, marks, strict=True)
        if state not in ("Z", "X")
    ]


def _key(entries: Iterable[str], node: str) -> Fence | None:
    said = dict(entry.split("=", 1) for entry in entries if entry.split("=", 1)[0] in _MARKS and "=" in entry)
    if said.get(NODE_MARK) != node:
        return None
    try:
        return Fence.parse(f"{said.get(TASK_MARK)}.{said.get(ATTEMPT_MARK)}")
    except ValueError:
        return None


def _seen_from_host(container: Container, node: str) -> list[ContainerProcess]:
    if not container.pid or not _belongs(container.pid, container):
        raise SignalRefused  # its process ids are those of another machine or namespace
    members = {pid for pid in _all_pids() if _belongs(pid, container)}
    found = [_read_process(pid, members, node) for pid in sorted(members)]
    return [process for process in found if process]


def _read_process(pid: int, members: set[int], node: str) -> ContainerProcess | None:
    try:
        state, parent, _, session = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[:4]
        environ = Path(f"/proc/{pid}/environ").read_bytes() if state not in "ZX" else b""
    except PermissionError:
        raise SignalRefused from None
    except (FileNotFoundError, ProcessLookupError):
        return None
    if state in "ZX":
        return None
    entries = environ.decode(errors="replace").split("\0")
    return ContainerProcess(pid, int(parent) if int(parent) in members else 0, int(session), _key(entries, node))


def _belongs(pid: int, container: Container) -> bool:
    try:
        return container.id in Path(f"/proc/{pid}/cgroup").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    except PermissionError:
        raise SignalRefused from None


def _all_pids() -> list[int]:
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]


def _signal_from_host(container: Container, process: ContainerProcess, wanted: signal.Signals) -> None:
    """By a descriptor, looked at again: between the look and the signal the id may have become another's."""
    with suppress(ProcessLookupError):
        descriptor = os.pidfd_open(process.pid)
        try:
            if _belongs(process.pid, container):
                signal.pidfd_send_signal(descriptor, wanted)
        finally:
            os.close(descriptor)
