"""All that descends from the shim: what it uses, and its end. For the shim only, which must start fast: no imports.

The shim is a child subreaper: a process that is orphaned below it becomes its own child, whatever its session, and none
can get away upwards.
"""

import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from resource import struct_rusage

KILL, STOP = 9, 19  # `signal` takes longer to import than all the rest
_LOOK_EVERY_MS = 50
_LOOK_AT_LEAST_EVERY_MS = 250
_END_WITHIN_SECONDS = 10.0
_PAGE = os.sysconf("SC_PAGE_SIZE")


def start_time(pid: int) -> int:
    """When a process was started, in ticks since boot; 0 if there is none. With the id it names a process for good,
    because ids are used again."""
    return _stat(pid, 19)


def _stat(pid: int, field: int) -> int:
    """Counted after the name, which may itself contain blanks and brackets. Not by accsd/proc.py, the reader that
    everybody else uses: to import that takes longer than all that the shim does."""
    fields = read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return int(fields[field]) if fields else 0


class Watch:
    """The command and all that descends from it, until none of them is left."""

    def __init__(self, command: int) -> None:
        self.command = command
        self.status: int | None = None
        self.max_rss = 0
        self.cpu = 0.0

    def until_it_ends(self) -> None:
        while self.status is None:
            self._note(*os.wait4(-1, 0))

    def until_it_ends_or_exceeds(self, *, memory: int, pids: int) -> tuple[str, int] | None:
        import select

        poll = select.poll()
        poll.register(os.pidfd_open(self.command), select.POLLIN)
        pause = _LOOK_EVERY_MS
        while True:
            poll.poll(pause)
            self.reap()
            if self.status is not None:
                return None
            began = time.monotonic()
            if exceeded := _exceeded(memory, pids):
                # All of the group at one moment: a fork bomb cannot outrun it, as it could a walk through its members.
                os.killpg(self.command, STOP)
                return exceeded
            # A look at many processes takes long: a fifth of one core at most, but never blind for long.
            took = int((time.monotonic() - began) * 1000)
            pause = min(max(_LOOK_EVERY_MS, took * 4), _LOOK_AT_LEAST_EVERY_MS)

    def reap(self) -> bool:
        """Reaps our children, among them orphans that came to us. False if no child is left."""
        try:
            while (ended := os.wait4(-1, os.WNOHANG))[0]:
                self._note(*ended)
        except ChildProcessError:
            return False
        return True

    def end_everyone(self) -> bool:
        """Kills all that descend from us. Returns whether all are gone: a process that waits for a dead disk cannot be
        killed."""
        deadline = time.monotonic() + _END_WITHIN_SECONDS
        while self.reap():
            for pid in _frozen_family(deadline):
                _kill(pid, KILL)
            if time.monotonic() > deadline:
                return False
            time.sleep(0.002)
        return True

    def _note(self, pid: int, status: int, usage: "struct_rusage") -> None:
        if pid == self.command:
            self.status = status
        self.max_rss = max(self.max_rss, usage.ru_maxrss * 1024)
        self.cpu += usage.ru_utime + usage.ru_stime


def _exceeded(memory: int, pids: int) -> tuple[str, int] | None:
    """The limit (0: none) that is exceeded, and by what."""
    family = _family()
    if pids and len(family) > pids:
        return "pids_limit", len(family)
    # Resident sizes count shared pages once for each process; the fair share is dear to ask for, so only in doubt.
    if memory and sum(map(_resident, family)) > memory:
        used = sum(map(_proportional, family))
        if used > memory:
            return "oom", used
    return None


def _resident(pid: int) -> int:
    fields = read(f"/proc/{pid}/statm").split()
    return int(fields[1]) * _PAGE if fields else 0


def _proportional(pid: int) -> int:
    for line in read(f"/proc/{pid}/smaps_rollup").splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return _resident(pid)


def _family() -> list[int]:
    """All that descend from us. A process that was orphaned has become our own child, whatever its session."""
    found = [os.getpid()]
    for pid in found:
        found += _children(pid)
    return found[1:]


def _frozen_family(deadline: float) -> list[int]:
    """All that descend from us, stopped: from the top down, until a walk finds nobody new.

    A stopped parent reaps nobody, so that the numbers of its children stay theirs until we are through.
    """
    frozen: dict[int, None] = {}
    while time.monotonic() < deadline:
        before = len(frozen)
        walk = [os.getpid()]
        for parent in walk:
            for child in _children(parent):
                if child not in frozen:
                    _kill(child, STOP)
                    frozen[child] = None
                walk.append(child)
        if len(frozen) == before:
            break
    return list(frozen)


def _children(pid: int) -> list[int]:
    """The children of a process: each of its threads has its own list."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []
    if not _HAS_LISTS:
        return [int(entry) for entry in os.listdir("/proc") if entry.isdigit() and _stat(int(entry), 1) == pid]
    return [int(child) for thread in threads for child in read(f"/proc/{pid}/task/{thread}/children").split()]


_HAS_LISTS = os.path.exists(f"/proc/self/task/{os.getpid()}/children")  # a kernel may be built without them


def _kill(pid: int, number: int) -> bool:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def read(path: str) -> str:
    """Empty where the process has gone."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
