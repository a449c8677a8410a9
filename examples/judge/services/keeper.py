"""The process that runs one program in the box and lets nothing of it survive.

It makes the ground (namespaces, a root of its own, another user), starts the program under its limits, watches what
all processes of it use together, and ends them: when the program has ended, when a limit is reached, or when the
judge closes the line to it, which also happens when the judge is killed.
"""

import json
import os
import resource
import select
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import kernel

_PAGE_KB = os.sysconf("SC_PAGE_SIZE") // 1024
_TICK_MS = 1000 / os.sysconf("SC_CLK_TCK")
_LOOKS_EVERY_SEC = 0.005
_AT_FIRST_SEC = 0.001  # so many times: what a short program used has been seen, too
_FIRST_LOOKS = 20
_MOST_FILES = 64
# Until it became the program it was a copy of this process, and so large: below this its own size is what was seen.
_COPIED_KB = 4096
# The ids are no secrets: by them accsd knows what belongs to an attempt, and ends it if all else has failed.
_MARKS = ("ACC_JOB_TASK_ID", "ACC_ATTEMPT_ID")
_ENVIRON = {"LANG": "C.UTF-8", "HOME": "/tmp"} | {name: os.environ[name] for name in _MARKS if name in os.environ}


@dataclass(frozen=True)
class Limits:
    cpu_ms: int
    wall_ms: int
    memory_kb: int
    file_bytes: int  # of a file that it writes
    processes: int
    tmp_bytes: int


@dataclass(frozen=True)
class Ground:
    """What this machine gives: found out once (ground.py)."""

    namespaces: bool
    user_namespace: bool  # the others are made in one of users, because the judge is not root
    own_user: bool


@dataclass
class Program:
    argv: list
    path: str
    folder: Path  # box/ and root/
    writable: bool  # whether it may write to its box: a compiler does
    uid: int
    limits: Limits
    ground: Ground
    stdin: int
    stdout: int
    stderr: int


def keep(program: Program, control: int, report: int) -> None:
    """Never returns. `control`: its end means stop; `report` gets one line of JSON."""
    code = 0
    try:
        if program.ground.namespaces:
            _enter_namespaces(program)
        else:
            os.setsid()  # who kills the judge with its group must leave somebody to end the program
        _watch(program, control, report)
    except BaseException as error:  # noqa: BLE001 - whatever it is, the judge has to know
        _say(report, {"failed": f"{type(error).__name__}: {error}"})
        code = 1
    os._exit(code)


def _say(report: int, said: dict) -> None:
    os.write(report, json.dumps(said).encode() + b"\n")


# The ground


def _enter_namespaces(program: Program) -> None:
    kernel.die_with_parent(signal.SIGKILL)
    uid, gid = os.getuid(), os.getgid()
    flags = kernel.CLONE_NEWNS | kernel.CLONE_NEWPID | kernel.CLONE_NEWNET | kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS
    if program.ground.user_namespace:
        kernel.unshare(flags | kernel.CLONE_NEWUSER)
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{program.uid} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{program.uid} {gid} 1")
    else:
        kernel.unshare(flags)
    if first := os.fork():  # the first process of the new namespace: all others end with it
        os.closerange(0, 256)
        os.waitpid(first, 0)
        os._exit(0)
    kernel.die_with_parent(signal.SIGKILL)
    kernel.mount("none", "/", flags=kernel.MS_REC | kernel.MS_PRIVATE)
    kernel.mount("proc", "/proc", "proc", kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC)
    _make_root(program.folder, program.limits.tmp_bytes, writable=program.writable)


def _make_root(folder: Path, tmp_bytes: int, *, writable: bool) -> None:
    """A file system of what a program needs to run, read only, with its box and a small /tmp."""
    root = folder / "root"
    safe = kernel.MS_NOSUID | kernel.MS_NODEV
    kernel.mount("tmpfs", str(root), "tmpfs", safe, "size=1m,mode=755")
    for name in ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        there = Path("/", name)
        if there.is_symlink():
            (root / name).symlink_to(os.readlink(there))
        elif there.is_dir():
            _show(there, root / name)
    (root / "etc").mkdir()
    (root / "etc" / "passwd").write_text("judged:x:65534:65534::/tmp:/bin/false\n")
    if (cache := Path("/etc/ld.so.cache")).exists():
        _show(cache, root / "etc" / "ld.so.cache")
    if (alternatives := Path("/etc/alternatives")).is_dir():
        _show(alternatives, root / "etc" / "alternatives")
    (root / "dev").mkdir()
    for name in ("null", "zero", "full", "random", "urandom"):
        (root / "dev" / name).touch()
        kernel.mount(f"/dev/{name}", str(root / "dev" / name), flags=kernel.MS_BIND)
    (root / "tmp").mkdir()
    kernel.mount("tmpfs", str(root / "tmp"), "tmpfs", safe, f"size={tmp_bytes},mode=1777")
    _show(folder / "box", root / "box", writable=writable)
    kernel.mount("none", str(root), flags=kernel.MS_REMOUNT | kernel.MS_BIND | kernel.MS_RDONLY | safe)


def _show(source: Path, target: Path, *, writable: bool = False) -> None:
    target.mkdir() if source.is_dir() else target.touch()
    safe = kernel.MS_NOSUID | kernel.MS_NODEV
    kernel.mount(str(source), str(target), flags=kernel.MS_BIND)
    kernel.mount(
        "none", str(target), flags=kernel.MS_REMOUNT | kernel.MS_BIND | safe | (0 if writable else kernel.MS_RDONLY)
    )


# The program


def _start(program: Program) -> int:
    """Its process id, once it has become the program; OSError if it could not."""
    told, tells = os.pipe()
    if (pid := os.fork()) == 0:
        try:
            _become(program)
        except BaseException as error:  # noqa: BLE001 - this copy of the keeper must end here
            os.write(tells, f"{type(error).__name__}: {error}".encode())
        os._exit(127)
    os.close(tells)
    with os.fdopen(told, "rb") as line:
        if problem := line.read(2000):
            raise OSError(f"{program.argv[0]} did not start: {problem.decode(errors='replace')}")
    return pid


def _become(program: Program) -> None:
    os.setsid()
    for number in range(1, signal.NSIG):
        if number not in (signal.SIGKILL, signal.SIGSTOP, 32, 33):
            signal.signal(number, signal.SIG_DFL)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")  # the kernel is to choose it, and not the judge
    for target, source in enumerate((program.stdin, program.stdout, program.stderr)):
        os.dup2(source, target)
    os.umask(0o022)
    if program.ground.namespaces:
        os.chroot(program.folder / "root")
        os.chdir("/box")
    else:
        os.chdir(program.folder / "box")
    _limit(program.limits, beside=3 if program.ground.user_namespace else 0)
    if program.ground.own_user:
        os.setgroups([])
        os.setresgid(program.uid, program.uid, program.uid)
        os.setresuid(program.uid, program.uid, program.uid)
    kernel.gain_nothing()
    kernel.die_with_parent(signal.SIGKILL)
    os.execvpe(program.argv[0], program.argv, {**_ENVIRON, "PATH": program.path})  # pipes and files are not inherited


def _limit(limits: Limits, *, beside: int) -> None:
    cpu_sec = limits.cpu_ms // 1000 + 2  # the watch is finer; this holds if it sleeps
    memory = 2 * limits.memory_kb * 1024 + 64 * 1024**2  # of addresses, of which a program has more than it uses
    for kind, most in (
        (resource.RLIMIT_CPU, cpu_sec),
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_STACK, min(memory, 256 * 1024**2)),
        (resource.RLIMIT_FSIZE, limits.file_bytes),
        (resource.RLIMIT_NPROC, limits.processes + beside),
        (resource.RLIMIT_NOFILE, _MOST_FILES),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_MEMLOCK, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
    ):
        resource.setrlimit(kind, (most, most))


# The watch


def _watch(program: Program, control: int, report: int) -> None:
    kernel.adopt_orphans()
    own_kb = _peak_of_self_kb()
    began = time.monotonic()
    pid = _start(program)
    # of the same user outside of a user namespace it would be able to look into us
    kernel.be_private()
    used = _Used(program.limits, own_kb)
    reason, status = used.look(_members(program.ground), 0), None
    looks = 0
    with os.fdopen(os.pidfd_open(pid), "rb", buffering=0) as ends:
        while status is None and reason is None:
            looks += 1
            pause = _AT_FIRST_SEC if looks <= _FIRST_LOOKS else _LOOKS_EVERY_SEC
            readable, _, _ = select.select([control, ends], [], [], pause)
            if control in readable:
                reason = "stopped"
            status = used.ended(pid)
            reason = reason or used.look(_members(program.ground), time.monotonic() - began)
    if status is None:
        os.kill(pid, signal.SIGKILL)
        used.note_end(*os.wait4(pid, 0)[1:])
    said = {
        "reason": reason,
        "status": status,
        "time_ms": int(used.cpu_ms),
        "wall_ms": int((time.monotonic() - began) * 1000),
        "mem_kb": used.peak_kb,
    }
    _end_all(program)
    _say(report, said)


class _Used:
    """What all processes of a program have used together."""

    def __init__(self, limits: Limits, own_kb: int) -> None:
        self._limits = limits
        self._own_kb = own_kb
        self.cpu_ms = 0.0
        self.peak_kb = 0

    def ended(self, pid: int):
        """How it has ended, as wait gives it; None: it has not."""
        found, status, usage = os.wait4(pid, os.WNOHANG)
        if not found:
            return None
        self.note_end(status, usage)
        return status

    def note_end(self, _: int, usage: resource.struct_rusage) -> None:
        self.cpu_ms = max(self.cpu_ms, (usage.ru_utime + usage.ru_stime) * 1000)
        if usage.ru_maxrss > self._own_kb + _COPIED_KB:
            self.peak_kb = max(self.peak_kb, usage.ru_maxrss)

    def look(self, pids: list, wall_sec: float):
        """The limit that is reached, or None."""
        memory_kb, cpu_ms, highest_kb = 0, 0.0, 0
        for pid in pids:
            try:
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                memory_kb += int(fields[21]) * _PAGE_KB
                cpu_ms += sum(map(int, fields[11:15])) * _TICK_MS
                highest_kb = max(highest_kb, _high_water_kb(pid))
            except (OSError, ValueError, IndexError):
                continue  # it has ended meanwhile
        self.peak_kb = max(self.peak_kb, memory_kb, highest_kb)
        self.cpu_ms = max(self.cpu_ms, cpu_ms)
        if self.peak_kb > self._limits.memory_kb:
            return "memory"
        if self.cpu_ms > self._limits.cpu_ms:
            return "cpu"
        return "wall" if wall_sec * 1000 > self._limits.wall_ms else None


def _high_water_kb(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1])
    return 0


def _peak_of_self_kb() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _members(ground: Ground) -> list:
    """The processes of the program: all of the namespace, or else what descends from this process."""
    pids = [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]
    if ground.namespaces:
        return [pid for pid in pids if pid != os.getpid()]
    parents = {pid: _parent(pid) for pid in pids}
    below, found = {os.getpid()}, True
    while found:
        found = {pid for pid, parent in parents.items() if parent in below} - below
        below |= found
    return [pid for pid in below if pid != os.getpid()]


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return -1


def _end_all(program: Program) -> None:
    """No process of the program is left when this returns. The kernel ends a namespace with its first process; a user
    of its own is killed at one stroke, which nothing that it forks meanwhile escapes."""
    if program.ground.own_user and not program.ground.namespaces:
        _kill_user(program.uid)
    while pids := _members(program.ground):
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        _reap()
    _reap()


def _kill_user(uid: int) -> None:
    """By a process of that user: -1 is whomever it may kill, at once, but itself."""
    pid = None
    while pid is None:
        try:
            pid = os.fork()
        except OSError:
            return  # no process is free: they are killed one by one
    if pid == 0:
        os.setresuid(uid, uid, uid)
        os.kill(-1, signal.SIGKILL)
        os._exit(0)
    os.waitpid(pid, 0)


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass
