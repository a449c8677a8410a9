"""Webhooks in: who sent a request is proved over its raw bytes, before anything in it is read; then it is an event.

Each scheme says what a sender proves. A delivery is known again by what is signed: the id where the scheme signs one
(standard), otherwise the body, because an id in a header can be replaced by whoever has seen a delivery. Pure: the
caller answers every Forged alike, so that a sender learns nothing from it, and emits what is received.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any, Final

import anyio
import orjson

from accsd.errors import AccsdError, InvalidValue, Unavailable
from accsd.expressions import Context, Names, has_templates, render
from accsd.settings.model import HookSettings
from accsd.values.signatures import hex_signature, is_among, standard_signature

MAX_BODY_BYTES: Final = 1024 * 1024
TOLERANCE_SEC: Final = 300
_NAMES: Final = Names(values=("headers", "body"))
_TOPIC: Final = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+){0,9}")
_LONGEST_TOPIC: Final = 200
# Headers that say what a delivery is about: they are given on without being asked for.
_TOLD: Final = {
    "github": ("x-github-event", "x-github-delivery"),
    "gitlab": ("x-gitlab-event", "x-gitlab-event-uuid"),
    "standard": ("webhook-id", "webhook-timestamp"),
    "stripe": (),
    "token": (),
    "none": (),
}


class Forged(AccsdError):
    """The request does not prove that the sender knows the secret. The message is for the log alone."""


@dataclass(frozen=True, slots=True)
class Sent:
    """A request as it came. Names of headers are in lower case."""

    headers: Mapping[str, str]
    body: bytes
    address: str


@dataclass(frozen=True, slots=True)
class Delivery:
    """What is emitted. The same key within the hook's time is the same delivery."""

    topic: str
    key: str
    payload: dict[str, Any]


def receive(name: str, hook: HookSettings, secrets: Sequence[str], sent: Sent, now: float) -> Delivery:
    """Raises Forged if the sender is not proved, InvalidValue or ExpressionInvalid if it can't be an event."""
    if hook.allow and not any(ip_address(sent.address) in network for network in hook.allow):
        raise Forged(f"hook {name}: {sent.address} is not among the addresses that may call it")
    key = _KEYS[hook.scheme](hook, secrets, sent, now)
    wanted = (*_TOLD[hook.scheme], *(header.lower() for header in hook.headers))
    headers = {header: sent.headers[header] for header in wanted if header in sent.headers}
    payload = {"headers": headers, "body": _body(name, sent)}
    return Delivery(_topic(name, hook.topic, payload), f"hook/{name}/{key}", payload)


async def secrets_of(hook: HookSettings) -> list[str]:
    """The secrets, one a line: several while they are rotated. The file is read each time, so that a new one counts at
    once."""
    if hook.secret_file is None:
        return []
    try:
        written = await anyio.Path(hook.secret_file).read_text()
    except OSError as error:
        raise Unavailable(
            f"the secret of a hook can't be read: {error.strerror}", hint="see gateway.hooks.NAME.secret_file"
        ) from None
    return [line.strip() for line in written.splitlines() if line.strip()]


def _github(_: HookSettings, secrets: Sequence[str], sent: Sent, __: float) -> str:
    given = _header(sent, "x-hub-signature-256")
    _require(is_among([given], [f"sha256={hex_signature(secret, sent.body)}" for secret in secrets]))
    return _digest(sent.body)


def _standard(_: HookSettings, secrets: Sequence[str], sent: Sent, now: float) -> str:
    event_id, timestamp = _header(sent, "webhook-id"), _moment(_header(sent, "webhook-timestamp"), now)
    given = _header(sent, "webhook-signature").split()
    _require(is_among(given, [standard_signature([secret], event_id, timestamp, sent.body) for secret in secrets]))
    return _digest(event_id.encode())


def _stripe(_: HookSettings, secrets: Sequence[str], sent: Sent, now: float) -> str:
    parts = [part.partition("=") for part in _header(sent, "stripe-signature").split(",")]
    timestamp = _moment(next((value for name, _, value in parts if name.strip() == "t"), ""), now)
    given = [value for name, _, value in parts if name.strip() == "v1"]
    signed = f"{timestamp}.".encode() + sent.body
    _require(is_among(given, [hex_signature(secret, signed) for secret in secrets]))
    return _digest(sent.body)


def _gitlab(_: HookSettings, secrets: Sequence[str], sent: Sent, __: float) -> str:
    _require(is_among([_header(sent, "x-gitlab-token")], secrets))
    return _digest(sent.body)


def _token(hook: HookSettings, secrets: Sequence[str], sent: Sent, _: float) -> str:
    _require(is_among([_header(sent, (hook.header or "").lower()).removeprefix("Bearer ")], secrets))
    return _digest(sent.body)


def _none(_: HookSettings, __: Sequence[str], sent: Sent, ___: float) -> str:
    return _digest(sent.body)


_KEYS: Final = {
    "github": _github,
    "standard": _standard,
    "stripe": _stripe,
    "gitlab": _gitlab,
    "token": _token,
    "none": _none,
}


def _header(sent: Sent, name: str) -> str:
    if name not in sent.headers:
        raise Forged(f"the header {name} is missing")
    return sent.headers[name]


def _require(is_proved: bool) -> None:
    if not is_proved:
        raise Forged("no secret of the hook makes this signature")


def _moment(written: str, now: float) -> int:
    """A signed time, which must be near: a delivery that was recorded can't be sent again a day later."""
    if re.fullmatch(r"\d{1,12}", written) is None or abs(int(written) - now) > TOLERANCE_SEC:
        raise Forged(f"its time is not within {TOLERANCE_SEC} s of now")
    return int(written)


def _digest(signed: bytes) -> str:
    return hashlib.sha256(signed).hexdigest()


def _body(name: str, sent: Sent) -> Any:
    try:
        return orjson.loads(sent.body)
    except orjson.JSONDecodeError as error:
        raise InvalidValue(f"hook {name}: the body is not JSON: {error}") from None


def _topic(name: str, template: str, payload: Mapping[str, Any]) -> str:
    """What comes from outside fills in segments of a topic, and can't name one of accsd's own."""
    topic = render(template, Context(payload, _NAMES), at=("topic",)) if has_templates(template) else template
    text = str(topic)
    if len(text) > _LONGEST_TOPIC or _TOPIC.fullmatch(text) is None or text.partition(".")[0] == "accs":
        raise InvalidValue(f"hook {name}: this delivery makes no topic of an event")
    return text
