"""Nobody is there for an hour, or through the night in which the clock is changed: real daemons, and the test's clock
is moved while none runs. The ledger has one row for each due time, and each policy its own way with the late ones."""

from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.support import daemon
from tests.support.checker import check
from tests.support.cli import Cli
from tests.support.cluster import Connection
from tests.support.eventually import eventually
from tests.support.factory import Row, clock, pass_time, step, workflow

GRACE = timedelta(minutes=1)
MINUTE = timedelta(minutes=1)


async def schedule(conn: Connection, name: str, expr: str = "* * * * *", **columns: Any) -> None:
    """A plain INSERT, as anybody can make one."""
    given = {
        "name": name,
        "schedule_kind": "cron",
        "schedule_expr": expr,
        "workflow": "w",
        "overlap": "allow",
        **columns,
    }
    places = ", ".join(f"${i + 1}" for i in range(len(given)))
    await conn.execute(f"INSERT INTO schedules ({', '.join(given)}) VALUES ({places})", *given.values())


async def looked_after(folder: Path, url: str, conn: Connection) -> None:
    """A builder comes and goes: what was due is settled, and each schedule that goes on knows its next time."""

    async def done() -> bool:
        return not await conn.fetchval(
            "SELECT EXISTS (SELECT FROM schedules s WHERE s.state = 'active' AND NOT EXISTS (SELECT FROM accs.agenda a"
            " WHERE a.schedule_id = s.id AND a.what = 'occurrence' AND a.due_at > accs.clock()))"
            " OR EXISTS (SELECT FROM accs.agenda a WHERE a.what = 'replan' AND a.due_at <= accs.clock())"
        )

    with daemon.running(folder, url, role="builder"):
        await eventually(done, within=60)


async def rows_of(conn: Connection, name: str) -> list[Row]:
    """Each minute has one row, and each run its job."""
    rows = await conn.fetch(
        "SELECT f.* FROM firings f JOIN schedules s ON s.id = f.schedule_id WHERE s.name = $1 ORDER BY nominal", name
    )
    assert all(after["nominal"] - before["nominal"] == MINUTE for before, after in pairwise(rows))
    ran = [row["job_id"] for row in rows if row["outcome"] in ("fired", "caught_up")]
    made = await conn.fetchval(
        "SELECT count(*) FROM jobs j JOIN schedules s ON s.id = j.schedule_id WHERE s.name = $1", name
    )
    assert len(set(ran)) == len(ran) == made
    return rows


def late_ones(rows: list[Row]) -> Mapping[tuple[str, str], int]:
    """Of those that were late, how many became what. The others ran on time."""
    assert all((row["outcome"], row["reason"]) == ("fired", "on_time") for row in rows if row["late"] <= GRACE)
    return Counter((row["outcome"], row["reason"]) for row in rows if row["late"] > GRACE)


async def test_after_an_hour_each_policy_has_its_own_way_with_what_was_missed(
    tmp_path: Path, db_url: str, conn: Connection
):
    """MI1-MI5."""
    await workflow(conn, step("a"), name="w")
    await schedule(conn, "skip", missed="skip")
    await schedule(conn, "one")
    await schedule(conn, "one_old", catch_up=timedelta(seconds=30))
    await schedule(conn, "all", missed="all")
    await schedule(conn, "all_young", missed="all", catch_up=timedelta(minutes=10))
    await schedule(conn, "all_few", missed="all", catch_up_max=5)
    await schedule(conn, "all_in_line", missed="all", overlap="skip")
    at = ((await clock(conn)) + timedelta(minutes=5)).isoformat()
    await schedule(conn, "once", at, schedule_kind="once")
    await schedule(conn, "once_old", at, schedule_kind="once", catch_up=timedelta(minutes=10))
    await looked_after(tmp_path, db_url, conn)
    await pass_time(conn, 3600)
    await looked_after(tmp_path, db_url, conn)

    skipped = await rows_of(conn, "skip")
    late = sum(late_ones(skipped).values())
    assert late >= 58
    assert late_ones(skipped) == {("missed", "down"): late}

    one = await rows_of(conn, "one")
    assert late_ones(one) == {("merged", "catch_up"): late - 1, ("caught_up", "late"): 1}
    (caught,) = [row for row in one if row["outcome"] == "caught_up"]
    assert {row["merged_into"] for row in one if row["outcome"] == "merged"} == {caught["nominal"]}
    told = await conn.fetchval("SELECT trigger FROM jobs WHERE id = $1", caught["job_id"])
    assert (told["nominal"], told["merged"]["count"]) == (caught["nominal"].isoformat(), late - 1)
    assert late_ones(await rows_of(conn, "one_old")) == {("missed", "too_old"): late}

    assert late_ones(await rows_of(conn, "all")) == {("caught_up", "late"): late}
    young = await rows_of(conn, "all_young")
    aged = sum(row["late"] > timedelta(minutes=10) for row in young)
    assert late_ones(young) == {("missed", "too_old"): aged, ("caught_up", "late"): late - aged}
    assert late - aged in (9, 10)
    few = await rows_of(conn, "all_few")
    assert late_ones(few) == {("missed", "over_limit"): late - 5, ("caught_up", "late"): 5}
    assert [row["outcome"] for row in few[late - 5 : late]] == ["caught_up"] * 5, "the newest of them"

    line = await rows_of_a_line(conn)
    assert len(line) == late, "they wait one behind the other"
    assert line == sorted(line)

    once = await conn.fetch(
        "SELECT s.name, f.outcome, f.reason, s.state FROM firings f JOIN schedules s ON s.id = f.schedule_id"
        " WHERE s.schedule_kind = 'once' ORDER BY 1"
    )
    assert [tuple(row) for row in once] == [
        ("once", "caught_up", "late", "ended"),
        ("once_old", "missed", "too_old", "ended"),
    ]
    await check(conn)


async def rows_of_a_line(conn: Connection) -> list[datetime]:
    """The times of the runs that wait for one another, or run, in their order."""
    rows = await conn.fetch(
        "SELECT o.nominal FROM accs.open_runs o JOIN schedules s ON s.id = o.schedule_id"
        " WHERE s.name = 'all_in_line' ORDER BY o.waits, o.order_seq"
    )
    return [row["nominal"] for row in rows]


@pytest.mark.parametrize(
    ("before", "after", "at", "said", "half_hours"),
    [
        (
            *(
                datetime(2027, 3, 27, 23, 40, tzinfo=UTC),
                datetime(2027, 3, 28, 1, 0, 20, tzinfo=UTC),
                "2027-03-28T02:30",
            ),
            ["Sun 2027-03-28 02:30 Europe/Berlin: ran on time; job "],
            ["does not name this time"],
        ),
        (
            *(
                datetime(2027, 10, 30, 23, 40, tzinfo=UTC),
                datetime(2027, 10, 31, 1, 30, 20, tzinfo=UTC),
                "2027-10-31T02:30",
            ),
            ["Sun 2027-10-31 02:30 Europe/Berlin: ran late", "1h"],
            ["02:30 Europe/Berlin: ran late", "02:30 Europe/Berlin (second pass): ran on time"],
        ),
    ],
    ids=["spring", "autumn"],
)
async def test_the_ledger_knows_what_happened_in_the_night_of_the_clock_change(
    tmp_path: Path,
    db_url: str,
    conn: Connection,
    before: datetime,
    after: datetime,
    at: str,
    said: list[str],
    half_hours: list[str],
):
    """LG6, DS2-DS4: a time that the clock skips runs after the gap, one that it shows twice once; half hours go on."""
    await workflow(conn, step("a"), name="w")
    await pass_time(conn, (before - await clock(conn)).total_seconds())
    await schedule(conn, "nightly", "30 2 * * *", timezone="Europe/Berlin", missed="all")
    await schedule(conn, "often", "*/30 * * * *", timezone="Europe/Berlin", missed="all")
    await looked_after(tmp_path, db_url, conn)
    await pass_time(conn, (after - await clock(conn)).total_seconds())
    await looked_after(tmp_path, db_url, conn)
    cli = Cli(db_url)
    (await cli("schedules", "ledger", "nightly", "--at", at)).ends(0, *said)
    (await cli("schedules", "ledger", "nightly", "--at", "sunday 02:30")).ends(0, *said)
    (await cli("schedules", "ledger", "often", "--at", at)).ends(0, *half_hours)
    assert (
        await conn.fetchval(
            "SELECT count(*) FROM firings f JOIN schedules s ON s.id = f.schedule_id WHERE s.name = 'nightly'"
        )
        == 1
    )
    dues = [
        row[0]
        for row in await conn.fetch(
            "SELECT f.due_at FROM firings f JOIN schedules s ON s.id = f.schedule_id WHERE s.name = 'often' ORDER BY 1"
        )
    ]
    assert all(late - early == timedelta(minutes=30) for early, late in pairwise(dues))
    await check(conn)
