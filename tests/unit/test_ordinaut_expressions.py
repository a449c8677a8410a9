"""JMESPath put into CEL: every translation is evaluated, and means what JMESPath means."""

from datetime import UTC, datetime
from typing import Any

import pytest

from accsd.errors import ExpressionInvalid
from accsd.expressions import Context, evaluate, evaluate_condition, render
from accsd.gateway.ordinaut.cel import condition_in_cel, text_in_cel, value_in_cel
from accsd.pipeline.flow import STEP

NOW = datetime(2026, 11, 18, 12, tzinfo=UTC)
VALUES: dict[str, Any] = {
    "params": {"name": "Ann", "n": 3, "in": "reserved", "zero": 0, "no": None},
    "steps": {
        "weather": {"temp": 25, "wind": 2.5, "sky": "clear", "alerts": [], "days": ["mo", "tu"], "sun": {"up": 6}},
        "calendar": {"events": [{"title": "Meeting", "min": 30}, {"title": "Lunch"}, {"title": "Review", "min": 60}]},
        "my-step": {"x": 1},
    },
    "job": {"created_at": NOW},
    "trigger": {"event": {"payload": {"id": 7}}},
    "now": NOW,
}


@pytest.fixture(scope="module")
def context() -> Context:
    return Context(VALUES, STEP)


@pytest.mark.parametrize(
    ("jmespath", "value"),
    [
        ("params.name", "Ann"),
        ("steps.calendar.events[0].title", "Meeting"),
        ("steps.calendar.events[-1].title", "Review"),
        ('steps."my-step".x', 1),
        ("params.in", "reserved"),
        ("length(steps.calendar.events)", 3),
        ("steps.calendar.events[*].min", [30, 60]),
        ("steps.calendar.events[?min > `30`].title", ["Review"]),
        ("steps.calendar.events[?title == 'Lunch' || min].title", ["Meeting", "Lunch", "Review"]),
        ("length(steps.calendar.events[?min])", 2),
        ("steps.weather.days[?@ == 'mo']", ["mo"]),
        ("contains(steps.weather.days, 'tu')", True),
        ("contains(steps.weather.sky, 'lea')", True),
        ("contains(`[1, 3]`, params.n)", True),
        ("starts_with(params.name, 'A') && ends_with(params.name, 'n')", True),
        ("join(', ', steps.weather.days)", "mo, tu"),
        ("to_string(params.n)", "3"),
        ("to_number('3')", 3.0),
        ("keys(steps.weather.sun)", ["up"]),
        ("values(steps.weather.sun)", [6]),
        ("abs(`-3`)", 3),
        ("ceil(steps.weather.wind)", 3.0),
        ("floor(steps.weather.wind)", 2.0),
        ("not_null(params.missing, params.no, params.name)", "Ann"),
        ("params.missing || 'nobody'", "nobody"),
        ("params.name || 'nobody'", "Ann"),
        ("params.name && params.n", 3),
        ("steps.weather.temp > `20`", True),
        ("steps.missing.temp > `20`", False),
        ("params.no < `20`", False),
        ("params.missing == `null`", True),
        ("params.missing != 'x'", True),
        ("!params.missing", True),
        ("!params.zero", False),  # 0 counts in JMESPath
        ("'it\\'s'", "it's"),
        ('`{"a": [1, "x"]}`', {"a": [1, "x"]}),
        ("event.payload.id", 7),
        # beyond JMESPath, as its author meant it
        ("now+24h", "2026-11-19T12:00:00Z"),
        ("now - 1d", "2026-11-17T12:00:00Z"),
        ("steps.weather.temp * 2 - 1", 49),
        ('params.name == "Ann"', True),
    ],
)
def test_a_value(context: Context, jmespath: str, value: object):
    assert evaluate(value_in_cel(jmespath), context) == value


@pytest.mark.parametrize(
    ("jmespath", "holds"),
    [
        ("steps.weather.temp > 25", False),  # of its guide, which JMESPath can't read
        ("steps.weather.temp >= `25`", True),
        ("${steps.weather.temp >= `25`}", True),
        ("steps.weather.alerts", False),
        ("steps.weather.days", True),
        ("steps.missing.days", False),
        ("params.zero", False),  # 0 is false to the whole condition
        ("params.no", False),
        ("steps.weather.sky == 'clear' && params.n", True),
        ("params.missing || steps.weather.days", True),
        ("!steps.weather.alerts", True),
        ("steps.calendar.events[?min > `90`]", False),
        ("length(steps.weather.days) > `1`", True),
        ("length(steps.weather.alerts)", False),
        ("true", True),
        ("`0`", False),
        ("'text'", True),
    ],
)
def test_a_condition_is_true_or_false_by_the_rules_of_what_counts(context: Context, jmespath: str, holds: bool):
    assert evaluate_condition(condition_in_cel(jmespath), context) is holds


def test_texts_keep_types_and_what_is_literal(context: Context):
    """EX1 to EX3; the behaviours of 2.3: several in one text, nested and indexed access, lists and objects."""
    document = {
        "whole": "${steps.weather.temp}",
        "text": "It's ${steps.weather.temp}°C, ${steps.weather.sky}; first: ${steps.calendar.events[0].title}",
        "list": ["${params.name}", ["${now}"], "$${params.name}", "plain"],
        "${params.name}": "keys are no templates",
        "braces": '${`{"}": 1}`}',
    }
    translated = {key: _translated(value) for key, value in document.items()}
    assert render(translated, context) == {
        "whole": 25,
        "text": "It's 25°C, clear; first: Meeting",
        "list": ["Ann", ["2026-11-18T12:00:00Z"], "${params.name}", "plain"],
        "${params.name}": "keys are no templates",
        "braces": {"}": 1},
    }


def _translated(value: Any) -> Any:
    return text_in_cel(value) if isinstance(value, str) else [_translated(each) for each in value]


@pytest.mark.parametrize(
    ("jmespath", "position", "what"),
    [
        ("invalid..expression", 9, "can't be read further"),
        ("", 1, "is empty"),
        ("steps.a[]", 8, "flattening"),
        ("steps.a[0:2]", 10, "] is missing"),
        ("steps.*", 7, "all values of an object"),
        ("{a: b}", 1, "choice of several"),
        ("[a, b]", 1, "can't be read further"),
        ("a | b", 3, "a pipe"),
        ("max_by(steps.a, &b)", 1, "max_by() has no counterpart"),
        ("sort(steps.a)", 1, "there are abs, ceil"),
        ("@", 1, "outside of a filter"),
        ("`{`", 1, "is no JSON"),
        ("steps.a b", 9, "there is 'b'"),
        ("steps.", 7, "it ends"),
        ("length(a, b)", 1, "does not take 2"),
        ("'abc", 1, "is not known"),
        ("a ? b : c", 3, "no JMESPath"),
        ("(" * 99, 41, "too deeply"),
        ("!" * 99, 41, "too deeply"),
        ("a.b" + " || c" * 2000, 1, "4096 bytes"),
    ],
)
def test_what_has_no_counterpart_is_refused_with_its_place(jmespath: str, position: int, what: str):
    with pytest.raises(ExpressionInvalid) as refused:
        value_in_cel(jmespath)
    assert what in str(refused.value)
    assert f"character {position}" in str(refused.value) or position == 1


def test_an_expression_that_grows_when_it_is_translated_is_refused_in_no_time():
    for grows in ("(" * 18 + "a.b" + " || c)" * 18, "contains(" * 15 + "a.b" + ", c)" * 15):
        with pytest.raises(ExpressionInvalid, match="when it is put into CEL"):
            value_in_cel(grows)


def test_a_template_that_nothing_closes_is_refused():
    """2.3, departed from: Ordinaut took it for a plain text."""
    with pytest.raises(ExpressionInvalid, match="no } closes"):
        text_in_cel("Hello ${params.name")
