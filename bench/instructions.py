"""How many instructions does one backend of PostgreSQL carry out for a job, and how much WAL does it write? Two
versions side by side, to a thousandth, on a machine as busy as it likes: callgrind counts, it does not time.

    python -m bench.instructions 40f29e3 HEAD     what the revisions of schema.sql cost
    python -m bench.instructions HEAD .           what is not committed yet, against what is

A backend alone (`postgres --single`) runs a script under valgrind, once with one batch and once with three; half of the
difference is a batch without start, plans and caches. What is left out: waiting, locks that others hold, the kernel.
"""

import argparse
import asyncio
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from accsd import embedded
from accsd.embedded import binaries
from bench.throwaway import ROOT, installed

_BATCH: Final = 500
# Batches that the tables have seen before: in the first MiB of a table its BRIN is looked at with every row.
_USED: Final = 10
_CHAIN: Final = """[{"key": "a", "service": "noop"}, {"key": "b", "service": "noop", "depends_on": ["a"]},
    {"key": "c", "service": "noop", "depends_on": ["b"]}, {"key": "d", "service": "noop", "depends_on": ["c"]}]"""
_OF_WORKFLOW: Final = f"SELECT id FROM workflows, generate_series(1, {_BATCH}) WHERE name = '{{workflow}}'"
_INSERT: Final = (
    f"INSERT INTO jobs (workflow_id) {_OF_WORKFLOW}",
    "SELECT count(*) FROM accs.instantiate_due_jobs(1000)",
)
_SUBMIT: Final = (f"SELECT count(*) FROM accs.submit_jobs(ARRAY({_OF_WORKFLOW}))",)
_WORK: Final = (
    f"CREATE TEMP TABLE taken AS SELECT * FROM accs.claim_tasks('noop', 'w', 'w', {_BATCH}, interval '1 hour', true)",
    "SELECT count(*) FROM accs.finish_tasks("
    "ARRAY(SELECT task_id FROM taken), ARRAY(SELECT attempt_id FROM taken), 'w')",
    "DROP TABLE taken",
)
# As a worker calls: a claim and the ends of what it took. One statement here: a backend alone keeps no answer.
_CALLS: Final = """PREPARE pair AS WITH taken AS MATERIALIZED (
    SELECT * FROM accs.claim_tasks('noop', 'w', 'w', {n}, interval '1 hour', true))
    SELECT count(*) FROM accs.finish_tasks(
    ARRAY(SELECT task_id FROM taken), ARRAY(SELECT attempt_id FROM taken), 'w')"""


class Measured(NamedTuple):
    workflow: str
    before: tuple[str, ...]
    batch: tuple[str, ...]
    jobs: int = _BATCH  # of one batch


_MEASURED: Final = {
    "plain INSERT and its tasks": Measured("noop", (), _INSERT),
    "submit_jobs": Measured("noop", (), _SUBMIT),
    "claim, start and finish": Measured("noop", _SUBMIT * 3, _WORK),
    "the same, 100 at once": Measured("noop", (*_SUBMIT * 3, _CALLS.format(n=100)), ("EXECUTE pair",) * 5),
    "the same, one by one": Measured("noop", (*_SUBMIT, _CALLS.format(n=1)), ("EXECUTE pair",) * 50, 50),
    "four steps in a row": Measured("chain", _SUBMIT * 3, _WORK * 4),
}
_ALONE: Final = ("--single", "-j", "-c", "shared_buffers=256MB", "-c", "max_stack_depth=1MB", "-c", "jit=off")


def schema_of(revision: str) -> str:
    if revision == ".":
        return (ROOT / "schema.sql").read_text()
    return subprocess.run(
        ["git", "-C", ROOT, "show", f"{revision}:schema.sql"], check=True, capture_output=True, text=True
    ).stdout


@contextmanager
def data_with(schema: str) -> Generator[tuple[Path, float]]:
    """The files of a stopped server that has the schema, two workflows and some history; and the bytes of WAL that a
    job of one step wrote there."""
    folder = Path(tempfile.mkdtemp(prefix="accsd-bench-"))
    try:
        with embedded.running(folder, settings={"full_page_writes": "off", "autovacuum": "off"}) as server:
            wal = asyncio.run(_fill(server.url, schema))
        embedded.wait_until_stopped(folder)
        yield (folder / "pgdata").resolve(), wal
    finally:
        embedded.destroy(folder)


async def _fill(url: str, schema: str) -> float:
    connection = await installed(url, schema)
    await connection.execute("INSERT INTO workflows (name, steps) VALUES ('chain', $1)", _CHAIN)
    began = None
    for _ in range(2):
        began = await connection.fetchval("SELECT pg_current_wal_insert_lsn()")
        for statement in (*_SUBMIT, *_WORK) * _USED:
            await connection.execute(statement.format(workflow="noop"))
    wal = await connection.fetchval("SELECT (pg_current_wal_insert_lsn() - $1::pg_lsn)::float8", began)
    await connection.execute("ANALYZE")
    await connection.close()
    return wal / (_USED * _BATCH)


def instructions(data: Path, statements: tuple[str, ...]) -> int:
    """What a backend alone needs for these statements, on a copy of the data."""
    account = binaries.server_account(data)
    postgres = binaries.executable_by(account, binaries.wheel_binaries()) / "postgres"
    copy = data.with_name("copy")
    subprocess.run(["cp", "-a", data, copy], check=True)
    try:
        done = subprocess.run(
            [
                "valgrind",
                "--tool=callgrind",
                "--callgrind-out-file=/dev/null",
                postgres,
                *_ALONE,
                "-D",
                copy,
                "postgres",
            ],
            input="".join(f"{statement};\n\n" for statement in statements),
            capture_output=True,
            text=True,
            check=False,
            env={**binaries.ENVIRONMENT, "HOME": os.devnull},
            user=account.uid if account else None,
            group=account.gid if account else None,
        )
    finally:
        shutil.rmtree(copy)
    counted = re.search(r"Collected : (\d+)", done.stderr)
    if counted is None or "ERROR:" in done.stderr:
        raise SystemExit(f"the backend did not carry the script out:\n{done.stderr}")
    return int(counted[1])


def of_a_job(data: Path, what: Measured) -> float:
    once, thrice = (
        instructions(data, tuple(text.format(workflow=what.workflow) for text in (*what.before, *what.batch * times)))
        for times in (1, 3)
    )
    return (thrice - once) / 2 / what.jobs


def main(revisions: list[str]) -> None:
    counts: dict[str, list[float]] = {what: [] for what in (*_MEASURED, "bytes of WAL, submitted and done")}
    for revision in revisions:
        with data_with(schema_of(revision)) as (data, wal):
            counts["bytes of WAL, submitted and done"].append(wal)
            for what, measured in _MEASURED.items():
                counts[what].append(of_a_job(data, measured))
    print("| instructions a job |", " | ".join(revisions), "|")
    for what, (first, *others) in counts.items():
        print(f"| {what} | {first:,.0f} |", " | ".join(f"{other:,.0f} ({other / first:.3f})" for other in others), "|")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("revisions", nargs="+")
    main(parser.parse_args().revisions)
