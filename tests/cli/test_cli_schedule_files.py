"""Schedules and calendars in files: applied, compared, pruned."""

from datetime import timedelta
from pathlib import Path

import pytest

from accsd.db.pool import Database
from tests.support.cli import Cli
from tests.support.cluster import Connection
from tests.support.schedules import created, plan_all

BERLIN = ("--timezone", "Europe/Berlin")


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
    (await cli("workflows", "check", "--no-services", str(file))).ends(0, "media: ok, 1 step")
    (await cli("workflows", "apply", str(file))).ends(0, "media version 1 created", "schedule hourly is created")
    (await cli("workflows", "apply", str(file))).ends(0, "media version 1 unchanged", "schedule hourly is unchanged")
    told = (await cli("workflows", "apply", str(file), "-o", "json")).ends(0)
    assert (told.json[0]["change"], "schedule hourly is unchanged" in told.err) == ("unchanged", True)
    assert await conn.fetchval("SELECT workflow FROM schedules") == "media"
    file.write_text(file.read_text().replace("0 * * * *", "99 * * * *").replace("fetcher", "other"))
    (await cli("workflows", "apply", str(file))).ends(2, "the minute field has 99")
    (await cli("workflows", "check", "--no-services", str(file))).ends(2, "the minute field has 99")
    assert await conn.fetchval("SELECT max(version) FROM workflows") == 1


BESIDE = """\
name: pack
steps:
  - {key: label, service: printer}
schedules:
  - name: packing
    event: shop.order.*
    filter: event.payload.total > 100.0
    gather: {quiet: 10s}
    options: {order: "${event.payload.number}"}
  - name: full
    condition: {name: disk.used, above: 90, clear_below: 80}
    cooldown: 10m
"""


async def test_a_file_has_schedules_of_events_and_conditions(cli: Cli, conn: Connection, db: Database, tmp_path: Path):
    file = tmp_path / "pack.yaml"
    file.write_text(BESIDE)
    (await cli("workflows", "check", "--no-services", str(file))).ends(0)
    (await cli("workflows", "apply", str(file))).ends(0, "schedule packing is created", "schedule full is created")
    (await cli("schedules", "apply", str(file))).ends(0, "packing is unchanged", "full is unchanged")
    await plan_all(db)
    rows = await conn.fetch("SELECT name, schedule_expr, state, overlap, condition FROM schedules ORDER BY name")
    assert [tuple(row) for row in rows] == [
        ("full", "disk.used", "active", "skip", {"above": 90, "clear_below": 80}),
        ("packing", "shop.order.*", "active", "allow", None),
    ]
    file.write_text(BESIDE.replace("above: 90", "above: 95").replace("100.0", "50.0"))
    said = await cli("schedules", "apply", str(file), "--dry-run")
    said.ends(0, "-filter: event.payload.total > 100.0", "+filter: event.payload.total > 50.0")
    said.ends(0, "'above': 95", "On the condition disk.used: raised above 95")


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (BESIDE.replace("above: 90", "abov: 90"), [":11:", 'schedule "full": condition:', 'did you mean "above"']),
        (BESIDE.replace("quiet", "quit"), [":8:", 'did you mean "quiet"']),
        (BESIDE.replace("shop.order.*", "shop.*.new"), [":6:", "no topic to listen to"]),
        (BESIDE.replace("cooldown: 10m", "filter: 'true'"), [":10:", "has filter, which is for schedules of events"]),
    ],
)
async def test_a_mistake_in_an_event_or_a_condition_has_its_line(
    cli: Cli, conn: Connection, tmp_path: Path, wrong: str, words: list[str]
):
    file = tmp_path / "pack.yaml"
    file.write_text(wrong)
    (await cli("workflows", "apply", str(file))).ends(1, *words)
    assert await conn.fetchval("SELECT count(*) FROM workflows") == 0


async def test_a_diff_shows_what_schedules_would_become(cli: Cli, conn: Connection, tmp_path: Path):
    file = tmp_path / "media.yaml"
    text = "name: media\nsteps:\n  - {key: a, service: b}\nschedules:\n  - {name: hourly, cron: '0 * * * *'}\n"
    file.write_text(text)
    new = (await cli("workflows", "diff", str(file))).ends(1, "+name: media", "schedule hourly would be created")
    assert "+cron: 0 * * * *" in new.out
    (await cli("workflows", "apply", str(file))).ends(0)
    assert (await cli("workflows", "diff", str(file))).ends(0).out == ""
    file.write_text(text.replace("0 * * * *", "30 * * * *"))
    changed = (await cli("workflows", "diff", str(file))).ends(1, "hourly would be changed", "-cron: 0 * * * *")
    changed.ends(1, "+cron: 30 * * * *", "next, as it is:", "next, as it would be:")
    assert "name: media" not in changed.out
    file.write_text(text.replace("0 * * * *", "99 * * * *"))
    (await cli("workflows", "diff", str(file))).ends(2, "the minute field has 99")
    assert await conn.fetchval("SELECT revision FROM schedules") == 1


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
