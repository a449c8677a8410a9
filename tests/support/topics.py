"""Events for the tests of the SQL verbs: subscriptions, emissions, and an evaluator whose verdicts the test gives."""

from collections.abc import Callable
from typing import Any
from uuid import UUID, uuid4

from tests.support.cluster import Connection
from tests.support.factory import Row, workflow
from tests.support.schedules import replan

Judge = Callable[[Row], dict[str, Any]]


async def subscription(conn: Connection, topic: str, **columns: Any) -> UUID:
    """A schedule of kind event, written by a plain INSERT; every event has its run, unless `overlap` says otherwise."""
    name = columns.pop("name", None) or f"e-{uuid4().hex[:12]}"
    if "workflow" not in columns:
        columns["workflow"] = f"w-{name}"
        await workflow(conn, name=columns["workflow"])
    given = {"name": name, "schedule_kind": "event", "schedule_expr": topic, "overlap": "allow", **columns}
    names, places = ", ".join(given), ", ".join(f"${i + 1}" for i in range(len(given)))
    made: UUID = await conn.fetchval(f"INSERT INTO schedules ({names}) VALUES ({places}) RETURNING id", *given.values())
    await replan(conn)
    return made


async def emit(conn: Connection, topic: str, payload: dict[str, Any] | None = None, **given: Any) -> Row:
    """The answer of emit_event: event_id, answer, matched."""
    named = "".join(f", p_{name} => ${i}" for i, name in enumerate(given, 3))
    row = await conn.fetchrow(f"SELECT * FROM accs.emit_event($1, $2{named})", topic, payload or {}, *given.values())
    assert row is not None
    return row


async def settle_plain(conn: Connection, limit: int = 200) -> list[Row]:
    return await conn.fetch("SELECT * FROM accs.settle_plain_events($1, 'test')", limit)


async def evaluate(conn: Connection, judge: Judge, limit: int = 200) -> list[Row]:
    """What an evaluator does: the test's own `judge` says what it finds for each event."""
    rows = await conn.fetch("SELECT * FROM accs.events_to_settle($1)", limit)
    return await conn.fetch(
        "SELECT * FROM accs.settle_events($1, 'test')", [verdict(row, **judge(row)) for row in rows]
    )


def verdict(row: Row, **found: Any) -> dict[str, Any]:
    return {
        "schedule_id": str(row["schedule_id"]),
        "revision": row["revision"],
        "event_id": row["event_id"],
        "verdict": "run",
        **found,
    }


async def inbox(conn: Connection, schedule_id: UUID) -> list[Row]:
    return await conn.fetch("SELECT * FROM accs.inbox WHERE schedule_id = $1 ORDER BY event_id", schedule_id)
