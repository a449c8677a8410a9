"""One guarded HTTP request to somebody outside (a provider, a webhook): the name is resolved once, every address is
checked, and the connection goes to an address that was checked. No redirect is followed, everything has a deadline, and
little is read.
"""

import asyncio
import http.client
import io
import socket
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from accsd.errors import Unavailable

Address = IPv4Address | IPv6Address

_LONGEST_HEAD: Final = 32 * 1024
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


async def send(request: Request, *, within: timedelta) -> Response:
    """Raises CallFailed where the address is refused or the answer is none, OSError or TimeoutError from below."""
    parts = urlsplit(request.url)
    host = parts.hostname or ""
    tls = _verifying(request.ca_file) if parts.scheme == "https" else None
    try:
        port = parts.port or (443 if tls else 80)
    except ValueError as error:
        raise CallFailed(f"{host} can't be called: {error}") from error
    try:
        async with asyncio.timeout(within.total_seconds()):
            addresses = await _resolve(host, port)
            for address in addresses:
                if refusal := why_refused(address, allow_private=request.allow_private):
                    raise CallFailed(f"{host} is at {address}, {refusal}")
            reader, writer = await _connect(addresses, port, tls, host)
            try:
                writer.write(_written(request, parts.netloc, _target(request.url)))
                return await _read(reader)
            finally:
                writer.transport.abort()  # nothing more is wanted, and a polite end could wait for the other side
    except TimeoutError as error:
        raise TimeoutError(f"{host} did not answer within {within.total_seconds():g} s") from error


def why_refused(address: Address, *, allow_private: bool) -> str | None:
    """None: it may be called."""
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
    """Those of a file as they are now, those of the system as they were at most an hour ago."""
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


async def _connect(
    addresses: list[Address], port: int, tls: ssl.SSLContext | None, host: str
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """The first address that answers; the certificate must be the name's."""
    failure: OSError | None = None
    for address in addresses:
        try:
            return await asyncio.open_connection(
                str(address), port, ssl=tls, server_hostname=host if tls else None, limit=_LONGEST_HEAD
            )
        except ssl.SSLError as error:
            raise CallFailed(f"{host} has no certificate that can be trusted: {error.reason}") from error
        except OSError as error:
            failure = error
    raise failure or CallFailed(f"{host} has no address")


def _target(url: str) -> str:
    parts = urlsplit(url)
    return (parts.path or "/") + (f"?{parts.query}" if parts.query else "")


def _written(request: Request, host: str, target: str) -> bytes:
    headers = {
        "Host": host,
        "User-Agent": "accsd",
        "Accept": "application/json, */*",
        "Connection": "close",
        "Content-Length": str(len(request.body)),
        **request.headers,
    }
    lines = [f"{request.method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    if not all(line.isascii() and line.isprintable() for line in lines):
        raise CallFailed("the request would hold a line break or a character that HTTP does not know")
    return "\r\n".join([*lines, "", ""]).encode("ascii") + request.body


async def _read(reader: asyncio.StreamReader) -> Response:
    status, headers = await _head(reader)
    while 100 <= status < 200:  # such as 103, early hints: the answer comes after them
        status, headers = await _head(reader)
    if status in (204, 304):  # has no body, and whoever keeps the connection open would be waited for
        return Response(status, "")
    chunked = "chunked" in headers.get("Transfer-Encoding", "").lower()
    return Response(status, await _excerpt(reader, chunked=chunked, length=headers.get("Content-Length")))


async def _head(reader: asyncio.StreamReader) -> tuple[int, http.client.HTTPMessage]:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        status_line, _, fields = head.partition(b"\r\n")
        protocol, status, *_ = status_line.decode("ascii").split()
        if not protocol.startswith("HTTP/1."):
            raise ValueError(protocol)
        return int(status), http.client.parse_headers(io.BytesIO(fields))
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError, http.client.HTTPException) as error:
        raise CallFailed("the answer is not HTTP") from error


async def _excerpt(reader: asyncio.StreamReader, *, chunked: bool, length: str | None) -> str:
    """The beginning of the body, for the record: the first chunk will do, and a slow one may stay behind."""
    try:
        async with asyncio.timeout(_BODY_WITHIN_SEC):
            size = int((await reader.readline()).partition(b";")[0], 16) if chunked else int(length or _KEPT_BODY)
            body = await reader.readexactly(max(0, min(size, _KEPT_BODY)))
    except asyncio.IncompleteReadError as error:
        body = error.partial
    except (TimeoutError, ValueError, OSError):
        body = b""
    return body.decode(errors="replace")
