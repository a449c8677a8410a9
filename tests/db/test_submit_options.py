"""Typed submissions: options_schema is checked when a workflow is written, when a job is submitted by the library, and
by the resolver for jobs that came another way (AGREED, "Schemas")."""

from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import pytest

from accsd.builder.resolver import Resolver
from accsd.db import Database, Submission, apply_workflow, submit_job, submit_jobs
from accsd.db import submit as submitting
from accsd.errors import OptionsInvalid, WorkflowInvalid
from accsd.model import WorkflowDef
from tests.support.checker import check
from tests.support.cluster import Connection
from tests.support.factory import claim, job, node, step, submit_to, task
from tests.support.library import opened

SCHEMA = {
    "type": "object",
    "required": ["url"],
    "properties": {"url": {"type": "string", "format": "uri"}, "frames": {"type": "integer", "minimum": 1}},
    "additionalProperties": False,
}
_WRONG = {"frames": "hunter2", "colour": "red"}
_TOLD = 'options has an unknown field "colour"; options.frames must be a whole number; options.url is missing'


@pytest.fixture
async def db(db_url: str) -> AsyncIterator[Database]:
    submitting._schemas.clear()
    async with opened(db_url) as database:
        yield database


async def typed(db: Database, *steps: dict[str, Any], schema: dict[str, Any] | None = None, version: int = 1) -> UUID:
    document = {"name": "media", "version": version, "options_schema": schema or SCHEMA, "steps": list(steps)}
    return await apply_workflow(db, WorkflowDef.model_validate(document))


async def resolved(db: Database) -> str | None:
    return (await Resolver(db).run_once()).did


async def test_wrong_options_are_refused_before_anything_is_written(db: Database, conn: Connection):
    which = await typed(db, step("a"))

    with pytest.raises(OptionsInvalid) as refused:
        await submit_job(db, Submission(which, _WRONG))

    assert str(refused.value) == _TOLD
    assert [place for place, _ in refused.value.complaints] == [(), ("frames",), ("url",)]
    with pytest.raises(OptionsInvalid, match=r"options.url is missing"):
        await submit_jobs(db, [Submission(which, {"url": "https://example.org"}), Submission(which)])
    assert await conn.fetchval("SELECT count(*) FROM jobs") == 0


async def test_good_options_are_taken_and_the_step_can_be_claimed_when_it_is_resolved(db: Database, conn: Connection):
    await node(conn)
    made = await submit_job(db, Submission(await typed(db, step("a")), {"url": "https://example.org", "frames": 3}))
    assert await claim(conn) == []

    assert await resolved(db) == "1 resolved"
    (claimed,) = await claim(conn)
    assert (claimed["job_id"], claimed["options"]["frames"]) == (made, 3)


async def test_a_job_that_came_another_way_ends_in_error_before_any_node_has_work(db: Database, conn: Connection):
    await node(conn)
    which = await typed(db, step("a"), step("a2"), step("b", after="a"))
    made = await submit_to(conn, which, options=_WRONG)
    assert await conn.fetchval("SELECT count(*) FROM accs.wake_demand() WHERE tasks > 0") == 0

    assert await resolved(db) == "2 in error"
    found = {key: await task(conn, made, key) for key in ("a", "a2", "b")}
    assert (found["a"]["status"], found["a"]["error_code"]) == ("error", "options_invalid")
    assert found["a"]["error_message"] == _TOLD
    assert found["b"]["status"] == "skipped"
    assert (await job(conn, made))["status"] == "error"
    await check(conn)


async def test_a_plain_insert_without_options_is_checked_as_an_empty_object(db: Database, conn: Connection):
    which = await typed(db, step("a"))
    made = await conn.fetchval("INSERT INTO jobs (workflow_id) VALUES ($1) RETURNING id", which)
    await conn.fetch("SELECT * FROM accs.instantiate_due_jobs()")

    await resolved(db)
    assert (await task(conn, made))["error_message"] == "options.url is missing"


async def test_a_schema_that_is_none_is_refused_when_the_workflow_is_written(db: Database, conn: Connection):
    with pytest.raises(WorkflowInvalid, match=r"options_schema.properties.a.type fits none of") as refused:
        await typed(db, step("a"), schema={"properties": {"a": {"type": "strang"}}})

    assert refused.value.complaints[0][0] == ("options_schema", "properties", "a", "type")
    assert await conn.fetchval("SELECT count(*) FROM workflows") == 0


async def test_a_schema_that_was_written_by_hand_and_is_none_is_told_by_the_jobs(db: Database, conn: Connection):
    which = await conn.fetchval(
        "INSERT INTO workflows (name, steps, options_schema) VALUES ('w', $1, $2) RETURNING id",
        [step("a")],
        {"$ref": "file:///etc/passwd"},
    )
    made = await submit_job(db, Submission(which, {"a": 1}))

    await resolved(db)
    only = await task(conn, made)
    assert (only["status"], only["error_code"]) == ("error", "workflow_invalid")
    assert "must be the place of a schema in this document" in only["error_message"]


async def test_a_schema_that_has_changed_since_the_submission_was_checked_is_checked_again(
    db: Database, conn: Connection
):
    which = await typed(db, step("a"), schema={"type": "object"})
    first = await submit_job(db, Submission(which, _WRONG))
    await typed(db, step("a"))
    second = await submit_job(db, Submission(which, _WRONG))  # this process still knows the older schema

    await resolved(db)
    assert [(await job(conn, made))["status"] for made in (first, second)] == ["error", "error"]
