"""Outgoing HTTP. `send` is one guarded request to somebody outside (a provider, a webhook): the name is resolved once,
every address is checked, and the connection goes to an address that was checked. `exchange` is one request to an
address that is known already. No redirect is followed, heads are bounded, and the caller reads as much as it wants.

aiohttp speaks the protocol. It takes 0.2 s and 9 MB to import, so it is imported with the first request, in a thread:
an agent without any never has it, and the others' event loop goes on meanwhile.
"""

import asyncio
import socket
import ssl
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import lru_cache
from importlib import import_module
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar
from urllib.parse import SplitResult, urlsplit

from accsd.errors import Unavailable

if TYPE_CHECKING:
    from aiohttp import ClientResponse, ClientSession

Address = IPv4Address | IPv6Address
Read = TypeVar("Read")

_MOST_HEADERS: Final = 64
_LONGEST_HEADER: Final = 8190
_KEPT_BODY: Final = 8192
_BODY_WITHIN_SEC: Final = 2.0
# What clouds answer on to anybody who asks from inside, beside the link-local 169.254.169.254.
_METADATA: Final = frozenset(
    map(ip_address, ("100.100.100.200", "168.63.129.16", "192.0.0.192", "fd00:ec2::254", "fd20:ce::254"))
)
# An IPv4 address in IPv6 clothes: mapped, compatible, translated (NAT64), 6to4, Teredo.
_DISGUISED: Final = tuple(
    map(
        IPv6Network,
        ("::ffff:0:0/96", "::/96", "::ffff:0:0:0/96", "64:ff9b::/96", "64:ff9b:1::/48", "2002::/16", "2001::/32"),
    )
)
# What Python's is_global lets through, whichever version it is: the address is public only if it is in the one block
# that IPv6 hands out, and not in a network that was given up (6to4's relays) or is for documents.
_IPV6_UNICAST: Final = IPv6Network("2000::/3")
_NOT_PUBLIC: Final = (IPv4Network("192.88.99.0/24"), IPv6Network("3fff::/20"))


class CallFailed(Unavailable):
    """The address is refused, or what answers there is no HTTP server that can be trusted."""


class AddressRefused(CallFailed):
    """The address must not be called, now or later."""


class NotReached(OSError):
    """Nobody listens at the address: nothing was sent, and another address may do."""


@dataclass(frozen=True, slots=True)
class Request:
    """`url` is http or https; a private address (or this machine's own) is refused unless `allow_private`."""

    method: str
    url: str
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    body: bytes = b""
    allow_private: bool = False
    ca_file: Path | None = None


@dataclass(frozen=True, slots=True)
class Response:
    status: int
    excerpt: str


class StreamedResponse:
    """An answer whose head has come, and whose body is read piece by piece."""

    def __init__(self, response: "ClientResponse") -> None:
        self.status: Final = response.status
        self.headers: Final[Mapping[str, str]] = response.headers  # by name in any case
        self._content: Final = response.content

    async def read(self, most: int) -> bytes:
        """The next piece; b"" at the proper end. Raises CallFailed where the answer is cut off."""
        from aiohttp import ClientError

        try:
            return await self._content.read(most)
        except ClientError as error:
            raise CallFailed("the answer was cut off") from error


async def send(request: Request, *, within: timedelta) -> Response:
    """Sends one request and reads the beginning of its answer. Raises CallFailed where the address is refused or the
    answer is not HTTP, OSError or TimeoutError where there is no answer."""

    async def read(answer: StreamedResponse) -> Response:
        return Response(answer.status, await _excerpt(answer))

    return await _guarded(request, within, read)


async def fetch_whole(request: Request, *, within: timedelta, most: int) -> tuple[int, bytes]:
    """Sends one request and reads its whole answer: the status and the body. Raises as `send` does, and CallFailed
    where the body is longer than `most`."""

    async def read(answer: StreamedResponse) -> tuple[int, bytes]:
        body = bytearray()
        while piece := await answer.read(most + 1 - len(body)):
            body += piece
            if len(body) > most:
                raise CallFailed(f"the answer is longer than {most} bytes")
        return answer.status, bytes(body)

    return await _guarded(request, within, read)


async def _guarded(request: Request, within: timedelta, read: Callable[[StreamedResponse], Awaitable[Read]]) -> Read:
    parts = urlsplit(request.url)
    host = parts.hostname or ""
    tls = _verifying(request.ca_file) if parts.scheme == "https" else None
    try:
        port = parts.port or (443 if tls else 80)
    except ValueError as error:
        raise CallFailed(f"{host} can't be called: {error}") from error
    await ready()
    try:
        async with asyncio.timeout(within.total_seconds()):
            addresses = await _resolve(host, port)
            for address in addresses:
                if refusal := why_refused(address, allow_private=request.allow_private):
                    raise AddressRefused(f"{host} is at {address}, {refusal}")
            return await _ask_first(addresses, port, request, parts, tls, read)
    except TimeoutError as error:
        raise TimeoutError(f"{host} did not answer within {within.total_seconds():g} s") from error


async def _ask_first(
    addresses: list[Address],
    port: int,
    request: Request,
    parts: SplitResult,
    tls: ssl.SSLContext | None,
    read: Callable[[StreamedResponse], Awaitable[Read]],
) -> Read:
    """Asks the first address that can be reached. The certificate must be the name's."""
    failure: NotReached | None = None
    headers = _headers(request, parts.netloc)
    for address in addresses:
        at = _at(address, port, parts)
        try:
            async with exchange(request.method, at, headers, request.body, tls=tls, name=parts.hostname) as answer:
                return await read(answer)
        except NotReached as error:
            failure = error
    raise failure or CallFailed(f"{parts.hostname} has no address")


async def ready() -> None:
    """Imports the library. Await it before a deadline begins, so that the import does not count."""
    if "aiohttp" not in sys.modules:
        await asyncio.to_thread(import_module, "aiohttp")


@asynccontextmanager
async def exchange(
    method: str,
    url: str,
    headers: Mapping[str, str],
    body: bytes = b"",
    *,
    tls: ssl.SSLContext | None = None,
    name: str | None = None,
) -> AsyncGenerator[StreamedResponse]:
    """One request on a connection of its own, and the head of its answer. The host of `url` is an address; `name` is
    whose certificate is wanted. Raises CallFailed where the answer is not HTTP, OSError where there is none."""
    await ready()
    async with _session(tls) as session:
        response = await _asked(session, method, url, headers, body, name if tls else None)
        link = response.connection
        try:
            if response.version is None or response.version.major != 1:
                raise CallFailed("the answer is not HTTP")
            yield StreamedResponse(response)
        finally:
            # Nothing more is wanted, and a polite end could wait for the other side.
            if link is not None and link.transport is not None:
                link.transport.abort()
            response.close()


def _session(tls: ssl.SSLContext | None) -> "ClientSession":
    """For one request: nothing is remembered, kept open, unpacked or taken from the environment."""
    import aiohttp

    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(force_close=True, ssl=tls or True),
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(),  # none of its own: callers have theirs, and a stream may take a day
        auto_decompress=False,  # a small answer may be large inside
        max_headers=_MOST_HEADERS,
        max_line_size=_LONGEST_HEADER,
        max_field_size=_LONGEST_HEADER,
        skip_auto_headers=("Accept", "Accept-Encoding", "Content-Type", "User-Agent"),
    )


async def _asked(
    session: "ClientSession", method: str, url: str, headers: Mapping[str, str], body: bytes, name: str | None
) -> "ClientResponse":
    import aiohttp
    from yarl import URL

    try:
        return await session.request(
            method,
            URL(url, encoded=True),  # as it is written
            headers={"Connection": "close", "Content-Length": str(len(body)), **headers},
            data=body,
            allow_redirects=False,
            server_hostname=name,
        )
    except aiohttp.ClientSSLError as error:
        raise CallFailed(f"{name} has no certificate that can be trusted: {error}") from error
    except aiohttp.ClientConnectorError as error:
        raise NotReached(*error.os_error.args) from error
    except aiohttp.ClientOSError:
        raise
    except aiohttp.ClientError as error:
        raise CallFailed("the answer is not HTTP") from error


def why_refused(address: Address, *, allow_private: bool) -> str | None:
    """Why an address must not be called; None if it may be."""
    if isinstance(address, IPv6Address) and address != IPv6Address("::1"):
        if any(address in network for network in _DISGUISED):
            return "which hides an IPv4 address"
        if address.scope_id is not None:
            return "which is a link-local address"
    if address.is_link_local or address in _METADATA:
        return "which is a link-local or metadata address"
    if address.is_multicast or address.is_unspecified or (address.is_reserved and not address.is_loopback):
        return "which is nobody's address"
    if not _is_public(address) and not allow_private:
        return "which is a private address (allow_private = true lets it through)"
    return None


def _is_public(address: Address) -> bool:
    if isinstance(address, IPv6Address) and address not in _IPV6_UNICAST:
        return False
    return address.is_global and not any(address in network for network in _NOT_PUBLIC)


def _verifying(ca_file: Path | None) -> ssl.SSLContext:
    """Trusts the certificates of a file as they are now, those of the system as they were at most an hour ago."""
    try:
        return _certificates(ca_file, time.monotonic() // 3600 if ca_file is None else ca_file.stat().st_mtime_ns)
    except (OSError, ssl.SSLError) as error:
        raise CallFailed(f"the certificates in {ca_file} can't be read: {error}") from error


@lru_cache(maxsize=16)
def _certificates(ca_file: Path | None, _of: float) -> ssl.SSLContext:
    # to read those of the system takes 30 ms, in which nothing else of the daemon moves
    return ssl.create_default_context(cafile=ca_file)


async def _resolve(host: str, port: int) -> list[Address]:
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError) as error:
        raise CallFailed(f"{host} can't be resolved: {error}") from error
    return list(dict.fromkeys(ip_address(address[0]) for *_, address in found))


def _at(address: Address, port: int, parts: SplitResult) -> str:
    """The URL with its name replaced by an address that was checked."""
    host = f"[{address}]" if isinstance(address, IPv6Address) else str(address)
    return f"{parts.scheme}://{host}:{port}{parts.path or '/'}" + (f"?{parts.query}" if parts.query else "")


def _headers(request: Request, host: str) -> dict[str, str]:
    headers = {"Host": host, "User-Agent": "accsd", "Accept": "application/json, */*", **request.headers}
    lines = (request.method, request.url, *headers, *headers.values())
    if not all(line.isascii() and line.isprintable() for line in lines):
        raise CallFailed("the request would hold a line break or a character that HTTP does not know")
    return headers


async def _excerpt(answer: StreamedResponse) -> str:
    """The beginning of the body, for the record: what comes soon will do, and the rest may stay behind."""
    body = bytearray()
    with suppress(TimeoutError, OSError, CallFailed):
        async with asyncio.timeout(_BODY_WITHIN_SEC):
            while len(body) < _KEPT_BODY and (piece := await answer.read(_KEPT_BODY - len(body))):
                body += piece
    return body.decode(errors="replace")
