"""The second step of a write (MC3): a preview gives a confirmation, and with it happens what the preview said.

A confirmation is sealed with the key of the installation, so that any gateway can take it, after a restart, too:
nothing is kept. It names its caller, the tool, the arguments, what the preview found, and its end. The number in it is
the key under which the write is known: the same confirmation a second time is the same write, and no second one.
"""

import base64
import binascii
import hashlib
import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

import orjson

from accsd.gateway.answers import encode
from accsd.gateway.problems import HttpProblem
from accsd.model.access import Caller

LONGEST: Final = 400
_VERSION: Final = 1
_SEAL_BYTES: Final = 16
_PURPOSE: Final = b"accsd mcp confirmation"  # the key seals cursors, too: neither is taken for the other


@dataclass(frozen=True, slots=True)
class Confirmation:
    """What was previewed. `holds` is a digest of what the preview found: if that differs when it is confirmed, nothing
    is done."""

    number: str
    holds: str
    expires_at: datetime


class Confirmations:
    def __init__(self, key: bytes) -> None:
        self._key: bytes = hmac.digest(key, _PURPOSE, "sha256")

    def seal(self, made: Confirmation, caller: Caller, tool: str, arguments: Mapping[str, Any]) -> str:
        fields = [_VERSION, made.number, made.holds, made.expires_at.timestamp(), _asked(caller, tool, arguments)]
        sealed = orjson.dumps(fields)
        return base64.urlsafe_b64encode(self._seal(sealed) + sealed).decode().rstrip("=")

    def open(
        self, text: str, caller: Caller, tool: str, arguments: Mapping[str, Any], *, now: datetime
    ) -> Confirmation:
        """HttpProblem says why this is not a confirmation of this call."""
        seal, sealed = _apart(text)
        if not hmac.compare_digest(seal, self._seal(sealed)):
            raise refused("unknown_confirmation", "this is no confirmation that this installation has given")
        version, number, holds, expires, asked = orjson.loads(sealed)
        if version != _VERSION:
            raise refused("unknown_confirmation", "this confirmation is of another version of accsd")
        if asked != _asked(caller, tool, arguments):
            raise refused(
                "other_confirmation",
                "this confirmation is of another call: of another caller, tool, or other arguments",
            )
        expires_at = datetime.fromtimestamp(expires, tz=now.tzinfo)
        if now >= expires_at:
            raise refused("confirmation_expired", f"this confirmation has expired at {expires_at.isoformat()}")
        return Confirmation(number, holds, expires_at)

    def _seal(self, sealed: bytes) -> bytes:
        return hmac.digest(self._key, sealed, "sha256")[:_SEAL_BYTES]


def begin(now: datetime, lives: timedelta) -> tuple[str, datetime]:
    """The number of a new preview, and when it ends."""
    return secrets.token_hex(12), now + lives


def digest(value: Any) -> str:
    """The same for the same JSON, whatever the order of its members."""
    plain = orjson.dumps(orjson.loads(encode(value)), option=orjson.OPT_SORT_KEYS)
    return hashlib.sha256(plain).hexdigest()[:32]


def _asked(caller: Caller, tool: str, arguments: Mapping[str, Any]) -> str:
    who = [caller.actor, caller.token_id, caller.session_id]
    return digest([who, tool, arguments])


def _apart(text: str) -> tuple[bytes, bytes]:
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raw = b""
    return raw[:_SEAL_BYTES], raw[_SEAL_BYTES:]


def refused(code: str, detail: str) -> HttpProblem:
    return HttpProblem(code, f"{detail}; nothing was done", hint="call the tool without confirm for a new preview")


def changed() -> HttpProblem:
    return refused("stale", "what this is about has changed since the preview, and it would do something else now")
