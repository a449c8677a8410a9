"""Asks an application how it is: one request to its metrics endpoint, signed as SeqPulse's middleware wants it."""

import math
import secrets
import time
from collections import OrderedDict
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final, cast

import orjson

from accsd.errors import ConfigError, Unavailable
from accsd.gateway.seqpulse.projects import WatchedProject, canonical_path
from accsd.log import redact, register_secret
from accsd.net import Request, fetch_whole
from accsd.planning.verdict import METRICS
from accsd.values.signatures import hex_signature

_LARGEST: Final = 64 * 1024
_SHARES: Final = ("error_rate", "cpu_usage", "memory_usage")
_NONCE_TTL: Final = "330"  # how long the middleware remembers a nonce, in seconds
_REFUSED: Final = (401, 403)
_SHOWN: Final = 200
_MOST_REMEMBERED: Final = 1_000


class SampleFailed(Exception):
    """There is no sample. `permanent`: asking again gives none either."""

    def __init__(self, said: str, *, permanent: bool = False) -> None:
        super().__init__(said)
        self.permanent = permanent


async def sample(project: WatchedProject, url: str, *, within: timedelta) -> dict[str, float]:
    """The five values that an application says of itself (SP-20). Raises SampleFailed."""
    try:
        headers = signed_headers(project, url)
        settings = project.settings
        request = Request("GET", url, headers, allow_private=settings.allow_private, ca_file=settings.ca_file)
        status, body = await fetch_whole(request, within=within, most=_LARGEST)
    except (ConfigError, Unavailable) as error:
        raise SampleFailed(error.message) from None
    except (OSError, TimeoutError) as error:
        raise SampleFailed(str(error) or type(error).__name__) from None
    if status != 200:
        said = " ".join(redact(body[:_SHOWN].decode(errors="replace")).split())
        raise SampleFailed(
            f"the application answered {status}: {said}", permanent=project.is_signed and status in _REFUSED
        )
    return values_in(body)


def values_in(body: bytes) -> dict[str, float]:
    """Raises SampleFailed for anything but five finite numbers in their ranges."""
    try:
        document: Any = orjson.loads(body)
    except orjson.JSONDecodeError:
        raise SampleFailed("the application's answer is not JSON") from None
    metrics = cast("Mapping[str, Any]", document).get("metrics") if isinstance(document, dict) else None
    if not isinstance(metrics, dict):
        raise SampleFailed('the application\'s answer has no "metrics"')
    return {name: _value(cast("Mapping[str, Any]", metrics), name) for name in METRICS}


def _value(metrics: Mapping[str, Any], name: str) -> float:
    value = metrics.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise SampleFailed(f"{name} is no number")
    if value < 0 or (name in _SHARES and value > 1):
        raise SampleFailed(f"{name} is {value:g}, out of its range")
    return float(value)


# The signature (HMAC v2)


def signed_headers(project: WatchedProject, url: str, *, now: datetime | None = None) -> dict[str, str]:
    """The headers of one request: each has a nonce and a time of its own, a repeated one too (SP-23)."""
    secret = project.secret()
    if secret is None:
        return {"Accept": "application/json"}
    register_secret(secret)
    timestamp = (now or datetime.now(UTC)).strftime("%Y-%m-%dT%H:%M:%SZ")
    nonce, path = secrets.token_urlsafe(16), canonical_path(url)
    return {
        "Accept": "application/json",
        "X-SeqPulse-Timestamp": timestamp,
        "X-SeqPulse-Nonce": nonce,
        "X-SeqPulse-Signature-Version": "v2",
        "X-SeqPulse-Canonical-Path": path,
        "X-SeqPulse-Method": "GET",
        "X-SeqPulse-Signature": signature(secret, timestamp, path, nonce),
        "X-SeqPulse-Nonce-TTL": _NONCE_TTL,
        "X-SeqPulse-Project-Id": project.name,
    }


def signature(secret: str, timestamp: str, path: str, nonce: str) -> str:
    return f"sha256={hex_signature(secret, f'{timestamp}|GET|{path}|{nonce}'.encode())}"


class Preflight:
    """The look at an application before a deployment counts on it (SP-15). One that went well is remembered."""

    def __init__(self, *, within: timedelta, lasts: timedelta) -> None:
        self._within = within
        self._lasts = lasts.total_seconds()
        self._well_at: OrderedDict[tuple[str, str], float] = OrderedDict()

    async def failure(self, project: WatchedProject, url: str | None) -> str | None:
        """Why the application gives no sample; None: it does, or there is nothing to be signed."""
        if url is None or not project.is_signed:
            return None
        now, which = time.monotonic(), (project.name, url)
        if now - self._well_at.get(which, -math.inf) < self._lasts:
            return None
        try:
            await sample(project, url, within=self._within)
        except SampleFailed as failed:
            self._well_at.pop(which, None)
            return str(failed)
        self._well_at[which] = now
        if len(self._well_at) > _MOST_REMEMBERED:
            self._well_at.popitem(last=False)
        return None
