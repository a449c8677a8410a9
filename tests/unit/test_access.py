"""Tokens, scopes and limits as they are read and written, without a database."""

from typing import Any

import pytest

from accsd.errors import InvalidValue
from accsd.model.access import (
    Caller,
    CreatedToken,
    Scope,
    check_limits,
    digest,
    implied,
    new_code,
    new_cookie,
    new_token,
    read_code,
    read_cookie,
    read_limits,
    read_token,
)

READ, SUBMIT, OPERATE, ADMIN, AGENT = Scope


def caller(*scopes: Scope, **limits: Any) -> Caller:
    return Caller("ada", "person", implied(scopes), limits, None, None)


def test_a_scope_has_what_it_implies_and_an_agent_has_nothing_else():
    assert implied([READ]) == {READ}
    assert implied([SUBMIT]) == {READ, SUBMIT}
    assert implied([OPERATE]) == {READ, SUBMIT, OPERATE}
    assert implied([ADMIN]) == {READ, SUBMIT, OPERATE, ADMIN}
    assert implied([AGENT]) == {AGENT}
    assert implied([AGENT, READ]) == {AGENT, READ}
    assert caller(OPERATE).may(SUBMIT)
    assert not caller(AGENT).may(READ)


def test_a_token_is_an_id_and_256_bits_and_what_is_not_is_not_looked_for():
    made = new_token()
    assert read_token(made.text) == made
    assert made.text.startswith(f"accs_{made.id}_")
    assert len(made.text) == len("accs_") + 8 + 1 + 43
    assert made.digest == digest(made.text)
    assert new_token().text != made.text
    for wrong in ("", "accs_", made.text[:-1], made.text + "A", made.text.upper(), " " + made.text, made.text + "\n"):
        assert read_token(wrong) is None
    cookie, code = new_cookie(), new_code()
    assert read_cookie(cookie.text) == cookie
    assert read_code(code.text) == code
    assert read_token(cookie.text) is read_cookie(made.text) is read_code(made.text) is None


def test_what_lets_somebody_in_is_not_in_a_traceback():
    made = new_token()
    created = CreatedToken(made.id, made.text, "ci", "ci", (READ,), {}, None)
    for shown in (repr(made), repr(created)):
        assert made.text not in shown
        assert made.id in shown


def test_limits_leave_what_they_name_and_what_begins_so():
    ours = caller(SUBMIT, workflows=["media-*", "nightly"])
    assert [ours.reaches("workflows", name) for name in ("media-", "media-4k", "nightly")] == [True] * 3
    assert [ours.reaches("workflows", name) for name in ("media", "nightly2", "")] == [False] * 3
    assert ours.reaches("services", "anything"), "what has no limit is not limited"
    assert caller(READ, events=["*"]).reaches("events", "a.b")


def test_limits_are_read_as_people_write_them():
    written = ["workflows=media-*", "workflows=nightly", "project=shop"]
    assert read_limits(written) == {"workflows": ["media-*", "nightly"], "project": "shop"}
    assert read_limits([]) == {}


@pytest.mark.parametrize("wrong", ["media", "workflows=", "jobs=1", "=x", "workflows=a*b", "tools=" + "x" * 201])
def test_what_is_no_limit_is_refused(wrong: str):
    with pytest.raises(InvalidValue):
        read_limits([wrong])


@pytest.mark.parametrize(
    "wrong", [{"workflows": "media"}, {"workflows": []}, {"events": [1]}, {"door": ["x"]}, {"x": "y"}]
)
def test_limits_of_another_shape_are_refused(wrong: dict[str, Any]):
    with pytest.raises(InvalidValue):
        check_limits(wrong)
