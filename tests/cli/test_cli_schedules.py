"""`accsd schedules`: what only looks: previews, lists, one screen, the ledger, the load; and who may (HT3)."""

import json
from datetime import datetime, timedelta

import pytest

from accsd.db.install import install
from accsd.db.pool import Database
from tests.support.cli import Cli
from tests.support.cluster import Connection, TestServer
from tests.support.factory import clock, pass_time, workflow
from tests.support.library import url_as
from tests.support.schedules import all_roles, created, plan_all, settle
from tests.support.topics import emit

BERLIN = ("--timezone", "Europe/Berlin")


@pytest.fixture
def offline() -> Cli:
    return Cli(None)


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
        (("--cron", "0 0 * * *", "--every", "5m"), ["one of cron, rrule, at, every, event, condition, not 2"]),
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


async def test_a_list_may_be_of_what_one_actor_has_made(cli: Cli, conn: Connection):
    for name, actor in (("mine", "ada"), ("of a helper", "helper")):
        await conn.execute(
            "INSERT INTO schedules (name, schedule_kind, schedule_expr, workflow, created_by)"
            " VALUES ($1, 'cron', '0 5 * * *', 'w', $2)",
            name,
            actor,
        )
    assert (await cli("schedules", "list", "--by", "helper", "-o", "name")).ends(0).out == "of a helper\n"
    (await cli("schedules", "list", "--by", "nobody")).ends(0, "no such schedules")


# What happened


@pytest.mark.usefixtures("backup")
async def test_the_ledger_says_what_happened_at_a_time_or_why_nothing_did(cli: Cli, db: Database, conn: Connection):
    document = await created(cli, "hourly", "--cron", "0 * * * *", *BERLIN)
    await plan_all(db)
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
    (await cli(*ledger, "--at", "25:00")).ends(2, "is not a time of day")
    local = datetime.fromisoformat(nominal)
    (await cli(*ledger, "--at", f"{local:%A %H:%M}")).ends(0, "ran on time")
    (await cli(*ledger, "--at", f"{local:%H:%M}")).ends(0, "ran on time")
    await pass_time(conn, 3600)
    third = second + timedelta(hours=1)
    (await cli(*ledger, "--at", third.isoformat())).ends(0, "nobody has settled it yet")
    (rows := await cli(*ledger, "--outcome", "skipped", "--since", "1d", "-o", "json")).ends(0)
    assert [(row["outcome"], row["reason"]) for row in rows.json] == [("skipped", "overlap")]
    (await cli(*ledger, "--outcome", "missed")).ends(0, "nothing like that")


@pytest.mark.usefixtures("backup")
async def test_a_schedule_in_one_screen(cli: Cli, db: Database, conn: Connection):
    document = await created(cli, "hourly", "--cron", "0 * * * *", "--title", "Each hour")
    await plan_all(db)
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
    await plan_all(db)
    (await cli("schedules", "list")).ends(0, "bad", "broken", "ev")
    (await cli("schedules", "show", "bad")).ends(0, "broken", "Mars/Olympus", "edit bad mends it")
    (await cli("schedules", "preview", "bad")).ends(2, "Mars/Olympus")
    (await cli("schedules", "show", "ev")).ends(0, "On each event shop.*")
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


# Events and conditions


@pytest.mark.usefixtures("backup")
async def test_schedules_of_events_and_conditions_are_told_in_words(cli: Cli, db: Database, conn: Connection):
    await created(cli, "packing", "--event", "shop.order.*", "--filter", "event.payload.n > 2")
    await created(cli, "full", "--condition", "disk.used", "--above", "90", "--clear-below", "80", "--samples", "2")
    await plan_all(db)
    (await cli("schedules", "list")).ends(0, "event shop.order.*", "condition disk.used above 90")
    (await cli("schedules", "show", "full")).ends(0, "unknown", "accsd conditions report disk.used VALUE")
    await emit(conn, "shop.order.new", {"n": 1})
    await emit(conn, "shop.order.new", {"n": 3})
    (await cli("schedules", "show", "packing")).ends(0, "2 wait  →")
    await all_roles(db)
    (await cli("events")).ends(0, "left out by 1 filter", "packing: fired (event)")
    (await cli("schedules", "show", "packing")).ends(0, "its filter left out 1", "ran because of an event")
    for value in ("50", "95", "96"):
        await cli("conditions", "report", "disk.used", value)
    shown = await cli("schedules", "show", "full")
    shown.ends(0, "raised", "last value 96", "accsd conditions show full", "ran because of a condition")
    (document,) = (await cli("schedules", "show", "full", "-o", "json")).json
    assert (document["condition_state"]["state"], document["next"]) == ("raised", [])
    (await cli("schedules", "preview", "packing")).ends(0, "On each event shop.order.*", "due at no time of its own")
    assert (await cli("schedules", "preview", "full", "-o", "json")).ends(0).json == []
    (await cli("schedules", "load")).ends(0, "nothing is due")


@pytest.mark.usefixtures("backup")
async def test_the_ledger_of_events_is_asked_for_a_minute(cli: Cli, db: Database, conn: Connection):
    await created(cli, "packing", "--event", "shop.order.*", *BERLIN)
    await plan_all(db)
    ledger = ("schedules", "ledger", "packing", "--at")
    (await cli(*ledger, "2026-10-25T02:30")).ends(0, "nothing came in that minute", "nothing came before it")
    await emit(conn, "shop.order.new")
    await all_roles(db)
    at = await clock(conn)
    (await cli(*ledger, at.replace(second=0, microsecond=0).isoformat())).ends(0, "ran because of an event (")
    (await cli(*ledger, (at - timedelta(minutes=5)).isoformat())).ends(0, "nothing came", "the first one after it:")
    assert (await cli(*ledger, "2100-01-01T00:00", "-o", "json")).ends(0).json["answer"] == "nothing"


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (
            ("--event", "shop.order.*", "--filter", "event.payload.n > 2"),
            0,
            ["On each event shop.order.* where event."],
        ),
        (("--event", "shop.order.*", "--filter", "event.payload.n >"), 1, ["filter: "]),
        (
            ("--silence", "shop.**", "--every", "1m", "--above", "600"),
            0,
            ["the silence of shop.** is measured every 1m"],
        ),
        (("--condition", "disk"), 1, ["says when it is raised: above, below or is"]),
    ],
)
async def test_what_has_no_times_is_checked_and_told_by_a_preview(
    offline: Cli, options: tuple[str, ...], code: int, words: list[str]
):
    (await offline("schedules", "preview", *options)).ends(code, *words)


# Whoever looks


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
    await created(as_scheduler, "packing", "--event", "shop.**")
    await created(as_scheduler, "full", "--condition", "disk.used", "--above", "90")
    await plan_all(db)
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
        ("show", "packing"),
        ("show", "full"),
        ("preview", "nightly"),
        ("ledger", "nightly"),
        ("ledger", "nightly", "--at", "2100-06-01T02:30"),
        ("load",),
        ("backfills", "list"),
        ("calendars", "list"),
    ):
        (await as_reader("schedules", *command)).ends(0)
    (await as_reader("conditions", "list")).ends(0, "disk.used")
    (await as_reader("events")).ends(0)
    refused = await as_reader("schedules", "pause", "nightly")
    assert refused.code == 2, refused
