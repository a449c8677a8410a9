"""Files of a workflow in the tasks of it: laid, shared, and told fairly where they can't be had."""

import hashlib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from accsd.errors import StorageUnavailable
from accsd.model.outcome import ErrorCode
from accsd.sdk import Task
from accsd.storage import build_file_key
from accsd.work.cache import FileCache
from tests.daemon.test_pull import ended, serving
from tests.support.attempts import Shop, shop
from tests.support.checker import check
from tests.support.cluster import Connection
from tests.support.factory import node, step, submit_to, task
from tests.support.library import opened
from tests.support.tasks import PREAMBLE

READ = (
    PREAMBLE
    + """
texts = {}
for file in task["files"]:
    path = os.path.join(task["workdir"], file["path"])
    texts[file["name"]] = open(path).read()
    if params.get("spoil"):
        with open(path, "w") as opened: opened.write("spoiled")
say(type="result", results={"texts": texts, "files": task["files"]})
"""
)


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@asynccontextmanager
async def working(db_url: str, tmp_path: Path, conn: Connection, **given: Any) -> AsyncGenerator[Shop]:
    await node(conn)
    async with opened(db_url) as db, shop(db, tmp_path, **given) as here:
        yield here
    await check(conn)


async def workflow_with(conn: Connection, texts: dict[str, str], **fields: Any) -> UUID:
    """Its files are named as they would be in the store; nobody has put them there."""
    named = [
        {"name": name, "key": build_file_key(sha256(text)), "size": len(text), "sha256": sha256(text)}
        for name, text in texts.items()
    ]
    return await conn.fetchval(
        "INSERT INTO workflows (name, steps, files) VALUES ('w', $1, $2) RETURNING id", [step("a", **fields)], named
    )


async def ran(conn: Connection, job: UUID) -> tuple[str, int, int, str | None, str]:
    row = await task(conn, job)
    return row["status"], row["attempt"], row["lost"], row["error_code"], row["error_message"] or ""


async def test_a_task_finds_the_files_of_its_workflow_and_can_not_spoil_those_of_others(
    db_url: str, conn: Connection, tmp_path: Path
):
    texts = {"fonts/a.ttf": "font", "again.txt": "font", "empty": ""}
    async with working(db_url, tmp_path, conn) as here:
        made = await workflow_with(conn, texts)
        for text in set(texts.values()):
            await here.context.store.put_bytes(build_file_key(sha256(text)), text.encode())
        service = here.serving(READ)
        for _ in range(2):
            job = await submit_to(conn, made, options={"spoil": True})
            await here.begin(service)
            await here.idle()
            results = (await task(conn, job))["results"]
            assert results["texts"] == texts
            assert results["files"][0] == {
                "name": "fonts/a.ttf",
                "path": "files/fonts/a.ttf",
                "size_bytes": 4,
                "sha256": sha256("font"),
            }
    assert {file.name: file.read_text() for file in (tmp_path / "files").iterdir()} == {
        sha256("font"): "font",
        sha256(""): "",
    }


class Away:
    def __init__(self, store: Any) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def get_to(self, *_: Any, **__: Any) -> Any:
        raise StorageUnavailable("the store does not answer")


async def test_a_store_that_is_away_spends_no_attempt(db_url: str, conn: Connection, tmp_path: Path):
    async with working(db_url, tmp_path, conn, patience=timedelta(0)) as here:
        here.context.store = Away(here.context.store)  # pyright: ignore[reportAttributeAccessIssue]
        job = await submit_to(conn, await workflow_with(conn, {"a": "text"}))
        await here.begin(here.serving(READ))
        await here.idle()
        assert (await ran(conn, job))[:4] == ("queued", 0, 1, ErrorCode.STORAGE_UNAVAILABLE)


@pytest.mark.parametrize(("there", "words"), [(None, "is not in the store"), (b"tExt", "is damaged in the store")])
async def test_a_file_that_is_deleted_or_damaged_in_the_store_is_the_workflows_fault_and_is_mended_by_a_retry(
    db_url: str, conn: Connection, tmp_path: Path, there: bytes | None, words: str
):
    async with working(db_url, tmp_path, conn) as here:
        key = build_file_key(sha256("text"))
        if there is not None:
            await here.context.store.put_bytes(key, there)
        job = await submit_to(conn, await workflow_with(conn, {"a": "text"}, max_attempts=1))
        service = here.serving(READ)
        await here.begin(service)
        await here.idle()
        status, attempt, lost, code, message = await ran(conn, job)
        assert (status, attempt, lost, code) == ("error", 1, 0, ErrorCode.FILE_MISSING)
        assert f'file "a" of the workflow {words}' in message
        await here.context.store.put_bytes(key, b"text")
        await conn.fetch("SELECT * FROM accs.retry_jobs($1, $2)", [job], [None])
        await here.begin(service)
        await here.idle()
        assert (await task(conn, job))["results"]["texts"] == {"a": "text"}


async def test_a_node_whose_disk_is_short_gives_its_cache_up_before_it_stops_claiming(
    db_url: str, conn: Connection, tmp_path: Path
):
    files = FileCache(tmp_path / "files", limit=2**30, min_free=2**60)
    async with working(db_url, tmp_path, conn, files=files, min_free_disk=2**60) as here:
        (tmp_path / "files").mkdir()
        (tmp_path / "files" / sha256("text")).write_text("text")
        assert here.context.disk_problem() is not None
        assert list((tmp_path / "files").iterdir()) == []


async def test_a_function_in_pull_mode_finds_them_too(db_url: str, conn: Connection, tmp_path: Path):
    def read(given: Task) -> dict[str, Any]:
        return {"text": given.file("fonts/a.ttf").read_text(), "names": list(given.files(among="files"))}

    made = await workflow_with(conn, {"fonts/a.ttf": "font", "b": "other"}, files=["fonts"])
    async with serving(db_url, tmp_path, read, storage={"url": f"file://{tmp_path}/store"}):
        target = tmp_path / "store" / build_file_key(sha256("font"))
        target.parent.mkdir(parents=True)
        target.write_text("font")
        done = await ended(conn, await submit_to(conn, made))
    assert done["results"] == {"text": "font", "names": ["fonts/a.ttf"]}
    assert [file.name for file in (tmp_path / "files").iterdir()] == [sha256("font")]
