"""HTTP servers of a test's own: one that answers every request with the same bytes and remembers it, and a receiver of
webhooks that can be down, deaf or broken."""

import asyncio
import json
import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal
from uuid import UUID


@dataclass
class Answering:
    """`answer` None: it hears the request and stays silent."""

    answer: bytes | None
    port: int = 0
    requests: list[str] = field(default_factory=list[str])

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            length = next((line for line in head.split(b"\r\n") if line.startswith(b"Content-Length:")), b":0")
            self.requests.append((head + await reader.readexactly(int(length.partition(b":")[2]))).decode())
            if self.answer is None:
                await reader.read()  # until the other side gives up
            else:
                writer.write(self.answer)
                await writer.drain()
        except (asyncio.IncompleteReadError, OSError):
            pass  # the other side has gone
        finally:
            writer.close()


@asynccontextmanager
async def answering(answer: bytes | None, *, tls: ssl.SSLContext | None = None) -> AsyncGenerator[Answering]:
    """On a free port of 127.0.0.1."""
    server = Answering(answer)
    listening = await asyncio.start_server(server.handle, "127.0.0.1", 0, ssl=tls)
    server.port = listening.sockets[0].getsockname()[1]
    async with listening:
        yield server


def http_answer(status: str = "200 OK", body: str = "", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body.encode())}", *headers, "", body]
    return "\r\n".join(lines).encode()


Mood = Literal["up", "deaf", "broken"]


@dataclass(frozen=True)
class Heard:
    headers: dict[str, str]
    body: bytes

    @property
    def event(self) -> Any:
        return json.loads(self.body)


@dataclass
class Receiver:
    """A receiver of webhooks that remembers what it has heard and what it has taken.

    `deaf`: it hears the request and never answers; `broken`: it answers 500. `refuses` are jobs that it always
    refuses."""

    mood: Mood = "up"
    port: int = 0
    heard: list[Heard] = field(default_factory=list[Heard])
    taken: list[Heard] = field(default_factory=list[Heard])
    refuses: set[UUID] = field(default_factory=set[UUID])
    _listening: asyncio.Server | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook/of-the-studio"

    async def open(self) -> None:
        self._listening = await asyncio.start_server(self._handle, "127.0.0.1", self.port)
        self.port = self._listening.sockets[0].getsockname()[1]

    def close(self) -> None:
        """Nobody listens there any more."""
        if self._listening is not None:
            self._listening.close()
            self._listening = None

    def events_of(self, job: UUID) -> list[str]:
        """Without repetitions, in the order in which they came."""
        mine = [each.event for each in self.taken if each.event["job"]["id"] == str(job)]
        return list({event["id"]: event["event"] for event in mine}.values())

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")[1:-2]
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
            heard = Heard(headers, await reader.readexactly(int(headers["content-length"])))
            self.heard.append(heard)
            if self.mood == "deaf":
                await reader.read()  # until the other side gives up
            else:
                writer.write(self._answer(heard))
                await writer.drain()
        except (asyncio.IncompleteReadError, OSError):
            pass  # the other side has gone
        finally:
            writer.close()

    def _answer(self, heard: Heard) -> bytes:
        job = heard.event.get("job")  # events of schedules have none
        if self.mood == "broken" or (job is not None and UUID(job["id"]) in self.refuses):
            return b"HTTP/1.1 500 Oops\r\nContent-Length: 9\r\n\r\nno memory"
        self.taken.append(heard)
        return b"HTTP/1.1 204 No Content\r\n\r\n"


@asynccontextmanager
async def receiver(mood: Mood = "up") -> AsyncGenerator[Receiver]:
    """On a free port of 127.0.0.1."""
    made = Receiver(mood)
    await made.open()
    try:
        yield made
    finally:
        made.close()
