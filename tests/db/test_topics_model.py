"""Events in any order of emissions, pauses, edits, holds, passes of evaluators and of time: each event of each
subscription is in one place only, and none is forgotten."""

from random import Random
from typing import Any
from uuid import UUID

import pytest

from tests.support.checker import check
from tests.support.cluster import Connection
from tests.support.factory import done, node, pass_time
from tests.support.schedules import call, jobs_of
from tests.support.topics import emit, evaluate, inbox, settle_plain, subscription

pytestmark = pytest.mark.every_postgresql

SHAPES: tuple[dict[str, Any], ...] = (
    {},
    {"overlap": "skip"},
    {"overlap": "queue"},
    {"overlap": "queue_all"},
    {"overlap": "cancel"},
    {"filter": "event.payload.n % 2 == 0"},
    {"gather": {"quiet": "20s", "at_most": "40s", "size": 4}},
    {"gather": {"quiet": "20s", "by": "event.payload.n"}, "overlap": "skip"},
    {"cooldown": "30 s"},
    {"cooldown": "30 s", "cooldown_trailing": True},
    {"max_runs": 3},
)


async def made(conn: Connection, shape: dict[str, Any]) -> UUID:
    columns = {**shape, "schedule_expr": "t.*"}
    cooldown = columns.pop("cooldown", None)
    which = await subscription(conn, str(columns.pop("schedule_expr")), **columns)
    await conn.execute("UPDATE schedules SET cooldown = $2::text::interval WHERE id = $1", which, cooldown)
    return which


async def settle_everything(conn: Connection) -> None:
    await settle_plain(conn)
    await evaluate(
        conn,
        lambda each: {
            "verdict": "run" if each["payload"]["n"] % 2 == 0 else "filtered",
            "gathering": str(each["payload"]["n"]),
        },
    )
    await conn.fetch("SELECT * FROM accs.settle_due()")


@pytest.mark.parametrize("seed", range(4))
async def test_each_event_is_decided_once_for_each_subscription(conn: Connection, seed: int):
    """EV5, EV6, EV8, EV9, EV13; LG1."""
    random = Random(seed)
    await node(conn)
    listening = [await made(conn, shape) for shape in SHAPES]
    matched: dict[UUID, set[int]] = {which: set() for which in listening}
    for _ in range(60):
        which = random.choice(listening)
        match random.choice(
            ("emit", "emit", "emit", "settle", "settle", "wait", "pause", "resume", "edit", "hold", "end", "work")
        ):
            case "emit":
                for _ in range(random.randint(1, 4)):
                    said = await emit(conn, "t.x", {"n": random.randint(0, 3)})
                    rows = await conn.fetch("SELECT schedule_id FROM accs.inbox WHERE event_id = $1", said["event_id"])
                    assert len(rows) == said["matched"]
                    for row in rows:
                        matched[row["schedule_id"]].add(said["event_id"])
            case "settle":
                await settle_everything(conn)
            case "wait":
                await pass_time(conn, random.choice((1, 15, 45)))
            case "pause":
                await call(conn, "pause_schedule", str(which))
            case "resume":
                await call(conn, "resume_schedule", str(which), random.choice(("none", "one", "all")))
            case "edit":
                await conn.execute("UPDATE schedules SET priority = priority + 1 WHERE id = $1", which)
            case "hold":
                await conn.fetchval("SELECT accs.hold_schedules('x', 'y', $1)", random.random() < 0.7)
            case "work":
                await done(conn, random.randint(1, 5))
            case _ if random.random() < 0.1:
                await call(conn, "end_schedule", str(which))
            case _:
                pass
        await check(conn)
    await conn.fetchval("SELECT accs.hold_schedules(p_lift => true)")
    for _ in range(12):
        await pass_time(conn, 60)
        while await done(conn, 20):
            pass
        await conn.fetch("SELECT * FROM accs.instantiate_due_jobs()")
        await settle_everything(conn)
    for which in listening:
        await everything_is_told(conn, which, matched[which])
    await check(conn)


async def everything_is_told(conn: Connection, which: UUID, matched: set[int]) -> None:
    assert await inbox(conn, which) == []
    rows = await conn.fetch("SELECT * FROM firings WHERE schedule_id = $1", which)
    of_events = [row["cause_id"] for row in rows if row["cause_id"] in matched]
    assert len(of_events) == len(set(of_events)), "one row for each event"
    filtered = await conn.fetchval("SELECT filtered FROM accs.event_tallies WHERE schedule_id = $1", which) or 0
    assert len(of_events) + filtered == len(matched), "none is forgotten"
    ran = {row["job_id"] for row in rows if row["job_id"] is not None}
    assert ran == {job["id"] for job in await jobs_of(conn, which)}, "each run has its row"
    runs = {row["cause_id"]: row for row in rows if row["job_id"] is not None}
    for row in rows:
        if (row["outcome"], row["reason"]) == ("merged", "gathered"):
            run = runs[row["detail"]["run"]]
            assert run["nominal"] == row["merged_into"]
