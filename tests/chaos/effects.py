"""What the tasks really did, counted outside the database: each execution appends lines to its node's file.

    begin | alive | end   TASK ATTEMPT NONCE BOOT REAL NODE SERVICE

BOOT is CLOCK_BOOTTIME and REAL the same moment by the wall clock, which is the database's too. An execution begins when
its process was born, as the kernel says, not when its first statement runs: a process that was stopped in between has
begun in time.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

BEAT = 0.2
# A line that no other process of the machine has in its arguments.
MARK = "# an execution of the chaos test"
_PROGRAM = """
{mark}
import json, os, sys, time
task = json.loads((open(os.environ["ACC_TASK_FILE"]) if "ACC_TASK_FILE" in os.environ else sys.stdin).readline())
given, nonce = task["options"] | task["params"], os.urandom(8).hex()
notes = os.open({notes!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
def now(): return time.clock_gettime(time.CLOCK_BOOTTIME)
def note(what, at):
    words = what, task["job_task_id"], task["attempt_id"], nonce, round(at, 3), round(time.time() - now() + at, 3)
    os.write(notes, (" ".join(map(str, (*words, {node!r}, task["service"]))) + "\\n").encode())
born = int(open("/proc/self/stat").read().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
note("begin", born)
print("at work", flush=True)
over = now() + given.get("work", 0.2)
while (left := over - now()) > 0:
    time.sleep(min(left, {beat}))
    note("alive", now())
if given.get("fate") == "fails": sys.exit("it fails, as it was told")
note("end", now())
print(json.dumps({{"type": "result", "results": {{"nonce": nonce}}}}), flush=True)
"""


def program(node: str, notes: Path) -> str:
    """What every service of a node runs, in a container or not."""
    return _PROGRAM.format(mark=MARK, node=node, notes=str(notes), beat=BEAT)


@dataclass(slots=True)
class Execution:
    task: str
    attempt: int
    nonce: str
    node: str
    service: str
    begin: float  # CLOCK_BOOTTIME
    begin_real: float
    last: float  # the last sign of life
    is_complete: bool = False

    @property
    def key(self) -> tuple[str, int]:
        return self.task, self.attempt

    def __str__(self) -> str:
        end = "ended" if self.is_complete else "last seen"
        return (
            f"{self.task}.{self.attempt} ({self.service}) on {self.node}: begun {self.begin:.3f}, {end} {self.last:.3f}"
        )


def executions(files: Iterable[Path]) -> list[Execution]:
    """Of all nodes, in the order of their beginnings."""
    found: dict[str, Execution] = {}
    for file in files:
        for line in file.read_text().splitlines() if file.exists() else []:
            what, task, attempt, nonce, boot, real, node, service = line.split()
            if what == "begin":
                found[nonce] = Execution(
                    task, int(attempt), nonce, node, service, float(boot), float(real), float(boot)
                )
            found[nonce].last = float(boot)
            found[nonce].is_complete = what == "end"
    return sorted(found.values(), key=lambda each: each.begin)
