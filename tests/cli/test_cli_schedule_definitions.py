"""`accsd schedules create|edit`: checked before anything is written, and answered in words."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from accsd.db.pool import Database
from tests.support.cli import Cli
from tests.support.cluster import Connection
from tests.support.schedules import created, plan_all

BERLIN = ("--timezone", "Europe/Berlin")


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


async def test_a_schedule_is_not_called_like_an_id(cli: Cli):
    name = "019a0000-0000-7000-8000-000000000000"
    wanted = ("schedules", "create", name, "--workflow", "backup", "--every", "5m")
    (await cli(*wanted)).ends(1, "name looks like the id of a schedule", "a name that is no UUID")


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
    await plan_all(db)
    second = document["next"][1]["nominal"]
    (await cli("schedules", "skip", "hourly", second, "--reason", "holiday")).ends(0, "will be skipped")
    (await cli("schedules", "snooze", "hourly", "--for", "10m")).ends(0, "later ones stay")
    marks = [row["marks"] for row in (await cli("schedules", "preview", "hourly", "-n", "3", "-o", "json")).json]
    assert marks == [["snoozed"], ["skipped"], []]
    said = await cli("schedules", "edit", "hourly", "--cron", "30 * * * *", "--dry-run")
    said.ends(0, "the skip of", "the snooze of", "is dropped")
    assert "snoozed" not in said.out
    assert await conn.fetchval("SELECT count(*) FROM accs.schedule_marks") == 1


# Events and conditions


@pytest.mark.usefixtures("backup")
async def test_a_schedule_listens_to_events(cli: Cli, conn: Connection, db: Database):
    said = await cli(
        *("schedules", "create", "packing", "--workflow", "backup", "--event", "shop.order.*"),
        *("--filter", "event.payload.total > 100.0", "-O", "order=${event.payload.number}"),
        *("--gather-by", "event.payload.user", "--gather-quiet", "10s", "--gather-size", "100"),
        *("--cooldown", "5m", "--trailing", "--reenter"),
    )
    said.ends(0, "is created", "On each event shop.order.* where event.payload.total > 100.0.", "both run")
    said.ends(
        0, "Those with the same event.payload.user are gathered into one run: when none came for 10s, or with 100"
    )
    said.ends(0, "Not within 5m after a run; what comes in it is one run at its end.", "its own runs lead to")
    row = await conn.fetchrow("SELECT * FROM schedules")
    assert row is not None
    assert (row["schedule_kind"], row["schedule_expr"], row["overlap"]) == ("event", "shop.order.*", "allow")
    assert row["gather"] == {"by": "event.payload.user", "quiet": "10s", "size": 100}
    assert (row["cooldown"], row["cooldown_trailing"], row["reenter"]) == (timedelta(minutes=5), True, True)
    await plan_all(db)
    assert await conn.fetchval("SELECT state FROM schedules") == "active"
    edit = ("schedules", "edit", "packing")
    (await cli(*edit, "--gather-at-most", "5m", "--no-reenter")).ends(0, "revision 2", "or 5m after the first")
    (await cli(*edit, "--unset", "gather", "--unset", "filter")).ends(0, "On each event shop.order.*. Not within")
    (await cli(*edit, "--cron", "0 3 * * *")).ends(1, 'options.order: expression "event.payload.number"')
    (await cli(*edit, "--cron", "0 3 * * *", "--unset", "options")).ends(0, "At 03:00 every day")
    row = await conn.fetchrow("SELECT schedule_kind, overlap, cooldown, cooldown_trailing, filter FROM schedules")
    assert row is not None
    assert tuple(row) == ("cron", "allow", None, False, None)


@pytest.mark.usefixtures("backup")
async def test_a_schedule_judges_a_value_that_somebody_reports(cli: Cli, conn: Connection, db: Database):
    asked = ("schedules", "create", "full", "--workflow", "backup", "--condition", "disk.used", "--above", "90")
    said = await cli(*asked, "--clear-below", "80", "--samples", "2", "--stale", "1h", "--cooldown", "10m")
    said.ends(0, "On the condition disk.used: raised above 90 for 2 samples, clear below 80, unknown without a value")
    row = await conn.fetchrow("SELECT schedule_expr, condition, cooldown FROM schedules")
    assert row is not None
    condition = {"above": 90, "clear_below": 80, "samples": 2, "stale": "1h"}
    assert tuple(row) == ("disk.used", condition, timedelta(minutes=10))
    await plan_all(db)
    assert await conn.fetchval("SELECT state FROM schedules") == "active"
    edit = ("schedules", "edit", "full")
    (await cli(*edit, "--above", "95", "--for", "5m", "--unset", "samples")).ends(0, "raised above 95 for 5m")
    (await cli(*edit, "--above", "95")).ends(0, "is unchanged")
    (await cli(*edit, "--below", "10")).ends(1, "clear_below does not go with below: clear_above does")
    (await cli(*edit, "--is", "true", "--unset", "clear_below")).ends(0, "raised at true")
    (await cli(*edit, "--every", "30s")).ends(0, "samples are reported every 30s")
    assert await conn.fetchval("SELECT schedule_kind FROM schedules") == "condition"


@pytest.mark.usefixtures("backup")
@pytest.mark.parametrize(
    ("options", "condition"),
    [
        (
            ("--sql", "SELECT count(*) FROM orders", "--every", "30s", "--above", "1000"),
            {"source": {"sql": "SELECT count(*) FROM orders"}, "every": "30s", "above": 1000},
        ),
        (
            ("--http", "https://shop.example/q", "--path", "mail.depth", "--every", "1m", "--above", "0.5"),
            {"source": {"http": {"url": "https://shop.example/q", "path": "mail.depth"}}, "every": "1m", "above": 0.5},
        ),
        (
            ("--builtin", "waiting=renderer", "--every", "15s", "--above", "100", "--repeat", "1h"),
            {"source": {"builtin": {"waiting": "renderer"}}, "every": "15s", "above": 100, "repeat": "1h"},
        ),
        (
            ("--builtin", "node_away=atlas", "--every", "15s", "--is", "true", "--on-unknown", "raise"),
            {"source": {"builtin": {"node_away": "atlas"}}, "every": "15s", "is": True, "on_unknown": "raise"},
        ),
        (
            ("--silence", "shop.**", "--every", "1m", "--above", "600", "--expr", "value / 60", "--fire-initially"),
            {
                "source": {"silence": "shop.**"},
                "every": "1m",
                "above": 600,
                "expr": "value / 60",
                "fire_initially": True,
            },
        ),
    ],
)
async def test_a_schedule_measures_by_a_probe(
    cli: Cli, conn: Connection, db: Database, options: tuple[str, ...], condition: dict[str, Any]
):
    await created(cli, "watch", *options)
    row = await conn.fetchrow("SELECT schedule_expr, condition FROM schedules")
    assert row is not None
    assert tuple(row) == ("watch", condition)
    await plan_all(db)
    assert await conn.fetchval("SELECT state FROM schedules") == "active"


@pytest.mark.usefixtures("backup")
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--event", "shop order"), ["no topic to listen to", "joined by dots"]),
        (("--event", "shop", "--filter", "event.paylod ="), ["filter: "]),
        (("--event", "shop", "--filter", "total > 1"), ["total", "there are event, schedule"]),
        (("--event", "shop", "-O", "a=${nominal}"), ["options.a", "nominal"]),
        (("--event", "shop", "--gather-by", "event.payload.user"), ["does not say when it ends", "quiet"]),
        (("--event", "shop", "--missed", "all"), ["has missed, which is for schedules of times", "event"]),
        (("--event", "shop", "--above", "3"), ["one of cron, rrule, at, every, event, condition, not 2"]),
        (("--event", "shop", "--trailing"), ["cooldown_trailing but no cooldown"]),
        (("--cron", "0 0 * * *", "--filter", "true"), ["has filter, which is for schedules of events"]),
        (("--above", "90", "--clear-above", "80"), ["clear_above does not go with above"]),
        (("--above", "90", "--sql", "SELECT 1"), ["how often it is measured", "every"]),
        (("--above", "90", "--sql", "SELECT 1", "--silence", "a"), ["a condition has one source"]),
        (("--above", "90", "--path", "a.b"), ["--path leads through the answer of --http"]),
        (("--above", "90", "--builtin", "waitin=x", "--every", "30s"), ['does not measure "waitin"', "waiting"]),
        (("--above", "90", "-O", "a=${value}"), ["options", "trigger.sample"]),
        (("--is", "maybe"), ['"maybe" is no value']),
    ],
)
async def test_events_and_conditions_that_are_wrong_are_refused_before_anything_is_written(
    cli: Cli, conn: Connection, options: tuple[str, ...], words: list[str]
):
    said = await cli("schedules", "create", "wrong", "--workflow", "backup", *options)
    assert said.code in (1, 2)
    said.ends(said.code, *words)
    assert await conn.fetchval("SELECT count(*) FROM schedules") == 0
