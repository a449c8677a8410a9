"""What expressions give, and that no failure is taken for an answer (9.2, EX4)."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accsd.errors import Bug, ExpressionInvalid, ExpressionTooExpensive, InvalidValue
from accsd.expressions import Context, Names, evaluate, evaluate_condition
from accsd.expressions.context import MAX_CONTEXT_BYTES

NAMES = Names(values=("event", "steps"), moments=("event.at", "now"))
NOW = datetime(2026, 3, 1, 12, 30, 0, 250_000, tzinfo=UTC)

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")), inner, max_size=4)
    ),
    max_leaves=12,
)


def context(**steps: object) -> Context:
    event = {"topic": "shop.order", "payload": {"n": 3, "name": "Ann", "tags": ["a", "b"], "none": None}, "at": NOW}
    return Context({"event": event, "steps": steps, "now": NOW}, NAMES)


def same(left: Any, right: Any) -> bool:
    """Equal, and of the same types throughout: for Python true is 1, and 1 is 1.0."""
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list):
        return len(left) == len(right) and all(map(same, left, right))
    return left == right


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("event.payload.n + 1", 4),
        ("1.0", 1.0),
        ("7 / 2", 3),
        ("7.0 / 2.0", 3.5),
        ("3u", 3),
        ("null", None),
        ("event.payload.none", None),
        ("event.payload.n == 3.0", True),
        ("event.topic + '!'", "shop.order!"),
        ("{'a': [event.payload.n, {'b': null}]}", {"a": [3, {"b": None}]}),
        ("event.payload.tags.map(t, t + t)", ["aa", "bb"]),
        ("event.payload.tags.exists(t, t == 'b')", True),
        ("event.payload.?missing.orValue('default')", "default"),
        ("event.?a.?b.orValue(5)", 5),
        ("[?event.payload.?missing]", []),
        ("'a,b'.split(',')", ["a", "b"]),
        ("math.greatest(1, event.payload.n)", 3),
        ("event.payload['name']", "Ann"),
        ("// why\n1", 1),
    ],
)
def test_an_expression_gives_plain_json(expression: str, value: object):
    assert same(evaluate(expression, context()), value)


@given(json_values)
def test_every_json_value_comes_back_as_it_was_and_of_its_type(value: object):
    assert same(evaluate("steps.value", context(value=value)), value)


@pytest.mark.parametrize("value", ["héé", [1, 2, 3], {"a": 1, "b": 2, "c": 3}])
def test_length_is_there_for_texts_lists_and_objects(value: object):
    assert (
        evaluate("length(steps.value) == size(steps.value) && length(steps.value) == 3", context(value=value)) is True
    )


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("now", "2026-03-01T12:30:00.250Z"),
        ("event.at", "2026-03-01T12:30:00.250Z"),
        ("event['at']", "2026-03-01T12:30:00.250Z"),
        ("now + duration('30m')", "2026-03-01T13:00:00.250Z"),
        ("timestamp('2026-03-01T00:00:00+02:00')", "2026-02-28T22:00:00Z"),
        ("timestamp('2026-03-01T00:00:00.000001Z')", "2026-03-01T00:00:00.000001Z"),
        ("duration('1h30m')", "5400s"),
        ("duration('-1.5s')", "-1.500s"),
        ("now - now", "0s"),
    ],
)
def test_times_and_durations_are_written_back_as_text(expression: str, text: str):
    """9.2 (4): a timestamp is RFC 3339, in UTC; both are what CEL's own string() makes of them."""
    assert evaluate(expression, context()) == text
    assert evaluate(f"[{{'x': {expression}}}]", context()) == [{"x": text}]
    if "['at']" not in expression:
        assert evaluate(f"string({expression})", context()) == text


def test_a_moment_may_be_given_as_text_and_times_elsewhere_stay_text():
    given_as_text = Context({"event": {"at": "2026-03-01T14:30:00+02:00", "payload": {"at": NOW}}}, NAMES)

    assert evaluate("event.at.getHours()", given_as_text) == 12
    assert evaluate("event.at.getHours('Europe/Berlin')", given_as_text) == 13
    assert evaluate("event.payload.at", given_as_text) == "2026-03-01T12:30:00.250Z"
    assert evaluate("timestamp(event.payload.at) - event.at", given_as_text) == "0.250s"


@pytest.mark.parametrize("at", [NOW.replace(tzinfo=None), "2026-03-01T14:30:00", "yesterday", 5])
def test_a_moment_without_an_offset_or_without_sense_is_refused(at: object):
    with pytest.raises(InvalidValue):
        Context({"event": {"at": at}}, NAMES)


def test_a_moment_of_another_zone_is_the_same_moment():
    there = NOW.astimezone(timezone(timedelta(hours=-5)))

    assert evaluate("now", Context({"now": there}, NAMES)) == "2026-03-01T12:30:00.250Z"


@pytest.mark.parametrize(
    "expression",
    [
        "event.payload.missing",
        "event.payload.missing == 1",
        "1 / 0 == 1",
        "steps.w.temp * 1.8 > 3.0",
        "event.payload.tags[9]",
        "int('x') == 1",
        "[1].map(x, 1 / (x - 1)) == []",
        "!event.payload.name",
    ],
)
def test_a_condition_that_fails_is_never_true(expression: str):
    """9.2 (1): the library answers an error as a value, and a naive test of it is true."""
    with pytest.raises(ExpressionInvalid):
        evaluate_condition(expression, context(w={"temp": 25}))
    with pytest.raises(ExpressionInvalid):
        evaluate(expression, context(w={"temp": 25}))


@pytest.mark.parametrize("expression", ["1", "0", "'true'", "null", "event.payload.tags", "event", "now", "{}"])
def test_a_condition_must_give_true_or_false(expression: str):
    with pytest.raises(ExpressionInvalid, match="true or false"):
        evaluate_condition(expression, context())


def test_a_condition_gives_a_bool():
    assert evaluate_condition("event.payload.n > 2", context()) is True
    assert evaluate_condition("event.payload.n > 3", context()) is False
    assert evaluate_condition("has(event.payload.missing) && event.payload.missing > 1", context()) is False


def test_a_whole_number_times_a_double_fails_and_the_message_proposes_double():
    """9.2 (2): 25.5 works, 25 does not."""
    assert evaluate("steps.temp * 1.8", context(temp=25.5)) == pytest.approx(45.9)
    with pytest.raises(ExpressionInvalid, match=r"write double\(…\)"):
        evaluate("steps.temp * 1.8", context(temp=25))
    assert evaluate("double(steps.temp) * 1.8", context(temp=25)) == 45.0


@pytest.mark.parametrize(
    "macro", ["map(x, x)", "filter(x, true)", "exists(x, false)", "all(x, true)", "exists_one(x, x == 1)"]
)
def test_a_macro_goes_through_a_thousand_elements_and_no_more(macro: str):
    """9.2 (3)."""
    evaluate(f"steps.list.{macro}", context(list=list(range(1000))))
    with pytest.raises(ExpressionTooExpensive, match="more than 1000 elements") as refused:
        evaluate(f"steps.list.{macro}", context(list=list(range(1001))))
    assert refused.value.hint == "do it in a step"


def test_a_long_list_beside_the_one_that_a_macro_goes_through_harms_nobody():
    long = context(
        long=list(range(5000)), short=[{"lines": ["x" * 3000, "y"]}, {"lines": []}], text="a," * 30 + "x" * 5000
    )

    assert evaluate("steps.short.map(s, s.lines.map(l, size(l)))", long) == [[3000, 1], []]
    assert evaluate("steps.short.filter(s, size(s.lines) > 0).map(s, s.lines.filter(l, l == 'y'))", long) == [["y"]]
    assert evaluate("steps.text.split(',').filter(t, t == 'a').size()", long) == 30
    assert evaluate("steps.long[4999] + steps.long.size()", long) == 9999


@pytest.mark.parametrize(
    ("expression", "position", "words"),
    [
        ("event.payload.nam", 15, 'there is no event.payload.nam (did you mean "name"?)'),
        ("1 + event.payload.a.b", 19, "there is no event.payload.a"),
        ("event.payload.none.x", 20, "event.payload.none is null, which has no fields"),
        ("event.topic.x", 13, "event.topic is a text, which has no fields"),
        ("event['payload']['x']", 18, "there is no event.payload.x"),
        ("evnt.payload", 1, 'there is no variable "evnt" (did you mean "event"?)'),
        ("1 + job.id", 5, 'there is no variable "job"; there are event, steps, now'),
        ("'é𝄞' + x", 8, 'there is no variable "x"'),
        ("1 +\n  x", 7, 'there is no variable "x"'),
        ("lenght(event)", 1, 'there is no function "lenght"'),
        ("event.topic.shout()", 13, 'there is no function "shout"'),
        ("1 +", 4, "it ends too early"),
        ("a b", 3, "b is not expected here"),
        ("'abc", 1, "'abc can't be read"),
        ("25 * 1.8", 4, "* does not mix whole numbers and doubles: write double(…)"),
        ("event.in", 7, ".in is not expected here"),
        ("${event.topic}", 1, "can't be read"),
        ("now > '2026'", 5, "> does not work on timestamp and string"),
    ],
)
def test_an_error_names_the_expression_and_the_character(expression: str, position: int, words: str):
    """EX4, PL4."""
    with pytest.raises(ExpressionInvalid) as refused:
        evaluate(expression, context())

    assert words in str(refused.value)
    assert refused.value.position == position
    assert refused.value.expression == expression
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("event.?payload", "optional: add .orValue"),
        ("[event.?payload]", "optional: add .orValue"),
        ("1.0 / 0.0", "not a finite number"),
        ("b'abc'", "is neither text, number"),
        ("type(1)", "is neither text, number"),
        ("{1: 2}", "a key that is no text"),
        (r"'a\u0000b'", "NUL"),
        ("event.payload.tags[2]", "no element 2 in a list of 2"),
        ("1 / 0", "divides by zero"),
        ("9223372036854775807 + 1", "64 bits"),
        ("event.payload.n ? 1 : 2", "? : needs true or false"),
        ("{'a': 1, 'a': 2}", "duplicate key"),
        ("", "is empty"),
        (" \n", "is empty"),
        ("'\ud800'", "surrogate"),
        ("'\0'", "NUL"),
        ("'" + "x" * 4095 + "'", "the limit is 4096"),
    ],
)
def test_what_can_not_be_an_answer_is_refused_with_words(expression: str, words: str):
    with pytest.raises(ExpressionInvalid) as refused:
        evaluate(expression, context())

    assert words in str(refused.value)


def test_what_was_left_out_is_not_called_missing():
    """EX5: larger results are left out, and referring to them is an error that says so."""
    partly = Context({"steps": {"small": {"a": 1}}}, NAMES, left_out=[("steps", "big")])

    assert evaluate("steps.small.a", partly) == 1
    with pytest.raises(ExpressionInvalid, match=r"steps\.big was left out, because it is larger"):
        evaluate("steps.big.a", partly)


def test_a_name_without_a_value_fails_only_where_it_is_used():
    assert evaluate("1", Context({}, NAMES)) == 1
    with pytest.raises(ExpressionInvalid, match="event has no value here"):
        evaluate("event.payload", Context({}, NAMES))
    with pytest.raises(ExpressionInvalid, match=r"event\.at has no value here"):
        evaluate("event.at > now", Context({"event": {}, "now": NOW}, NAMES))


def test_a_value_under_a_name_that_nobody_declared_is_a_bug():
    with pytest.raises(Bug, match="job"):
        Context({"job": {}}, NAMES)


def test_values_of_more_than_four_mebibytes_are_refused():
    """EX5."""
    room = MAX_CONTEXT_BYTES - len('{"steps":""}')

    assert evaluate("size(steps)", Context({"steps": "x" * room}, NAMES)) == room
    with pytest.raises(InvalidValue, match="the limit is 4194304"):
        Context({"steps": "x" * (room + 1)}, NAMES)
