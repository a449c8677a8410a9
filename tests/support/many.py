"""Many jobs at once, past the verbs; tables that count as large; the plans of what a reader asks."""

from collections.abc import Sequence
from typing import Any

from accsd.db import Database
from tests.support.cluster import Connection
from tests.support.factory import step, workflow


async def finished(
    conn: Connection, count: int, *, name: str = "old", every: str = "1 s", status: str = "done"
) -> None:
    """Jobs that ended long ago, with the ids that they would have had, past the verbs: the oldest first."""
    await workflow(conn, step("a"), name=name)
    await conn.execute(
        f"""SET session_replication_role = replica;
            INSERT INTO jobs (id, workflow_id, status, order_seq, task_count, task_progress, progress, started_at,
                              finished_at, created_at)
            SELECT encode(int8send((accs.unix_ms(at) << 16) | 28672) || int8send((-9223372036854775808) | i::bigint),
                          'hex')::uuid,
                   w.id, '{status}', nextval('accs.order_seq'), 1, 1, 1, at, at + interval '1 min', at
              FROM workflows w, generate_series(1, {count}) i,
                   LATERAL (SELECT accs.clock() - ({count} - i) * interval '{every}') AS t (at)
             WHERE w.name = '{name}' ORDER BY i;
            SET session_replication_role = origin"""
    )


async def as_if_large(conn: Connection) -> None:
    """Lets the planner take the tables for large ones: it multiplies how full their pages are by the pages it finds."""
    await conn.execute(
        """ANALYZE; SET allow_system_table_mods = on;
           UPDATE pg_class SET reltuples = 2000000
            WHERE oid IN ('jobs'::regclass, 'job_tasks'::regclass, 'dead_letters'::regclass)"""
    )


class Explained(Database):
    """Keeps the plan of each statement that is sent through it."""

    plans: list[str]

    async def fetch(
        self, sql: str, *args: object, repeatable: bool = False, within: float | None = None
    ) -> Sequence[Any]:
        async with self.acquire() as connection:
            planned = await connection.fetch(f"EXPLAIN (COSTS OFF) {sql}", *args)
            self.plans = [*getattr(self, "plans", []), *(row[0] for row in planned)]
            return await connection.fetch(sql, *args)
