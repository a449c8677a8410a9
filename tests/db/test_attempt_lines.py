"""The log of an attempt by line (explain/log): parts in a real store, events in a real database."""

from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import orjson
import pytest

from accsd.db import Database, Fence, TaskEvent, append_task_events, record_task_artifact
from accsd.errors import InvalidValue, NotFound
from accsd.explain.log import AttemptLines, Line, Wanted
from accsd.explain.redaction import Redaction
from accsd.model.state import ArtifactKind, Level
from accsd.storage.base import build_key
from accsd.storage.file import FileStore
from accsd.work.tasklog import LogFacts
from tests.support.cluster import Connection
from tests.support.factory import Claimed, finish, node, started, submit
from tests.support.library import opened

BEGAN = datetime(2026, 11, 18, 12, tzinfo=UTC)


@pytest.fixture
async def db(db_url: str) -> AsyncIterator[Database]:
    async with opened(db_url) as opening:
        yield opening


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    return FileStore(tmp_path, "accs")


def line(n: int, text: str | None = None, level: str = "info") -> dict[str, Any]:
    return {"ts": BEGAN + timedelta(seconds=n), "stream": "stdout", "level": level, "message": text or f"line {n}"}


async def seal(
    db: Database,
    store: FileStore,
    claimed: Claimed,
    number: int,
    lines: Sequence[dict[str, Any]],
    *,
    facts: bool = True,
) -> None:
    content = b"".join(orjson.dumps(each, option=orjson.OPT_APPEND_NEWLINE) for each in lines)
    job_id, task_id, attempt_id = claimed["job_id"], claimed["task_id"], claimed["attempt_id"]
    key = build_key(job_id, "a", ArtifactKind.LOG, attempt_id=attempt_id, name=f"{number:06d}.jsonl")
    stored = await store.put_bytes(key, content)
    await record_task_artifact(
        db,
        Fence(task_id, attempt_id),
        owner="owner-1",
        kind=ArtifactKind.LOG,
        bucket=stored.bucket,
        key=stored.key,
        checksum=stored.checksum,
        facts=LogFacts.of(content).document() if facts else None,
    )


async def say(db: Database, claimed: Claimed, *lines: str, level: Level = Level.INFO) -> None:
    fence = Fence(claimed["task_id"], claimed["attempt_id"])
    await append_task_events(db, [TaskEvent(fence, text, level) for text in lines], owner="owner-1")


async def lines_of(db: Database, store: FileStore, claimed: Claimed) -> AttemptLines:
    return await AttemptLines.open(db, store, claimed["task_id"], claimed["attempt_id"])


async def running(conn: Connection) -> Claimed:
    await node(conn)
    await submit(conn)
    (task,) = await started(conn)
    return task


async def test_a_window_crosses_the_parts_of_a_log(conn: Connection, db: Database, store: FileStore):
    task = await running(conn)
    await seal(db, store, task, 1, [line(n) for n in range(1, 6)])
    await seal(db, store, task, 2, [line(n) for n in range(6, 9)], facts=False)  # as an older agent wrote it
    await seal(db, store, task, 3, [line(9), line(10, "it broke", "error"), line(11)])
    await finish(conn, task)
    log = await lines_of(db, store, task)
    window = await log.window(4, 4)
    assert [(each.n, each.text) for each in window.lines] == [(n, f"line {n}") for n in range(4, 8)]
    assert (window.total_lines, window.errors, window.is_complete, window.source) == (11, [10], True, "store")
    assert [each.n for each in (await log.tail(3)).lines] == [9, 10, 11]
    assert [each.n for each in (await log.around_error(2)).lines] == [9, 10]
    assert [each.n for each in (await log.around(BEGAN + timedelta(seconds=6.5), 2)).lines] == [6, 7]
    assert (await log.window(12, 5)).lines == []
    assert window.document(Redaction([]))["first_line"] == 4


async def test_a_window_reads_no_other_part_than_those_it_shows(conn: Connection, db: Database, store: FileStore):
    task = await running(conn)
    await seal(db, store, task, 1, [line(1), line(2, "it broke", "error")])
    await seal(db, store, task, 2, [line(3), line(4), line(5)])
    await finish(conn, task)
    first = build_key(task["job_id"], "a", ArtifactKind.LOG, attempt_id=task["attempt_id"], name="000001.jsonl")
    await store.delete(first)
    window = await (await lines_of(db, store, task)).tail(2)
    assert ([each.n for each in window.lines], window.errors, window.total_lines) == ([4, 5], [2], 5)


def test_facts_of_an_agent_that_does_not_say_where_errors_are_count_as_none():
    facts = LogFacts.of(orjson.dumps(line(1, level="error"))).document()
    assert LogFacts.read(facts) == LogFacts(1, 0, 1, facts["first_ts"], facts["last_ts"], [1])
    del facts["error_lines"]
    assert LogFacts.read(facts) is None


async def test_what_runs_is_told_by_events_from_where_its_parts_end(conn: Connection, db: Database, store: FileStore):
    task = await running(conn)
    await say(db, task, "line 1", "line 2", "line 3")
    await seal(db, store, task, 1, [line(1), line(2)])
    window = await (await lines_of(db, store, task)).tail(10)
    assert [(each.n, each.text) for each in window.lines] == [(1, "line 1"), (2, "line 2"), (3, "line 3")]
    assert (window.source, window.is_complete) == ("both", False)
    await say(db, task, "more than 1000 lines: the rest is in the log only")
    assert (await lines_of(db, store, task)).total == 3


async def test_a_log_that_was_never_stored_is_its_events(conn: Connection, db: Database, store: FileStore):
    task = await running(conn)
    await say(db, task, "hello")
    await say(db, task, "it broke", level=Level.ERROR)
    await finish(conn, task)
    window = await (await lines_of(db, store, task)).tail(10)
    assert ([each.text for each in window.lines], window.errors, window.source) == (
        ["hello", "it broke"],
        [2],
        "events",
    )


async def test_a_search_finds_every_line_whatever_its_letters(conn: Connection, db: Database, store: FileStore):
    task = await running(conn)
    texts = ['say "hi"', "STRASSE", "straße", "a\\b", "tab\there", "…"]
    await seal(db, store, task, 1, [line(n, text, "warn") for n, text in enumerate(texts, 1)])
    await say(db, task, *texts, "the straße again")
    log = await lines_of(db, store, task)

    async def hits(text: str, **how: Any) -> list[int]:
        return [each.n async for each in log.search(Wanted(text, **how)) if isinstance(each, Line)]

    assert await hits("strasse") == [2, 3, 7]
    assert await hits("straße", match_case=True) == [3, 7]
    assert await hits("straße", levels=[Level.WARN]) == [2, 3]
    assert await hits("", levels=[Level.WARN, Level.ERROR]) == [1, 2, 3, 4, 5, 6]
    assert await hits("", levels=[Level.ERROR]) == []
    assert [await hits(text) for text in ('"hi"', "a\\b", "b\th", "…", "message", "stdout")] == [
        [1],
        [4],
        [5],
        [6],
        [],
        [],
    ]


async def test_an_attempt_that_never_was_is_not_found(conn: Connection, db: Database, store: FileStore):
    task = await running(conn)
    with pytest.raises(NotFound, match="no attempt 2"):
        await AttemptLines.open(db, store, task["task_id"], 2)
    with pytest.raises(NotFound, match="no task"):
        await AttemptLines.open(db, store, task["job_id"], 1)
    with pytest.raises(InvalidValue, match="1 to 5000 lines"):
        await (await lines_of(db, store, task)).window(1, 0)
