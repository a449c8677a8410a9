"""Tasks that mean no good, or have bad luck, as programs for `python3 -c`; and what is left of them on this machine."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

from accsd import proc
from accsd.runners.process import processes
from tests.support import daemon
from tests.support.checker import check
from tests.support.cluster import Connection
from tests.support.daemon import Daemon
from tests.support.eventually import eventually
from tests.support.factory import step, submit
from tests.support.tasks import PREAMBLE, WAIT, notes, toml_service

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
