"""Conditions for the tests of the SQL verbs: a schedule of kind condition, and samples of the database's clock."""

from typing import Any
from uuid import UUID, uuid4

import pytest

from accsd.db.conditions import ask_database
from accsd.errors import InvalidValue
from tests.support.cluster import Connection
from tests.support.factory import Row
from tests.support.library import settings_of
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


# what a statement could try to get out of its role, and what it is told; a secret that it got hold of would be a 7
ESCAPES = {
    "RESET ROLE": "cannot open",
    "SET ROLE none": "cannot open",
    "SET SESSION AUTHORIZATION DEFAULT": "cannot open",
    "DO 'BEGIN RESET ROLE; END'": "cannot open",
    "COMMIT": "cannot open",
    "SELECT 1; RESET ROLE; SELECT n FROM secrets": "cannot open",
    "SELECT set_config('role', 'none', true)": "within security-definer function",
    "SELECT set_config('session_authorization', session_user, true)": "within security-definer function",
    "SELECT set_config('is_superuser', 'on', true)": "cannot be changed",
    "SELECT n FROM secrets, (SELECT set_config('role', 'none', true) OFFSET 0) r": "permission denied",
    """WITH r AS MATERIALIZED (SELECT set_config('role', 'none', true)) SELECT
       query_to_xml('SELECT n FROM secrets', true, false, '')::text FROM r""": "within security-definer function",
    "SELECT (xpath('//n/text()', query_to_xml('SELECT n FROM secrets', true, false, '')))[1]::text::int": "permission",
    "SELECT query_to_xml('RESET ROLE', true, false, '')::text": ".",
    "SELECT accs.probe('SELECT n FROM secrets')": "permission denied",
    "SELECT n FROM pg_temp.secrets": "does not exist",
}


async def refuse_escapes(url: str) -> None:
    for statement, said in ESCAPES.items():
        with pytest.raises(InvalidValue, match=said):
            await ask_database(settings_of(url), statement)
