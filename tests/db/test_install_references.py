"""The foreign keys of jobs, tasks and artifacts hold, whoever checks them: PostgreSQL row by row, or our triggers."""

import asyncio
from uuid import uuid4

import asyncpg
import pytest

from tests.conftest import Connect
from tests.support.cluster import Connection
from tests.support.factory import claim, node, step, submit, workflow
from tests.support.race import blocked

pytestmark = pytest.mark.every_postgresql

INSERT = "INSERT INTO jobs (workflow_id) SELECT unnest($1::uuid[])"
ARTIFACT = "INSERT INTO task_artifacts (job_id, job_task_id, kind, bucket, key) VALUES ($1, $2, 'input', 'b', 'k')"


async def test_a_job_of_an_unknown_workflow_is_refused_with_all_that_came_with_it(conn: Connection):
    known = await workflow(conn, step("a"))
    with pytest.raises(asyncpg.ForeignKeyViolationError):
        await conn.execute(INSERT, [known, uuid4()])
    assert await conn.fetchval("SELECT count(*) FROM jobs") == 0


async def test_a_workflow_that_has_jobs_stays(conn: Connection):
    used, unused = await workflow(conn, step("a")), await workflow(conn, step("a"))
    await conn.execute(INSERT, [used])
    with pytest.raises(asyncpg.ForeignKeyViolationError):
        await conn.execute("DELETE FROM workflows WHERE id = $1", used)
    with pytest.raises(asyncpg.ForeignKeyViolationError):
        await conn.execute("UPDATE workflows SET id = $2 WHERE id = $1", used, uuid4())
    await conn.execute("DELETE FROM workflows WHERE id = $1", unused)


async def test_a_workflow_that_is_deleted_while_a_job_of_it_is_inserted_waits_for_the_job_and_stays(
    conn: Connection, connect: Connect
):
    used = await workflow(conn, step("a"))
    other = await connect()
    async with conn.transaction():
        await conn.execute(INSERT, [used])
        deleting = asyncio.create_task(other.execute("DELETE FROM workflows WHERE id = $1", used))
        await blocked(other, conn)
    with pytest.raises(asyncpg.ForeignKeyViolationError):
        await deleting


async def test_a_job_that_is_inserted_while_its_workflow_is_deleted_waits_and_is_refused(
    conn: Connection, connect: Connect
):
    unused = await workflow(conn, step("a"))
    other = await connect()
    async with conn.transaction():
        await conn.execute("DELETE FROM workflows WHERE id = $1", unused)
        inserting = asyncio.create_task(other.execute(INSERT, [unused]))
        await blocked(other, conn)
    with pytest.raises(asyncpg.ForeignKeyViolationError):
        await inserting


async def test_an_artifact_belongs_to_a_job_and_to_one_of_the_tasks(conn: Connection):
    await node(conn)
    job = await submit(conn)
    (claimed,) = await claim(conn)
    with pytest.raises(asyncpg.ForeignKeyViolationError):
        await conn.execute(ARTIFACT, uuid4(), None)
    with pytest.raises(asyncpg.ForeignKeyViolationError):
        await conn.execute(ARTIFACT, job, uuid4())
    await conn.execute(ARTIFACT, job, claimed["task_id"])


async def test_no_row_is_checked_by_itself_where_postgresql_lets_us_choose(conn: Connection):
    lets_us = await conn.fetchval("SELECT current_setting('server_version_num')::int >= 180000")
    tables = ["jobs", "job_tasks", "task_artifacts"]
    found = await conn.fetch(
        "SELECT tgname FROM pg_trigger WHERE tgisinternal AND tgrelid::regclass::text = ANY ($1)", tables
    )
    assert (found == []) == lets_us
