"""Signatures of webhooks, for those that accsd sends and those that it gets. Pure."""

import base64
import binascii
import hashlib
import hmac
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from accsd.errors import ConfigError

_ENCODED: Final = "whsec_"
_LONGEST_SECRETS: Final = 4096
_SHORTEST_SECRET: Final = 16


def standard_signature(secrets: Sequence[str], event_id: str, timestamp: int, body: bytes) -> str:
    """HMAC-SHA256 over `id.timestamp.body`, as Standard Webhooks has it: one for each secret, so that a receiver may
    change to a new secret while the old one still counts."""
    signed = f"{event_id}.{timestamp}.".encode() + body
    made = (hmac.new(_key(secret), signed, hashlib.sha256).digest() for secret in secrets)
    return " ".join(f"v1,{base64.b64encode(digest).decode()}" for digest in made)


def hex_signature(secret: str, signed: bytes) -> str:
    return hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()


def is_among(given: Iterable[str], expected: Iterable[str]) -> bool:
    """Whether one text is among those expected. Each is compared whole, so that the time tells nothing."""
    there = [hmac.compare_digest(one.encode(), other.encode()) for other in list(expected) for one in list(given)]
    return any(there)


def secrets_in(path: Path) -> list[str]:
    """The secrets of a file, one in each line: several while one is replaced. Raises ConfigError."""
    try:
        with path.open(encoding="ascii") as file:
            text = file.read(_LONGEST_SECRETS)
    except (OSError, UnicodeDecodeError) as error:
        said = getattr(error, "strerror", "not plain text")
        raise ConfigError(f"the secret in {path} can't be read: {said}") from None
    secrets = [line.strip() for line in text.splitlines() if line.strip()]
    if not secrets or min(map(len, secrets)) < _SHORTEST_SECRET:
        raise ConfigError(f"the secret in {path} is shorter than {_SHORTEST_SECRET} characters")
    return secrets


def _key(secret: str) -> bytes:
    if secret.startswith(_ENCODED):
        try:
            return base64.b64decode(secret.removeprefix(_ENCODED), validate=True)
        except binascii.Error:
            pass  # it only looks like base64
    return secret.encode()
