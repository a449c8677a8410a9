"""What a claim with its finish costs the server, a task: processor and WAL, of two versions side by side.

    python -m bench.verbs 3137a7d HEAD              in batches of 1,000, of 100 and one by one
    python -m bench.verbs HEAD . --batches 1000     what is not committed yet, against what is

Both versions are in one server, each with a backend of its own, and take turns batch by batch. The processor's time is
the scheduler's own account of the backend, so other work on the machine disturbs it little; the ratio is the median of
the ratios of neighbours.
"""

import argparse
import asyncio
import statistics
import tempfile
from pathlib import Path
from typing import Final, NamedTuple

import asyncpg

from accsd import embedded
from bench.instructions import schema_of
from bench.throwaway import installed

_SETTINGS: Final = {"shared_buffers": "512MB", "max_wal_size": "8GB", "autovacuum": "off"}
_SUBMIT: Final = """SELECT count(*) FROM accs.submit_jobs(ARRAY(
    SELECT id FROM workflows, generate_series(1, $1) WHERE name = 'noop'))"""
_CLAIM: Final = "SELECT task_id, attempt_id FROM accs.claim_tasks('noop', 'w', 'w', $1, interval '1 hour', true)"
_FINISH: Final = "SELECT * FROM accs.finish_tasks($1, $2, 'w') WHERE answer <> 'accepted'"
_WARM: Final = 3  # rounds that are not counted


class Spent(NamedTuple):
    """For one task."""

    microseconds: float
    wal: float


class Version:
    def __init__(self, connection: asyncpg.Connection, pid: int) -> None:
        self._connection = connection
        self._pid = pid

    @classmethod
    async def of(cls, url: str, revision: str) -> "Version":
        connection = await installed(url, schema_of(revision))
        await connection.execute("SET synchronous_commit = off")
        return cls(connection, await connection.fetchval("SELECT pg_backend_pid()"))

    async def work(self, batch: int) -> Spent:
        times = max(1, 100 // batch)
        await self._connection.execute(_SUBMIT, batch * times)
        before = self._busy(), await self._written()
        for _ in range(times):
            taken = await self._connection.fetch(_CLAIM, batch)
            await self._connection.fetch(_FINISH, *([row[n] for row in taken] for n in (0, 1)))
        after = self._busy(), await self._written()
        return Spent(*((b - a) / (batch * times) for a, b in zip(before, after, strict=True)))

    def _busy(self) -> float:
        """The microseconds that the backend has had a processor."""
        return int(Path(f"/proc/{self._pid}/schedstat").read_text().split()[0]) / 1000

    async def _written(self) -> float:
        return await self._connection.fetchval("SELECT (pg_current_wal_insert_lsn() - '0/0')::float8")


async def measure(url: str, revisions: list[str], batches: list[int], rounds: int) -> None:
    admin = await asyncpg.connect(url)
    versions: list[Version] = []
    for n, revision in enumerate(revisions):
        await admin.execute(f"CREATE DATABASE version{n}")
        versions.append(await Version.of(url.replace("/postgres", f"/version{n}"), revision))
    print("| batch |", " | ".join(f"{revision}, µs and bytes a task" for revision in revisions), "| ratio |")
    for batch in batches:
        spent: list[list[Spent]] = [[], []]
        for turn in range(_WARM + rounds):
            for n in (0, 1) if turn % 2 else (1, 0):
                found = await versions[n].work(batch)
                if turn >= _WARM:
                    spent[n].append(found)
        told = (
            f"{statistics.quantiles([each.microseconds for each in one], n=4)[0]:.1f}, "
            f"{statistics.median(each.wal for each in one):,.0f}"
            for one in spent
        )
        ratio = statistics.median(b.microseconds / a.microseconds for a, b in zip(*spent, strict=True))
        print(f"| {batch:,} |", " | ".join(told), f"| {ratio:.3f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("revisions", nargs=2)
    parser.add_argument("--batches", type=int, nargs="+", default=[1000, 100, 1])
    parser.add_argument("--rounds", type=int, default=40)
    asked = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="accsd-bench-"))
    try:
        with embedded.running(folder, settings=_SETTINGS) as server:
            asyncio.run(measure(server.url, asked.revisions, asked.batches, asked.rounds))
        embedded.wait_until_stopped(folder)
    finally:
        embedded.destroy(folder)


if __name__ == "__main__":
    main()
