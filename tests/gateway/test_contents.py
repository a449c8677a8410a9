"""Logs by line and artifacts by range, and what of them a browser may show."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest

from accsd.explain.log import AttemptLines, Line, LookedAt
from accsd.model.state import ArtifactKind
from tests.support.cluster import Connection
from tests.support.eventually import eventually
from tests.support.factory import Claimed, finish, node, started, submit
from tests.support.gateway import Gateway
from tests.support.stored import log, stored


@pytest.fixture
async def task(conn: Connection) -> Claimed:
    await node(conn)
    await submit(conn)
    (claimed,) = await started(conn)
    return claimed


async def test_a_log_is_read_by_line_searched_to_its_end_and_kept_whole(
    gateway: Gateway, conn: Connection, task: Claimed
):
    texts = [f"line {n}" if n != 17 else "this went wrong" for n in range(1, 41)]
    await stored(gateway, task, ArtifactKind.LOG, "000001.jsonl", log(*texts), "application/jsonl")
    await finish(conn, task)
    path = f"/tasks/{task['task_id']}/attempts/1/log"

    tail = (await gateway.get(f"{path}?tail=3", scope="read")).json()
    assert [line["n"] for line in tail["lines"]] == [38, 39, 40]
    assert (tail["total_lines"], tail["errors"], tail["complete"]) == (40, [17], True)
    window = (await gateway.get(f"{path}?from_line=5&limit=2", scope="read")).json()
    assert [line["text"] for line in window["lines"]] == ["line 5", "line 6"]
    around = (await gateway.get(f"{path}?around=first_error&limit=5", scope="read")).json()
    assert 17 in [line["n"] for line in around["lines"]]

    found = (await gateway.get(f"{path}/search?q=LINE 3", scope="read")).text.splitlines()
    hits = [orjson.loads(each) for each in found]
    assert [hit["n"] for hit in hits[:-1]] == [3, *range(30, 40)]
    assert hits[-1] == {"done": True, "hits": 11}
    told = (await gateway.get(f"{path}/search?q=LINE 3&progress=true", scope="read")).text.splitlines()
    assert {"looked_at": 40, "of": 40} in [orjson.loads(each) for each in told]

    odd = (await gateway.get(f"{path}/search?level=warn&level=error&numbers=true", scope="read")).text.splitlines()
    assert [orjson.loads(each) for each in odd] == [{"n": 17}, {"done": True, "hits": 1}]
    assert (await gateway.get(f"{path}/raw?stream=stderr", scope="read")).text.splitlines() == [texts[16]]
    nothing = await gateway.get(f"{path}/search", scope="read")
    assert (nothing.status_code, nothing.json()["code"]) == (422, "invalid")

    whole = await gateway.get(f"{path}/raw", scope="read")
    assert whole.text.splitlines() == texts
    assert whole.headers["content-disposition"].startswith("attachment")


async def test_one_caller_searches_few_logs_at_once(
    gateway: Gateway, conn: Connection, task: Claimed, monkeypatch: pytest.MonkeyPatch
):
    """A search of 100 MiB takes a third of a second of the processor that the other roles of the daemon share."""
    await stored(gateway, task, ArtifactKind.LOG, "000001.jsonl", log("one", "two"), "application/jsonl")
    await finish(conn, task)
    path = f"/tasks/{task['task_id']}/attempts/1/log/search?q=o"
    searching, may_end, under_way = AttemptLines.search, asyncio.Event(), 0

    async def held(lines: AttemptLines, *given: Any, **named: Any) -> AsyncIterator[Line | LookedAt]:
        nonlocal under_way
        under_way += 1
        await may_end.wait()
        async for line in searching(lines, *given, **named):
            yield line

    monkeypatch.setattr(AttemptLines, "search", held)
    await gateway.token("read")
    searches = [asyncio.create_task(gateway.get(path, scope="read")) for _ in range(2)]

    async def both_are_under_way() -> bool:
        return under_way == 2

    await eventually(both_are_under_way, within=20)
    refused = await gateway.get(path, scope="read")
    assert (refused.status_code, refused.json()["code"]) == (429, "rate_limited")
    other = asyncio.create_task(gateway.get(path, scope="submit"))
    may_end.set()
    done = await asyncio.gather(*searches, other)
    assert [each.text.count('"n":') for each in done] == [2, 2, 2]
    assert (await gateway.get(path, scope="read")).status_code == 200


@pytest.mark.parametrize("asked", ["search?q=o", "raw?q=o", "raw?level=error", "raw?stream=stderr"])
async def test_searches_that_begin_together_are_counted_together(
    gateway: Gateway, conn: Connection, task: Claimed, monkeypatch: pytest.MonkeyPatch, asked: str
):
    await finish(conn, task)
    opening, may_open = AttemptLines.open, asyncio.Event()

    async def held(*given: Any) -> AttemptLines:
        await may_open.wait()
        return await opening(*given)

    monkeypatch.setattr(AttemptLines, "open", held)
    await gateway.token("read")
    path = f"/tasks/{task['task_id']}/attempts/1/log/{asked}"
    searches = [asyncio.create_task(gateway.get(path, scope="read")) for _ in range(6)]

    async def four_are_refused() -> bool:
        return sum(each.done() for each in searches) == 4

    await eventually(four_are_refused, within=20)
    may_open.set()
    assert sorted([(await each).status_code for each in searches]) == [200, 200, 429, 429, 429, 429]
    assert (await gateway.get(path.replace("/attempts/1/", "/attempts/9/"), scope="read")).status_code == 404
    assert (await gateway.get(path, scope="read")).status_code == 200


async def test_a_log_that_is_not_there_is_told_as_what_it_is(gateway: Gateway, task: Claimed):
    assert (await gateway.get(f"/tasks/{task['task_id']}/attempts/9/log", scope="read")).status_code == 404
    assert (await gateway.get(f"/tasks/{task['task_id']}/attempts/0/log", scope="read")).status_code == 422
    both = await gateway.get(f"/tasks/{task['task_id']}/attempts/1/log?tail=1&from_line=1", scope="read")
    assert both.status_code == 422


@pytest.mark.parametrize(
    ("asked", "status", "content", "described"),
    [
        (None, 200, b"0123456789", None),
        ("bytes=2-4", 206, b"234", "bytes 2-4/10"),
        ("bytes=7-", 206, b"789", "bytes 7-9/10"),
        ("bytes=-2", 206, b"89", "bytes 8-9/10"),
        ("bytes=0-99", 206, b"0123456789", "bytes 0-9/10"),
        ("bytes=1-2,4-5", 200, b"0123456789", None),
        ("bytes=10-", 416, None, "bytes */10"),
        ("pages=1-2", 200, b"0123456789", None),
    ],
)
async def test_a_part_of_an_artifact_is_sent(
    gateway: Gateway, task: Claimed, asked: str | None, status: int, content: bytes | None, described: str | None
):
    artifact = await stored(gateway, task, ArtifactKind.OUTPUT, "a.wav", b"0123456789", "audio/wav")
    headers = {} if asked is None else {"Range": asked}
    answer = await gateway.get(f"/artifacts/{artifact}/content", scope="read", headers=headers)
    assert answer.status_code == status
    assert answer.headers.get("content-range") == described
    if content is not None:
        assert answer.content == content


@pytest.mark.parametrize(
    ("type_", "shown"),
    [("image/png", "inline"), ("text/plain", "inline"), ("text/html", "attachment"), ("image/svg+xml", "attachment")],
)
async def test_only_harmless_types_are_shown_by_a_browser(gateway: Gateway, task: Claimed, type_: str, shown: str):
    artifact = await stored(gateway, task, ArtifactKind.OUTPUT, 'x"y.html', b"<script>alert(1)</script>", type_)
    answer = await gateway.get(f"/artifacts/{artifact}/content", scope="read")
    assert answer.headers["content-disposition"].startswith(shown)
    assert (answer.headers["content-type"] == "application/octet-stream") == (shown == "attachment")
    assert answer.headers["content-security-policy"].startswith("sandbox")
    assert answer.headers["x-content-type-options"] == "nosniff"


async def test_an_object_on_another_machine_is_told(gateway: Gateway, task: Claimed):
    artifact = await stored(gateway, task, ArtifactKind.OUTPUT, "a.txt", b"x", "text/plain")
    assert gateway.context.store is not None
    key = await gateway.context.reads.fetchval("SELECT key FROM task_artifacts WHERE id = $1", artifact)
    await gateway.context.store.delete(key)
    answer = await gateway.get(f"/artifacts/{artifact}/content", scope="read")
    assert (answer.status_code, answer.json()["code"]) == (409, "stored_elsewhere")
