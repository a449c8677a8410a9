"""Months that pass: events of jobs long ago, and a store that is a folder."""

from pathlib import Path
from uuid import UUID

from accsd.storage.file import FileStore
from tests.support.cluster import Connection
from tests.support.factory import claim, clock, fail, finish, node, started, step, submit


def store_in(folder: Path) -> FileStore:
    return FileStore(folder / "objects", "accs")


async def partitions(conn: Connection, table: str = "task_events") -> list[str]:
    rows = await conn.fetch(
        "SELECT inhrelid::regclass::text AS name FROM pg_inherits WHERE inhparent = $1::text::regclass ORDER BY 1",
        table,
    )
    return [row["name"] for row in rows]


async def month(conn: Connection, table: str = "task_events") -> str:
    """The partition of the present."""
    now = await clock(conn)
    return f"{table}_{now.year}_{now.month:02}"


async def next_month(conn: Connection, count: int = 1) -> None:
    """To the 15th of a later month, with the partitions made as the cleanup makes them."""
    for _ in range(count):
        await conn.execute(
            """UPDATE accs.test_clock SET shift = shift +
                 (date_trunc('month', accs.clock() AT TIME ZONE 'UTC') + interval '1 month 14 days') AT TIME ZONE 'UTC'
                 - accs.clock()"""
        )
        await conn.execute("SELECT accs.make_months(name) FROM accs.monthly")


async def eventful_job(conn: Connection) -> UUID:
    """Two attempts, a failure, words that are hard to keep, an end."""
    await node(conn)
    job = await submit(conn, step("a", backoff=[0]), step("b", after="a"))
    (first,) = await started(conn)
    await conn.fetch(
        "SELECT * FROM accs.append_task_events('owner-1', $1, $2, $3, $4, $5, $6::text[]::jsonb[])",
        [first["task_id"]] * 3,
        [first["attempt_id"]] * 3,
        [None, "warn", "debug"],
        [None, None, None],
        ['two\nlines, "quoted", \u2028 ü', 'a trap: ","data":{"job_id":"x"}', None],
        ['{"n": 12345678901234567890.5, "b": [1, null], "a": "\\n"}', "1e400", None],
    )
    await fail(conn, first)
    (again,) = await started(conn)
    await finish(conn, again)
    (last,) = await claim(conn)
    await fail(conn, last, permanent=True)
    return job
