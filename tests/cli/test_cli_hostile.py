"""What anybody may have written into the database: no command ends in a traceback over it, and no terminal obeys it."""

import re
from uuid import UUID

import pytest

from accsd.cli import jobs as jobs_command
from accsd.cli import main
from accsd.explain.words import short
from accsd.values.times import FarTime, from_microseconds, in_microseconds
from tests.support.cli import Cli, Said
from tests.support.cluster import Connection
from tests.support.factory import fail, node, started, step, submit_to, workflow

# Sets the title, goes back to the line's beginning, rings, erases by C1, turns the direction of writing.
ORDERS = "\x1b]0;owned\x07\r\x07\x9b2J\x1b[31m\u202e"
CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]")


@pytest.fixture
async def cli(db_url: str, conn: Connection) -> Cli:
    await node(conn)
    return Cli(db_url)


# Control characters


async def a_job_full_of_orders(conn: Connection) -> UUID:
    """In each of its texts that somebody else may choose. One step has failed, one waits for a node that nobody has."""
    chosen = await workflow(
        conn,
        step("a", max_attempts=1, concurrency_key=f"k{ORDERS}"),
        step("b", node=f"n{ORDERS}"),
        name=f"media{ORDERS}",
    )
    job = await conn.fetchval(
        """INSERT INTO jobs (workflow_id, created_by, trace_id, idempotency_key, options)
           VALUES ($1, $2, $2, $2, $3) RETURNING id""",
        chosen,
        f"me{ORDERS}",
        {f"o{ORDERS}": f"v{ORDERS}"},
    )
    await conn.fetch("SELECT * FROM accs.instantiate_due_jobs(10)")
    await fail(conn, *await started(conn), code=f"c{ORDERS}", message=f"it broke{ORDERS}")
    await conn.execute("SELECT accs.pause('workflow', $1, $2, $3)", f"media{ORDERS}", f"me{ORDERS}", f"so{ORDERS}")
    await node(conn, f"machine{ORDERS}", {f"l{ORDERS}": f"v{ORDERS}"})
    return job


async def test_no_command_passes_control_characters_on_to_the_terminal(cli: Cli, conn: Connection):
    job = await a_job_full_of_orders(conn)
    asked = [
        ("jobs",),
        ("jobs", "-o", "name"),
        ("job", str(job)),
        ("why", str(job)),
        ("why", f"{job}/b"),
        ("logs", str(job)),
        ("retry", str(job), "--from", f"x{ORDERS}"),
        ("cancel", str(job)),
        ("cancel", f"x{ORDERS}"),
        ("dead", "list"),
        ("workflows", "list"),
        ("workflows", "list", "-o", "name"),
        ("workflows", "show", f"media{ORDERS}"),
        ("workflows", "show", f"media{ORDERS}", "-o", "yaml"),
        ("workflows", "resume", f"media{ORDERS}"),
        ("submit", f"medium{ORDERS}"),
        ("nodes",),
        ("nodes", "show", f"machine{ORDERS}"),
        ("services",),
        ("top", "--once"),
        (f"x{ORDERS}",),
        ("jobs", "--status", f"x{ORDERS}"),
    ]
    told = {arguments: await cli(*arguments) for arguments in asked}
    obeyed = {
        arguments: said.out + said.err for arguments, said in told.items() if CONTROLS.search(said.out + said.err)
    }
    assert obeyed == {}
    said = told["job", str(job)]
    assert "by me\\x0d\\x07\\x9b2J\\x202e" in said.out, "it is told that something was there"


async def test_json_is_exact_and_holds_no_raw_control_character(cli: Cli, conn: Connection):
    job = await a_job_full_of_orders(conn)
    said = await cli("job", str(job), "-o", "json")
    assert not CONTROLS.search(said.out)
    assert (said.json["created_by"], said.json["workflow"]) == (f"me{ORDERS}", f"media{ORDERS}")
    assert said.json["options"] == {f"o{ORDERS}": f"v{ORDERS}"}
    assert CONTROLS.search((await cli("jobs", "-o", "json")).out) is None


# Times that Python can't hold

FAR = ("infinity", "-infinity", "294276-12-31 00:00:00+00", "12000-01-01 00:00:00+00", "4713-01-01 00:00:00+00 BC")


async def without_bounds(conn: Connection) -> None:
    """As a database was that was made before these columns had bounds."""
    await conn.execute("DROP TRIGGER jobs_times_check ON public.jobs")


@pytest.mark.parametrize("column", ["scheduled_at", "created_at"])
async def test_a_job_with_a_far_time_is_listed_among_the_others_and_says_so(cli: Cli, conn: Connection, column: str):
    await without_bounds(conn)
    media = await workflow(conn, name="media")
    good = await submit_to(conn, media)
    far = {
        moment: await conn.fetchval(
            f"INSERT INTO jobs (workflow_id, {column}) VALUES ($1, '{moment}') RETURNING id", media
        )
        for moment in FAR
    }
    listed = (await cli("jobs")).ends(0).out.splitlines()[1:]
    assert len(listed) == 1 + len(far)
    as_json = {row["id"]: row for row in (await cli("jobs", "-o", "json")).ends(0).json}
    assert set(as_json) == {str(good), *map(str, far.values())}
    for moment, job in far.items():
        written = moment.replace(" 00:00:00+00", "T00:00:00+00:00")
        assert as_json[str(job)][column] == written
        (line,) = [line for line in listed if line.startswith(short(job))]
        # one that is due has no place in the list that would tell when it was
        assert written in line or (column == "scheduled_at" and as_json[str(job)]["status"] != "queued")
        told = (await cli("job", str(job))).ends(0).out
        assert written in told or as_json[str(job)]["status"] != "queued"
        assert (await cli("job", str(job), "-o", "json")).ends(0).json[column] == written
        (await cli("why", str(job))).ends(0)
        (await cli("why", str(job), "-o", "json")).ends(0)


async def test_why_says_that_a_job_is_never_due(cli: Cli, conn: Connection):
    await without_bounds(conn)
    job = await conn.fetchval(
        "INSERT INTO jobs (workflow_id, scheduled_at) VALUES ($1, 'infinity') RETURNING id", await workflow(conn)
    )
    (await cli("why", str(job))).ends(0, "it is scheduled, and due at infinity")


@pytest.mark.parametrize(
    ("written", "microseconds"),
    [
        ("infinity", 2**63 - 1),
        ("-infinity", -(2**63)),
        ("10000-01-01T00:00:00+00:00", 252455616000 * 10**6),
        ("294276-12-31T23:59:59.999999+00:00", 9223371331200 * 10**6 - 1),
        ("0001-12-31T00:00:00+00:00 BC", -63082368000 * 10**6),
    ],
)
def test_a_far_time_is_written_as_postgresql_writes_it_and_sent_back_as_it_came(written: str, microseconds: int):
    moment = from_microseconds(microseconds)
    assert isinstance(moment, FarTime)
    assert str(moment) == written
    assert in_microseconds(moment) == microseconds
    moment.astimezone()


# Errors


async def test_an_unforeseen_error_is_a_sentence_with_an_exit_code_of_its_own(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
):
    def broken(*_: object) -> None:
        raise OverflowError(f"date value\nout of range{ORDERS}")

    monkeypatch.setattr(jobs_command, "with_database", broken)
    said = await cli("jobs")
    said.ends(70, "accsd: ", "OverflowError: date value out of range", "→ this is a bug of accsd", "ACC_DEBUG=1")
    assert not CONTROLS.search(said.err)
    shown = await cli("--debug", "jobs")
    assert shown.code == 70
    assert "Traceback" in shown.err
    assert "in broken" in shown.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["jbos"], ["no such command 'jbos'", "Did you mean 'jobs'?", "→ `accsd --help`"]),
        (["workflows", "aply"], ["no such command 'aply'", "Did you mean 'apply'?", "→ `accsd workflows --help`"]),
        (["--rle", "all"], ["no such option '--rle'", "'--role'", "→ `accsd --help`"]),
        (["jobs", "--limit", "x"], ["invalid value for '--limit'", "→ `accsd jobs --help`"]),
        (["submit"], ["missing argument 'NAME'", "→ `accsd submit --help`"]),
        (["submit", "w", "--timeout", "3s"], ["--timeout needs --wait or --follow", "→ `accsd submit --help`"]),
        (["cancel"], ["no job was named", "→ `accsd jobs` lists them", "xargs -r"]),
    ],
)
async def test_every_error_has_the_same_form(arguments: list[str], words: list[str]):
    said: Said = (await Cli(None)(*arguments)).ends(2, *words)
    first, second = said.err.splitlines()
    assert first.startswith("accsd: ")
    assert second.startswith("  → ")


def test_the_exit_codes_are_in_the_help():
    assert "70  a bug of accsd" in main.get_help(main.make_context("accsd", [], resilient_parsing=True))
