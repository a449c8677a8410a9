"""When an outgoing event is sent again, and what the settings of the outbox refuse."""

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from accsd.planning.backoff import Persistence, again_in
from accsd.settings import OutboxTarget

durations = st.timedeltas(min_value=timedelta(milliseconds=1), max_value=timedelta(days=30))


@given(st.integers(1, 10**12), st.integers(1, 5000), durations, durations, durations, durations)
def test_a_pause_is_bounded_and_the_last_try_is_at_the_end_of_its_time(
    event: int, failures: int, age: timedelta, first: timedelta, longest: timedelta, give_up: timedelta
):
    pause = again_in(event, failures=failures, age=age, persistence=Persistence(first, longest, give_up))
    if age >= give_up:
        assert pause is None
    else:
        assert pause is not None
        assert timedelta(0) <= pause <= longest * 1.1 + timedelta(milliseconds=1)
        assert age + pause <= give_up


@given(st.integers(1, 10**12), st.integers(1, 30))
def test_each_pause_is_at_least_as_long_as_the_one_before(event: int, failures: int):
    patient = Persistence(give_up=timedelta(days=3000))
    pauses = [again_in(event, failures=n, age=timedelta(0), persistence=patient) for n in (failures, failures + 1)]
    assert None not in pauses
    assert pauses == sorted(pause for pause in pauses if pause is not None)


@given(st.integers(1, 10**12))
def test_by_default_it_doubles_from_five_seconds(event: int):
    pause = again_in(event, failures=4, age=timedelta(0), persistence=Persistence())
    assert pause is not None
    assert 40 <= pause.total_seconds() <= 44


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"secret": None}, "needs a secret or a secret_file"),
        ({"secret_file": "/etc/secret"}, "and not both"),
        ({"url": "http://studio.example/hook"}, "without TLS"),
        ({"url": "https://user@studio.example/hook"}, "pattern"),
        ({"url": "https://studio.example/a b"}, "pattern"),
        ({"url": "https://studio.example/a\r\nX: y"}, "pattern"),
        ({"url": "https://studio.example:99999/hook"}, "can't be called: Port out of range"),
        ({"events": ["job.exploded"]}, "job.done"),
        ({"events": []}, "at least 1"),
        ({"secret": "too short"}, "at least 16"),
    ],
)
def test_a_target_that_would_not_be_signed_or_safe_is_refused(wrong: dict[str, Any], said: str):
    good = {"url": "https://studio.example/hook?x=1", "secret": "sixteen or more characters"}
    OutboxTarget.model_validate(good)
    with pytest.raises(ValidationError, match=said):
        OutboxTarget.model_validate(good | wrong)
