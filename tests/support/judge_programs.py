"""Programs for a judge: one of each verdict, and hostile ones, which are small and end by themselves even if a limit
fails; and what is left of them on this machine. The problem is to add two numbers.
"""

import shutil
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple

EXAMPLE: Final = Path(__file__).parents[2] / "examples/judge"
PYTHON: Final = "/usr/bin/python3"  # the users of boxes have to come to it


def why_no_judge(way: Sequence[str] = ()) -> str | None:
    """Why the judge can't work here, started by this command; None: it can."""
    if missing := [each for each in ("g++", "setpriv", "unshare", PYTHON) if shutil.which(each) is None]:
        return f"{missing[0]} is not installed"
    with TemporaryDirectory(prefix="accsd-judge-") as folder:  # a checkout may lie where another user can't read
        Path(folder).chmod(0o755)
        services = shutil.copytree(EXAMPLE / "services", Path(folder, "services"))
        probe = [*way, PYTHON, "-B", str(services / "ground.py")]
        tried = subprocess.run(probe, capture_output=True, text=True, timeout=60, check=False)
    return None if tried.returncode == 0 else tried.stderr.strip() or "it can keep no program in"


def processes_of(task: str) -> list[str]:
    """The command lines of a judge with this id of a task, and of the programs that it judges."""
    found: list[str] = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if f"ACC_JOB_TASK_ID={task}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return found


def programs_of(task: str) -> list[str]:
    """The same without the judge and its compiler: what is judged."""
    return [
        line
        for line in processes_of(task)
        if line.endswith("/main ") or (line.startswith("python3 -I ") and line.endswith("/main.py "))
    ]


class Submitted(NamedTuple):
    code: str
    language: str
    verdict: str  # of the sandbox
    status: str
    ms: int = 1500  # of time: plenty on a busy machine, too


_HEAD: Final = "#include <cstdlib>\n#include <cstring>\n#include <iostream>\n#include <unistd.h>\n"
SUM_CPP: Final = _HEAD + "int main() { long a, b; std::cin >> a >> b; std::cout << a + b << std::endl; }"
SUM_PY: Final = "a, b = map(int, input().split())\nprint(a + b)"
TESTS: Final = {
    "1.in": "1 2\n", "1.out": "3\n", "10.in": "20 22\n", "10.out": "42\r\n\r\n", "2.in": "-5 5\n", "2.out": "  0",
}  # fmt: skip

VERDICTS: Final = {
    "accepted_cpp": Submitted(SUM_CPP, "cpp", "OK", "Accepted"),
    "accepted_python": Submitted(SUM_PY, "python", "OK", "Accepted"),
    "wrong": Submitted(SUM_PY.replace("+", "-"), "python", "OK", "Wrong Answer"),
    "does_not_compile": Submitted("int main() { return x; }", "cpp", "OK", "Compile Error"),
    "does_not_parse": Submitted("print(", "python", "OK", "Compile Error"),
    "computes_for_ever": Submitted("int main() { for (;;); }", "cpp", "TLE", "Time Limit Exceeded", 300),
    "sleeps": Submitted("import time\ntime.sleep(60)", "python", "TLE", "Time Limit Exceeded", 300),
    "eats_memory": Submitted(
        _HEAD + "int main() { for (int i = 0; i < 512; i++) memset(malloc(1 << 20), 1, 1 << 20); }",
        "cpp", "MLE", "Memory Limit Exceeded",
    ),
    "asks_for_too_much": Submitted("x = bytearray(1 << 30)", "python", "MLE", "Memory Limit Exceeded"),
    "floods": Submitted("for _ in range(2000): print('x' * 65_536)", "python", "OLE", "Output Limit Exceeded"),
    "exits_with_a_code": Submitted("raise SystemExit(3)", "python", "RE", "Runtime Error"),
    "crashes": Submitted("int main() { int *p = 0; *p = 1; }", "cpp", "RE", "Runtime Error"),
}  # fmt: skip

# What must not be printed, because it can't be read or reached: where it can, the submission is accepted.
_TRIES: Final = """
import glob, os, socket, sys, zipfile
a, b = map(int, input().split())
def tried(what):
    try:
        what()
    except Exception:
        return
    print(a + b)
    sys.exit()
"""

_LEAVES: Final = """
import os, time
for _ in range(5):
    if os.fork() == 0:
        os.setsid()
        time.sleep(30)
"""
_MANY: Final = """
import os, time
for _ in range(8):
    if os.fork() == 0:
        x = bytearray(b'x') * (40 << 20)
        time.sleep(30)
time.sleep(30)
"""
_KILLS: Final = """
import os
for pid in [-1, *range(1, 200)]:
    try:
        os.kill(pid, 9)
    except OSError:
        pass
raise SystemExit(1)
"""
_WRITES: Final = """
for folder in ('/box', '/usr', '/etc', '/', '/root', '/dev', '.'):
    tried(lambda: open(folder + '/written', 'w'))
"""
_LOOKS: Final = """
tried(lambda: zipfile.ZipFile('TESTS').read('1.out'))
for found in glob.glob('/proc/[0-9]*/fd/*') + glob.glob('/proc/[0-9]*/cwd/files/tests.zip'):
    tried(lambda: zipfile.ZipFile(found).read('1.out'))
"""

HOSTILE: Final = {
    "fork_bomb": Submitted(_HEAD + "int main() { for (;;) fork(); }", "cpp", "TLE", "Time Limit Exceeded", 300),
    "leaves_processes": Submitted(SUM_PY + _LEAVES, "python", "OK", "Accepted"),
    "floods_stderr": Submitted(
        "import sys\nfor _ in range(400): sys.stderr.write('x' * 65_536)\n" + SUM_PY, "python", "OK", "Accepted"
    ),
    "memory_in_many": Submitted(_MANY, "python", "MLE", "Memory Limit Exceeded"),
    "kills_everybody": Submitted(_KILLS, "python", "RE", "Runtime Error"),
    "reads_others_files": Submitted(
        _TRIES + "tried(lambda: open('/etc/shadow').read(1))", "python", "OK", "Wrong Answer"
    ),
    "writes_outside": Submitted(_TRIES + _WRITES, "python", "OK", "Wrong Answer"),
    "looks_for_the_test_data": Submitted(_TRIES + _LOOKS, "python", "OK", "Wrong Answer"),
    "calls_home": Submitted(
        _TRIES + "tried(lambda: socket.create_connection(('127.0.0.1', PORT), timeout=2))",
        "python", "OK", "Wrong Answer",
    ),
    "calls_the_world": Submitted(
        _TRIES + "tried(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('192.0.2.1', 53)))",
        "python", "OK", "Wrong Answer",
    ),
    "includes_what_is_not_its_own": Submitted('#include "/etc/shadow"\nint main() {}', "cpp", "OK", "Compile Error"),
}  # fmt: skip
