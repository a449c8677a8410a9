"""A PostgreSQL of the benchmark's own, with the settings of bench/peers/pg.py, processes beside it, what they spend."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from pathlib import Path

import asyncpg

from accsd import embedded

ROOT = Path(__file__).parents[1]
_SETTINGS = {
    "shared_buffers": "1GB",
    "max_connections": "1200",
    "max_wal_size": "8GB",
    "fsync": "on",
    "synchronous_commit": "on",
}


@contextmanager
def postgres(**settings: str) -> Generator[embedded.Server]:
    folder = Path(tempfile.mkdtemp(prefix="accsd-bench-"))
    try:
        with embedded.running(folder, settings={**_SETTINGS, **settings}) as server:
            yield server
    finally:
        embedded.destroy(folder)


@contextmanager
def process(
    folder: Path, url: str, argv: Sequence[str], *, node: str, **environ: str
) -> Generator[subprocess.Popen[bytes]]:
    """`python …` with accsd's environment, for as long as the block lasts: a daemon is ["-m", "accsd", "--role", …]."""
    ours = {"ACC_DB_URL": url, "ACC_NODE_NAME": node, "ACC_STATE_DIR": str(folder / "state"), "PYTHONPATH": str(ROOT)}
    log = folder / f"{node}.log"
    with log.open("ab") as output:
        child = subprocess.Popen(
            [sys.executable, *argv], env={**os.environ, **ours, **environ}, stdout=output, stderr=output, cwd=folder
        )
    try:
        yield child
    except BaseException:
        print(log.read_text()[-3000:], file=sys.stderr)
        raise
    finally:
        child.terminate()
        child.wait(60)


async def installed(url: str, schema: str | None = None) -> asyncpg.Connection:
    """A connection to a database that has the schema (this version's), a workflow of one step and a node."""
    connection = await asyncpg.connect(url)
    await connection.execute(schema or (ROOT / "schema.sql").read_text())
    await connection.execute(
        "INSERT INTO workflows (name, steps) VALUES ('noop', $1)", '[{"key": "a", "service": "noop"}]'
    )
    await connection.execute("SELECT accs.register_node('w')")
    return connection


def cpu_of(pids: Iterable[int]) -> float:
    """Microseconds on a processor of all living threads, from the scheduler: what else the machine does is left out."""
    threads = [path for pid in pids for path in Path(f"/proc/{pid}/task").glob("*/schedstat")]
    return sum(int(path.read_text().split()[0]) for path in threads) / 1000
