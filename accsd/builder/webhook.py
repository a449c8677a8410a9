"""One webhook: signs an event's payload, sends it to a target of the settings, and judges the answer.

The signature follows the Standard Webhooks convention: HMAC-SHA256 over `id.timestamp.body`. A receiver that has the
secret can check who sent the event, that nothing was changed, and how old it is.
"""

import time
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import urlsplit

import orjson

from accsd.errors import ConfigError
from accsd.log import redact, register_secret
from accsd.net import CallFailed, Request, Response, send
from accsd.settings import OutboxTarget
from accsd.values.signatures import secrets_in, standard_signature

_SHOWN: Final = 300


def address_of(target: OutboxTarget) -> str:
    """The target's address as people may see it: without path and query, which are often the receiver's secret."""
    parts = urlsplit(target.url)
    return f"{parts.scheme}://{parts.netloc}"


async def deliver(target: OutboxTarget, secrets: Sequence[str], payload: dict[str, Any]) -> str | None:
    """Returns why the event was not delivered, or None if it was. Any 2xx is a receipt; a redirect is not followed."""
    try:
        response = await send(_request(target, secrets, payload), within=target.timeout)
    except CallFailed as failure:
        return failure.message
    except (OSError, TimeoutError) as failure:
        return str(failure) or type(failure).__name__
    return None if 200 <= response.status < 300 else _complaint(target, response)


def read_secrets(target: OutboxTarget) -> list[str]:
    """The secrets of a target. A file of secrets, one in each line, is read anew for each batch, and from then on they
    are struck out of every log line. Raises CallFailed."""
    if target.secret_file is None:
        assert target.secret is not None, "the settings have one or the other"
        return [target.secret.get_secret_value()]
    try:
        secrets = secrets_in(target.secret_file)
    except ConfigError as error:
        raise CallFailed(error.message) from None
    for secret in secrets:
        register_secret(secret)
    return secrets


def _request(target: OutboxTarget, secrets: Sequence[str], payload: dict[str, Any]) -> Request:
    body = orjson.dumps(payload)
    event_id, timestamp = str(payload.get("id", "")), int(time.time())
    headers = {
        "Content-Type": "application/json",
        "Webhook-Id": event_id,
        "Webhook-Timestamp": str(timestamp),
        "Webhook-Signature": standard_signature(secrets, event_id, timestamp, body),
    }
    return Request("POST", target.url, headers, body, allow_private=target.allow_private, ca_file=target.ca_file)


def _complaint(target: OutboxTarget, response: Response) -> str:
    if 300 <= response.status < 400:
        return f"answered with a redirect ({response.status}), which is not followed"
    parts = urlsplit(target.url)
    excerpt = response.excerpt
    for hidden in (parts.path, parts.query):
        if len(hidden) > 1:  # some receivers answer with the address they were asked at
            excerpt = excerpt.replace(hidden, "***")
    said = " ".join(redact(excerpt).split())[:_SHOWN]
    return f"answered {response.status}" + (f": {said}" if said else "")
