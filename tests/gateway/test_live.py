"""Streams over HTTP, and webhooks that become events."""

import asyncio
import hashlib
import hmac
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import httpx
import orjson
import pytest

from accsd.client import Client, Problem
from accsd.db.access import revoke_token
from tests.support.cluster import Connection
from tests.support.eventually import eventually
from tests.support.factory import finish, node, started, submit
from tests.support.gateway import Gateway, serving


async def messages(answer: httpx.Response) -> AsyncIterator[dict[str, str]]:
    """Server-sent events as a browser reads them."""
    fields: dict[str, str] = {}
    async for line in answer.aiter_lines():
        if line:
            name, _, value = line.partition(":")
            fields[name] = value.strip()
        elif fields:
            if "data" in fields:
                yield fields
            fields = {}


async def test_a_stream_tells_what_happens_to_a_job_and_resumes_where_it_was_cut(gateway: Gateway, conn: Connection):
    await node(conn)
    job = await submit(conn)
    headers = {"Authorization": f"Bearer {await gateway.token('read')}"}
    async with gateway.client.stream("GET", f"/api/v1/stream?topics=job:{job}", headers=headers) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        stream = messages(answer)
        assert (await anext(stream))["event"] == "hello"
        (task,) = await started(conn)
        seen: list[dict[str, str]] = []
        async for message in stream:
            seen.append(message)
            if message["event"] == "task" and orjson.loads(message["data"])["status"] == "running":
                break
    await finish(conn, task)
    resumed = headers | {"Last-Event-ID": seen[-1]["id"]}
    async with gateway.client.stream("GET", f"/api/v1/stream?topics=job:{job}", headers=resumed) as answer:
        async for message in messages(answer):
            assert message["event"] != "reset"
            if message["event"] == "job" and orjson.loads(message["data"])["status"] == "done":
                break


async def test_a_program_gets_lines_of_json_and_the_client_reads_them(gateway: Gateway, conn: Connection):
    await node(conn)
    job = await submit(conn)
    async with Client(gateway.url, token=await gateway.token("read")) as client:
        stream = client.stream(f"job:{job}")
        assert (await anext(stream))["event"] == "hello"
        (task,) = await started(conn)
        await finish(conn, task)
        async for message in stream:
            if message["event"] == "job" and message["data"]["status"] == "done":
                break
        await stream.aclose()
        assert (await client.wait_for_job(str(job)))["status"] == "done"
        with pytest.raises(Problem) as refused:
            await client.cancel_job(str(job))
        assert refused.value.code == "scope_missing"


async def test_the_client_submits_once_and_lists_all_pages(gateway: Gateway, conn: Connection):
    await conn.execute('INSERT INTO workflows (name, steps) VALUES (\'w\', \'[{"key": "a", "service": "s"}]\')')
    async with Client(gateway.url, token=await gateway.token("submit")) as client:
        made = [(await client.submit_job("w", {"n": n}))["id"] for n in range(5)]
        assert [job["id"] async for job in client.jobs("workflow:w", limit=2)] == made[::-1]
        told = await client.cancel_job(made[0], dry_run=True)
        assert told["dry_run"] is True


async def test_too_many_streams_of_one_caller_are_refused(db_url: str):
    async with serving(db_url, gateway={"limits": {"streams_each": 1}}) as gateway:
        headers = {"Authorization": f"Bearer {await gateway.token('read')}"}
        async with gateway.client.stream("GET", "/api/v1/stream", headers=headers) as first:
            kept = messages(first)  # a generator that nobody keeps is closed, and the stream with it
            await anext(kept)
            second = await gateway.get("/stream", scope="read")
            assert (second.status_code, second.json()["code"]) == (429, "too_many_streams")


async def test_a_revoked_token_reads_nothing_more(gateway: Gateway):
    token = await gateway.token("read", actor="somebody")
    assert (await gateway.get("/me", token=token)).status_code == 200
    await revoke_token(gateway.context.verbs, token.split("_")[1])
    assert (await gateway.get("/me", token=token)).status_code == 401


# Webhooks (WH1-WH6)


@pytest.fixture
async def hooked(db_url: str, tmp_path: Path) -> AsyncIterator[Gateway]:
    secret = tmp_path / "secret"
    secret.write_text("a secret of some length\n")
    hook = {"scheme": "github", "topic": "repo.${headers['x-github-event']}", "secret_file": str(secret)}
    async with serving(db_url, gateway={"hooks": {"repo": hook}}) as gateway:
        yield gateway


def signed(body: bytes, secret: str = "a secret of some length") -> dict[str, str]:
    signature = hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
    return {"X-Hub-Signature-256": f"sha256={signature}", "X-GitHub-Event": "push"}


async def test_a_signed_delivery_is_an_event_once_it_is_answered(hooked: Gateway, conn: Connection):
    body = b'{"ref": "main"}'
    first = await hooked.client.post("/hooks/repo", content=body, headers=signed(body))
    again = await hooked.client.post("/hooks/repo?sender=x", content=body, headers=signed(body))
    assert (first.status_code, again.status_code) == (202, 200)
    assert first.json()["event_id"] == again.json()["event_id"]
    (row,) = await conn.fetch("SELECT topic, payload FROM events")
    assert (row["topic"], row["payload"]["body"]) == ("repo.push", {"ref": "main"})


async def test_forged_and_unknown_deliveries_are_answered_alike_and_stored_nowhere(hooked: Gateway, conn: Connection):
    body = b'{"ref": "main"}'
    forged = await hooked.client.post("/hooks/repo", content=body, headers=signed(body, "another"))
    unknown = await hooked.client.post("/hooks/nothing", content=body, headers=signed(body))
    unsigned = await hooked.client.post("/hooks/repo", content=body)
    told = [{k: v for k, v in each.json().items() if k != "instance"} for each in (forged, unknown, unsigned)]
    assert [each.status_code for each in (forged, unknown, unsigned)] == [401] * 3
    assert told[0] == told[1] == told[2]
    large = await hooked.client.post("/hooks/repo", content=b"x" * (1024 * 1024 + 1))
    assert large.status_code == 413
    assert await conn.fetchval("SELECT count(*) FROM events") == 0


async def test_an_event_and_a_sample_over_http(gateway: Gateway, conn: Connection):
    first = await gateway.post("/events", {"topic": "shop.order", "payload": {"n": 1}, "key": "k"}, scope="submit")
    again = await gateway.post("/events", {"topic": "shop.order", "payload": {"n": 1}, "key": "k"}, scope="submit")
    assert (first.status_code, again.status_code) == (202, 200)
    limited = await gateway.token("submit", actor="shop", limits={"events": ["shop.*"]})
    other = await gateway.post("/events", {"topic": "home.lights"}, token=limited)
    assert other.status_code == 403
    assert (await gateway.post("/conditions/nothing", {"value": 1}, scope="submit")).status_code in (404, 409)


# What holds up others


async def test_a_client_that_never_sends_its_request_is_dropped_and_others_are_answered(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("accsd.gateway.server._HEAD_SEC", 0.2)
    host, port = gateway.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET /health HTTP/1.1\r\nHost: x")
    assert (await gateway.client.get("/health")).status_code == 200
    assert await asyncio.wait_for(reader.read(), 10) == b""
    writer.close()


async def test_a_head_that_is_too_large_is_refused(gateway: Gateway):
    host, port = gateway.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-A: " + b"a" * 70_000)
    assert (await asyncio.wait_for(reader.read(), 10)).startswith(b"HTTP/1.1 431")
    writer.close()


async def test_one_connection_too_many_is_told_so(db_url: str):
    async with serving(db_url, gateway={"limits": {"connections": 5}}) as gateway:
        host, port = gateway.url.removeprefix("http://").split(":")
        idle = [await asyncio.open_connection(host, int(port)) for _ in range(20)]
        refused = 0
        for reader, _ in idle:
            with suppress(TimeoutError):
                refused += (await asyncio.wait_for(reader.read(), 0.5)).startswith(b"HTTP/1.1 503")
        assert refused >= 15
        for _, writer in idle:
            writer.close()


async def connected(gateway: Gateway) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = gateway.url.removeprefix("http://").split(":")
    return await asyncio.open_connection(host, int(port))


async def test_a_head_that_is_too_large_is_refused_also_if_it_comes_at_once(gateway: Gateway):
    reader, writer = await connected(gateway)
    writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-A: " + b"a" * 40_000 + b"\r\n\r\n")
    assert (await asyncio.wait_for(reader.read(), 10)).startswith(b"HTTP/1.1 431")
    writer.close()


async def test_a_body_that_comes_byte_by_byte_is_not_awaited_for_ever(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("accsd.gateway.server._BODY_SEC", 0.3)
    reader, writer = await connected(gateway)
    writer.write(b"POST /api/v1/session HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n{")
    ends = asyncio.create_task(reader.read())
    with suppress(ConnectionError):
        while not ends.done():
            writer.write(b" ")
            await asyncio.wait({ends}, timeout=0.05)
    with suppress(ConnectionError):
        assert await ends == b""
    writer.close()


async def test_a_reader_that_takes_nothing_of_its_answers_is_cut_off(gateway: Gateway, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("accsd.gateway.server._READ_SEC", 0.3)
    _, writer = await connected(gateway)
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    request = b"GET /api/v1/openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n"
    writer.write(request * 400)  # about 100 MB of answers
    await eventually(lambda: is_closed(writer), within=20)
    assert (await gateway.client.get("/health")).status_code == 200


async def is_closed(writer: asyncio.StreamWriter) -> bool:
    writer.write(b" ")
    return writer.transport.is_closing()


async def test_requests_on_one_connection_are_answered_one_after_the_other(gateway: Gateway):
    """A body that follows its head at once, and a second request behind it, are neither refused nor cut off."""
    reader, writer = await connected(gateway)
    body = b'{"token": "' + b"a" * 40_000 + b'"}'
    head = b"POST /api/v1/session HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    post = head + b"Content-Length: %d\r\n\r\n%b"
    last = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    writer.write(post % (len(body), body) + post % (len(body), body) + last)
    said = await asyncio.wait_for(reader.read(), 20)
    assert [said.count(b"HTTP/1.1 %d" % status) for status in (422, 431, 200)] == [2, 0, 1]
    writer.close()
