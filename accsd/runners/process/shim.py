"""The parent of one command of the process runner: `python -I -S shim.py`, a program that outlives the daemon.

It makes sure that the command starts once, holds it to its limits, leaves none of its descendants behind and writes
down how it ended. It starts with every signal blocked, so only SIGKILL ends it before that is written. It imports as
little as it can (`signal` alone would double the time it takes to start); the runner imports the names of its files.
"""

import ctypes
import marshal
import os
import sys
import time

if __name__ == "__main__":  # with -I and -S nothing of ours is on the path
    sys.path.append(os.path.abspath(__file__).rpartition("/accsd/runners/process/")[0])

from accsd.runners.process.shim_tree import KILL, Watch, read, start_time

STATE_FILE = "shim"  # who the shim is; whoever makes this file has the attempt
COMMAND_FILE = "command"  # who the command is
EXIT_FILE = "exit"
STDOUT_FILE = "stdout"
STDERR_FILE = "stderr"
LOG_FILE = "shim.log"  # the shim's own last words
INPUT_FILE = "task.json"

STARTED, AGAIN, LATE = "started", "again", "late"  # what it answers
FAILED, BROKEN = "failed", "broken"  # these with an errno

_PR_SET_CHILD_SUBREAPER = 36
_ENOSYS = 38
_ALL_SIGNALS = [number for number in range(1, 65) if number not in (32, 33)]  # those two are the C library's own
_RECORD_BYTES = 512


class ShimTask:
    """What to run, within which limits (0: none), and until when it may begin (CLOCK_BOOTTIME)."""

    def __init__(
        self,
        *,
        service: str,
        workdir: str,
        memory: int,
        pids: int,
        argv: list[str],
        environ: dict[str, str],
        begin_by: float,
    ) -> None:
        self.service = service
        self.workdir = workdir
        self.memory = memory
        self.pids = pids
        self.argv = argv
        self.environ = environ
        self.begin_by = begin_by

    def pack(self) -> bytes:
        return marshal.dumps(vars(self))  # for the same interpreter, and there without an import that costs time

    @classmethod
    def unpack(cls, packed: bytes) -> "ShimTask":
        return cls(**marshal.loads(packed))


def realm() -> str:
    """Where a process id means the same: this boot, this pid namespace."""
    return read("/proc/sys/kernel/random/boot_id").strip() + "/" + os.readlink("/proc/self/ns/pid")


def _identity(pid: int) -> str:
    return f"pid {pid}\nstarted {start_time(pid)}\nrealm {realm()}\n"


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def _claim(service: str) -> bool:
    """Makes the state file, complete from its first moment; False where somebody else has."""
    draft = f"{STATE_FILE}.{os.getpid()}"
    _write(draft, f"{_identity(os.getpid())}service {service}\n")
    try:
        os.link(draft, STATE_FILE)
    except FileExistsError:
        return False
    finally:
        os.unlink(draft)
    return True


def _reserve_record() -> int:
    """Room for the exit file is taken now: a disk that fills up later must not cost us the knowledge of the end."""
    record = os.open(f"{EXIT_FILE}.draft", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.write(record, b"\n" * _RECORD_BYTES)
    return record


def _record_end(folder: str, record: int, text: str) -> None:
    os.pwrite(record, text.encode(), 0)
    os.rename(f"{folder}/{EXIT_FILE}.draft", f"{folder}/{EXIT_FILE}")


def _answer(report: int, text: str) -> bool:
    try:
        os.write(report, text.encode())
    except BrokenPipeError:
        return False  # the daemon has died; its successor reads the files
    finally:
        os.close(report)
    return True


def _prepare(folder: str, task: ShimTask) -> tuple[int, list[int]] | None:
    """The exit file's draft and the command's three files; None where another shim has the attempt."""
    os.chdir(folder)
    if not _claim(task.service):
        return None
    record = _reserve_record()
    append = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
    files = [os.open(INPUT_FILE, os.O_RDONLY), *(os.open(name, append, 0o600) for name in (STDOUT_FILE, STDERR_FILE))]
    os.chdir(task.workdir)
    if ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(_ENOSYS, "this kernel has no child subreapers")
    return record, files


def _spawn(task: ShimTask, files: list[int]) -> int:
    os.environ["PATH"] = task.environ.get("PATH", os.defpath)  # where posix_spawnp looks
    return os.posix_spawnp(
        task.argv[0],
        task.argv,
        task.environ,
        file_actions=[(os.POSIX_SPAWN_DUP2, file, number) for number, file in enumerate(files)],
        setsid=True,
        setsigmask=[],
        setsigdef=_ALL_SIGNALS,
    )


def _run(folder: str, task: ShimTask, report: int) -> bool:
    try:
        prepared = _prepare(folder, task)
    except OSError as error:
        return _answer(report, f"{BROKEN} {error.errno}")
    if prepared is None:
        return _answer(report, AGAIN)
    record, files = prepared
    # The machine may have slept, or the daemon been stopped, since the lease was looked at.
    if time.clock_gettime(time.CLOCK_BOOTTIME) >= task.begin_by:
        return _answer(report, LATE)
    try:
        command = _spawn(task, files)
    except OSError as error:
        _record_end(folder, record, f"errno {error.errno}\nleft 0\n")
        return _answer(report, f"{FAILED} {error.errno}")
    _note_command(folder, command)
    _answer(report, STARTED)
    _record_end(folder, record, _watched(Watch(command), task))
    return True


def _note_command(folder: str, command: int) -> bool:
    try:
        _write(f"{folder}/{COMMAND_FILE}", _identity(command))
    except OSError:
        return False  # a full disk; the environment still tells which processes are the command's
    return True


def _watched(watch: Watch, task: ShimTask) -> str:
    """How it ended, as the exit file says it."""
    exceeded = None
    if task.memory or task.pids:
        exceeded = watch.until_it_ends_or_exceeds(memory=task.memory, pids=task.pids)
    else:
        watch.until_it_ends()
    all_gone = watch.end_everyone()
    status = KILL if watch.status is None else watch.status
    ended = f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"code {os.WEXITSTATUS(status)}"
    limit = f"limit {exceeded[0]}\nseen {exceeded[1]}\n" if exceeded else ""
    usage = f"rss {watch.max_rss}\ncpu_us {int(watch.cpu * 1e6)}\n"
    return f"{ended}\n{limit}{usage}left {0 if all_gone else 1}\n"


def main() -> None:
    folder, packed, report = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    os.set_inheritable(report, False)
    with open(packed, "rb") as file:
        file.seek(0)
        task = ShimTask.unpack(file.read())
    _run(folder, task, report)


if __name__ == "__main__":
    main()
