"""The server: uvicorn in the daemon's own event loop, made hard to hold up.

A connection that is one too many is told so and closed; one that does not send a whole request head in time, or sends a
large one, is closed; so is one that sends its body, or takes its answer, too slowly. So ten thousand idle clients cost
the other roles of the daemon nothing.
"""

import asyncio
import errno
import logging
import resource
import socket
import ssl
from contextlib import suppress
from typing import Any, Final, Literal

import anyio
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from accsd.db import Database
from accsd.db.access import any_tokens
from accsd.errors import ConfigError, Unavailable
from accsd.gateway.app import make_app
from accsd.gateway.context import GatewayContext
from accsd.log import get_logger
from accsd.settings import GatewaySettings

_log = get_logger(component="gateway")
_HEAD_SEC: Final = 10.0  # for the head of a request
_BODY_SEC: Final = 30.0  # for the body after it
_READ_SEC: Final = 30.0  # for a reader to take what waits for it
_LAST_WORDS_SEC: Final = 5.0  # for a refusal to be read
_KEEP_ALIVE_SEC: Final = 30
_MAX_HEAD: Final = 32 * 1024
_STOPS_SEC: Final = 5
_BACKLOG: Final = 128  # so many are accepted in one turn of the loop, before the first of them can be refused
_FILES_KEPT: Final = 512  # open files that connections leave to the rest of the daemon


class GatewayServer:
    """The role: serves until it is cancelled."""

    def __init__(self, context: GatewayContext) -> None:
        self._context = context

    async def serve(self) -> None:
        settings = self._context.settings.gateway
        await require_tokens_beyond_loopback(self._context.reads, settings)
        speaks_websocket = any(door.speaks_websocket for door in self._context.doors)
        server = _Server(
            _config(make_app(self._context), settings, "websockets-sansio" if speaks_websocket else "none")
        )
        listener = bind(settings)
        try:
            await server.startup(sockets=[listener])
            _log.info("listening", url=settings.url)
            await server.main_loop()
        finally:
            with anyio.CancelScope(shield=True):
                await self._context.hub.drain()  # the streams end first: the server waits for every answer
                await server.shutdown(sockets=[listener])
            listener.close()


async def require_tokens_beyond_loopback(db: Database, settings: GatewaySettings) -> None:
    if not settings.is_local and not await any_tokens(db):
        raise ConfigError(
            f"gateway.listen {settings.listen} can be reached by other machines, and there is no token",
            hint="`accsd tokens create NAME --scope admin` makes one; or listen at 127.0.0.1",
        )


def bind(settings: GatewaySettings) -> socket.socket:
    """The socket, bound: an address that can't be had is told as what it is."""
    host, _, port = (settings.listen or "").rpartition(":")
    name = host.strip("[]")
    try:
        [found, *_] = socket.getaddrinfo(name, int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        listener = socket.socket(found[0], socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setblocking(False)
        listener.bind(found[4])
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise Unavailable(
                f"gateway.listen {settings.listen} is in use by another process",
                hint="stop it, or choose another port in gateway.listen",
            ) from None
        raise ConfigError(
            f"cannot listen at {settings.listen}: {error.strerror}", hint="correct gateway.listen (ACC_GATEWAY_LISTEN)"
        ) from None
    return listener


def _config(app: ASGIApp, settings: GatewaySettings, websocket: Literal["none", "websockets-sansio"]) -> uvicorn.Config:
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # what a client did wrong is no news of ours
    config = uvicorn.Config(
        app,
        http=_protocol(room_for(settings.limits.connections)),
        ws=websocket,
        ws_max_size=settings.limits.body,
        loop="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=_BACKLOG,
        timeout_keep_alive=_KEEP_ALIVE_SEC,
        timeout_graceful_shutdown=_STOPS_SEC,
        ssl_certfile=settings.tls_cert,
        ssl_keyfile=settings.tls_key,
    )
    try:
        config.load()
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"the certificate of the gateway can't be used: {error}", hint="correct gateway.tls_cert and tls_key"
        ) from None
    return config


def room_for(connections: int) -> int:
    """How many connections there may be. Each is an open file: the process's limit is raised for them as far as it may
    be, and what is left is not taken from the other roles of the daemon."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + _FILES_KEPT
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return connections
    room = max(1, soft - _FILES_KEPT)
    _log.warning("fewer_connections", connections=room, wanted=connections, hint="raise the limit of open files")
    return room


class _Server(uvicorn.Server):
    async def main_loop(self) -> None:
        """Until it is cancelled. uvicorn's own looks ten times a second whether to stop."""
        while True:
            await self.on_tick(0)  # the date of answers
            await asyncio.sleep(1)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self.lifespan = self.config.lifespan_class(self.config)
        await super().startup(sockets=sockets)


def _protocol(most: int) -> type[asyncio.Protocol]:
    class Bounded(_BoundedProtocol):
        most_connections = most

    return Bounded


class _BoundedProtocol(HttpToolsProtocol):
    """A connection with deadlines for what it sends and for what it is to take, and a limit of its request heads."""

    most_connections: int = 1_000

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._deadline: asyncio.TimerHandle | None = None  # for what it sends
        self._taken_by: asyncio.TimerHandle | None = None  # for what it is to take
        self._head: int = 0
        self._in_head: bool = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        super().connection_made(transport)
        if len(self.connections) > self.most_connections:
            self._refuse(_TOO_MANY)
            return
        self._within(_HEAD_SEC)

    def connection_lost(self, exc: Exception | None) -> None:
        self._awaits_nothing()
        if self._taken_by is not None:
            self._taken_by.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        super().data_received(data)
        if self._in_head:
            self._head += len(data)
            if self._head > _MAX_HEAD and not self.transport.is_closing():
                self._refuse(_HEAD_TOO_LARGE)

    def on_message_begin(self) -> None:
        self._in_head, self._head = True, 0
        self._within(_HEAD_SEC)
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        if self.transport.is_closing():
            return
        # a head that came in one piece was not counted on its way
        if len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers) > _MAX_HEAD:
            self._refuse(_HEAD_TOO_LARGE)
            return
        self._within(_BODY_SEC)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if not self.transport.is_closing():
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._awaits_nothing()
        if not self.transport.is_closing():
            super().on_message_complete()

    def pause_writing(self) -> None:
        """The reader takes less than is written. One that stays behind is cut off, or its answer would stay in memory
        and its connection taken for as long as it likes."""
        super().pause_writing()
        self._taken_by = self.loop.call_later(_READ_SEC, self._too_slow)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._taken_by is not None:
            self._taken_by.cancel()
            self._taken_by = None

    def timeout_keep_alive_handler(self) -> None:
        self.transport.abort()  # to close it would wait for a reader who may never take the end of the last answer

    def _within(self, seconds: float) -> None:
        """What is awaited comes in this time, or the connection is gone."""
        self._awaits_nothing()
        self._deadline = self.loop.call_later(seconds, self._too_slow)

    def _awaits_nothing(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _refuse(self, said: bytes) -> None:
        self._within(_LAST_WORDS_SEC)
        self.transport.write(said)
        self.transport.close()

    def _too_slow(self) -> None:
        self.transport.abort()


def _bare(status: str, code: str, title: str) -> bytes:
    """An answer to a client that never reached the application."""
    body = f'{{"type":"/problems/{code}","title":"{title}","status":{status[:3]},"detail":"{title}","code":"{code}"}}'
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/problem+json\r\nContent-Length: {len(body)}\r\n"
    return f"{head}Retry-After: 2\r\nConnection: close\r\n\r\n{body}".encode()


_TOO_MANY: Final = _bare("503 Service Unavailable", "too_many_connections", "Too many connections")
_HEAD_TOO_LARGE: Final = _bare("431 Request Header Fields Too Large", "invalid", "The head of the request is too large")
