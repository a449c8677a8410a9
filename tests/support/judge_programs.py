"""Programs for a judge: one of each verdict, and hostile ones; small ones, that are ended early even if a limit fails.

Each is (code, language, wanted verdict of the sandbox, wanted status). The problem is to add two numbers.
"""

from typing import Final, NamedTuple


class Submitted(NamedTuple):
    code: str
    language: str
    verdict: str
    status: str


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
    "computes_for_ever": Submitted("int main() { for (;;); }", "cpp", "TLE", "Time Limit Exceeded"),
    "sleeps": Submitted("import time\ntime.sleep(60)", "python", "TLE", "Time Limit Exceeded"),
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

HOSTILE: Final = {
    "fork_bomb": Submitted(_HEAD + "int main() { for (;;) fork(); }", "cpp", "TLE", "Time Limit Exceeded"),
    "leaves_processes": Submitted(
        SUM_PY + "\nimport os, time\nfor _ in range(5):\n    if os.fork() == 0:\n        os.setsid()\n        time.sleep(60)",
        "python", "OK", "Accepted",
    ),
    "floods_stderr": Submitted(
        "import sys\nfor _ in range(400): sys.stderr.write('x' * 65_536)\n" + SUM_PY, "python", "OK", "Accepted"
    ),
    "memory_in_many": Submitted(
        "import os, time\nfor _ in range(8):\n    if os.fork() == 0:\n        x = bytearray(b'x') * (40 << 20)\n"
        "        time.sleep(60)\ntime.sleep(60)",
        "python", "MLE", "Memory Limit Exceeded",
    ),
    "kills_everybody": Submitted(
        "import os\nfor pid in [-1, *range(1, 200)]:\n    try: os.kill(pid, 9)\n    except OSError: pass\nraise SystemExit(1)",
        "python", "RE", "Runtime Error",
    ),
    "reads_the_shadow": Submitted(_TRIES + "tried(lambda: open('/etc/shadow').read(1))", "python", "OK", "Wrong Answer"),
    "writes_outside": Submitted(
        _TRIES + "for folder in ('/box', '/usr', '/etc', '/', '/root', '/dev', '.'):\n"
        "    tried(lambda: open(folder + '/written', 'w'))",
        "python", "OK", "Wrong Answer",
    ),
    "looks_for_the_test_data": Submitted(
        _TRIES + "tried(lambda: zipfile.ZipFile('TESTS').read('1.out'))\n"
        "for found in glob.glob('/proc/[0-9]*/fd/*') + glob.glob('/proc/[0-9]*/cwd/files/tests.zip'):\n"
        "    tried(lambda: zipfile.ZipFile(found).read('1.out'))",
        "python", "OK", "Wrong Answer",
    ),
    "calls_home": Submitted(
        _TRIES + "tried(lambda: socket.create_connection(('127.0.0.1', PORT), timeout=2))", "python", "OK", "Wrong Answer"
    ),
    "calls_the_world": Submitted(
        _TRIES + "tried(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('192.0.2.1', 53)))",
        "python", "OK", "Wrong Answer",
    ),
    "includes_what_is_not_its_own": Submitted('#include "/etc/shadow"\nint main() {}', "cpp", "OK", "Compile Error"),
}  # fmt: skip
