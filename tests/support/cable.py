"""A network cable between the tests and a server: a TCP proxy that can be cut, go silent, or lose an answer.

async with Cable.to(host, port) as cable:
    db = await Database.open(… cable.through(url) …)
    cable.lose_answer_to("claim_tasks")      # the server does it, and nobody hears of it
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit, urlunsplit

_CHUNK = 65536
_SSL_REQUEST = (80877103).to_bytes(4)
_READY = b"Z\0\0\0\5"  # ReadyForQuery: what came before it is committed


class Requests:
    """Reads along what a client sends, to know which statement is being executed."""

    def __init__(self) -> None:
        self.executing: str | None = None
        self._unread = b""
        self._started = False  # what comes before has no type
        self._prepared: dict[bytes, str] = {}
        self._bound = ""

    def feed(self, data: bytes) -> None:
        self._unread += data
        while len(self._unread) >= 5:
            typed = int(self._started)
            length = typed + int.from_bytes(self._unread[typed : typed + 4])
            if len(self._unread) < length:
                return
            message, self._unread = self._unread[:length], self._unread[length:]
            if self._started:
                self._note(message[:1], message[5:])
            self._started = self._started or message[4:8] != _SSL_REQUEST

    def _note(self, kind: bytes, body: bytes) -> None:
        match kind:
            case b"P":
                name, query, *_ = body.split(b"\0")
                self._prepared[name] = query.decode()
            case b"B":
                _, name, *_ = body.split(b"\0")
                self._bound = self._prepared.get(name, "")
            case b"E":
                self.executing = self._bound
            case b"Q":
                self.executing = body.rstrip(b"\0").decode()
            case _:
                pass


class Cable:
    def __init__(self, host: str, port: int) -> None:
        self.target = (host, port)  # may be changed: the next connection goes there
        self.port = 0
        self.connections = 0  # ever made
        self._ends: set[asyncio.StreamWriter] = set()
        self._carrying: set[asyncio.Task[None]] = set()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._silent_at: str | None = None
        self._lost_with: str | None = None
        self.left_to_lose = 0
        self.delays_ends = False  # what the server closes stays open on this side until it is cut
        self.ends_delayed = 0
        self._listening: asyncio.Server | None = None

    @classmethod
    @asynccontextmanager
    async def to(cls, host: str, port: int) -> "AsyncGenerator[Cable]":
        cable = cls(host, port)
        await cable.accept()
        try:
            yield cable
        finally:
            cable.refuse()
            cable.cut()
            for task in cable._carrying:
                task.cancel()
            await asyncio.gather(*cable._carrying, return_exceptions=True)

    def through(self, url: str) -> str:
        """The same URL by way of this cable."""
        parts = urlsplit(url)
        return urlunsplit(parts._replace(netloc=f"{parts.netloc.rpartition('@')[0]}@127.0.0.1:{self.port}"))

    async def accept(self) -> None:
        """New connections, on the port of the first time."""
        if self._listening is None:
            self._listening = await asyncio.start_server(self._plug_in, "127.0.0.1", self.port)
            self.port = self._listening.sockets[0].getsockname()[1]

    def refuse(self) -> None:
        """Whoever connects from now on is refused, as where no server listens; what is connected stays so."""
        if self._listening is not None:
            self._listening.close()
            self._listening = None

    def cut(self) -> None:
        for end in self._ends:
            end.transport.abort()

    def fall_silent(self) -> None:
        """From now on nothing arrives anywhere, and nothing is closed: half-open. New connections are silent too."""
        self._flowing.clear()

    @property
    def is_silent(self) -> bool:
        return not self._flowing.is_set()

    def fall_silent_at(self, statement: str) -> None:
        """Half-open from the moment in which a statement with this text is sent."""
        self._silent_at = statement

    def flow_again(self) -> None:
        self._silent_at = None
        self._flowing.set()

    def lose_answer_to(self, statement: str, *, times: int = 1) -> None:
        """The next statement with this text reaches the server; when it answers, the cable is cut instead."""
        self._lost_with, self.left_to_lose = statement, times

    async def _plug_in(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._carrying.add(task)
        self.connections += 1
        ends = [writer]
        self._ends.add(writer)
        try:
            with suppress(OSError, asyncio.CancelledError):
                far_reader, far_writer = await asyncio.open_connection(*self.target)
                ends.append(far_writer)
                self._ends.add(far_writer)
                await self._carry(reader, writer, far_reader, far_writer)
        finally:
            for end in ends:
                end.transport.abort()
                self._ends.discard(end)
            self._carrying.discard(task)

    async def _carry(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        far_reader: asyncio.StreamReader,
        far_writer: asyncio.StreamWriter,
    ) -> None:
        sent = Requests()

        async def requests() -> None:
            while data := await reader.read(_CHUNK):
                sent.feed(data)
                if self._silent_at is not None and self._silent_at in (sent.executing or ""):
                    self.fall_silent()
                await self._flowing.wait()
                far_writer.write(data)
                await far_writer.drain()

        async def answers() -> None:
            while data := await far_reader.read(_CHUNK):
                await self._flowing.wait()
                if self.left_to_lose and sent.executing is not None and (self._lost_with or "") in sent.executing:
                    if not data[-6:].startswith(_READY):
                        continue  # a long answer begins before its transaction is committed
                    self.left_to_lose -= 1
                    return
                sent.executing = None
                writer.write(data)
                await writer.drain()
            if self.delays_ends:
                self.ends_delayed += 1
                await asyncio.Event().wait()

        both = [asyncio.ensure_future(way()) for way in (requests, answers)]
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in both:
                way.cancel()
            await asyncio.gather(*both, return_exceptions=True)
