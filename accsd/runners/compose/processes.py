"""An attempt's processes inside a container that is not its own: found by what their environment says, and signalled.

There are two views. From the host: /proc of the container's processes, for root. From inside: a fixed script run by
`docker exec`, where the host's /proc does not let us look; it needs sh, tr and grep in the image. An attempt's
processes are those whose environment names it, their descendants, and those that share a session with them. A process
that cleans its environment and leaves its session and its parent is not found (a limit of mode exec).
"""

import asyncio
import os
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Final

from accsd import proc
from accsd.errors import DockerUnavailable
from accsd.model.fence import Fence
from accsd.runners.compose.docker import Container, Docker

NODE_MARK: Final = "ACCSD_NODE"
TASK_MARK: Final = "ACC_JOB_TASK_ID"
ATTEMPT_MARK: Final = "ACC_ATTEMPT_ID"
_KILLED_WITHIN: Final = timedelta(seconds=15)
_LOOK_EVERY: Final = 0.1

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


class NotVisible(Exception):
    """The processes of a container cannot be seen from the host."""


@dataclass(frozen=True, slots=True)
class ContainerProcess:
    pid: int
    parent: int
    session: int
    fence: Fence | None  # which attempt of this node its environment names

    @property
    def is_outermost(self) -> bool:
        """Whether the engine started it, not a process of the container."""
        return self.parent == 0


@dataclass(frozen=True, slots=True)
class View:
    """The processes of one container at one moment; `from_host` says whose process ids these are."""

    processes: Sequence[ContainerProcess]
    from_host: bool

    def fences(self) -> set[Fence]:
        return {process.fence for process in self.processes if process.fence}

    def of(self, fence: Fence) -> list[ContainerProcess]:
        """The attempt's own processes, and all that descend from them."""
        ours = {process.pid: process for process in self.processes if process.fence == fence}
        foreign = {process.session for process in self.processes if process.is_outermost and process.fence != fence}
        while more := [each for each in self.processes if _joins(each, ours, foreign)]:
            ours |= {process.pid: process for process in more}
        return list(ours.values())

    def still_works(self, fence: Fence) -> bool:
        """Whether the command itself runs, not only what it may have left behind."""
        return any(process.is_outermost for process in self.of(fence))


def _joins(process: ContainerProcess, ours: Mapping[int, ContainerProcess], foreign_sessions: Set[int]) -> bool:
    if process.pid in ours or process.fence is not None:
        return False
    sessions = {each.session for each in ours.values()} - foreign_sessions - {0}
    return process.parent in ours or process.session in sessions


@dataclass(eq=False, slots=True)
class Processes:
    """Looking into a service's containers, and ending what an attempt has there, for one node."""

    docker: Docker
    node: str
    from_host: bool = field(default=True, kw_only=True)

    async def look(self, container: Container) -> View:
        if self.from_host:
            try:
                return View(await asyncio.to_thread(_seen_from_host, container, self.node), from_host=True)
            except NotVisible:
                self.from_host = False
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

    async def end(
        self, container: Container, fence: Fence, grace: timedelta, may_begin: Callable[[], bool] = lambda: False
    ) -> None:
        """Ends an attempt's processes: TERM, grace, KILL, and a look whether they have gone. Returns when none of them
        is left and none can begin any more; raises DockerUnavailable where they stay."""
        now = asyncio.get_running_loop().time
        kill_from = now() + grace.total_seconds()
        give_up = kill_from + _KILLED_WITHIN.total_seconds()
        asked: set[int] = set()
        while True:
            view, left = await self._left(container, fence)
            if not left and not may_begin():
                return
            if now() > give_up:
                if not left:
                    return
                raise DockerUnavailable(f"{len(left)} processes of attempt {fence} in {container.name} survive SIGKILL")
            if now() >= kill_from:
                await self.signal(container, view, left, signal.SIGKILL)
            elif fresh := [process for process in left if process.pid not in asked]:
                asked |= {process.pid for process in fresh}
                await self.signal(container, view, fresh, signal.SIGTERM)
            await asyncio.sleep(_LOOK_EVERY)

    async def _left(self, container: Container, fence: Fence) -> tuple[View, list[ContainerProcess]]:
        try:
            view = await self.look(container)
        except DockerUnavailable:
            current = await self.docker.container(container.id)
            if current is not None and current.is_same_run(container):
                raise
            view = View((), from_host=True)  # the container ended, and they with it
        return view, view.of(fence)

    async def _seen_from_inside(self, container: Container) -> list[ContainerProcess]:
        seen: dict[int, ContainerProcess] = {}
        for user in _users(container):
            for process in _read_list(await self._inside(container, user, _LIST), self.node):
                if process.fence or process.pid not in seen:
                    seen[process.pid] = process
        return list(seen.values())

    async def _inside(self, container: Container, user: str | None, script: str, *arguments: str) -> str:
        as_user = ("--user", user) if user else ()
        called = await self.docker.call("exec", *as_user, container.id, "sh", "-c", script, "sh", *arguments)
        if called.code:
            raise DockerUnavailable(
                f"the processes in container {container.name} cannot be looked at: {called.said}",
                hint="mode exec needs sh, tr and grep in the image, unless accsd runs as root",
            )
        return called.stdout.decode(errors="replace")


def _users(container: Container) -> Sequence[str | None]:
    """Root in a container may signal all processes, but read the environment of its own only; so both users are
    asked."""
    return ("0",) if container.runs_as_root else (None, "0")


def _read_list(text: str, node: str) -> list[ContainerProcess]:
    """Read by lines: a mark's line cannot begin like a process's, whatever a task wrote into its environment."""
    heads: list[list[str]] = []
    marks: list[dict[str, str]] = []
    for line in text.splitlines():
        if line.startswith("process "):
            heads.append(line.split()[1:])
            marks.append({})
        elif marks:
            name, _, value = line.partition("=")
            marks[-1][name] = value
    return [
        ContainerProcess(int(pid), int(parent), int(session), _fence_named_by(its, node))
        for (pid, parent, session, state), its in zip(heads, marks, strict=True)
        if state not in ("Z", "X")
    ]


def _fence_named_by(variables: Mapping[str, str], node: str) -> Fence | None:
    if variables.get(NODE_MARK) != node:
        return None
    try:
        return Fence.parse(f"{variables.get(TASK_MARK)}.{variables.get(ATTEMPT_MARK)}")
    except ValueError:
        return None


def _seen_from_host(container: Container, node: str) -> list[ContainerProcess]:
    if not container.pid or not _belongs(container.pid, container):
        raise NotVisible  # its process ids are those of another machine or namespace
    members = {pid for pid in proc.pids() if _belongs(pid, container)}
    found: list[ContainerProcess] = []
    for pid in sorted(members):
        fence = _fence_of(pid, node)
        process = proc.look(pid)  # the later look: it may have ended meanwhile
        if process is not None and not process.has_ended:
            parent = process.parent if process.parent in members else 0
            found.append(ContainerProcess(pid, parent, process.session, fence))
    return found


def _fence_of(pid: int, node: str) -> Fence | None:
    try:
        return _fence_named_by(proc.environment(pid), node)
    except PermissionError:
        raise NotVisible from None


def _belongs(pid: int, container: Container) -> bool:
    try:
        return container.id in Path(f"/proc/{pid}/cgroup").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    except PermissionError:
        raise NotVisible from None


def _signal_from_host(container: Container, process: ContainerProcess, wanted: signal.Signals) -> None:
    """Signals through a descriptor, after a second look: between the first look and the signal the id may have become
    another process's."""
    with suppress(ProcessLookupError):
        descriptor = os.pidfd_open(process.pid)
        try:
            if _belongs(process.pid, container):
                signal.pidfd_send_signal(descriptor, wanted)
        finally:
            os.close(descriptor)
