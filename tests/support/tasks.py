"""Programs that tasks of the tests run, and a count of their executions that no database keeps.

- PREAMBLE and what follows: texts for `python3 -c`. A program appends a line to the file that its params name under
  "note", with one write, so that two that run at once don't mix.
- `counted_service`: an execution appends `begin NODE SERVICE TASK ATTEMPT` and, `work` seconds later, the same with
  `end`. The order of the lines is the order of what happened on all nodes of a test.
- DEAF and what follows: programs that misbehave, and what is left of them on this machine.
"""

import json
import sys
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

from accsd import proc
from accsd.runners.process import processes
from tests.support import daemon
from tests.support.checker import check
from tests.support.cluster import Connection
from tests.support.daemon import Daemon
from tests.support.eventually import eventually
from tests.support.factory import step, submit

PREAMBLE = """
import json, os, signal, subprocess, sys, time
task = json.loads(sys.stdin.readline())
params = task["params"] | task["options"]
def say(**message): print(json.dumps(message), flush=True)
def note(*words):
    with open(params["note"], "a") as file:
        file.write(" ".join([task["task_key"], str(task["attempt_id"]), *map(str, words)]) + "\\n")
def until(name, seconds=60):
    deadline = time.monotonic() + seconds
    while not os.path.exists(params[name]):
        if time.monotonic() > deadline: sys.exit(f"{name} did not appear")
        time.sleep(0.02)
"""

NOTE = PREAMBLE + "note('ran')\nsay(type='result', results={'key': task['task_key']})\n"
# Notes its beginning, waits for the file `go`, prints lines meanwhile if `lines` says how many.
WAIT = (
    PREAMBLE
    + """
note('began', os.getpid())
for i in range(params.get('lines', 0)): print(f'line {i}', flush=True)
until('go')
for i in range(params.get('lines', 0), 2 * params.get('lines', 0)): print(f'line {i}', flush=True)
note('ended')
say(type='result', results={'pid': os.getpid()})
"""
)


# Does a little of everything: a line, progress, a file, a result.
EVERYTHING = (
    PREAMBLE
    + """
note('ran')
print('a line', flush=True)
say(type='progress', progress=0.5)
open('out.txt', 'w').write(task['task_key'])
say(type='artifact', path='out.txt')
say(type='result', results={'attempt': task['attempt_id']})
"""
)


def command(program: str) -> list[str]:
    return [sys.executable, "-c", program]


def toml_service(name: str, program: str, **settings: Any) -> str:
    """A [services.NAME] table with runner process."""
    return _table(name, command(program), settings)


def _table(name: str, argv: list[str], settings: dict[str, Any]) -> str:
    lines = [f"[services.{name}]", 'runner = "process"', f"command = {json.dumps(argv)}"]
    return "\n".join(lines + [f"{key} = {json.dumps(value)}" for key, value in settings.items()]) + "\n"


def waiting(folder: Path) -> dict[str, Any]:
    """Options of a task that runs WAIT: it notes its beginning and waits until somebody makes the file `go`."""
    return {"note": str(folder / "notes"), "go": str(folder / "go")}


async def process_of(note: Path) -> Path:
    """The folder in /proc of the task that runs WAIT, once it has begun."""
    await eventually(lambda: notes(note), within=30)
    return Path(f"/proc/{notes(note)[0][3]}")


def attempt_folders(folder: Path, node: str = "n1") -> list[Path]:
    """What a daemon that was started in `folder` keeps of its attempts."""
    return list((folder / "state" / node / "attempts").iterdir())


def notes(path: Path) -> list[list[str]]:
    """What the tasks noted, in the order of their writing."""
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


_SCRIPT = """
note() { printf '%s %s %s %s %s\\n' "$1" "$node" "$service" "$ACC_JOB_TASK_ID" "$ACC_ATTEMPT_ID" >>"$notes"; }
node=$1 service=$2 notes=$3
note begin
sleep "$4"
note end
"""


class Noted(NamedTuple):
    what: str
    node: str
    service: str
    task: str
    attempt: int


def counted_service(name: str, notes: Path, *, node: str, work: float = 0, **settings: Any) -> str:
    """A [services.NAME] table of a node's configuration."""
    return _table(name, ["/bin/sh", "-c", _SCRIPT, "counted", node, name, str(notes), str(work)], settings)


def noted(notes: Path, what: str | None = None) -> list[Noted]:
    """In the order of their writing."""
    lines = notes.read_text().splitlines() if notes.exists() else []
    all_of_them = [Noted(*words[:4], attempt=int(words[4])) for words in map(str.split, lines)]
    return [line for line in all_of_them if what in (None, line.what)]


def executions(notes: Path) -> Counter[tuple[str, int]]:
    """How often each attempt of each task was begun. More than once is a bug, whoever did it."""
    return Counter((line.task, line.attempt) for line in noted(notes, "begin"))


def most_at_once(notes: Path) -> dict[tuple[str, str], int]:
    """For each node and service, how many ran at the same time at most."""
    running, most = Counter[tuple[str, str]](), dict[tuple[str, str], int]()
    for line in noted(notes):
        where = (line.node, line.service)
        running[where] += 1 if line.what == "begin" else -1
        most[where] = max(most.get(where, 0), running[where])
    return most


SHORT_LEASE = {"ACC_HEARTBEAT_TTL_SEC": "4"}
MOST_MEMORY = 120 * 1024 * 1024

# Children in sessions of their own, deaf to SIGTERM, one of them an orphan, and all hold stdout.
DEAF = (
    PREAMBLE
    + """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork() != 0: os._exit(0)
subprocess.Popen(["sleep", "78"], start_new_session=True, restore_signals=False)
time.sleep(77)
"""
)
GREEDY = PREAMBLE + "hoard = b'x' * 300_000_000\ntime.sleep(77)\n"
BOMB = (
    PREAMBLE
    + """
for _ in range(200):
    if os.fork() == 0: time.sleep(77)
time.sleep(77)
"""
)
# Ends well; a grandchild keeps the stdout that it closed itself.
CLOSER = (
    PREAMBLE
    + """
say(type='result', results={'closed': True})
subprocess.Popen(["sleep", "79"], start_new_session=True)
os.close(1)
os._exit(0)
"""
)
LARGE = PREAMBLE + "say(type='result', results={'text': 'x' * 300 * 1024})\n"
NUMBERS = PREAMBLE + "print(json.dumps({'type': 'result', 'results': {'n': [1] * 100_000}}, separators=(',', ':')))\n"
FORGED_ATTEMPT = PREAMBLE + "say(type='result', attempt_id=task['attempt_id'] + 1, results={})\ntime.sleep(77)\n"
FORGED_JOB = PREAMBLE + "say(type='result', job_id='0' * 32, results={})\n"

# Nothing is left that would tell how they ended.
VANDAL = PREAMBLE + "import shutil\nshutil.rmtree(os.path.dirname(os.environ['ACC_TASK_FILE']))\n"
PATRICIDE = PREAMBLE + "os.kill(os.getppid(), signal.SIGKILL)\ntime.sleep(77)\n"


def exits(code: int) -> str:
    return f"raise SystemExit({code})"


def floods(unit: bytes, total: int) -> str:
    """So many bytes to stdout, as fast as it can."""
    many = f"{unit!r} * {min(total, 1024 * 1024) // len(unit)}"
    return f"import os\nmany = {many}\nfor _ in range({total} // len(many)): os.write(1, many)\n"


def peak_memory(pid: int) -> int:
    """In bytes, since its start."""
    (line,) = [each for each in Path(f"/proc/{pid}/status").read_text().splitlines() if each.startswith("VmHWM:")]
    return int(line.split()[1]) * 1024


async def processes_left(conn: Connection) -> list[int]:
    """Every process that bears the marker of a task of this database."""
    ours = {str(row["id"]) for row in await conn.fetch("SELECT id FROM job_tasks")}
    return [pid for pid in proc.everyone() if processes.environment(pid).get("ACC_JOB_TASK_ID") in ours]


async def outcome(conn: Connection, job: UUID, *, within: float = 60) -> dict[str, Any]:
    """The row of a job's first task once it has ended."""

    async def ended() -> dict[str, Any] | None:
        row = await conn.fetchrow(
            "SELECT * FROM job_tasks WHERE job_id = $1 AND status IN ('done', 'error', 'cancelled')"
            " ORDER BY step_no LIMIT 1",
            job,
        )
        return dict(row) if row else None

    found = await eventually(ended, within=within, interval=0.05, what=f"the end of {job}")
    assert found is not None
    return found


@asynccontextmanager
async def beside_a_good_one(
    tmp_path: Path, db_url: str, conn: Connection, config: str, environ: dict[str, str] | None = None
) -> AsyncGenerator[Daemon]:
    """A daemon with a well-behaved task on it, which must not lose its lease whatever happens in the block; after it
    the daemon has stayed small, and nothing is left."""
    note, go = tmp_path / "neighbour", tmp_path / "go"
    config += toml_service("neighbour", WAIT)
    with daemon.running(tmp_path, db_url, config=config, environ={**SHORT_LEASE, **(environ or {})}) as accsd:
        good = await submit(conn, step("good", "neighbour"), options={"note": str(note), "go": str(go)})
        await eventually(lambda: notes(note), within=30)
        yield accsd
        go.touch()
        row = await outcome(conn, good)
        assert (row["status"], row["attempt_id"]) == ("done", 1), accsd.tail()
        assert accsd.log("lease_gone") == [], accsd.tail()
        assert peak_memory(accsd.pid) < MOST_MEMORY, f"{peak_memory(accsd.pid) / 2**20:.0f} MiB"
        attempts = tmp_path / "state" / "n1" / "attempts"
        await eventually(lambda: not list(attempts.iterdir()), within=20, what="removal of the folders")
        assert await processes_left(conn) == []
        assert accsd.stop() == 0
    await check(conn)
