"""`accsd submit`: what it submits, what it prints, and how it stays with a job until its end."""

import asyncio
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from accsd.cli import timeline, times
from accsd.cli.options import merged
from accsd.errors import InvalidValue
from tests.conftest import Connect
from tests.support.cli import Cli
from tests.support.cluster import Connection
from tests.support.eventually import eventually
from tests.support.factory import chain, clock, fail, finish, node, started, step, workflow
from tests.support.library import opened


@pytest.fixture
async def cli(db_url: str, conn: Connection) -> Cli:
    await node(conn)
    await workflow(conn, *chain("a", "b"), name="media")
    return Cli(db_url)


async def the_job(conn: Connection) -> dict[str, Any]:
    row = await conn.fetchrow("SELECT * FROM jobs ORDER BY order_seq DESC LIMIT 1")
    assert row is not None
    return dict(row)


async def test_it_prints_the_id_and_nothing_else_on_stdout(cli: Cli, conn: Connection):
    said = (await cli.process("submit", "media", "-o", "frames=240", "-o", "to.name=Ann", "--priority", "5")).ends(0)
    job = await the_job(conn)
    assert UUID(said.out.strip()) == job["id"]
    assert (job["options"], job["priority"], job["status"]) == ({"frames": 240, "to": {"name": "Ann"}}, 5, "running")
    assert "@" in job["created_by"]


async def test_options_that_no_task_could_be_given_are_refused(cli: Cli, conn: Connection):
    def nested(levels: int) -> str:
        return '{"a":' + "[" * levels + "]" * levels + "}"

    (await cli("submit", "media", "--options", nested(63))).ends(0)
    (await cli("submit", "media", "--options", nested(64))).ends(2, "nested deeper than 64 levels", "→")
    assert await conn.fetchval("SELECT count(*) FROM jobs") == 1


async def test_options_that_the_workflow_does_not_take_are_refused_with_every_path(
    cli: Cli, conn: Connection, tmp_path: Path
):
    file = tmp_path / "typed.yaml"
    file.write_text(
        """
name: typed
options_schema:
  type: object
  required: [url]
  properties:
    url: {type: string, description: where the source is}
    frames: {type: integer, default: 25}
    codec: {enum: [av1, h264]}
  additionalProperties: false
steps: [{key: a, service: render}]
"""
    )
    (await cli("workflows", "apply", str(file))).ends(0)

    said = (await cli("submit", "typed", "-o", "frames=many", "-o", "codec=vp9")).ends(1, "workflows show")
    assert (
        'options.codec must be one of "av1","h264"; options.frames must be a whole number; options.url is missing'
        in said.err
    )
    assert await conn.fetchval("SELECT count(*) FROM jobs") == 0
    (await cli("submit", "typed", "-o", "frames=3", "-o", "url=x")).ends(0)
    shown = (await cli("workflows", "show", "typed")).ends(0).out.splitlines()
    assert shown[1:5] == [
        "options (others are refused)",
        '  codec   "av1" | "h264"',
        "  frames  integer         default 25",
        "  url     string          required    where the source is",
    ]


async def test_a_schema_that_is_none_is_refused_with_its_line(cli: Cli, tmp_path: Path):
    file = tmp_path / "typed.yaml"
    file.write_text(
        """name: typed
options_schema:
  properties:
    url: {$ref: "https://example.org/url.json"}
    size:
      type: strang
steps: [{key: a, service: render}]
"""
    )
    said = (await cli("workflows", "validate", str(file))).ends(1)
    assert f"{file}:4: options_schema.properties.url.$ref must be the place of a schema in this document" in said.err
    file.write_text(file.read_text().replace('$ref: "https://example.org/url.json"', "type: string"))
    assert f"{file}:6: options_schema.properties.size.type" in (await cli("workflows", "apply", str(file))).ends(1).err


async def test_the_same_key_again_is_the_same_job(cli: Cli):
    first = (await cli("submit", "media", "--key", "order-1", "--output", "json")).ends(0).json
    again = (await cli("submit", "media", "--key", "order-1", "--output", "json")).ends(0, "submitted before")
    assert (first["repeated"], again.json["repeated"]) == (False, True)
    assert again.json["id"] == first["id"]


async def test_a_job_may_be_for_later(cli: Cli, conn: Connection):
    await cli("submit", "media", "--at", "in 10m")
    job = await the_job(conn)
    assert job["status"] == "queued"
    assert timedelta(minutes=9) < job["scheduled_at"] - await clock(conn) <= timedelta(minutes=10)


async def test_a_version_may_be_named(cli: Cli, conn: Connection):
    newer = await workflow(conn, step("x"), name="media", version=2)
    await cli("submit", "media")
    assert (await the_job(conn))["workflow_id"] == newer
    await cli("submit", "media", "--version", "1")
    assert (await the_job(conn))["workflow_id"] != newer


async def test_what_is_wrong_is_said_with_the_next_step(cli: Cli, conn: Connection):
    (await cli.process("submit", "meida")).ends(3, 'did you mean "media"?', "→ try `accsd workflows list`")
    (await cli("submit", "media", "-o", "json")).ends(2, "is not KEY=VALUE", "--output json")
    (await cli("submit", "media", "--options", "{")).ends(2, "is not JSON")
    (await cli("submit", "media", "--at", "soon")).ends(2, '"soon" is not a time')
    (await cli("submit", "media", "--timeout", "5s")).ends(2, "--timeout needs --wait or --follow")
    await conn.execute("UPDATE workflows SET is_active = false")
    (await cli("submit", "media")).ends(3, "that is active", "workflows list --all")
    assert await conn.fetchval("SELECT count(*) FROM jobs") == 0


# Staying


@asynccontextmanager
async def a_worker(connect: Connect, *outcomes: str) -> AsyncGenerator[None]:
    """Ends one task after the other, as these outcomes say."""
    conn = await connect()

    async def work() -> None:
        for outcome in outcomes:
            [claimed] = await eventually(lambda: started(conn), within=30, interval=0.05)
            await (finish(conn, claimed) if outcome == "done" else fail(conn, claimed, permanent=True))

    async with asyncio.TaskGroup() as group:
        group.create_task(work())
        yield


async def test_wait_ends_with_the_job(cli: Cli, connect: Connect):
    async with a_worker(connect, "done", "done"):
        said = (await cli.process("submit", "media", "--wait", "--output", "json")).ends(0)
    assert (said.json["status"], said.json["progress"]) == ("done", 1)


async def test_a_job_that_fails_is_exit_code_1_and_says_what_to_do(cli: Cli, connect: Connect):
    async with a_worker(connect, "error"):
        said = (await cli("submit", "media", "--wait")).ends(1)
    short = said.out.strip()[-8:]
    assert f"job {short} ended in error" in said.err
    assert "boom it broke" in said.err
    assert f"→ accsd retry {short}" in said.err


async def test_a_job_that_takes_longer_is_a_timeout_and_goes_on(cli: Cli, conn: Connection):
    (await cli("submit", "media", "--wait", "--timeout", "0.4s")).ends(5, "has not ended within 0.4s; it goes on")
    (await cli("submit", "media", "--follow", "--timeout", "0.4s")).ends(5, "it goes on")
    assert (await the_job(conn))["status"] == "running"


async def test_follow_tells_every_event_once_and_in_order(cli: Cli, connect: Connect, conn: Connection):
    async with a_worker(connect, "done", "done"):
        said = (await cli("submit", "media", "--follow", "--output", "jsonl")).ends(0)
    *events, job = said.json_lines
    recorded = await conn.fetch("SELECT id FROM task_events ORDER BY ts, id")
    assert sorted(event["id"] for event in events) == sorted(row["id"] for row in recorded)
    assert [(e["task_key"], e["data"]["to"]) for e in events if e["task_key"]] == [
        (key, to) for key in ("a", "b") for to in ("starting", "running", "done")
    ]
    assert job["status"] == "done"


async def test_an_event_that_becomes_visible_late_is_told_too(cli: Cli, conn: Connection, connect: Connect):
    """Its transaction began, and took its id and time, before those of events that were told already."""
    (await cli("submit", "media")).ends(0)
    job_id: UUID = (await the_job(conn))["id"]
    slow, worker = await connect(), await connect()
    insert = "INSERT INTO task_events (job_id, source, type, message) VALUES ($1, 'x', 'log', $2)"
    transaction = slow.transaction()
    await transaction.start()
    await slow.execute(insert, job_id, "late")
    await conn.execute(insert, job_id, "early")
    told: list[str | None] = []
    async with opened(cli.url or "") as db:
        async for event in timeline.events(db, job_id):
            told.append(event.message)
            if event.message == "early":
                await transaction.commit()
                await fail(worker, *await started(worker), permanent=True)
    assert told.index("late") > told.index("early")


async def test_ctrl_c_ends_the_waiting_and_not_the_job(cli: Cli, conn: Connection):
    waiting = cli.spawn("submit", "media", "--wait")
    try:
        assert waiting.stdout is not None
        job_id = await asyncio.to_thread(waiting.stdout.readline)
        waiting.send_signal(signal.SIGINT)
        _, err = await asyncio.to_thread(waiting.communicate, None, 30)
    finally:
        waiting.kill()
    assert waiting.returncode == 130
    assert "goes on" in err
    job = await the_job(conn)
    assert (str(job["id"]), job["status"]) == (job_id.strip(), "running")


# What people type


def test_options_are_json_where_they_are_json_and_pairs_go_before_the_document(tmp_path: Path):
    file = tmp_path / "o.json"
    file.write_text('{"a": {"b": 1, "c": 2}, "d": null}')
    assert merged(f"@{file}", ["a.b=9", "list=[1, 2]", "text=1 2", "empty=", 'quoted="7"']) == {
        "a": {"b": 9, "c": 2},
        "d": None,
        "list": [1, 2],
        "text": "1 2",
        "empty": "",
        "quoted": "7",
    }
    for document, pairs in ((f"@{tmp_path}/none", []), ("[1]", []), (None, ["=1"]), (None, ["a=1", "a.b=2"])):
        with pytest.raises(InvalidValue):
            merged(document, pairs)


NOW = datetime(2027, 1, 31, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "after"),
    [("in 10m", "0:10:00"), ("in 1h30m", "1:30:00"), ("+90s", "0:01:30"), ("in 2 days", "2 days, 0:00:00")],
)
def test_a_future_time_may_be_relative(text: str, after: str):
    assert str(times.future(text, NOW) - NOW) == after


def test_a_time_of_day_is_the_next_one_or_the_last_one():
    local = NOW.astimezone()
    earlier, later = ((local + timedelta(minutes=away)).strftime("%H:%M") for away in (-5, 5))
    assert times.future(later, NOW) == NOW + timedelta(minutes=5)
    assert times.future(earlier, NOW) == NOW + timedelta(days=1, minutes=-5)
    assert times.past(earlier, NOW) == NOW - timedelta(minutes=5)
    assert times.past(later, NOW) == NOW - timedelta(days=1, minutes=-5)


@pytest.mark.parametrize("text", ["9" * 31, "9" * 400, "999999999d", "in 999999999 days", "9999-12-31T23:59:59-14:00"])
def test_a_time_beyond_the_calendar_is_refused_in_words(text: str):
    for read in (times.length, lambda text: times.future(text, NOW), lambda text: times.past(text, NOW)):
        with pytest.raises(InvalidValue):
            read(text)


def test_a_past_time_may_be_an_age_a_day_or_an_iso_time():
    assert times.past("2h", NOW) == times.past("2h ago", NOW) == NOW - timedelta(hours=2)
    assert times.past("today", NOW) - times.past("yesterday", NOW) == timedelta(days=1)
    assert times.past("2027-01-31T10:00:00Z", NOW) == NOW - timedelta(hours=2)
    for wrong in ("", "soon", "25:00", "10 parsecs"):
        with pytest.raises(InvalidValue):
            times.past(wrong, NOW)
