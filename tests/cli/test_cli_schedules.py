"""`accsd schedules`: made, changed, previewed, paused, run, and every due time accounted for."""

import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from accsd.builder.planner import Planner
from accsd.db.install import install
from accsd.db.pool import Database
from tests.support.cli import Cli
from tests.support.cluster import Connection, TestServer
from tests.support.factory import clock, pass_time, workflow
from tests.support.library import opened, url_as
from tests.support.schedules import settle

BERLIN = ("--timezone", "Europe/Berlin")


@pytest.fixture
def cli(db_url: str) -> Cli:
    return Cli(db_url)


@pytest.fixture
def offline() -> Cli:
    return Cli(None)


@pytest.fixture
async def backup(conn: Connection) -> UUID:
    return await workflow(conn, name="backup")


@pytest.fixture
async def db(db_url: str) -> AsyncIterator[Database]:
    async with opened(db_url) as opening:
        yield opening


async def plan(db: Database) -> None:
    while (await Planner(db, node="test").run_once()).did:
        pass


async def created(cli: Cli, name: str, *options: str, workflow: str = "backup") -> dict[str, Any]:
    (document,) = (await cli("schedules", "create", name, "--workflow", workflow, *options, "-o", "json")).ends(0).json
    return document


# Preview


async def test_a_preview_of_times_needs_no_database_and_marks_what_the_clock_does(offline: Cli):
    asked = ("schedules", "preview", "--cron", "30 2 * * *", *BERLIN, "--from", "2024-10-26T12:00:00Z", "-n", "3")
    said = (await offline.process(*asked, "-o", "json")).ends(0)
    assert [row["due_at"] for row in said.json] == [
        "2024-10-27T00:30:00+00:00",
        "2024-10-28T01:30:00+00:00",
        "2024-10-29T01:30:00+00:00",
    ]
    assert said.json[0]["nominal"] == "2024-10-27T02:30:00"
    assert [row["marks"] for row in said.json] == [["doubled"], [], []]
    told = (await offline(*asked)).ends(0, "At 02:30 every day, Europe/Berlin.", "Sun 2024-10-27 02:30 CEST")
    assert "the clock shows 02:30 twice on this day" in told.out
    assert "warning: the clock of Europe/Berlin repeats 02:30" in told.err


@pytest.mark.parametrize(
    ("options", "first"),
    [
        (
            ("--rrule", "FREQ=MONTHLY;BYDAY=-1FR;BYHOUR=17", "--timezone", "Europe/Chisinau"),
            "2025-01-31T15:00:00+00:00",
        ),
        (("--once", "2025-12-25T09:00:00+02:00"), "2025-12-25T07:00:00+00:00"),
        (("--interval", "90m"), "2025-01-01T01:30:00+00:00"),
        (("--every", "PT90M", "--start", "2025-01-01T00:10"), "2025-01-01T00:10:00+00:00"),
        (("--cron", "0 9 * * 1-5", "--end", "2025-02-01"), "2025-01-01T09:00:00+00:00"),
    ],
)
async def test_every_kind_of_times_can_be_previewed(offline: Cli, options: tuple[str, ...], first: str):
    said = await offline("schedules", "preview", *options, "--from", "2025-01-01T00:00Z", "-n", "1", "-o", "json")
    assert [row["due_at"] for row in said.ends(0).json] == [first]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((), ["a preview is of a schedule"]),
        (("--cron", "61 * * * *"), ["the minute field has 61", "0 to 59"]),
        (("--cron", "0 0 * * *", "--timezone", "Europe/Berln"), ["Europe/Berlin"]),
        (("--cron", "0 0 * * *", "--every", "5m"), ["one of cron, rrule, at, every, not 2"]),
        (("--cron", "* * * * *", "--spread", "1h"), ["a spread of 1 hour"]),
        (("--cron", "0 0 31 2 *"), ["31"]),
        (("--at", "tomorrow"), ["ISO 8601"]),
        (("--cron", "0 0 * * *", "--exclude", "holidays"), ["no calendar is asked for"]),
    ],
)
async def test_what_is_wrong_with_times_is_said_in_words(offline: Cli, options: tuple[str, ...], words: list[str]):
    said = await offline("schedules", "preview", *options)
    assert said.code in (1, 2)
    said.ends(said.code, *words)


# Created and edited


@pytest.mark.usefixtures("backup")
async def test_a_schedule_is_created_and_answers_with_words_next_times_and_warnings(cli: Cli, conn: Connection):
    said = await cli(
        *("schedules", "create", "nightly", "--workflow", "backup", "--cron", "30 2 * * *", *BERLIN),
        *("--missed", "all", "--catch-up", "2d", "--catch-up-max", "5", "--overlap", "queue", "--grace", "5m"),
        *("--run-key", "disk", "--max-runs", "9", "--pause-after", "3", "--pause-for", "1h", "--priority", "4"),
        *("-O", "a.b=1", "-O", "day=${nominal}", "--title", "Every night", "--start", "2026-01-01T00:00"),
    )
    said.ends(0, "schedule nightly is created", "At 02:30 every day, Europe/Berlin", "Not before 2025-12-31 23:00 UTC")
    said.ends(0, "for each time, the oldest first", "3 failed jobs in a row pause it, for 1h", "CET")
    row = await conn.fetchrow("SELECT * FROM schedules")
    assert row is not None
    assert (row["missed"], row["catch_up"], row["catch_up_max"]) == ("all", timedelta(days=2), 5)
    assert (row["overlap"], row["run_key"], row["priority"], row["title"]) == ("queue", "disk", 4, "Every night")
    assert (row["grace"], row["pause_after"], row["pause_for"]) == (timedelta(minutes=5), 3, timedelta(hours=1))
    assert row["options"] == {"a": {"b": 1}, "day": "${nominal}"}
    assert row["start_at"] == datetime(2025, 12, 31, 23, tzinfo=UTC)
    assert "@" in row["created_by"]


@pytest.mark.usefixtures("backup")
@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (("--workflow", "backup"), 1, ["says when by one of cron, rrule, at, every"]),
        (("--cron", "0 0 * * *"), 2, ["needs a workflow", "--workflow"]),
        (("--workflow", "bakup", "--cron", "0 0 * * *"), 3, ['there is no workflow "bakup"', 'did you mean "backup"']),
        (("--workflow", "backup", "--version", "9", "--cron", "0 0 * * *"), 3, ["with version 9"]),
        (("--workflow", "backup", "--cron", "99 0 * * *"), 2, ["the minute field has 99"]),
        (("--workflow", "backup", "--every", "5m", "--exclude", "x"), 3, ['there is no calendar "x"']),
        (("--workflow", "backup", "--every", "5m", "-O", "d=${nominl}"), 1, ["nominl", "nominal"]),
        (("--workflow", "backup", "--every", "5m", "--overlap", "allow", "--run-key", "k"), 1, ["overlap allow"]),
        (("--workflow", "backup", "--every", "5m", "--run-key", "schedule:1"), 1, ['begins with "schedule:"']),
        (("--workflow", "backup", "--every", "5m", "--pause-for", "5m"), 1, ["no pause_after"]),
        (("--workflow", "backup", "--at", "2200-01-01T00:00"), 2, ["more than a century ahead"]),
        (("--workflow", "backup", "--every", "5m", "--end", "2020-01-01", "--start", "2021-01-01"), 2, ["end_at"]),
    ],
)
async def test_a_schedule_that_is_wrong_is_refused_before_anything_is_written(
    cli: Cli, conn: Connection, options: tuple[str, ...], code: int, words: list[str]
):
    (await cli("schedules", "create", "nightly", *options)).ends(code, *words)
    assert await conn.fetchval("SELECT count(*) FROM schedules") == 0


@pytest.mark.usefixtures("backup")
async def test_a_name_is_given_once_and_a_dry_run_writes_nothing(cli: Cli, conn: Connection):
    asked = ("schedules", "create", "nightly", "--workflow", "backup", "--every", "90m")
    (await cli(*asked, "--dry-run")).ends(0, "would be created", "Every 90 minutes")
    assert await conn.fetchval("SELECT count(*) FROM schedules") == 0
    (await cli(*asked)).ends(0, "is created")
    (await cli(*asked)).ends(1, "there is one of this name already", "accsd schedules edit nightly")
    assert await conn.fetchval("SELECT revision FROM schedules") == 1


@pytest.mark.usefixtures("backup")
async def test_an_edit_changes_what_is_given_and_the_same_again_nothing(cli: Cli, conn: Connection):
    await created(cli, "nightly", "--cron", "30 2 * * *", *BERLIN, "--catch-up", "2d", "-O", "a=1")
    edit = ("schedules", "edit", "nightly")
    (await cli(*edit, "--cron", "0 3 * * *", "-O", "b=2", "--unset", "catch_up")).ends(0, "is changed, revision 2")
    row = await conn.fetchrow("SELECT * FROM schedules")
    assert row is not None
    assert (row["schedule_expr"], row["timezone"], row["catch_up"]) == ("0 3 * * *", "Europe/Berlin", None)
    assert row["options"] == {"a": 1, "b": 2}
    (await cli(*edit, "--cron", "0 3 * * *")).ends(0, "is unchanged")
    (await cli(*edit, "--every", "2h")).ends(0, "revision 3", "Every 2 hours")
    (await cli(*edit, "--every", "3h", "--if-revision", "2")).ends(1, "it is revision 3 now, not 2")
    (await cli(*edit, "--every", "3h", "--dry-run")).ends(0, "would be changed")
    (await cli(*edit)).ends(2, "nothing was given to change")
    (await cli("schedules", "edit", "nigtly", "--every", "3h")).ends(3, 'did you mean "nightly"')
    assert await conn.fetchval("SELECT schedule_expr FROM schedules") == "2h"


@pytest.mark.usefixtures("backup")
async def test_an_edit_says_which_skips_and_snoozes_the_new_times_do_not_have(cli: Cli, conn: Connection, db: Database):
    document = await created(cli, "hourly", "--cron", "0 * * * *")
    await plan(db)
    second = document["next"][1]["nominal"]
    (await cli("schedules", "skip", "hourly", second, "--reason", "holiday")).ends(0, "will be skipped")
    (await cli("schedules", "snooze", "hourly", "--for", "10m")).ends(0, "later ones stay")
    marks = [row["marks"] for row in (await cli("schedules", "preview", "hourly", "-n", "3", "-o", "json")).json]
    assert marks == [["snoozed"], ["skipped"], []]
    said = await cli("schedules", "edit", "hourly", "--cron", "30 * * * *", "--dry-run")
    said.ends(0, "the skip of", "the snooze of", "is dropped")
    assert "snoozed" not in said.out
    assert await conn.fetchval("SELECT count(*) FROM accs.schedule_marks") == 1


# Paused, snoozed, skipped, run, held, ended


@pytest.mark.usefixtures("backup")
async def test_a_schedule_is_paused_and_resumed(cli: Cli, db: Database):
    await created(cli, "hourly", "--cron", "0 * * * *")
    await plan(db)
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
    await plan(db)
    due = datetime.fromisoformat(document["next"][0]["due_at"])
    (await cli("schedules", "snooze", "hourly")).ends(2, "--for a time, or --until a time")
    (await cli("schedules", "snooze", "hourly", "--for", "40d")).ends(1, "more than 31 days")
    (await cli("schedules", "snooze", "hourly", "--until", "2020-01-01")).ends(1, "not later than")
    (await cli("schedules", "snooze", "hourly", "--for", "10m", "--reason", "lunch")).ends(0, "is due")
    (await cli("schedules", "snooze", "hourly", "--for", "10m")).ends(0, "is due")
    (shown,) = (await cli("schedules", "show", "hourly", "-o", "json")).ends(0).json
    assert (shown["state"], shown["next_due"]) == ("snoozed", (due + timedelta(minutes=20)).isoformat())
    assert [row["marks"] for row in shown["next"]] == [["snoozed"], [], []]
    (await cli("schedules", "unsnooze", "hourly")).ends(0, "its own time again")
    assert await conn.fetchval("SELECT count(*) FROM accs.agenda WHERE due_at = $1 AND what = 'snoozed'", due) == 1
    (shown,) = (await cli("schedules", "show", "hourly", "-o", "json")).ends(0).json
    assert (shown["state"], shown["next_due"]) == ("active", due.isoformat())
    assert [row["marks"] for row in shown["next"]] == [[], [], []]


@pytest.mark.usefixtures("backup")
async def test_only_a_time_that_the_schedule_names_can_be_skipped(cli: Cli, db: Database, conn: Connection):
    await created(cli, "nightly", "--cron", "30 2 * * *", *BERLIN)
    await created(cli, "often", "--cron", "*/30 * * * *", *BERLIN)
    await plan(db)
    skip = ("schedules", "skip", "nightly")
    (await cli(*skip, "2100-06-01T02:31")).ends(3, "does not name", "Tue 2100-06-01 02:30", "schedules preview nightly")
    (await cli(*skip, "half past two")).ends(2, "ISO 8601")
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
    await plan(db)
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
    await plan(db)
    (await cli("schedules", "hold", "--reason", "restore")).ends(0, "all schedules are held by", "restore")
    (await cli("schedules", "hold")).ends(0, "held already", "restore")
    (await cli("schedules", "list", "--state", "held")).ends(0, "nightly", "restore")
    (await cli("schedules", "show", "nightly")).ends(0, "held", "accsd schedules hold --lift")
    (await cli("schedules", "hold", "--lift")).ends(0, "schedules go on")
    (await cli("schedules", "hold", "--lift")).ends(0, "nothing was held")


# What happened


@pytest.mark.usefixtures("backup")
async def test_the_ledger_says_what_happened_at_a_time_or_why_nothing_did(cli: Cli, db: Database, conn: Connection):
    document = await created(cli, "hourly", "--cron", "0 * * * *", *BERLIN)
    await plan(db)
    first, second = (datetime.fromisoformat(row["due_at"]) for row in document["next"][:2])
    now = await clock(conn)
    await pass_time(conn, (first - now).total_seconds() + 1)
    assert await settle(conn) == [("fired", "on_time")]
    await pass_time(conn, 3600)
    assert await settle(conn) == [("skipped", "overlap")]
    nominal = document["next"][0]["nominal"]
    ledger = ("schedules", "ledger", "hourly")
    (await cli(*ledger, "--at", nominal)).ends(0, "ran on time", "Europe/Berlin", "; job ")
    (await cli(*ledger, "--at", first.isoformat())).ends(0, "ran on time")
    (await cli(*ledger, "--at", second.isoformat())).ends(0, "skipped: the run before it had not ended (job ")
    told = (await cli(*ledger, "--at", nominal, "-o", "json")).ends(0).json
    assert (told["answer"], told["rows"][0]["outcome"]) == ("settled", "fired")
    (await cli(*ledger, "--at", nominal[:14] + "17:00")).ends(0, "does not name this time", "the one before it is")
    (await cli(*ledger, "--at", "2100-01-01T05:00")).ends(0, "it lies ahead: due")
    (await cli(*ledger, "--at", "2020-01-01T05:00")).ends(0, "was not there yet")
    (await cli(*ledger, "--at", "noon")).ends(2, "ISO 8601")
    await pass_time(conn, 3600)
    third = second + timedelta(hours=1)
    (await cli(*ledger, "--at", third.isoformat())).ends(0, "nobody has settled it yet")
    (rows := await cli(*ledger, "--outcome", "skipped", "--since", "1d", "-o", "json")).ends(0)
    assert [(row["outcome"], row["reason"]) for row in rows.json] == [("skipped", "overlap")]
    (await cli(*ledger, "--outcome", "missed")).ends(0, "nothing like that")


@pytest.mark.usefixtures("backup")
async def test_a_schedule_in_one_screen(cli: Cli, db: Database, conn: Connection):
    document = await created(cli, "hourly", "--cron", "0 * * * *", "--title", "Each hour")
    await plan(db)
    now = await clock(conn)
    await pass_time(conn, (datetime.fromisoformat(document["next"][0]["due_at"]) - now).total_seconds() + 1)
    await settle(conn)
    for _ in range(3):
        await pass_time(conn, 3600)
        await settle(conn)
    said = (await cli("schedules", "show", "hourly")).ends(0, "Each hour", "If accsd was down: once", "next", "history")
    said.ends(0, "of the last 4 occurrences 3 did not run: 3 skipped (overlap)", "one each 1h", "created by")
    assert len(said.out.splitlines()) < 40
    (shown,) = (await cli("schedules", "show", "hourly", "-o", "json")).ends(0).json
    assert shown["losing"]["lost"] == {"skipped (overlap)": 3}
    assert (shown["losing"]["of"], shown["losing"]["losing"], shown["losing"]["gap"]) == (4, True, 3600.0)
    assert len(shown["next"]) == 3
    assert len(shown["ledger"]) == 4
    assert shown["open_jobs"] == 1
    await pass_time(conn, 7200)
    (await cli("schedules", "show", "hourly")).ends(0, "is an `accsd --role builder` running?")


async def test_a_schedule_that_was_written_wrongly_is_shown_as_broken(cli: Cli, db: Database, conn: Connection):
    await workflow(conn, name="backup")
    await conn.execute(
        "INSERT INTO schedules (name, schedule_kind, schedule_expr, timezone, workflow)"
        " VALUES ('bad', 'cron', '99 * * * *', 'Mars/Olympus', 'backup'), ('ev', 'event', 'shop.*', 'UTC', 'backup')"
    )
    await plan(db)
    (await cli("schedules", "list")).ends(0, "bad", "broken", "ev")
    (await cli("schedules", "show", "bad")).ends(0, "broken", "Mars/Olympus", "edit bad mends it")
    (await cli("schedules", "preview", "bad")).ends(2, "Mars/Olympus")
    (await cli("schedules", "show", "ev")).ends(0, "On the event shop.*")
    (await cli("schedules", "preview", "ev")).ends(2, "its kind is event")
    (await cli("schedules", "edit", "bad", "--cron", "9 * * * *", "--timezone", "UTC")).ends(0, "is changed")


@pytest.mark.usefixtures("backup")
async def test_the_load_shows_the_fullest_minutes_first(cli: Cli):
    for name in ("a", "b", "c"):
        await created(cli, name, "--cron", "0 3 * * *")
    await created(cli, "d", "--cron", "30 3 * * *")
    await created(cli, "e", "--every", "20s", "--end", "2020-01-01")
    loads = (await cli("schedules", "load", "-o", "json")).ends(0).json
    assert [(row["due"], sorted(row["schedules"])) for row in loads] == [(3, ["a", "b", "c"]), (1, ["d"])]
    (await cli("schedules", "load")).ends(0, "MINUTE", "a, b, c")
    (await cli("schedules", "load", "--for", "30d")).ends(2, "more than a week")


# Backfills


@pytest.mark.usefixtures("backup")
async def test_a_backfill_is_rehearsed_started_listed_and_cancelled(cli: Cli, db: Database, conn: Connection):
    await created(cli, "nightly", "--cron", "30 2 * * *", *BERLIN)
    await plan(db)
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


# Files

NIGHTLY = """\
schedules:
  - name: nightly
    workflow: backup
    cron: "30 2 * * *"
    timezone: Europe/Berlin
  - name: party
    workflow: backup
    at: 2100-12-31T23:59:50
    timezone: Europe/Berlin
"""


@pytest.mark.usefixtures("backup")
async def test_files_of_schedules_are_applied_compared_and_pruned(cli: Cli, conn: Connection, tmp_path: Path):
    file = tmp_path / "schedules.yaml"
    file.write_text(NIGHTLY)
    (await cli("schedules", "apply", str(file), "--dry-run")).ends(0, "nightly would be created", "+cron: 30 2 * * *")
    assert await conn.fetchval("SELECT count(*) FROM schedules") == 0
    (await cli("schedules", "apply", str(file))).ends(0, "nightly is created", "party is created")
    (await cli("schedules", "apply", str(file))).ends(0, "nightly is unchanged", "party is unchanged")
    file.write_text(NIGHTLY.split("  - name: party")[0].replace("30 2", "0 3") + "    catch_up: 2d\n")
    rehearsed = await cli("schedules", "apply", str(file), "--prune", "--dry-run")
    rehearsed.ends(0, "-cron: 30 2 * * *", "+cron: 0 3 * * *", "+catch_up: 2d", "party would end")
    rehearsed.ends(0, "next, as it is:", "02:30 CE", "next, as it would be:", "03:00 CE")
    applied = (await cli("schedules", "apply", str(file), "--prune", "-o", "json")).ends(0).json
    assert [(each["name"], each["change"]) for each in applied] == [("nightly", "updated"), ("party", "ended")]
    file.write_text(NIGHTLY.split("  - name: party")[0].replace("30 2", "0 3"))
    (await cli("schedules", "apply", str(file))).ends(0, "revision 3")
    assert await conn.fetchval("SELECT catch_up FROM schedules WHERE name = 'nightly'") is None


@pytest.mark.usefixtures("backup")
async def test_a_file_may_be_one_schedule_in_toml(cli: Cli, conn: Connection, tmp_path: Path):
    file = tmp_path / "party.toml"
    file.write_text(
        'name = "party"\nworkflow = "backup"\nat = 2100-12-31T23:59:50\nspread = 90\n[options]\nloud = true\n'
    )
    (await cli("schedules", "apply", str(tmp_path))).ends(0, "party is created")
    (await cli("schedules", "apply", str(file))).ends(0, "party is unchanged")
    row = await conn.fetchrow("SELECT schedule_kind, schedule_expr, spread, options FROM schedules")
    assert row is not None
    assert tuple(row) == ("once", "2100-12-31T23:59:50", timedelta(seconds=90), {"loud": True})
    file.write_text('name = "party\n')
    (await cli("schedules", "apply", str(file))).ends(1, "party.toml: ", "line 1")
    file.write_text('name = "party"\nworkflow = "backup"\nat = "2100-12-31T23:59:50"\nloud = true\n')
    (await cli("schedules", "apply", str(file))).ends(1, 'party.toml: schedule "party": has an unknown field "loud"')


@pytest.mark.usefixtures("backup")
@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        (NIGHTLY.replace("cron:", "corn:"), 1, [":4:", 'unknown field "corn"', 'did you mean "cron"']),
        (NIGHTLY.replace("30 2 * * *", "77 2 * * *"), 2, ["the minute field has 77"]),
        (NIGHTLY.replace("party", "nightly"), 1, ["written twice"]),
        (NIGHTLY.replace("workflow: backup", "workflow: nothing"), 3, ['there is no workflow "nothing"']),
        ("name: other\nsteps: []\n", 2, ["these files have no schedules"]),
        ("schedules: {a: 1}\n", 1, ["schedules must be a list"]),
    ],
)
async def test_a_wrong_file_changes_nothing(
    cli: Cli, conn: Connection, tmp_path: Path, text: str, code: int, words: list[str]
):
    file = tmp_path / "schedules.yaml"
    file.write_text(text)
    (await cli("schedules", "apply", str(file))).ends(code, *words)
    assert await conn.fetchval("SELECT count(*) FROM schedules") == 0


async def test_a_workflow_is_applied_together_with_its_schedules(cli: Cli, conn: Connection, tmp_path: Path):
    file = tmp_path / "media.yaml"
    file.write_text(
        "name: media\nsteps:\n  - {key: fetch, service: fetcher}\nschedules:\n  - {name: hourly, cron: '0 * * * *'}\n"
    )
    (await cli("workflows", "validate", "--no-services", str(file))).ends(0, "media: ok, 1 step")
    (await cli("workflows", "apply", str(file))).ends(0, "media version 1 created", "schedule hourly is created")
    (await cli("workflows", "apply", str(file))).ends(0, "media version 1 unchanged", "schedule hourly is unchanged")
    told = (await cli("workflows", "apply", str(file), "-o", "json")).ends(0)
    assert (told.json[0]["change"], "schedule hourly is unchanged" in told.err) == ("unchanged", True)
    assert await conn.fetchval("SELECT workflow FROM schedules") == "media"
    file.write_text(file.read_text().replace("0 * * * *", "99 * * * *").replace("fetcher", "other"))
    (await cli("workflows", "apply", str(file))).ends(2, "the minute field has 99")
    (await cli("workflows", "validate", "--no-services", str(file))).ends(2, "the minute field has 99")
    assert await conn.fetchval("SELECT max(version) FROM workflows") == 1


# Calendars


@pytest.mark.usefixtures("backup")
async def test_calendars_are_imported_used_and_removed(cli: Cli, tmp_path: Path):
    days = tmp_path / "holidays.txt"
    days.write_text("# for all\n2100-12-25 Christmas\n2100-12-31/2101-01-01 New Year\n")
    calendars = ("schedules", "calendars")
    (await cli(*calendars, "import", str(days))).ends(0, "calendar holidays has 2 entries")
    (await cli(*calendars, "import", str(days))).ends(0, "holidays is unchanged")
    await created(cli, "nightly", "--cron", "30 2 * * *", "--exclude", "holidays")
    ahead = await cli("schedules", "preview", "nightly", "--from", "2100-12-24T12:00", "-n", "2", "-o", "json")
    assert [row["marks"] for row in ahead.json] == [["excluded"], []]
    (await cli(*calendars, "list")).ends(0, "holidays", "nightly")
    (await cli(*calendars, "remove", "holidays")).ends(2, "is in use: nightly")
    (await cli("schedules", "edit", "nightly", "--unset", "exclude")).ends(0, "is changed")
    (await cli(*calendars, "remove", "holidays")).ends(0, "is removed")
    (await cli(*calendars, "remove", "holidays")).ends(3, "there is no calendar")
    ics = tmp_path / "feast.ics"
    ics.write_text(
        "BEGIN:VCALENDAR\nBEGIN:VEVENT\nSUMMARY:Feast\nDTSTART;VALUE=DATE:21001225\nEND:VEVENT\nEND:VCALENDAR\n"
    )
    (await cli(*calendars, "import", str(ics), "--name", "feasts")).ends(0, "feasts has 1 entries")
    days.write_text("25 December\n")
    (await cli(*calendars, "import", str(days))).ends(2, "is no entry of a calendar")


async def test_names_of_schedules_are_hostile_and_harmless(cli: Cli, conn: Connection):
    await workflow(conn, name="backup")
    await conn.execute(
        "INSERT INTO schedules (name, schedule_kind, schedule_expr, workflow)"
        " VALUES ($1, 'cron', '0 * * * *', 'backup')",
        "ugly\x1b[2J",
    )
    said = (await cli("schedules", "list")).ends(0, "ugly")
    assert "\x1b" not in said.out
    assert json.loads((await cli("schedules", "list", "-o", "json")).out)[0]["name"] == "ugly\x1b[2J"


async def test_people_work_with_schedules_under_the_login_of_the_control_host_and_readers_look(
    server: TestServer, db_url: str, db: Database, conn: Connection
):
    as_scheduler, as_reader = (Cli(url_as(server, db_url, role)) for role in ("accs_scheduler", "accs_reader"))
    await install(conn, with_roles=True)
    await workflow(conn, name="backup")
    await created(as_scheduler, "nightly", "--cron", "30 2 * * *")
    await plan(db)
    for command in (
        ("edit", "nightly", "--priority", "3"),
        ("pause", "nightly"),
        ("resume", "nightly"),
        ("snooze", "nightly", "--for", "5m"),
        ("unsnooze", "nightly"),
        ("skip", "nightly", "2100-06-01T02:30"),
        ("unskip", "nightly", "2100-06-01T02:30"),
        ("run", "nightly"),
        ("backfill", "nightly", "--from", "2026-01-01", "--to", "2026-01-04", "--dry-run"),
        ("hold",),
        ("hold", "--lift"),
        ("end", "nightly"),
    ):
        (await as_scheduler("schedules", *command)).ends(0)
    for command in (
        ("list", "--all"),
        ("show", "nightly"),
        ("preview", "nightly"),
        ("ledger", "nightly"),
        ("ledger", "nightly", "--at", "2100-06-01T02:30"),
        ("load",),
        ("backfills", "list"),
        ("calendars", "list"),
    ):
        (await as_reader("schedules", *command)).ends(0)
    refused = await as_reader("schedules", "pause", "nightly")
    assert refused.code == 2, refused
