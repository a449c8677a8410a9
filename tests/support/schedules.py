"""Schedules for the tests of the SQL verbs: a schedule every so many seconds, whose plan is plain arithmetic in UTC.

The nominal times are those of the database's test clock, so that a test moves time with `pass_time` and settles.
"""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

from accsd.builder.events import Evaluator
from accsd.builder.planner import Planner
from accsd.builder.scheduler import Scheduler
from accsd.db.pool import Database
from accsd.metrics import Metrics
from tests.support.cli import Cli
from tests.support.cluster import Connection
from tests.support.factory import Row, clock, workflow

AHEAD = 32


async def schedule(conn: Connection, every: float = 60, *, plan: bool = True, **columns: Any) -> UUID:
    """A schedule of kind interval, written by a plain INSERT. The first occurrence is `every` seconds ahead."""
    name = columns.pop("name", None) or f"s-{uuid4().hex[:12]}"
    if "workflow" not in columns:
        columns["workflow"] = f"w-{name}"
        await workflow(conn, name=columns["workflow"])
    given = {"name": name, "schedule_kind": "interval", "schedule_expr": f"{every:g}s", **columns}
    names, places = ", ".join(given), ", ".join(f"${i + 1}" for i in range(len(given)))
    made: UUID = await conn.fetchval(f"INSERT INTO schedules ({names}) VALUES ({places}) RETURNING id", *given.values())
    if plan:
        await replan(conn)
    return made


async def created(cli: Cli, name: str, *options: str, workflow: str = "backup") -> dict[str, Any]:
    """One that was made by the command."""
    (document,) = (await cli("schedules", "create", name, "--workflow", workflow, *options, "-o", "json")).ends(0).json
    return document


async def plan_all(db: Database) -> None:
    """By the planner itself, until nothing is left to plan."""
    while (await Planner(db, node="test").run_once()).did:
        pass


async def all_roles(db: Database) -> None:
    """Planner, evaluator and scheduler in turn, until none has anything to do."""
    roles = (
        Planner(db, node="n1"),
        Evaluator(db, node="n1", metrics=Metrics()),
        Scheduler(db, node="n1", metrics=Metrics()),
    )
    for _ in range(20):
        if not any([(await role.run_once()).did for role in roles]):
            return
    raise AssertionError("there is always more to do")


async def replan(conn: Connection) -> list[Row]:
    """What the planner does, for schedules of kind interval: all that is asked for."""
    plans = [_plan(row) for row in await conn.fetch("SELECT * FROM accs.schedules_to_plan(1000)")]
    return await conn.fetch("SELECT * FROM accs.plan_schedules($1)", plans)


def _plan(row: Row) -> dict[str, Any]:
    schedule, now = row, row["now"]
    if schedule["schedule_kind"] in ("event", "condition"):
        return {"id": str(schedule["id"]), "revision": schedule["revision"], "after": schedule["settled_until"]}
    every = timedelta(seconds=float(schedule["schedule_expr"].removesuffix("s")))
    first, dues = schedule["settled_until"] + every, list[datetime]()
    end = schedule["end_at"]
    while len([due for due in dues if due > now]) < AHEAD and (end is None or first < end):
        dues.append(first)
        first += every
    gap = None
    if len(dues) > 1000 + AHEAD:
        old, dues = dues[: -1000 - AHEAD], dues[-1000 - AHEAD :]
        gap = {"first": _naive(old[0]), "last": _naive(old[-1]), "times": len(old)}
    return {
        "id": str(schedule["id"]),
        "revision": schedule["revision"],
        "after": schedule["settled_until"],
        "zone_version": "2026a",
        "zone_digest": "d",
        "nominals": [_naive(due) for due in dues],
        "folds": [0] * len(dues),
        "dues": dues,
        "gap": gap,
        "exhausted": None if end is None or first < end else "end_at",
    }


def _naive(moment: datetime) -> str:
    return moment.astimezone(UTC).replace(tzinfo=None).isoformat()


async def settle(conn: Connection, limit: int = 200) -> list[tuple[str, str]]:
    """One pass of a scheduler: what was settled, as (outcome, reason), in the order of the nominal times."""
    rows = await conn.fetch("SELECT * FROM accs.settle_due($1, 'test') ORDER BY nominal", limit)
    assert await conn.fetch("SELECT reason FROM accs.schedule_history WHERE what = 'failed'") == []
    return [(row["outcome"], row["reason"]) for row in rows]


async def settle_all(conn: Connection) -> list[tuple[str, str]]:
    """Passes of scheduler and planner in turn until nothing is due."""
    settled: list[tuple[str, str]] = []
    for _ in range(100):
        await replan(conn)
        found = await settle(conn)
        settled += found
        if not found and (await outlook(conn))["next_plan"] != timedelta(0):
            return settled
    raise AssertionError("there is always more to settle")


async def outlook(conn: Connection) -> Row:
    row = await conn.fetchrow("SELECT * FROM accs.scheduler_outlook()")
    assert row is not None
    return row


async def ledger(conn: Connection, schedule_id: UUID) -> list[Row]:
    return await conn.fetch(
        "SELECT * FROM firings WHERE schedule_id = $1 ORDER BY nominal, fold, cause_id", schedule_id
    )


async def told(conn: Connection, schedule_id: UUID) -> list[tuple[str, str]]:
    """The ledger as (outcome, reason)."""
    return [(row["outcome"], row["reason"]) for row in await ledger(conn, schedule_id)]


async def row(conn: Connection, schedule_id: UUID) -> Row:
    found = await conn.fetchrow("SELECT * FROM schedules WHERE id = $1", schedule_id)
    assert found is not None
    return found


async def jobs_of(conn: Connection, schedule_id: UUID) -> list[Row]:
    return await conn.fetch("SELECT * FROM jobs WHERE schedule_id = $1 ORDER BY order_seq", schedule_id)


async def call(conn: Connection, verb: str, *args: object) -> Row:
    """One call of a verb that answers one row."""
    places = ", ".join(f"${i + 1}" for i in range(len(args)))
    found = await conn.fetchrow(f"SELECT * FROM accs.{verb}({places})", *args)
    assert found is not None
    return found


async def utc(conn: Connection) -> datetime:
    return (await clock(conn)).astimezone(UTC).replace(tzinfo=None)
