"""What leaves `sanitise` is JSON that jsonb accepts, whatever went in."""

import math
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from enum import Enum, StrEnum
from typing import Any
from uuid import UUID

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from accsd.values.json import MAX_BYTES, MAX_DEPTH, is_too_deep, sanitise

any_text = st.text(st.characters(), max_size=40)  # lone surrogates and \x00 included
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(10**18, 10**30),
    st.sampled_from([2**63, -(2**63) - 1]),
    st.floats(),
    st.decimals(),
    any_text,
    st.binary(max_size=20),
    st.datetimes(),
    st.uuids(),
)
keys = any_text | st.integers() | st.booleans() | st.none() | st.floats() | st.binary(max_size=5)
anything = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(keys, inner, max_size=6) | st.tuples(inner),
    max_leaves=30,
)
plain = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**63), 2**64 - 1),
        st.floats(allow_nan=False, allow_infinity=False),
        st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00")),
    ),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text("abc\u00e9 "), inner, max_size=5),
    max_leaves=20,
)


def assert_acceptable(value: Any) -> None:
    """The rules of jsonb, as FAULTS.md measured them."""
    match value:
        case None | bool():
            pass
        case int():
            assert -(2**63) <= value < 2**64
        case float():
            assert math.isfinite(value)
        case str():
            assert "\x00" not in value
            value.encode()
        case list():
            for item in value:
                assert_acceptable(item)
        case dict():
            for key, item in value.items():
                assert type(key) is str
                assert_acceptable(key)
                assert_acceptable(item)
        case _:
            pytest.fail(f"{type(value)} is not JSON")


def depth(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + max(map(depth, value.values()), default=0)
    return 1 + max(map(depth, value), default=0) if isinstance(value, list) else 0


@given(anything)
def test_whatever_goes_in_jsonb_accepts_what_comes_out(value: object):
    clean = sanitise(value)

    assert_acceptable(clean)
    assert orjson.loads(orjson.dumps(clean)) == clean


@given(plain)
def test_what_jsonb_accepts_already_is_left_alone(value: object):
    assert sanitise(value) == value


@given(anything)
def test_sanitising_twice_changes_nothing_more(value: object):
    once = sanitise(value)

    assert sanitise(once) == once


@given(anything, st.integers(0, 300))
def test_the_encoded_answer_fits_in_the_bytes_that_were_given(value: object, max_bytes: int):
    clean = sanitise(value, max_bytes=max_bytes)

    assert clean is None or len(orjson.dumps(clean)) <= max_bytes
    assert_acceptable(clean)


@given(anything, st.integers(0, 3))
def test_the_answer_is_no_deeper_than_was_allowed(value: object, max_depth: int):
    assert depth(sanitise(value, max_depth=max_depth)) <= max_depth


@pytest.mark.parametrize(
    ("value", "clean"),
    [
        (float("nan"), "NaN"),
        (float("inf"), "Infinity"),
        (float("-inf"), "-Infinity"),
        ("a\x00b", "a\ufffdb"),
        ("\ud800", "\ufffd"),
        ("\ud83d\ude00", "😀"),
        (2**64, "18446744073709551616"),
        (-(2**63), -(2**63)),
        pytest.param(10**5000, "<integer of 16610 bits>", id="5000 digits"),
        (b"\xff\x00ok", "\ufffd\ufffdok"),
        ((1, 2), [1, 2]),
        ({None: 1, True: 2, 3: 4, 2.5: 6}, {"null": 1, "true": 2, "3": 4, "2.5": 6}),
        (datetime(2026, 1, 2, tzinfo=UTC), "2026-01-02T00:00:00+00:00"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
    ],
)
def test_each_thing_that_jsonb_refuses_becomes_the_nearest_that_it_takes(value: object, clean: object):
    assert sanitise(value) == clean


def test_subclasses_become_the_plain_values_that_they_stand_for():
    class Colour(StrEnum):
        RED = "red"

    class Number(Enum):
        ONE = 1

    clean = sanitise([Colour.RED, Number.ONE, {Colour.RED: True}])

    assert clean == ["red", 1, {"red": True}]
    assert type(clean[0]) is str


def test_a_depth_bomb_is_cut_off():
    bomb: Any = []
    for _ in range(100_000):
        bomb = [bomb]

    assert depth(sanitise(bomb)) == MAX_DEPTH


def test_what_is_too_deep_is_what_would_be_cut_off():
    fits: Any = 7
    for level in range(MAX_DEPTH):
        fits = [1, fits] if level % 2 else {"a": fits}
    assert not is_too_deep(fits)
    assert sanitise(fits) == fits
    assert is_too_deep([fits])
    assert sanitise([fits]) != [fits]
    cycle: list[Any] = []
    cycle.extend([cycle, cycle])
    assert is_too_deep(cycle)


def test_cycles_and_many_laughs_end_within_the_budget():
    cycle: list[Any] = []
    cycle.extend([cycle, cycle, cycle])
    laughs: Any = "ha"
    for _ in range(60):
        laughs = [laughs] * 10

    assert len(orjson.dumps(sanitise(cycle))) <= MAX_BYTES
    assert len(orjson.dumps(sanitise(laughs))) <= MAX_BYTES


def test_what_was_left_out_is_said():
    assert sanitise(["x" * 10] * 100, max_bytes=80)[-1] == "<truncated>"
    assert sanitise({str(n): n for n in range(100)}, max_bytes=80)["<truncated>"] is True
    assert sanitise("x" * 100, max_bytes=20) == "x" * 15 + "…"


def test_an_object_that_cannot_be_shown_loses_only_itself():
    class Hostile:
        def __str__(self) -> str:
            raise RuntimeError

    class HostileMapping(Mapping[str, int]):
        def __getitem__(self, key: str) -> int:
            raise RuntimeError

        def __iter__(self) -> Iterator[str]:
            raise RuntimeError

        def __len__(self) -> int:
            raise RuntimeError

    assert sanitise([1, Hostile(), HostileMapping(), 2]) == [1, "<unreadable Hostile>", "<unreadable>", 2]


def test_a_scrub_sees_whole_texts_before_they_are_cut():
    def scrub(text: str) -> str:
        return text.replace("correct-horse", "***")

    clean = sanitise({"correct-horse": ["x" * 20 + "correct-horse" + "y" * 500]}, max_bytes=110, scrub=scrub)

    assert "corr" not in str(clean)
    assert "***" in clean
