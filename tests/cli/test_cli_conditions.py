"""`accsd conditions`: how they stand, what they mean, and reporting a sample."""

from tests.support.cli import Cli
from tests.support.cluster import Connection
from tests.support.conditions import condition, report
from tests.support.factory import pass_time
from tests.support.schedules import call, told

HOW = {"above": 100, "clear_below": 80, "samples": 2, "for": "5s", "stale": "1h"}


async def test_a_sample_is_reported_and_says_what_it_led_to(cli: Cli, conn: Connection):
    """CO1."""
    which = await condition(conn, {"above": 100}, name="alarm", workflow="w-alarm")
    (await cli("conditions", "report", "load", "1")).ends(0, "alarm: clear")
    (await cli("conditions", "report", "load", "101.5", "--key", "a")).ends(0, "alarm: raised, skipped (workflow")
    [said] = (await cli("conditions", "report", "load", "101.5", "--key", "a", "-o", "json")).json
    assert (said["verdict"], said["state"]) == ("repeated", "raised")
    (await cli("conditions", "report", "load", "--", "-4")).ends(0, "alarm: clear")
    (await cli("conditions", "report", "load", "null")).ends(0, "alarm: clear")
    assert await told(conn, which) == [("skipped", "workflow_inactive")]


async def test_what_is_refused_is_said_in_words(cli: Cli, conn: Connection):
    (await cli("conditions", "report", "load", "1")).ends(3, 'no condition "load"', "accsd conditions list")
    (await cli("conditions", "show", "load")).ends(3, 'no condition "load"')
    await condition(conn, {"above": 100}, name="alarm")
    (await cli("conditions", "report", "load", "much")).ends(2, "a number, true, false or null")
    (await cli("conditions", "report", "load", "inf")).ends(2, "a number, true, false or null")
    (await cli("conditions", "report", "load", "true")).ends(1, "is of numbers")
    await report(conn, 1)
    (await cli("conditions", "report", "load", "1", "--at", "1h ago")).ends(1, "recorded, and ignored")


async def test_the_list_says_how_each_one_stands(cli: Cli, conn: Connection):
    (await cli("conditions", "list")).ends(0, "there is no condition")
    await condition(conn, HOW, name="alarm")
    for value in (1, 101):
        await report(conn, value)
    said = (await cli("conditions", "list")).ends(0, "rising (1 in a row)", "101")
    assert said.out.split()[:4] == ["CONDITION", "SCHEDULE", "STATE", "SINCE"]
    await call(conn, "pause_schedule", "alarm")
    (await cli("conditions", "list")).ends(0, "rising (1 in a row), paused")
    [row] = (await cli("conditions", "list", "-o", "json")).json
    assert (row["name"], row["schedule"], row["state"], row["last_value"]) == ("load", "alarm", "rising", 101)
    assert (await cli("conditions", "list", "-o", "name")).out == "load\n"


async def test_one_is_shown_with_its_meaning_and_its_samples(cli: Cli, conn: Connection):
    await condition(conn, HOW, name="alarm")
    for value in (1, 101, None, 101):
        await pass_time(conn, 5)
        await report(conn, value)
    said = (await cli("conditions", "show", "load")).ends(0, "fired (condition): job", "it has no value")
    assert (
        "alarm: raised above 100 for 2 samples for 5.0s, clear below 80, unknown without a value for 1h;"
        " samples are reported; starts w-alarm" in said.out
    )
    [row] = (await cli("conditions", "show", "alarm", "-o", "json", "--limit", "2")).json
    assert [sample["value"] for sample in row["samples"]] == [101, None]
    assert row["samples"][0]["outcome"] == "fired"


async def test_the_meaning_of_a_probe(cli: Cli, conn: Connection):
    probe = {"source": {"builtin": {"waiting": "render"}}, "every": "30s", "above": 5, "repeat": "1h"}
    await condition(conn, probe, name="queue")
    (await cli("conditions", "show", "queue")).ends(
        0, "raised above 5, again every 1h, unknown without a value for 1m30s; accsd looks at waiting of render every"
    )
