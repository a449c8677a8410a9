"""Webhooks in (WH1-WH6): who sent a delivery is proved before it is read, and a delivery is known again."""

import base64
import hashlib
import hmac
from collections.abc import Mapping
from typing import Any

import pytest
from pydantic import ValidationError

from accsd.errors import ExpressionInvalid, InvalidValue
from accsd.gateway.hooks import Delivery, Forged, Sent, receive
from accsd.settings.model import HookSettings
from accsd.values.signatures import standard_signature

SECRET, OLD = "a secret of some length", "an older one, just as long"
NOW = 1_795_000_000.0
BODY = b'{"action": "opened", "number": 7}'


def hook(scheme: str = "github", topic: str = "repo.${headers['x-github-event']}", **more: Any) -> HookSettings:
    secret = {} if scheme == "none" else {"secret_file": "/run/secret"}
    return HookSettings.model_validate({"scheme": scheme, "topic": topic, **secret, **more})


def hmac_of(secret: str, signed: bytes) -> str:
    return hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()


def github(body: bytes = BODY, secret: str = SECRET, headers: Mapping[str, str] | None = None) -> Sent:
    signed = {"x-hub-signature-256": f"sha256={hmac_of(secret, body)}", "x-github-event": "push"}
    return Sent(signed | dict(headers or {}), body, "203.0.113.7")


def standard(body: bytes = BODY, at: float = NOW, event: str = "msg_1", secret: str = SECRET) -> Sent:
    signature = standard_signature([secret], event, int(at), body)
    headers = {"webhook-id": event, "webhook-timestamp": str(int(at)), "webhook-signature": f"v1,AAAA {signature}"}
    return Sent(headers, body, "203.0.113.7")


def stripe(body: bytes = BODY, at: float = NOW, secret: str = SECRET) -> Sent:
    signature = hmac_of(secret, f"{int(at)}.".encode() + body)
    return Sent({"stripe-signature": f"t={int(at)}, v1={signature},v0=abc"}, body, "203.0.113.7")


def got(what: HookSettings, sent: Sent, now: float = NOW) -> Delivery:
    return receive("repo", what, [SECRET, OLD], sent, now)


def test_a_signed_delivery_is_an_event_with_the_headers_that_were_asked_for():
    delivery = got(hook(headers=["X-Request-Id"]), github(headers={"x-request-id": "r1", "cookie": "secret"}))
    assert delivery.topic == "repo.push"
    assert delivery.payload == {
        "headers": {"x-github-event": "push", "x-request-id": "r1"},
        "body": {"action": "opened", "number": 7},
    }


@pytest.mark.parametrize(
    ("what", "sent"),
    [
        (hook(), github(secret=OLD)),
        (hook("standard", "pay"), standard(secret=OLD)),
        (hook("stripe", "pay"), stripe(secret=OLD)),
        (hook("gitlab", "repo"), Sent({"x-gitlab-token": OLD}, BODY, "::1")),
        (hook("token", "repo", header="Authorization"), Sent({"authorization": f"Bearer {OLD}"}, BODY, "::1")),
        (hook("none", "repo", allow=["10.0.0.0/8"]), Sent({}, BODY, "10.1.2.3")),
    ],
)
def test_each_of_several_secrets_counts_while_one_is_replaced(what: HookSettings, sent: Sent):
    assert got(what, sent).payload["body"]["number"] == 7


@pytest.mark.parametrize(
    ("what", "sent"),
    [
        (hook(), github(secret="another one, of that length")),
        (hook(), Sent({"x-github-event": "push"}, BODY, "203.0.113.7")),
        (hook(), Sent(github().headers, BODY + b" ", "203.0.113.7")),
        (hook(), Sent({**github().headers, "x-hub-signature-256": "sha256=ü"}, BODY, "203.0.113.7")),
        (hook(allow=["10.0.0.0/8"]), github()),
        (hook("standard", "pay"), standard(at=NOW - 301)),
        (hook("standard", "pay"), standard(at=NOW + 301)),
        (hook("standard", "pay"), Sent({**standard().headers, "webhook-id": "msg_2"}, BODY, "::1")),
        (hook("standard", "pay"), Sent({**standard().headers, "webhook-timestamp": "1e9"}, BODY, "::1")),
        (hook("stripe", "pay"), stripe(at=NOW - 301)),
        (hook("stripe", "pay"), Sent({"stripe-signature": "nonsense"}, BODY, "::1")),
        (hook("gitlab", "repo"), Sent({"x-gitlab-token": SECRET[:-1]}, BODY, "::1")),
        (hook("none", "repo", allow=["10.0.0.0/8"]), Sent({}, BODY, "11.0.0.1")),
    ],
)
def test_what_is_unsigned_forged_or_stale_is_not_taken(what: HookSettings, sent: Sent):
    with pytest.raises(Forged):
        got(what, sent)


def test_a_delivery_is_known_again_by_what_is_signed():
    first = got(hook(), github(headers={"x-github-delivery": "1"})).key
    assert got(hook(), github(headers={"x-github-delivery": "2"})).key == first, "a recorded body under a new id"
    assert got(hook(), github(b"{}")).key != first
    assert got(hook("standard", "pay"), standard()).key == got(hook("standard", "pay"), standard(b"{}")).key
    assert got(hook("standard", "pay"), standard(event="msg_2")).key != got(hook("standard", "pay"), standard()).key


def test_a_secret_of_standard_webhooks_may_be_written_in_base64():
    encoded = "whsec_" + base64.b64encode(SECRET.encode()).decode()
    assert receive("pay", hook("standard", "pay"), [encoded], standard(), NOW).topic == "pay"


@pytest.mark.parametrize("event", ["a b", "", "x" * 300, "a/b", "ü", "accs"])
def test_what_comes_from_outside_can_make_no_other_topic(event: str):
    with pytest.raises(InvalidValue, match="makes no topic"):
        got(hook(topic="${headers['x-github-event']}"), github(headers={"x-github-event": event}))


def test_a_body_that_is_no_json_is_refused_after_its_signature():
    with pytest.raises(InvalidValue, match="not JSON"):
        got(hook(), github(b"a=1"))
    with pytest.raises(Forged):
        got(hook(), github(b"a=1", secret="another one, of that length"))


def test_a_topic_may_depend_on_the_body_and_a_missing_field_is_said():
    assert got(hook(topic="repo.${body.action}"), github()).topic == "repo.opened"
    with pytest.raises(ExpressionInvalid, match=r"no body\.nothing"):
        got(hook(topic="repo.${body.nothing}"), github())


@pytest.mark.parametrize(
    "wrong",
    [
        {"scheme": "github", "topic": "a"},
        {"scheme": "none", "topic": "a"},
        {"scheme": "token", "topic": "a", "secret_file": "/s"},
        {"scheme": "github", "topic": "a", "secret_file": "/s", "header": "X"},
        {"scheme": "none", "topic": "a", "allow": ["everybody"]},
    ],
)
def test_a_hook_that_would_trust_anybody_is_refused(wrong: dict[str, Any]):
    with pytest.raises(ValidationError):
        HookSettings.model_validate(wrong)
