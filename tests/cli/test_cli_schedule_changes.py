"""`accsd schedules pause|resume|snooze|skip|run|hold|end|backfill`: what people do to one that is there."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from accsd.db.pool import Database
from accsd.explain.words import local_text
from tests.support.cli import Cli
from tests.support.cluster import Connection
from tests.support.schedules import created, plan_all, settle

BERLIN = ("--timezone", "Europe/Berlin")


@pytest.mark.usefixtures("backup")
async def test_a_schedule_is_paused_and_resumed(cli: Cli, db: Database):
    await created(cli, "hourly", "--cron", "0 * * * *")
    await plan_all(db)
    (await cli("schedules", "pause", "hourly", "--reason", "moving")).ends(0, "is paused, until somebody resumes it")
    (await cli("schedules", "pause", "hourly")).ends(0, "was paused already")
    (await cli("schedules", "list")).ends(0, "hourly", "paused", "moving")
    (await cli("schedules", "show", "hourly")).ends(0, "moving", "accsd schedules resume hourly", "paused by")
    (await cli("schedules", "pause", "hourly", "--until", "2020-01-01")).ends(2, "has passed")
    (await cli("schedules", "pause", "hourly", "--until", "in 2h")).ends(0, "is paused, until 20")
    (await cli("schedules", "resume", "hourly", "--recover", "one")).ends(0, "hourly goes on")
    (await cli("schedules", "resume", "hourly")).ends(0, "was not paused")
    (await cli("schedules", "end", "hourly", "--reason", "enough")).ends(0, "has ended; its ledger stays")
    (await cli("schedules", "end", "hourly")).ends(0, "had ended already")
    (await cli("schedules", "pause", "hourly")).ends(1, "it has ended", "schedules edit hourly")
    (await cli("schedules", "resume", "hourly")).ends(1, "it has ended")
    (await cli("schedules", "list")).ends(0, "no schedules yet")
    (await cli("schedules", "list", "--all", "-o", "name")).ends(0, "hourly")
    still = (await cli("schedules", "edit", "hourly", "--title", "Once")).ends(
        0, "is changed", "has ended, and stays so"
    )
    assert "Next:" not in still.out
    (await cli("schedules", "edit", "hourly", "--cron", "1 * * * *")).ends(0, "Next:")
    (await cli("schedules", "list")).ends(0, "active")
    (await cli("schedules", "pause", "hurly")).ends(3, 'did you mean "hourly"')


@pytest.mark.usefixtures("backup")
async def test_a_snooze_moves_the_next_time_only_and_says_why_it_can_not(cli: Cli, db: Database, conn: Connection):
    document = await created(cli, "hourly", "--cron", "0 * * * *")
    await plan_all(db)
    due = datetime.fromisoformat(document["next"][0]["due_at"])
    (await cli("schedules", "snooze", "hourly")).ends(2, "--for a time, or --until a time")
    (await cli("schedules", "snooze", "hourly", "--for", "40d")).ends(1, "more than 31 days")
    (await cli("schedules", "snooze", "hourly", "--until", "2020-01-01")).ends(1, "not later than")
    (await cli("schedules", "snooze", "hourly", "--for", "10m", "--reason", "lunch")).ends(0, "is due")
    (await cli("schedules", "snooze", "hourly", "--for", "10m")).ends(0, "is due")
    (shown,) = (await cli("schedules", "show", "hourly", "-o", "json")).ends(0).json
    assert (shown["state"], shown["next_due"]) == ("snoozed", (due + timedelta(minutes=20)).isoformat())
    assert [row["marks"] for row in shown["next"]] == [["snoozed"], [], []]
    said = f"snoozed: the occurrence {local_text(due)} waits until {local_text(due + timedelta(minutes=20))} UTC (in "
    assert shown["state_words"].startswith(said)
    (await cli("schedules", "show", "hourly")).ends(0, said)
    (await cli("schedules", "unsnooze", "hourly")).ends(0, "its own time again")
    assert await conn.fetchval("SELECT count(*) FROM accs.agenda WHERE due_at = $1 AND what = 'snoozed'", due) == 1
    (shown,) = (await cli("schedules", "show", "hourly", "-o", "json")).ends(0).json
    assert (shown["state"], shown["next_due"]) == ("active", due.isoformat())
    assert [row["marks"] for row in shown["next"]] == [[], [], []]


@pytest.mark.usefixtures("backup")
async def test_only_a_time_that_the_schedule_names_can_be_skipped(cli: Cli, db: Database, conn: Connection):
    await created(cli, "nightly", "--cron", "30 2 * * *", *BERLIN)
    await created(cli, "often", "--cron", "*/30 * * * *", *BERLIN)
    await plan_all(db)
    skip = ("schedules", "skip", "nightly")
    (await cli(*skip, "2100-06-01T02:31")).ends(3, "does not name", "Tue 2100-06-01 02:30", "schedules preview nightly")
    (await cli(*skip, "half past two")).ends(2, "ISO 8601")
    (await cli(*skip, "02:30")).ends(0, "will be skipped")
    (await cli("schedules", "unskip", "nightly", "02:30")).ends(0, "will run")
    (await cli(*skip, "2100-06-01T02:30", "--reason", "a holiday")).ends(0, "will be skipped")
    (await cli(*skip, "2100-06-01T00:30Z")).ends(0, "was marked already")
    assert await conn.fetchval("SELECT nominal::text FROM accs.schedule_marks") == "2100-06-01 02:30:00"
    (await cli("schedules", "ledger", "nightly", "--at", "2100-06-01T02:30")).ends(0, "lies ahead", "a holiday")
    (await cli("schedules", "unskip", "nightly", "2100-06-01T02:30")).ends(0, "will run")
    (await cli("schedules", "unskip", "nightly", "2100-06-01T02:30")).ends(0, "was not to be skipped")
    year = next(year for year in range(2030, 2040) if datetime(year, 10, 27, tzinfo=UTC).weekday() == 6)
    twice = await cli("schedules", "skip", "often", f"{year}-10-27T02:30")
    twice.ends(2, "twice", f"{year}-10-27T02:30:00+02:00", f"{year}-10-27T02:30:00+01:00")
    (await cli("schedules", "skip", "often", f"{year}-10-27T02:30:00+01:00")).ends(0, "will be skipped")
    assert await conn.fetchval("SELECT fold FROM accs.schedule_marks") == 1


@pytest.mark.usefixtures("backup")
async def test_a_run_by_hand_obeys_the_overlap_unless_it_is_forced(cli: Cli, db: Database, conn: Connection):
    await created(cli, "nightly", "--cron", "30 2 * * *", "-O", "a=1")
    await plan_all(db)
    (first,) = (await cli("schedules", "run", "nightly", "-O", "b=2", "--key", "k", "-o", "json")).ends(0).json
    assert await conn.fetchval("SELECT options FROM jobs WHERE id = $1", UUID(first["id"])) == {"a": 1, "b": 2}
    (await cli("schedules", "run", "nightly", "--key", "k")).ends(0, "this key was used before", first["id"][-8:])
    (await cli("schedules", "run", "nightly")).ends(1, "has not ended", "--force", first["id"][-8:])
    (await cli("schedules", "run", "nightly", "--force", "--reason", "again")).ends(0, "of nightly")
    (await cli("schedules", "ledger", "nightly")).ends(0, "run by hand, by ", "again", "skipped: the run before")
    (await cli("schedules", "show", "nightly")).ends(0, "jobs", first["id"][-8:])
    (await cli("schedules", "end", "nightly", "--cancel")).ends(0, "2 jobs cancelled")


@pytest.mark.usefixtures("backup")
async def test_all_schedules_can_be_held(cli: Cli, db: Database):
    await created(cli, "nightly", "--cron", "30 2 * * *")
    await plan_all(db)
    (await cli("schedules", "hold", "--reason", "restore")).ends(0, "all schedules are held by", "restore")
    (await cli("schedules", "hold")).ends(0, "held already", "restore")
    (await cli("schedules", "list", "--state", "held")).ends(0, "nightly", "restore")
    (await cli("schedules", "show", "nightly")).ends(0, "held", "accsd schedules hold --lift")
    (await cli("schedules", "hold", "--lift")).ends(0, "schedules go on")
    (await cli("schedules", "hold", "--lift")).ends(0, "nothing was held")


# Backfills


@pytest.mark.usefixtures("backup")
async def test_a_backfill_is_rehearsed_started_listed_and_cancelled(cli: Cli, db: Database, conn: Connection):
    await created(cli, "nightly", "--cron", "30 2 * * *", *BERLIN)
    await plan_all(db)
    asked = ("schedules", "backfill", "nightly", "--from", "2026-01-01", "--to", "2026-01-04")
    (rehearsed,) = (await cli(*asked, "--dry-run", "-o", "json")).ends(0).json
    assert (rehearsed["would_run"], rehearsed["would_leave"], rehearsed["id"]) == (3, 0, None)
    assert [row["nominal"] for row in rehearsed["occurrences"]] == [f"2026-01-0{day}T02:30:00" for day in (1, 2, 3)]
    (await cli(*asked, "--dry-run", "--order", "newest")).ends(0, "it would be: 3 run", "token ", "Sat 2026-01-03")
    (await cli(*asked, "--token", "other")).ends(1, "it would do something else by now")
    (begun,) = (await cli(*asked, "--token", rehearsed["token"], "--parallel", "2", "-o", "json")).ends(0).json
    assert await settle(conn) == [("fired", "backfill")] * 2
    (listed,) = (await cli("schedules", "backfills", "list", "nightly", "-o", "json")).ends(0).json
    assert (listed["id"], listed["state"], listed["done"], listed["total"]) == (begun["id"], "running", 2, 3)
    (await cli("schedules", "backfills", "list")).ends(0, "2/3", "running")
    (await cli("schedules", "backfills", "cancel", begun["id"][-8:], "--cancel-jobs")).ends(0, "is cancelled")
    (await cli("schedules", "backfills", "cancel", begun["id"])).ends(0, "was cancelled before")
    (await cli("schedules", "backfills", "cancel", "zzz")).ends(3, "there is no backfill")
    (await cli(*asked[:3], "--from", "2100-01-01", "--to", "2100-01-04")).ends(3, "names no time between")
    (await cli("schedules", "backfill", "nightly", "--from", "1950-01-01", "--dry-run")).ends(0, "… and ")
