"""The HTTP face of the daemon: whatever bytes come, it answers once or hangs up, and never without the token."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from random import Random

import anyio
import pytest
from structlog.testing import capture_logs

from accsd.daemon import endpoint
from accsd.daemon.endpoint import HttpFace
from accsd.health import Health
from accsd.metrics import Metrics
from accsd.settings import HttpSettings
from tests.fuzz.cases import Case, Run, at_length
from tests.fuzz.values import integer, text

TOKEN = "a token of many characters"
BEARER = f"Authorization: Bearer {TOKEN}".encode()
AT_ONCE = 12  # of the 32 that the face takes
ANSWERS = {200, 400, 401, 404, 405}
LET_IN = {200, 404, 405}

METHODS = (b"GET", b"GET", b"GET", b"POST", b"HEAD", b"get", b"PRI", b"G\x00T", b"", b"GET" * 3_000, b"CONNECT")
TARGETS = (
    *(b"/health", b"/metrics", b"/health", b"/metrics", b"/health?a=b", b"/", b"//metrics", b"/metrics/../health"),
    *(b"/%68ealth", b"/health#x", b"*", b"http://evil/metrics", b"/m\xe9trics", b"/health\x00", b"/" + b"a" * 9_000),
)
VERSIONS = (b"HTTP/1.1", b"HTTP/1.1", b"HTTP/1.1", b"HTTP/1.0", b"HTTP/2.0", b"HTTP/9", b"", b"http/1.1", b"ICY")
HEADERS = (
    *(
        b"Host: localhost",
        b"Host: evil.example",
        b"Host:",
        b"Host: [::1",
        b"Host: 127.0.0.1:99999",
        b"host : x",
        b" folded: x",
    ),
    *(
        b"Content-Length: 5",
        b"Content-Length: -1",
        b"Content-Length: 5, 6",
        b"Transfer-Encoding: chunked",
        b"Connection: keep-alive",
    ),
    *(
        b"Transfer-Encoding: \x0bchunked",
        b"Upgrade: h2c",
        b"Expect: 100-continue",
        b"no colon",
        b":",
        b"X:" + b" " * 5_000,
    ),
    *(
        b"Authorization: Bearer",
        b"Authorization: Basic YTpi",
        b"Authorization: Bearer wrong",
        b"Authorization: bearer\t",
        b"X-\xff: y",
    ),
    *(
        b"Authorization: Bearer " + TOKEN[:-1].encode(),
        b"X: " + b"a" * 9_000,
        b"\x00: \x00",
        b"X: y\rZ: w",
        b"Cookie: a=b\x1b[2J",
    ),
)
BODIES = (b"", b"", b"", b"hello", b"0\r\n\r\n", b"5\r\nhello\r\n0\r\n\r\n", b"x" * 100_000)
SECOND = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n" + BEARER + b"\r\n\r\n"


@dataclass(frozen=True)
class Sent:
    """In these pieces; `half`: the client then closes its side, or only waits."""

    pieces: list[bytes]
    half: bool

    @property
    def has_token(self) -> bool:
        """In its first head: what comes after that is no request."""
        return BEARER in b"".join(self.pieces).partition(b"\r\n\r\n")[0]


def made(random: Random) -> Sent:
    content = _request(random)
    if random.random() < 0.2:  # smuggled behind the first one
        content += SECOND
    if random.random() < 0.15:
        at = random.randrange(len(content) + 1)
        content = (
            content[:at]
            + random.choice((b"\x00", b"\r", b"\n", b"\xff", b"\r\n\r\n", random.randbytes(20)))
            + content[at:]
        )
    if random.random() < 0.1:
        content = content[: random.randrange(len(content) + 1)]
    if random.random() < 0.03:
        content = random.randbytes(random.choice((1, 100, 20_000)))
    cuts = sorted(random.randrange(len(content) + 1) for _ in range(random.choice((0, 0, 0, 1, 3))))
    pieces = [content[a:b] for a, b in zip([0, *cuts], [*cuts, len(content)], strict=True)]
    return Sent(pieces, half=random.random() < 0.7)


def _request(random: Random) -> bytes:
    first = b" ".join((random.choice(METHODS), random.choice(TARGETS), random.choice(VERSIONS)))
    headers = random.sample(HEADERS, random.choice((0, 1, 1, 2, 5)))
    if random.random() < 0.6:
        headers.insert(0, b"Host: 127.0.0.1")
    if random.random() < 0.4:
        headers.insert(random.randrange(len(headers) + 1), BEARER)
    if random.random() < 0.1:
        headers.append(b"X: " + text(random, longest=5_000).encode("utf-8", "replace"))
    if random.random() < 0.05:
        headers.append(b"Content-Length: %d" % integer(random))
    ending = random.choice((b"\r\n", b"\r\n", b"\r\n", b"\r\n", b"\n"))
    return ending.join((first, *headers, b"", b"")) + random.choice(BODIES)


async def asked(port: int, sent: Sent) -> bytes | None:
    """All that comes back; None where it only hung up."""
    async with asyncio.timeout(20):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            for piece in sent.pieces:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0)
            if sent.half:
                writer.write_eof()
            return await reader.read() or None
        except OSError:  # reset, or closed while we still wrote
            return None
        finally:
            writer.close()


def judge(answer: bytes | None, *, let_in: bool) -> None:
    if answer is None:
        return
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *headers = head.decode("ascii").split("\r\n")
    version, status, _ = first.split(" ", 2)
    named = dict(line.split(": ", 1) for line in headers)
    assert version == "HTTP/1.1"
    assert int(status) in ANSWERS, first
    assert let_in or int(status) not in LET_IN, f"without the token: {first}"
    assert int(named["Content-Length"]) == len(body), f"more than one answer: {body[:200]}"
    assert named["Connection"] == "close"


@asynccontextmanager
async def face(**settings: object) -> AsyncGenerator[int]:
    health = Health("node-1", ready=True)
    health.database_answered(timedelta(milliseconds=1))
    listen = HttpSettings.model_validate({"listen": "127.0.0.1:0"} | settings)
    async with anyio.create_task_group() as group:
        address = await group.start(HttpFace(listen, Metrics(["renderer"]), health).serve)
        yield int(address.rpartition(":")[2])
        group.cancel_scope.cancel()


@pytest.mark.parametrize("token", [TOKEN, None], ids=["token", "open"])
@at_length(cases=250)
async def test_the_face_answers_once_or_hangs_up(run: Run, token: str | None, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(endpoint, "_DEADLINE", timedelta(seconds=0.5))
    monkeypatch.setattr(endpoint, "_LINGER", timedelta(seconds=0.2))
    with run.judged() as findings, capture_logs() as told:
        async with face(token=token) as port:
            places = anyio.Semaphore(AT_ONCE)

            async def ask(case: Case, sent: Sent) -> None:
                async with places:
                    with findings.about(case, sent):
                        judge(await asked(port, sent), let_in=token is None or sent.has_token)

            async with anyio.create_task_group() as clients:
                for case in run.cases():
                    clients.start_soon(ask, case, made(case.random))
            answer = await asked(port, Sent([SECOND], half=True))
            assert answer is not None
            assert answer.startswith(b"HTTP/1.1 200 ")
    assert [entry for entry in told if entry["log_level"] == "error"] == [], "an error in place of a refusal"
