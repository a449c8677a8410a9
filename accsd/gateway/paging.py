"""Pages of lists, and the cursors that lead from one to the next.

A cursor is a position, sealed with the key of the installation together with a digest of the filter that it belongs
to: nobody can make one up, and one that is used with another filter is refused instead of answered with other rows.
"""

import base64
import binascii
import hashlib
import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Self

import orjson

from accsd.db.lists import cursor_key
from accsd.db.pool import Database
from accsd.db.views.job_list import Scan
from accsd.errors import InvalidValue

_VERSION: Final = 1
_SEAL_BYTES: Final = 16
_DIGEST_BYTES: Final = 12
_LONGEST: Final = 1024

DEFAULT_LIMIT: Final = 50
MAX_LIMIT: Final = 500

Position = Sequence[int | str]


class CursorMismatch(InvalidValue):
    """A cursor that this installation did not make, or that belongs to another filter."""

    code: Final = "cursor_mismatch"


@dataclass(frozen=True, slots=True)
class Page:
    """A page of a list. `next` leads to the following one; None: nothing is left."""

    items: Sequence[Any]
    next: str | None
    scan: Scan | None
    as_of: datetime

    def document(self) -> dict[str, Any]:
        said: dict[str, Any] = {"items": self.items, "next": self.next}
        if self.scan is not None:
            said["scan"] = self.scan.document()
        return said | {"as_of": self.as_of}


class Cursors:
    """Seals positions and opens them again. `asked` is whatever the next page must have in common with this one, as
    JSON: the parameters as they were given (`since=2d` is another time on the next page), the direction included."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    @classmethod
    async def of(cls, db: Database) -> Self:
        return cls(await cursor_key(db))

    def seal(self, position: Position, asked: Mapping[str, Any]) -> str:
        sealed = orjson.dumps([_VERSION, _digest(asked), *position])
        return base64.urlsafe_b64encode(self._signature(sealed) + sealed).decode().rstrip("=")

    def open(self, text: str, asked: Mapping[str, Any]) -> list[int | str]:
        """The position. Raises CursorMismatch."""
        signature, sealed = _apart(text)
        if not hmac.compare_digest(signature, self._signature(sealed)):
            raise _unknown()
        version, digest, *position = orjson.loads(sealed)
        if version != _VERSION:
            raise _unknown()
        if digest != _digest(asked):
            raise CursorMismatch(
                "the cursor belongs to another filter or another order",
                hint="ask for the first page of the new filter, without a cursor",
            )
        return position

    def _signature(self, sealed: bytes) -> bytes:
        return hmac.new(self._key, sealed, hashlib.sha256).digest()[:_SEAL_BYTES]


def limit_of(text: str | None) -> int:
    """How many items a page has, as the caller says it. Raises InvalidValue."""
    if text is None:
        return DEFAULT_LIMIT
    if not text.isascii() or not text.isdecimal() or len(text) > 4 or not 1 <= int(text) <= MAX_LIMIT:
        raise InvalidValue(f'limit "{text[:20]}" is not a number from 1 to {MAX_LIMIT}')
    return int(text)


def _apart(text: str) -> tuple[bytes, bytes]:
    if len(text) > _LONGEST:
        raise _unknown()
    try:
        whole = base64.b64decode(text.encode("ascii") + b"=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (UnicodeEncodeError, binascii.Error):
        raise _unknown() from None
    return whole[:_SEAL_BYTES], whole[_SEAL_BYTES:]


def _digest(asked: Mapping[str, Any]) -> str:
    written = orjson.dumps(dict(asked), option=orjson.OPT_SORT_KEYS)
    return base64.b64encode(hashlib.sha256(written).digest()[:_DIGEST_BYTES]).decode()


def _unknown() -> CursorMismatch:
    return CursorMismatch("the cursor is none of this installation", hint="ask for the first page, without a cursor")
