"""HTTP with a service of this machine: small requests with a deadline, and streams that are read piece by piece.

A client of its own and not a library: it speaks to one address that the engine named, follows nothing, keeps nothing
open, and every way in which there is no answer is one exception.
"""

import asyncio
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final, cast

import orjson

_LONGEST_LINE: Final = 16 * 1024
_CHUNK: Final = 64 * 1024
_MAX_HEADERS: Final = 100
_MAX_DOCUMENT: Final = 4 * 1024 * 1024
_WITHIN: Final = timedelta(seconds=10)
_LONGEST_RETRY_AFTER: Final = timedelta(minutes=5)


class NoAnswer(Exception):
    """Nobody listens, or not in time, or it is not HTTP."""


@dataclass(frozen=True, slots=True)
class ServiceAddress:
    host: str
    port: int
    token: str | None = field(default=None, repr=False)

    def __str__(self) -> str:
        return f"http://{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    status: int
    document: Mapping[str, Any]
    retry_after: timedelta = timedelta(0)

    @property
    def said(self) -> str:
        return f"{self.status} {self.document.get('error', '')}".strip()[:500]


class Body:
    """What follows the head of an answer."""

    def __init__(self, status: int, reader: asyncio.StreamReader, headers: Mapping[str, str]) -> None:
        self.status: Final = status
        self.retry_after: Final = _retry_after(headers.get("retry-after", ""))
        self._reader: Final = reader
        self._is_chunked: Final = "chunked" in headers.get("transfer-encoding", "").lower()
        length = headers.get("content-length", "")
        self._left: int | None = int(length) if length.isdigit() and not self._is_chunked else None
        self._has_begun: bool = False

    async def read(self, within: timedelta) -> bytes:
        """The next piece; b"" at its proper end. Raises NoAnswer where it is cut off, TimeoutError in silence."""
        with _telling():
            async with asyncio.timeout(within.total_seconds()):
                if self._is_chunked and not self._left:
                    await self._begin_chunk()
                if self._left == 0:
                    return b""
                data = await self._reader.read(min(_CHUNK, self._left or _CHUNK))
        if self._left is not None:
            if not data:
                raise NoAnswer("the answer was cut off")
            self._left -= len(data)
        return data

    async def _begin_chunk(self) -> None:
        if self._left == 0 and self._has_begun:
            await self._reader.readuntil(b"\r\n")
        self._has_begun = True
        self._left = int((await self._reader.readuntil(b"\r\n")).partition(b";")[0], 16)
        if self._left < 0:
            raise NoAnswer("it does not speak HTTP")


@asynccontextmanager
async def asking(
    address: ServiceAddress, method: str, path: str, *, headers: Mapping[str, str], body: bytes = b""
) -> AsyncGenerator[Body]:
    """Its answer, of which the head has come."""
    with _telling():
        async with asyncio.timeout(_WITHIN.total_seconds()):
            reader, writer = await asyncio.open_connection(address.host, address.port, limit=_LONGEST_LINE)
    try:
        with _telling():
            async with asyncio.timeout(_WITHIN.total_seconds()):
                writer.write(_written(address, method, path, headers, body))
                await writer.drain()
                status, given = await _read_head(reader)
        yield Body(status, reader, given)
    finally:
        writer.transport.abort()  # a polite end could wait for the other side


async def ask(
    address: ServiceAddress, method: str, path: str, *, headers: Mapping[str, str], body: bytes = b""
) -> HttpAnswer:
    """A small answer, as a whole."""
    async with asking(address, method, path, headers=headers, body=body) as answer:
        read = b""
        try:
            async with asyncio.timeout(_WITHIN.total_seconds()):  # for all of it: it may come drop by drop
                while data := await answer.read(_WITHIN):
                    read += data
                    if len(read) > _MAX_DOCUMENT:
                        raise NoAnswer("its answer is too long")
        except TimeoutError:
            raise NoAnswer("its answer does not come to an end") from None
        return HttpAnswer(answer.status, _document(read), answer.retry_after)


def _written(address: ServiceAddress, method: str, path: str, headers: Mapping[str, str], body: bytes) -> bytes:
    lines = {
        "Host": f"{address.host}:{address.port}",
        "Connection": "close",
        "Content-Length": str(len(body)),
        **headers,
    }
    if address.token:
        lines["Authorization"] = f"Bearer {address.token}"
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode("latin-1") + body


async def _read_head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    protocol, _, rest = (await reader.readuntil(b"\r\n")).decode("latin-1").partition(" ")
    if not protocol.startswith("HTTP/1.") or not rest[:3].isdigit():
        raise NoAnswer("it does not speak HTTP")
    headers: dict[str, str] = {}
    for _ in range(_MAX_HEADERS):
        name, _, value = (await reader.readuntil(b"\r\n")).decode("latin-1").strip().partition(":")
        if not name:
            return int(rest[:3]), headers
        headers[name.lower()] = value.strip()
    raise NoAnswer("its answer has too many headers")


def _retry_after(written: str) -> timedelta:
    """In seconds, and never so long that a slip would stop a service for a day. A date counts as nothing said."""
    if not (written.isascii() and written.isdigit()):
        return timedelta(0)
    return min(timedelta(seconds=int(written[:9])), _LONGEST_RETRY_AFTER)


def _document(read: bytes) -> Mapping[str, Any]:
    try:
        document: object = orjson.loads(read)
    except orjson.JSONDecodeError:
        return {}
    return cast("dict[str, Any]", document) if isinstance(document, dict) else {}


@contextmanager
def _telling() -> Generator[None]:
    """TimeoutError stays what it is where a body is read: silence is no failure there."""
    try:
        yield
    except TimeoutError:
        raise
    except (OSError, EOFError, asyncio.LimitOverrunError, ValueError) as error:
        raise NoAnswer(str(error) or type(error).__name__) from error
