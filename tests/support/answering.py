"""An HTTP server that answers every request with the same bytes and remembers what it was asked."""

import asyncio
import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field


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
