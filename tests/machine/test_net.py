"""One guarded request to somebody outside: where it goes, and what it makes of hostile answers."""

import asyncio
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
import uvloop

from accsd import net
from accsd.net import CallFailed, NotReached, Request, Response, send
from tests.support.http_servers import answering, http_answer

pytestmark = pytest.mark.filterwarnings('ignore:Overriding the "event_loop_policy" fixture is deprecated')
NAME = "hooks.studio.example"
SOON = timedelta(seconds=5)
Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@pytest.fixture(params=["asyncio", "uvloop"])
def event_loop_policy(request: pytest.FixtureRequest) -> asyncio.AbstractEventLoopPolicy:
    return uvloop.EventLoopPolicy() if request.param == "uvloop" else asyncio.DefaultEventLoopPolicy()


@pytest.fixture
def resolved(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """The name has these addresses the first time, and others from then on; answers what was asked."""

    def having(*addresses: str) -> list[str]:
        asked: list[str] = []

        async def resolve(host: str, port: int) -> list[Any]:
            asked.append(host)
            found = addresses if len(asked) == 1 else ("169.254.169.254",)
            return [net.ip_address(each) for each in found]

        monkeypatch.setattr(net, "_resolve", resolve)
        return asked

    return having


async def post(port: int, host: str = NAME, body: bytes = b"{}") -> Response:
    return await send(Request("POST", f"http://{host}:{port}/x?y=%2e", body=body, allow_private=True), within=SOON)


@asynccontextmanager
async def server(
    answer: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncGenerator[int]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await answer(reader, writer)
        except OSError:
            pass  # the other side has gone
        finally:
            writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with listening:
        yield listening.sockets[0].getsockname()[1]


async def test_a_name_is_resolved_once_and_asked_for_by_its_name(resolved: Callable[..., list[str]]):
    asked = resolved("127.0.0.1")
    async with answering(http_answer("200 OK", "hello")) as there:
        assert await post(there.port) == Response(200, "hello")
    assert asked == [NAME]
    [request] = there.requests
    assert request.startswith("POST /x?y=%2e HTTP/1.1\r\n"), "as it is written"
    assert f"\r\nHost: {NAME}:{there.port}\r\n" in request
    assert "\r\nConnection: close\r\n" in request


async def test_where_nobody_listens_at_the_first_address_the_next_one_is_asked(resolved: Callable[..., list[str]]):
    resolved("127.0.0.2", "127.0.0.1")
    async with answering(http_answer()) as there:
        assert (await post(there.port)).status == 200
    assert len(there.requests) == 1


async def test_one_address_that_is_refused_refuses_the_name(resolved: Callable[..., list[str]]):
    resolved("127.0.0.1", "169.254.169.254")
    async with answering(http_answer()) as there:
        with pytest.raises(CallFailed, match="metadata address"):
            await post(there.port)
    assert there.requests == []


async def test_where_nobody_listens_at_all_the_system_says_why():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(NotReached, match=r"Connect call failed|refused"):
            await post(taken.getsockname()[1], "127.0.0.1")


async def test_a_request_whose_connection_is_cut_is_not_sent_to_the_next_address(resolved: Callable[..., list[str]]):
    resolved("127.0.0.1", "127.0.0.1")
    heard: list[bytes] = []

    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.readuntil(b"\r\n\r\n"))

    async with server(hang_up) as port:
        with pytest.raises((CallFailed, OSError)):
            await post(port)
    assert len(heard) == 1


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/2.0 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"".join(b"X%d: y\r\n" % number for number in range(1000)) + b"\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
        b"HTTP/1.1 " + b"2" * 100_000,
        b"ICY 200 OK\r\n\r\n",
    ],
    ids=["version", "many headers", "negative", "two lengths", "long line", "icy"],
)
async def test_an_answer_that_is_not_sound_http_is_no_answer(answer: bytes):
    async with answering(answer) as there:
        with pytest.raises(CallFailed, match="not HTTP"):
            await post(there.port, "127.0.0.1")


async def test_a_head_without_end_is_given_up_long_before_the_deadline():
    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n")
        while True:
            writer.write(b"X: y\r\n" * 1000)
            await writer.drain()

    async with server(flood) as port, asyncio.timeout(4):
        with pytest.raises(CallFailed, match="not HTTP"):
            await post(port, "127.0.0.1")


async def test_of_a_body_that_comes_slowly_what_has_come_is_kept(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(net, "_BODY_WITHIN_SEC", 0.3)

    async def drops(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 500 Oops\r\nContent-Length: 100\r\n\r\nno memory")
        await reader.read()
        await reader.read()

    async with server(drops) as port:
        assert await post(port, "127.0.0.1") == Response(500, "no memory")


async def test_a_compressed_answer_is_not_unpacked():
    async with answering(http_answer("200 OK", "hello", "Content-Encoding: gzip")) as there:
        assert await post(there.port, "127.0.0.1") == Response(200, "hello")


async def test_an_answer_that_comes_before_the_request_was_read_counts():
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(http_answer("413 Too Large", "no"))
        await writer.drain()
        await reader.read()

    async with server(refuse) as port:
        assert await post(port, "127.0.0.1", b"x" * 20_000_000) == Response(413, "no")


@pytest.mark.parametrize("header", ["a\r\nX: y", "a\nX: y", "a\0b", "é"])
async def test_no_header_smuggles_another_one(header: str):
    async with answering(http_answer()) as there:
        request = Request("POST", f"http://127.0.0.1:{there.port}/", {"Webhook-Id": header}, allow_private=True)
        with pytest.raises(CallFailed, match="line break"):
            await send(request, within=SOON)
    assert there.requests == []
