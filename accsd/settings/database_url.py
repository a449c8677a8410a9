"""The database's URL as people write it, and as it may be shown. No message ever quotes it: it holds a password."""

import re
from collections.abc import Iterator
from typing import Final
from urllib.parse import SplitResult, parse_qs, quote, unquote, urlencode, urlsplit, urlunsplit

from accsd.errors import InvalidValue

_URL_EXAMPLE: Final = "postgresql://user:password@host:5432/name"
_SCHEMES: Final = ("postgresql", "postgres", "postgresql+psycopg", "postgresql+asyncpg")


def normalise(url: str) -> str:
    """`postgresql://…` for any of the spellings that people carry over from other tools."""
    scheme, separator, rest = url.strip().partition("://")
    if not separator:
        raise InvalidValue(f"is not a URL; expected {_URL_EXAMPLE}")
    if scheme.lower() not in _SCHEMES:
        raise InvalidValue(f"does not begin with postgresql://; expected {_URL_EXAMPLE}")
    normalised = f"postgresql://{rest}"
    if flaw := _flaw(normalised):
        raise InvalidValue(f"{flaw}; expected {_URL_EXAMPLE}")
    return normalised


def _flaw(url: str) -> str | None:
    try:
        parts = urlsplit(url)
    except ValueError:
        return "is malformed"
    if re.search(r"\s", url) or not url.isprintable():
        return "contains a space or a control character"
    if parts.fragment:
        return "contains a #, which a password must write as %23"
    if not (parts.netloc or parts.path.strip("/") or parts.query):
        return "names no host and no database"
    if "/" in parts.path.strip("/"):
        return "has more than one / after the host (a / in a password is written as %2F)"
    return _flawed_port(parts)


def _flawed_port(parts: SplitResult) -> str | None:
    """What is wrong with the port. It is read by hand, because libpq's several hosts, `a:1,b:2`, are legal."""
    for host in parts.netloc.rpartition("@")[2].split(","):
        port = re.sub(r"^(\[[^\]]*\]|[^:]*)", "", host).removeprefix(":")
        if port and not (re.fullmatch(r"[0-9]{1,5}", port) and 0 < int(port) < 65536):
            return "has a port that is not a number between 1 and 65535"
    return None


def secrets_of(url: str) -> Iterator[str]:
    yield url
    parts = urlsplit(url)
    yield from parse_qs(parts.query).get("password", [])
    user_info = parts.netloc.rpartition("@")[0]
    if password := user_info.partition(":")[2]:
        yield password
        yield unquote(password)


def with_login(url: str, user: str, password: str) -> str:
    """The URL of the same database for another login."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"{quote(user, safe='')}:{quote(password, safe='')}@{host}"))


def shown(url: str) -> str:
    """The URL without password and options, but with the socket's folder: psql takes it."""
    parts = urlsplit(url)
    user, _, host = parts.netloc.rpartition("@")
    where = {name: found for name, found in parse_qs(parts.query).items() if name in ("host", "port")}
    query = urlencode(where, doseq=True, safe="/,")
    return urlunsplit(("postgresql", f"{user.partition(':')[0]}@{host}" if user else host, parts.path, query, ""))
