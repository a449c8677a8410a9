"""Conditions for the tests of the SQL verbs: a schedule of kind condition, and samples of the database's clock."""

from typing import Any
from uuid import UUID, uuid4

from tests.support.cluster import Connection
from tests.support.factory import Row
from tests.support.schedules import schedule

OUTSIDE = "load"


async def condition(conn: Connection, how: dict[str, Any], *, expr: str = OUTSIDE, **columns: Any) -> UUID:
    """A schedule of kind condition, planned. Its runs don't block each other unless the test says so."""
    columns = {"overlap": "allow", **columns}
    which = await schedule(conn, plan=False, schedule_kind="condition", schedule_expr=expr, condition=how, **columns)
    await planned(conn)
    return which


async def planned(conn: Connection) -> None:
    """What the planner does for conditions that are sound."""
    rows = await conn.fetch("SELECT * FROM accs.schedules_to_plan(1000)")
    plans = [{"id": str(row["id"]), "revision": row["revision"], "after": row["settled_until"]} for row in rows]
    await conn.fetch("SELECT * FROM accs.plan_schedules($1)", plans)


async def report(conn: Connection, value: object, *, name: str = OUTSIDE, at: object = None, key: str | None = None):
    """One sample from outside for a condition that one schedule has."""
    (row,) = await conn.fetch("SELECT * FROM accs.report_sample($1, $2, $3, $4, 'test')", name, value, at, key)
    return row


async def standing(conn: Connection, which: UUID) -> Row:
    row = await conn.fetchrow("SELECT * FROM accs.conditions WHERE schedule_id = $1", which)
    assert row is not None
    return row


async def samples(conn: Connection, which: UUID) -> list[Row]:
    return await conn.fetch("SELECT * FROM accs.condition_samples WHERE schedule_id = $1 ORDER BY id", which)


def fresh() -> str:
    return f"c-{uuid4().hex[:12]}"
