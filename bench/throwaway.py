"""A PostgreSQL of the benchmark's own, with the settings of bench/peers/pg.py, and what it spends."""

import tempfile
from collections.abc import Generator, Iterable
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
def postgres() -> Generator[embedded.Server]:
    folder = Path(tempfile.mkdtemp(prefix="accsd-bench-"))
    try:
        with embedded.running(folder, settings=_SETTINGS) as server:
            yield server
    finally:
        embedded.destroy(folder)


async def installed(url: str) -> asyncpg.Connection:
    """A connection to a database that has the schema, a workflow of one step and a node."""
    connection = await asyncpg.connect(url)
    await connection.execute((ROOT / "schema.sql").read_text())
    await connection.execute(
        "INSERT INTO workflows (name, steps) VALUES ('noop', $1)", '[{"key": "a", "service": "noop"}]'
    )
    await connection.execute("SELECT accs.register_node('w')")
    return connection


def cpu_of(pids: Iterable[int]) -> float:
    """Microseconds on a processor, from the scheduler: what else the machine does is not in it."""
    return sum(int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) for pid in pids) / 1000
