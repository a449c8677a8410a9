"""Schedules with real daemons: killed at every step, several at once. One row for each due time, one job for each
firing."""

import signal
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path

from tests.support import daemon
from tests.support.checker import check
from tests.support.cluster import Connection
from tests.support.eventually import eventually
from tests.support.factory import step, workflow
from tests.support.tasks import EVERYTHING, notes, toml_service

CONFIG = toml_service("render", EVERYTHING)
POINTS = ["plan.computed", "plan.written", "settle.sent", "settle.committed"]


async def every_second(conn: Connection, name: str = "s", **columns: object) -> None:
    """A schedule that anything which can INSERT a row can make."""
    await workflow(conn, step("a"), name=name)
    given = {"overlap": "allow", **columns}
    await conn.execute(
        f"INSERT INTO schedules (name, schedule_kind, schedule_expr, workflow, {', '.join(given)})"
        f" VALUES ($1, 'interval', '1s', $1, {', '.join(f'${i + 2}' for i in range(len(given)))})",
        name,
        *given.values(),
    )


async def count(conn: Connection, what: str = "fired") -> int:
    return await conn.fetchval("SELECT count(*) FROM firings WHERE outcome = $1", what)


async def each_second_has_one_row(conn: Connection) -> list[datetime]:
    """The rows are a second apart, from the first to the last; each fired one has its job."""
    rows = await conn.fetch("SELECT * FROM firings ORDER BY nominal")
    nominals = [row["nominal"] for row in rows]
    assert all(late - early == timedelta(seconds=1) for early, late in pairwise(nominals))
    jobs = [row["job_id"] for row in rows if row["outcome"] in ("fired", "caught_up")]
    assert len(set(jobs)) == len(jobs) == await conn.fetchval("SELECT count(*) FROM jobs")
    return nominals


async def test_a_plain_insert_fires_and_the_task_is_told_why(tmp_path: Path, db_url: str, conn: Connection):
    """SQ10, RN5."""
    await workflow(conn, step("a"), name="w")
    await conn.execute(
        "INSERT INTO schedules (name, schedule_kind, schedule_expr, workflow, options)"
        " VALUES ('often', 'cron', '* * * * * *', 'w', $1)",
        {"note": str(tmp_path / "notes")},
    )
    with daemon.running(tmp_path, db_url, config=CONFIG):
        await eventually(lambda: len(notes(tmp_path / "notes")) >= 2, within=20)
    job = await conn.fetchrow("SELECT * FROM jobs ORDER BY order_seq LIMIT 1")
    assert job is not None
    assert job["trigger"]["schedule"] == "often"
    assert job["trigger"]["late_sec"] >= 0
    await check(conn)


async def test_killed_at_every_point_a_successor_goes_on(tmp_path: Path, db_url: str, conn: Connection):
    """The faults of schedules: nothing lost, nothing doubled."""
    await every_second(conn)
    for point in POINTS:
        await conn.execute("UPDATE schedules SET priority = priority + 1, options = options || $1", {point: 1})
        broken = {"ACC_FAILPOINTS": f"{point}:kill"}
        with daemon.running(tmp_path, db_url, role="builder", environ=broken, ready=False) as accsd:
            assert accsd.process.wait(timeout=30) == -signal.SIGKILL, f"{point}\n{accsd.tail()}"
    with daemon.running(tmp_path, db_url, role="builder"):
        before = await count(conn)
        await eventually(lambda: _more(conn, before + 3), within=20)
    await each_second_has_one_row(conn)
    await check(conn)


async def _more(conn: Connection, than: int) -> bool:
    return await count(conn) >= than


async def test_three_builders_one_of_them_a_zombie_fire_each_due_time_once(
    tmp_path: Path, db_url: str, conn: Connection
):
    """SQ4: one is stopped for some seconds in the middle and goes on with what it knew."""
    await every_second(conn)
    folders = [tmp_path / name for name in ("a", "b", "c")]
    with (
        daemon.running(folders[0], db_url, role="builder", node="a") as first,
        daemon.running(folders[1], db_url, role="builder", node="b"),
        daemon.running(folders[2], db_url, role="builder", node="c") as third,
    ):
        await eventually(lambda: _more(conn, 2), within=20)
        first.signal(signal.SIGSTOP)
        third.process.kill()
        before = await count(conn)
        await eventually(lambda: _more(conn, before + 4), within=20)
        first.signal(signal.SIGCONT)
        before = await count(conn)
        await eventually(lambda: _more(conn, before + 3), within=20)
    await each_second_has_one_row(conn)
    assert await count(conn, "merged") == await count(conn, "missed") == 0
    await check(conn)


async def test_two_hosts_with_different_zone_rules_fire_once(tmp_path: Path, db_url: str, conn: Connection):
    """TZ5: the one with the older rules plans nothing in a zone whose newer rules are on record, and says so."""
    await conn.execute("SELECT * FROM accs.note_zones('{Europe/Berlin}', '2999z', '{newer}', 'other')")
    await workflow(conn, step("a"), name="w")
    await conn.execute(
        "INSERT INTO schedules (name, schedule_kind, schedule_expr, workflow, timezone) VALUES"
        " ('berlin', 'cron', '* * * * * *', 'w', 'Europe/Berlin'), ('utc', 'cron', '* * * * * *', 'w', 'UTC')"
    )
    with daemon.running(tmp_path, db_url, role="builder", http=True) as accsd:
        await eventually(lambda: _more(conn, 1), within=20)
        await eventually(lambda: "newer time zone rules" in str(accsd.health()["reasons"]), within=20)
    names = await conn.fetch("SELECT DISTINCT s.name FROM firings f JOIN schedules s ON s.id = f.schedule_id")
    assert [row["name"] for row in names] == ["utc"]
