"""Files of workflow versions: checked when they are written, and handed to the tasks of the version."""

from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from accsd.db import Database, TaskFile, task_objects
from accsd.db.files import named_files
from accsd.errors import WorkflowInvalid
from accsd.model import Fence, WorkflowDef
from tests.support.cluster import Connection
from tests.support.factory import claim, done, node, step, submit_to
from tests.support.library import opened
from tests.support.resolving import fan_out

pytestmark = pytest.mark.every_postgresql

A, B = "aa" * 32, "bb" * 32


@pytest.fixture
async def db(db_url: str) -> AsyncIterator[Database]:
    async with opened(db_url) as opening:
        yield opening


def file(name: str, sha256: str = A, **fields: Any) -> dict[str, Any]:
    return {"name": name, "key": f"files/{sha256}", "size": 3, "sha256": sha256, **fields}


async def write(conn: Connection, files: Any, *steps: dict[str, Any], name: str = "w") -> UUID:
    return await conn.fetchval(
        """INSERT INTO workflows (name, steps, files) VALUES ($1, $2, $3)
           ON CONFLICT (name, version) DO UPDATE SET steps = excluded.steps, files = excluded.files RETURNING id""",
        name,
        list(steps) or [step("a")],
        files,
    )


async def given(conn: Connection, row: Any) -> list[str]:
    found = await conn.fetch(
        "SELECT * FROM accs.task_inputs($1, $2, $3) WHERE kind = 'file'", row["task_id"], row["attempt_id"], "owner-1"
    )
    return [each["name"] for each in found]


REFUSED: list[tuple[Any, str]] = [
    ({"name": "a"}, "files must be a list"),
    (["a"], "file number 1: must be a JSON object"),
    ([{"key": "k"}], "file number 1: name is missing"),
    ([file("../a")], 'file "../a": name must be a relative path'),
    ([file("/a")], "name must be a relative path"),
    ([file("a/")], "name must be a relative path"),
    ([file("")], "name must be a relative path"),
    ([file("a/./b")], "name must be a relative path"),
    ([file("a\\b")], "name must be a relative path"),
    ([file("a\nb")], "name must be a relative path"),
    ([file("n" * 256)], "name must be a relative path"),
    ([file("n/" * 250 + "n")], "name must be a relative path"),
    ([file("a", source="a")], "`accsd workflows apply` puts that file into the store"),
    ([file("a", extra=1)], 'unknown field "extra"'),
    ([file("a", key="")], "key must be that of an object"),
    ([file("a", sha256="xyz")], "sha256 must be 64 hex digits"),
    ([file("a", size=-1)], "size must be a number of bytes"),
    ([file("a", size="3")], "size must be a number of bytes"),
    ([file("a"), file("a")], "the name is used twice"),
    ([file("a/b/c"), file("a")], 'there is a file "a", which is no folder'),
    ([file(f"f{n}") for n in range(1001)], "up to 1,000 files"),
    ([file("a", size=60 * 1024**3), file("b", size=60 * 1024**3)], "more than 100 GiB"),
]


async def test_files_that_are_wrong_are_refused_by_sql_and_by_python(conn: Connection):
    for files, words in REFUSED:
        with pytest.raises(asyncpg.PostgresError) as refused:
            await write(conn, files)
        assert (refused.value.sqlstate, words in str(refused.value)) == ("AC001", True), (files, refused.value)
        with pytest.raises(WorkflowInvalid):
            WorkflowDef.model_validate({"name": "w", "steps": [step("a")], "files": files}).files_document()
    for wanted, words in [(["b"], 'neither a file nor a folder "b"'), ("a", "must be a list"), ([1], "must be a list")]:
        with pytest.raises(asyncpg.PostgresError) as refused:
            await write(conn, [file("a")], step("a", files=wanted))
        assert words in str(refused.value), (wanted, refused.value)
    assert await conn.fetchval("SELECT count(*) FROM workflows") == 0


async def test_tasks_are_given_the_files_that_their_step_wants(conn: Connection):
    await node(conn)
    files = [file("fonts/a"), file("fonts/b", B), file("model")]
    steps = [
        step("all"),
        step("some", files=["fonts/"]),
        step("one", files=["model"]),
        step("none", files=[]),
    ]
    await submit_to(conn, await write(conn, files, *steps))
    found = {row["task_key"]: await given(conn, row) for row in await claim(conn, 4)}
    assert found == {
        "all": ["fonts/a", "fonts/b", "model"],
        "some": ["fonts/a", "fonts/b"],
        "one": ["model"],
        "none": [],
    }
    assert await conn.fetchval("SELECT count(*) FROM accs.file_sets") == 3


async def test_a_task_without_files_carries_nothing(conn: Connection):
    await node(conn)
    await submit_to(conn, await write(conn, []))
    (row,) = await claim(conn)
    assert await given(conn, row) == []
    assert await conn.fetchval("SELECT files FROM job_tasks") is None


async def test_the_items_of_a_step_and_a_second_attempt_are_given_the_same(conn: Connection):
    await node(conn)
    steps = [step("split", files=[]), step("each", after="split", for_each="${steps.split.parts}")]
    job = await submit_to(conn, await write(conn, [file("a")], *steps))
    await done(conn)
    await fan_out(conn, job, "each", 1, 2)
    first, second = await claim(conn, 2)
    assert await given(conn, first) == await given(conn, second) == ["a"]
    await conn.fetch("SELECT * FROM accs.release_tasks($1, $2, 'owner-1')", [first["task_id"]], [first["attempt_id"]])
    (again,) = await claim(conn)
    assert (again["task_id"], await given(conn, again)) == (first["task_id"], ["a"])


async def test_a_version_that_is_written_anew_leaves_its_jobs_the_files_that_they_had(conn: Connection, db: Database):
    await node(conn)
    made = await write(conn, [file("old")])
    await submit_to(conn, made)
    assert await write(conn, [file("new", B)]) == made
    await submit_to(conn, made)
    old, new = await claim(conn, 2)
    assert [await given(conn, old), await given(conn, new)] == [["old"], ["new"]]
    assert await named_files(db, [f"files/{A}", f"files/{B}", "files/other"]) == {f"files/{A}", f"files/{B}"}
    await conn.execute("UPDATE workflows SET files = '[]'")
    assert await conn.fetchval("SELECT count(*) FROM accs.steps WHERE files IS NOT NULL") == 0
    assert await named_files(db, [f"files/{A}", f"files/{B}"]) == {f"files/{A}", f"files/{B}"}


async def test_what_no_version_names_any_more_is_free_to_go(conn: Connection, db: Database):
    await write(conn, [file("a")], step("a", files=[]))
    assert await named_files(db, [f"files/{A}"]) == {f"files/{A}"}
    await conn.execute("DELETE FROM workflows")
    assert await named_files(db, [f"files/{A}"]) == set()
    assert await conn.fetchval("SELECT count(*) FROM accs.file_sets") == 0


async def test_an_attempt_hears_of_its_inputs_and_its_files_at_once(conn: Connection, db: Database):
    await node(conn)
    await submit_to(conn, await write(conn, [file("a")]))
    (row,) = await claim(conn)
    inputs, files = await task_objects(db, Fence(row["task_id"], row["attempt_id"]), owner="owner-1")
    assert (inputs, files) == ([], [TaskFile("a", f"files/{A}", 3, f"sha256:{A}")])
