"""How long a failed task waits (A11)."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accsd.errors import InvalidValue
from accsd.planning.backoff import backoff_seconds, parse_backoff

delays = st.floats(0, 86400)
curves = st.fixed_dictionaries(
    {"strategy": st.sampled_from(["exponential", "linear", "fixed"])},
    optional={"base": delays, "cap": delays},
)
specs = st.none() | curves | st.lists(delays, min_size=1, max_size=6)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (None, [15, 30, 60, 120]),
        ({"strategy": "exponential", "base": 10, "cap": 35}, [10, 20, 35, 35]),
        ({"strategy": "exponential"}, [15, 30, 60, 120]),
        ({"base": 1}, [1, 2, 4, 8]),
        ({"strategy": "linear", "base": 15, "cap": 40}, [15, 30, 40, 40]),
        ({"strategy": "fixed", "base": 30}, [30, 30, 30, 30]),
        ({"strategy": "fixed", "base": 7200}, [7200, 7200, 7200, 7200]),
        ([30, 120, 300], [30, 120, 300, 300]),
        ([5], [5, 5, 5, 5]),
    ],
)
def test_each_form_gives_its_delays_for_the_first_four_failures(spec: object, expected: list[float]):
    assert [backoff_seconds(spec, attempt) for attempt in (1, 2, 3, 4)] == expected


def test_a_step_without_a_base_uses_the_installations():
    assert backoff_seconds(None, 3, base=2) == 8
    assert backoff_seconds({"strategy": "linear"}, 3, base=2) == 6
    assert backoff_seconds({"strategy": "linear", "base": 5}, 3, base=2) == 15


def test_the_default_cap_is_an_hour_and_no_number_of_attempts_overflows():
    assert backoff_seconds(None, 10_000) == 3600
    assert backoff_seconds({"strategy": "linear"}, 10**12) == 3600


@given(specs, st.integers(1, 10_000))
def test_a_delay_is_never_negative_and_never_above_its_cap(spec: Any, attempt: int):
    seconds = backoff_seconds(spec, attempt)

    assert seconds >= 0
    if isinstance(spec, dict) and "cap" in spec:
        assert seconds <= spec["cap"]


@given(st.none() | curves, st.integers(1, 200))
def test_a_curve_never_falls(spec: object, attempt: int):
    assert backoff_seconds(spec, attempt) <= backoff_seconds(spec, attempt + 1)


@given(st.floats(0.001, 100), st.integers(1, 12))
def test_exponential_is_the_formula_to_the_letter(base: float, attempt: int):
    assert backoff_seconds(None, attempt, base=base) == min(3600, base * 2 ** (attempt - 1))


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ([], "empty list"),
        ([1, -1], "each delay must be between"),
        ([True], "must be a number"),
        ([float("nan")], "must be a number"),
        ({"strategy": "linar"}, 'did you mean "linear"'),
        ({"strategy": None}, "exponential, linear or fixed"),
        ({"bas": 1}, 'unknown field "bas" (did you mean "base"?)'),
        ({"base": "15"}, "base must be a number"),
        ({"cap": -1}, "cap must be between"),
        ({"cap": 1e300}, "cap must be between"),
        (15, "must be a list"),
        ("fast", "must be a list"),
    ],
)
def test_what_is_not_a_backoff_is_refused_with_the_reason(spec: object, sentence: str):
    with pytest.raises(InvalidValue) as refusal:
        parse_backoff(spec)

    assert sentence in str(refusal.value)
