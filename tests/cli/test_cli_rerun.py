"""`accsd retry JOB -o KEY=VALUE`: a new job in place of an earlier one, with other options."""

from uuid import UUID

import pytest

from accsd.explain.words import short
from tests.support.cli import Cli
from tests.support.cluster import Connection
from tests.support.factory import fail, node, started, step, submit_to, tasks, workflow

OPTIONS = {"url": "a.mov", "quality": {"crf": 20, "preset": "slow"}}


@pytest.fixture
async def cli(db_url: str, conn: Connection) -> Cli:
    await node(conn)
    return Cli(db_url)


async def failed(conn: Connection) -> UUID:
    job = await submit_to(conn, await workflow(conn, step("a")), options=OPTIONS, priority=7)
    await fail(conn, *await started(conn), permanent=True)
    return job


async def test_other_options_make_a_new_job_of_the_same_version(cli: Cli, conn: Connection):
    job = await failed(conn)
    newer = "INSERT INTO workflows (name, version, steps) SELECT name, version + 1, steps FROM workflows"
    await conn.execute(newer)
    said = await cli.process("retry", short(job), "-o", "quality.crf=18", "-o", "title=Hello", "--output", "json")
    [answer] = said.ends(0).json
    assert answer["answer"] == "accepted"
    made = await conn.fetchrow("SELECT * FROM jobs WHERE id = $1", UUID(answer["id"]))
    assert made is not None
    assert made["options"] == {"url": "a.mov", "quality": {"crf": 18, "preset": "slow"}, "title": "Hello"}
    earlier = await conn.fetchrow("SELECT * FROM jobs WHERE id = $1", job)
    assert earlier is not None
    assert (made["workflow_id"], made["priority"]) == (earlier["workflow_id"], 7)
    assert "@" in made["created_by"]
    assert (earlier["status"], earlier["options"]) == ("error", OPTIONS), "as it was"
    assert made["trigger"] == {"rerun_of": str(job)}
    assert await tasks(conn, made["id"]) == {"a": "queued"}
    (await cli("job", answer["id"])).ends(0, f"rerun of   {job}")


async def test_a_document_replaces_whole_options(cli: Cli, conn: Connection):
    job = await failed(conn)
    said = await cli("retry", short(job), "--options", '{"quality": {"crf": 1}}', "-o", "n=2", "--output", "name")
    options = await conn.fetchval("SELECT options FROM jobs WHERE id = $1", UUID(said.ends(0).out.strip()))
    assert options == {"url": "a.mov", "quality": {"crf": 1}, "n": 2}


async def test_what_makes_no_sense_is_refused(cli: Cli, conn: Connection):
    job = await failed(conn)
    (await cli("retry", short(job), "--from", "a", "-o", "n=2")).ends(2, "--from", "-o")
    (await cli("retry", short(job), "-o", "json")).ends(2, "--output json")
    running = await submit_to(conn, await workflow(conn, step("a")))
    (await cli("retry", short(running), "-o", "n=2")).ends(1, "it has not ended, it is running", "→ accsd cancel")
    assert await conn.fetchval("SELECT count(*) FROM jobs") == 2


async def test_the_new_job_is_the_one_that_is_followed(cli: Cli, conn: Connection):
    job = await failed(conn)
    said = await cli("retry", short(job), "-o", "n=2", "--follow", "--timeout", "0.4s")
    newest = await conn.fetchval("SELECT id FROM jobs ORDER BY order_seq DESC LIMIT 1")
    said.ends(5, f"job {short(newest)} runs in place of job {short(job)}", f"job {short(newest)} has not ended")
