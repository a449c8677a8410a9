"""A service of mode http that answers badly: drop by drop, or with less than it says. No wait is without an end."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from uuid import UUID

import pytest

from accsd.errors import ServiceBusy
from accsd.model.fence import Fence
from accsd.model.outcome import ErrorCode
from accsd.runners.base import Output
from accsd.runners.compose import http_client
from accsd.runners.compose.docker import Container, Docker
from accsd.runners.compose.http import HttpExecution
from accsd.runners.compose.http_client import NoAnswer, ServiceAddress, TasksApi, ask

KEY = Fence(UUID(int=1), 1)


@asynccontextmanager
async def listening(answer: Callable[[str], AsyncGenerator[bytes]]) -> AsyncGenerator[ServiceAddress]:
    """`answer` is given the path, and yields what is written."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        path = (await reader.readuntil(b"\r\n")).decode().split()[1]
        try:
            async for data in answer(path):
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield ServiceAddress("127.0.0.1", server.sockets[0].getsockname()[1])


async def test_an_answer_that_comes_drop_by_drop_is_given_up(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(http_client, "_WITHIN", timedelta(seconds=0.3))

    async def drops(path: str) -> AsyncGenerator[bytes]:
        yield b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n"
        for _ in range(100):
            yield b" "
            await asyncio.sleep(0.05)

    async with listening(drops) as address, asyncio.timeout(2):
        with pytest.raises(NoAnswer, match="come to an end"):
            await ask(address, "GET", "/health", headers={})


@pytest.mark.parametrize(
    ("header", "again_in"),
    [("7", 7), ("86400", 300), ("Wed, 21 Oct 2026 07:28:00 GMT", 0), ("-1", 0), ("9" * 400, 300)],
)
async def test_a_service_that_takes_none_now_says_when_to_ask_again_within_bounds(header: str, again_in: int):
    async def not_now(path: str) -> AsyncGenerator[bytes]:
        yield f"HTTP/1.1 429 Slow Down\r\nRetry-After: {header}\r\nContent-Length: 16\r\n\r\n".encode()
        yield b'{"error":"full"}'

    async with listening(not_now) as address:
        with pytest.raises(ServiceBusy, match="takes no task now: 429 full") as busy:
            await TasksApi(address, "n1").start(b"{}", output_limit=1, traceparent=None)
    assert busy.value.again_in == timedelta(seconds=again_in)


async def test_an_end_whose_output_never_comes_whole_is_a_loss():
    async def less(path: str) -> AsyncGenerator[bytes]:
        told = b'{"state": "ended", "exit_code": 0, "stdout": 10, "stderr": 0}' if "status" in path else b"hello"
        told = b"" if path.endswith("from=5") or "/stderr" in path else told
        yield b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(told) + told

    async def take(output: Output) -> None:
        heard.append(output.data)

    heard: list[bytes] = []
    container = Container("c", "c", {}, "running", None, 1, 0, False, "", None, "")
    short = timedelta(seconds=0.5)
    async with listening(less) as address, asyncio.timeout(5):
        api = TasksApi(address, "n1")
        execution = HttpExecution(
            Docker({}), container, api, KEY, forget=lambda _: None, away_limit=short, gone_within=short
        )
        ending = await execution.watch(take)
    assert heard == [b"hello"]
    assert ending.cause is ErrorCode.WORKER_LOST
    assert ending.detail == "it has ended, and the service hands over only 5 of 10 bytes of its stdout"
