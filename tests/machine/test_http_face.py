"""The HTTP face on a real socket: two questions answered, everything else refused, nobody able to hold it up."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from datetime import timedelta

import anyio
import orjson
import pytest
import uvloop
from pydantic import SecretStr

from accsd.daemon import endpoint
from accsd.daemon.endpoint import HttpFace
from accsd.errors import ConfigError, Unavailable
from accsd.health import Health
from accsd.metrics import Metrics
from accsd.settings import HttpSettings

TOKEN = "a token of many characters"
Start = Callable[..., Awaitable[int]]

# The hook that is to replace the fixture sees every test of the folder; only this face must work on either loop.
pytestmark = pytest.mark.filterwarnings('ignore:Overriding the "event_loop_policy" fixture is deprecated')


@pytest.fixture(params=["asyncio", "uvloop"])
def event_loop_policy(request: pytest.FixtureRequest) -> asyncio.AbstractEventLoopPolicy:
    return uvloop.EventLoopPolicy() if request.param == "uvloop" else asyncio.DefaultEventLoopPolicy()


@pytest.fixture
def health() -> Health:
    made = Health("node-1", ready=True)
    made.database_answered(timedelta(milliseconds=1))
    return made


class Started:
    """What anyio's start() hands to a task, for a fixture: its two halves run in tasks of their own."""

    def __init__(self) -> None:
        self.address: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def started(self, value: str = "") -> None:
        self.address.set_result(value)


@pytest.fixture
async def start(health: Health) -> AsyncIterator[Start]:
    """Starts a face on a free port and answers the port."""
    serving: list[asyncio.Task[None]] = []

    async def start_one(**settings: object) -> int:
        listen = HttpSettings.model_validate({"listen": "127.0.0.1:0"} | settings)
        started = Started()
        serving.append(asyncio.create_task(HttpFace(listen, Metrics(["renderer"]), health).serve(task_status=started)))
        await asyncio.wait([serving[-1], started.address], return_when=asyncio.FIRST_COMPLETED)
        if serving[-1].done():
            await serving.pop()
        return int((await started.address).rpartition(":")[2])

    yield start_one
    for task in serving:
        task.cancel()
    assert all(
        isinstance(end, asyncio.CancelledError) for end in await asyncio.gather(*serving, return_exceptions=True)
    )


async def exchange(port: int, *sent: bytes) -> bytes:
    """All that comes back on one connection until it is closed."""
    async with asyncio.timeout(10):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            for part in sent:
                writer.write(part)
                await writer.drain()
            return await reader.read()
        except ConnectionError:
            return b"reset"
        finally:
            writer.close()


async def get(port: int, path: str, *headers: str, method: str = "GET") -> tuple[int, dict[str, str], bytes]:
    lines = (f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", *headers, "", "")
    head, _, body = (await exchange(port, "\r\n".join(lines).encode())).partition(b"\r\n\r\n")
    status, *rest = head.decode().split("\r\n")
    return int(status.split()[1]), dict(line.split(": ", 1) for line in rest), body


def status_of(answer: bytes) -> bytes:
    return answer.split(b" ")[1] if answer.startswith(b"HTTP/1.1 ") else answer


async def test_metrics_are_shown_as_prometheus_reads_them(start: Start) -> None:
    status, headers, body = await get(await start(), "/metrics")
    assert status == 200
    assert headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert int(headers["Content-Length"]) == len(body)
    assert headers["Connection"] == "close"
    assert b'accsd_claimed_tasks_total{service="renderer"} 0.0\n' in body


async def test_health_is_json_and_its_code_says_whether_to_send_work(start: Start, health: Health) -> None:
    port = await start()
    status, headers, body = await get(port, "/health?verbose")
    assert (status, headers["Content-Type"], orjson.loads(body)["status"]) == (200, "application/json", "ok")
    health.drain()
    status, _, body = await get(port, "/health")
    assert (status, orjson.loads(body)["status"]) == (503, "stopping")


@pytest.mark.parametrize("path", ["/", "/metrics/", "/healthz", "/../metrics", "//metrics"])
async def test_there_is_nothing_else(start: Start, path: str) -> None:
    assert (await get(await start(), path))[0] == 404


@pytest.mark.parametrize("method", ["POST", "HEAD", "DELETE", "OPTIONS"])
async def test_one_can_only_get(start: Start, method: str) -> None:
    status, headers, _ = await get(await start(), "/metrics", method=method)
    assert (status, headers["Allow"]) == (405, "GET")


@pytest.mark.parametrize(
    "sent",
    [
        b"\r\n\r\n",
        b"GET /metrics\r\n\r\n",
        b"GET /metrics HTTP/2.0\r\n\r\n",
        b"GET http://x/metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        b"GET /m\xe9trics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\nno colon\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n folded: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    ],
)
async def test_what_is_no_request_is_refused(start: Start, sent: bytes) -> None:
    assert status_of(await exchange(await start(), sent)) == b"400"


async def test_a_head_that_is_too_large_is_refused(start: Start) -> None:
    port = await start()
    for header in (b"X: " + b"a" * 9000, b"\r\n".join(b"X%d: a" % n for n in range(2000))):
        sent = b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n" + header + b"\r\n\r\n"
        assert status_of(await exchange(port, sent)) == b"400"


@pytest.mark.parametrize("host", ["evil.example", "evil.example:9464", "", "127.0.0.1.evil.example"])
async def test_a_page_in_a_browser_cannot_ask_by_a_name_of_its_own(start: Start, host: str) -> None:
    sent = f"GET /metrics HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()
    assert status_of(await exchange(await start(), sent)) == b"400"


@pytest.mark.parametrize("host", ["127.0.0.1:9464", "localhost", "LOCALHOST:9464", "[::1]:9464", "[::1]"])
async def test_this_machine_may_be_called_by_its_own_names(start: Start, host: str) -> None:
    sent = f"GET /metrics HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()
    assert status_of(await exchange(await start(), sent)) == b"200"


@pytest.mark.parametrize(
    "header", ["X: y", "Authorization: Bearer", "Authorization: Bearer wrong", f"Authorization: Basic {TOKEN}"]
)
async def test_with_a_token_nobody_gets_in_without_it(start: Start, header: str) -> None:
    port = await start(token=TOKEN)
    for path in ("/metrics", "/health", "/nothing"):
        status, headers, body = await get(port, path, header)
        assert (status, headers["WWW-Authenticate"], body) == (401, "Bearer", b"Unauthorized\n")


async def test_with_the_token_one_gets_in_by_any_name(start: Start) -> None:
    port = await start(token=TOKEN)
    for path, expected in (("/metrics", 200), ("/health", 200), ("/nothing", 404)):
        assert (await get(port, path, "host: node-1.example", f"authorization: bearer {TOKEN}"))[0] == expected


async def test_a_client_that_says_nothing_is_cut_off(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "_DEADLINE", timedelta(seconds=0.2))
    port = await start()
    assert await exchange(port) in (b"", b"reset")
    assert await exchange(port, b"GET /metrics HTTP/1.1\r\n") in (b"", b"reset")


async def test_clients_that_say_nothing_keep_nobody_from_his_answer(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint, "_DEADLINE", timedelta(hours=1))
    port = await start()
    silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(32)]
    for _ in range(3):
        assert status_of(await exchange(port, b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")) == b"200"
    with suppress(OSError):
        assert await silent[0][0].read() == b"", "the oldest has given way"
    assert not silent[-1][0].at_eof()
    for _, writer in silent:
        writer.close()


async def test_a_failure_inside_reaches_the_client_only(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    port = await start()
    with monkeypatch.context() as broken:
        broken.setattr(Health, "report", lambda _: 1 / 0)
        assert await exchange(port, b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n") in (b"", b"reset")
    assert (await get(port, "/health"))[0] == 200


async def test_a_port_in_use_is_named(start: Start) -> None:
    port = await start()
    with pytest.raises(Unavailable, match=rf"http\.listen 127\.0\.0\.1:{port} is in use"):
        await start(listen=f"127.0.0.1:{port}")


@pytest.mark.parametrize("listen", ["192.0.2.1:9464", "127.0.0.1:99999", "no-such-host.invalid:9464"])
async def test_an_address_that_cannot_be_had_is_named(start: Start, listen: str) -> None:
    with pytest.raises(ConfigError, match=f"cannot listen at {listen}: .+"):
        await start(listen=listen, token=SecretStr(TOKEN))


async def test_a_port_is_free_again_when_the_face_has_gone(health: Health) -> None:
    face = HttpFace(HttpSettings(listen="127.0.0.1:0"), Metrics(), health)
    ports: list[int] = []
    async with anyio.create_task_group() as group:
        ports.append(int((await group.start(face.serve)).rpartition(":")[2]))
        group.cancel_scope.cancel()
    with socket.create_server(("127.0.0.1", *ports)):
        pass
