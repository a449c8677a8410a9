"""The local HTTP endpoint: GET /metrics and GET /health, and nothing else. Off unless `http.listen` is set.

It is a server of its own and not aiohttp's (docs/decisions/0008), because it answers two questions and must be
impossible to hold up: one request for each connection, small, within a deadline, from a bounded number of clients, of
which the oldest gives way to a new one. An error here never reaches the daemon, but for an address that can't be had
at the start.
"""

import asyncio
import errno
import hmac
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from hashlib import sha256
from http import HTTPStatus
from ipaddress import ip_address
from typing import Final

import anyio
from anyio.abc import TaskGroup, TaskStatus

from accsd.errors import ConfigError, Unavailable
from accsd.health import Health
from accsd.log import get_logger
from accsd.metrics import CONTENT_TYPE, Metrics
from accsd.settings import HttpSettings

_log = get_logger(component="http")
_MAX_HEAD: Final = 8 * 1024
_MAX_CONNECTIONS: Final = 32
_DEADLINE: Final = timedelta(seconds=5)
# A client that still sends while it is refused would be reset and never see why: so many bytes are read and dropped.
_MAX_LINGER: Final = 64 * 1024
_LINGER: Final = timedelta(seconds=1)
_HIGHEST_PORT: Final = 65535
_VERSIONS: Final = ("HTTP/1.0", "HTTP/1.1")


@dataclass(frozen=True, slots=True)
class _Request:
    method: str
    path: str
    headers: dict[str, str]


@dataclass(frozen=True, slots=True)
class _Response:
    status: HTTPStatus
    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    headers: tuple[str, ...] = ()

    def encoded(self) -> bytes:
        lines = (
            f"HTTP/1.1 {self.status.value} {self.status.phrase}",
            f"Content-Type: {self.content_type}",
            f"Content-Length: {len(self.body)}",
            "Connection: close",
            "Cache-Control: no-store",
            "X-Content-Type-Options: nosniff",
            *self.headers,
        )
        return "\r\n".join((*lines, "", "")).encode("ascii") + self.body


class _Refused(Exception):
    """Ends the request with this answer."""

    def __init__(self, status: HTTPStatus, *headers: str) -> None:
        super().__init__(status.phrase)
        self.response: _Response = _Response(status, f"{status.phrase}\n".encode(), headers=headers)


@dataclass(eq=False, slots=True)
class HttpFace:
    """`address = await task_group.start(face.serve)`; cancelling the group closes the endpoint."""

    settings: HttpSettings
    metrics: Metrics
    health: Health
    _clients: TaskGroup | None = None
    _connections: dict[asyncio.StreamWriter, None] = field(default_factory=dict[asyncio.StreamWriter, None])
    _routes: dict[str, Callable[[], _Response]] = field(init=False)

    def __post_init__(self) -> None:
        self._routes = {"/metrics": self._show_metrics, "/health": self._show_health}

    async def serve(self, *, task_status: TaskStatus[str] = anyio.TASK_STATUS_IGNORED) -> None:
        """Serves until it is cancelled; started with the address that it listens at (a port of 0 is any free one).

        Raises Unavailable where the port is in use, ConfigError where the address cannot be had at all.
        """
        server = await self._listen()  # outside of the group, which would wrap the error
        try:
            async with anyio.create_task_group() as self._clients:
                address = _shown(server)
                _log.info("http_listens", address=address, with_token=self.settings.token is not None)
                task_status.started(address)
                await anyio.sleep_forever()
        finally:
            self._clients = None
            server.close()

    async def _listen(self) -> asyncio.Server:
        assert self.settings.listen is not None
        host, _, port = self.settings.listen.rpartition(":")
        if int(port) > _HIGHEST_PORT:  # uvloop would use the port modulo 65536 instead
            raise _no_address(self.settings.listen, f"a port is at most {_HIGHEST_PORT}")
        try:
            return await asyncio.start_server(self._connected, host.strip("[]"), int(port), limit=_MAX_HEAD)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise _in_use(self.settings.listen) from error
            raise _no_address(self.settings.listen, error.strerror or str(error)) from error

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Hands a connection to the task group from its first moment; aborts it where there is no group."""
        if self._clients is None:
            writer.transport.abort()
            return
        if len(self._connections) >= _MAX_CONNECTIONS:
            # A client that asks and listens is answered in a moment: the oldest one does neither.
            oldest = next(iter(self._connections))
            del self._connections[oldest]
            oldest.transport.abort()
        self._connections[writer] = None
        self._clients.start_soon(self._converse, reader, writer)

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with anyio.move_on_after(_DEADLINE.total_seconds()), suppress(OSError):
                writer.transport.set_write_buffer_limits(high=0)  # drained means that all of it was sent
                writer.write((await self._answer(reader)).encoded())
                await writer.drain()
                writer.write_eof()
                await _linger(reader)
        except Exception as error:  # noqa: BLE001 - a client must not be able to stop the daemon
            _log.error("http_failed", error=repr(error))
        finally:
            self._connections.pop(writer, None)
            writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader) -> _Response:
        try:
            request = await _read_request(reader)
            self._admit(request)
            return self._route(request)()
        except _Refused as refusal:
            return refusal.response

    def _admit(self, request: _Request) -> None:
        """Requires the token or, where none is set, proof that no web page asks through a person's browser (DNS
        rebinding)."""
        if self.settings.token is None:
            if not _names_this_machine(request.headers.get("host", ""), self.settings.listen or ""):
                raise _Refused(HTTPStatus.BAD_REQUEST)
            return
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        expected = self.settings.token.get_secret_value()
        if scheme.lower() != "bearer" or not hmac.compare_digest(_digest(given.strip()), _digest(expected)):
            raise _Refused(HTTPStatus.UNAUTHORIZED, "WWW-Authenticate: Bearer")

    def _route(self, request: _Request) -> Callable[[], _Response]:
        show = self._routes.get(request.path)
        if show is None:
            raise _Refused(HTTPStatus.NOT_FOUND)
        if request.method != "GET":
            raise _Refused(HTTPStatus.METHOD_NOT_ALLOWED, "Allow: GET")
        return show

    def _show_metrics(self) -> _Response:
        return _Response(HTTPStatus.OK, self.metrics.render(), CONTENT_TYPE)

    def _show_health(self) -> _Response:
        report = self.health.report()
        return _Response(HTTPStatus(report.http_status), report.to_json(), "application/json")


async def _read_request(reader: asyncio.StreamReader) -> _Request:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("ascii")
    except (asyncio.LimitOverrunError, asyncio.IncompleteReadError, UnicodeDecodeError):
        raise _Refused(HTTPStatus.BAD_REQUEST) from None
    first, *rest = head.removesuffix("\r\n\r\n").split("\r\n")
    match first.split(" "):
        case [method, target, version] if version in _VERSIONS and method.isalpha() and target.startswith("/"):
            return _Request(method, target.partition("?")[0], dict(map(_header, rest)))
        case _:
            raise _Refused(HTTPStatus.BAD_REQUEST)


def _header(line: str) -> tuple[str, str]:
    name, colon, value = line.partition(":")
    if not colon or not name or name != name.strip():
        raise _Refused(HTTPStatus.BAD_REQUEST)
    return name.lower(), value.strip()


async def _linger(reader: asyncio.StreamReader) -> None:
    """Reads and drops what the client still sends, until it has closed its side or has had time enough."""
    left = _MAX_LINGER
    with anyio.move_on_after(_LINGER.total_seconds()):
        while left > 0 and (chunk := await reader.read(_MAX_HEAD)):
            left -= len(chunk)


def _names_this_machine(host: str, listen: str) -> bool:
    """Whether the header names an address, localhost, or the name that we listen at. A foreign name is none of
    these."""
    name = host if host.endswith("]") else host.rpartition(":")[0] or host
    if name.lower() in ("localhost", listen.rpartition(":")[0].lower()):
        return True
    try:
        ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


def _shown(server: asyncio.Server) -> str:
    host, port = server.sockets[0].getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _digest(text: str) -> bytes:
    """A digest has the same length for every text, so that the comparison does not tell the length."""
    return sha256(text.encode("utf-8", "surrogatepass")).digest()


def _in_use(listen: str) -> Unavailable:
    """The port may be held by a daemon that is still stopping, and may come free by itself."""
    return Unavailable(
        f"http.listen {listen} is in use by another process", hint="stop it, or choose another port in http.listen"
    )


def _no_address(listen: str, why: str) -> ConfigError:
    return ConfigError(f"cannot listen at {listen}: {why}", hint="correct http.listen (ACC_HTTP_LISTEN)")
