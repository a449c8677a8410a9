"""Expressions and values made to hurt: each is refused, or answered at once. An evaluation can't be interrupted and
holds up the whole process, so one that would take long must not begin. The time limits here are those of a hang, not of
speed."""

import random
from contextlib import suppress
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from accsd.errors import ExpressionInvalid, ExpressionTooExpensive, InvalidValue
from accsd.expressions import Context, Names, check_expression, evaluate
from accsd.expressions.effort import AFFORDABLE, _Estimate, afford
from accsd.expressions.evaluation import run
from accsd.expressions.program import compile_expression

NAMES = Names(values=("a", "b"))
MEGABYTE = "x" * 1_000_000
FOUR = "((x+x)+(x+x))"
SIXTEEN = f"(({FOUR}+{FOUR})+({FOUR}+{FOUR}))"

pytestmark = pytest.mark.timeout(30)


def context(a: object = None, b: object = None) -> Context:
    return Context({"a": a, "b": b}, NAMES)


def nested(times: int, body: str) -> str:
    expression = "a"
    for _ in range(times):
        expression = f"[{expression}].map(x, {body})[0]"
    return expression


@pytest.mark.parametrize(
    ("expression", "a"),
    [
        ("a" + ".replace('x', 'xxxxxxxxxx')" * 20, "x"),
        ("a.replace('', a)", MEGABYTE),
        ("a.split('').join(a)", MEGABYTE),
        (nested(6, SIXTEEN), "xxxxxxxxxx"),
        (nested(9, "[x,x,x,x,x,x,x,x]"), 1),
        (nested(9, "[x,a,b,[x,b],[x,x,a]]"), 1),
        (nested(6, SIXTEEN), [1]),
        ("a.?x" + ".optMap(y, y + y + y + y + y + y + y + y)" * 20 + ".orValue('')", {"x": "x" * 100}),
        ("[" + ",".join(["a"] * 1000) + "]", MEGABYTE),
        ("a.contains(a.substring(500000) + 'y')", MEGABYTE),
        ("a.indexOf(a.substring(500000) + 'y')", MEGABYTE),
        ("a.all(x, a == a)", [list(range(100))] * 1000),
        ("a.all(x, x in a)", [list(range(100))] * 1000),
        ("a.map(x, a.map(y, a.map(z, x + y + z)))", list(range(900))),
        ("a.map(x, x).map(x, x).size()", list(range(1001))),
        ("a.split('x').map(c, c)", MEGABYTE),
        ("('' + a).split('').map(c, c)", MEGABYTE),
        ("'%s'.format([a.split('')]).split('').map(c, c)", MEGABYTE),
        ("[a.map(x, x), a.map(x, x)].map(l, l.map(x, a.map(y, x)))", list(range(1000))),
    ],
)  # fmt: skip
def test_what_would_grow_or_take_long_is_refused_before_it_begins(expression: str, a: object):
    with pytest.raises(ExpressionTooExpensive):
        evaluate(expression, context(a))


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("([ab]?){900}c", "ab" * 500_000),
        ("[ab]*a[ab]{500}c", "ab" * 500_000),
        (r"(\\pL+)" * 300, "ab" * 500_000),
        ("a.{1000}b.{1000}c", "ab" * 500_000),
    ],
)
def test_a_regular_expression_that_is_slow_over_a_long_text_is_refused(pattern: str, text: str):
    with pytest.raises(ExpressionTooExpensive):
        evaluate(f"a.matches('{pattern}')", context(text))


def test_a_regular_expression_that_is_slow_to_compile_is_refused_in_a_macro():
    """The library compiles it anew for each element: this one takes 128 ms each time."""
    with pytest.raises(ExpressionTooExpensive):
        evaluate(r"a.all(x, x.matches('^\\pL{1,100}$'))", context(["abc"] * 1000))
    with pytest.raises(ExpressionTooExpensive):
        evaluate("a.all(x, b.matches(x))", context([r"^\pL{1,100}$"] * 1000, "abc"))
    with pytest.raises(ExpressionTooExpensive):
        evaluate("a.all(x, b.matches(x + '$'))", context([r"^\pL{1,100}"] * 1000, "abc"))


@pytest.mark.parametrize(
    ("expression", "a", "value"),
    [
        ("a.matches('(a+)+$')", "a" * 30_000 + "b", False),
        ("a.matches('(a|aa)+$')", "a" * 30_000 + "b", False),
        ("a.matches('(.*)*y')", MEGABYTE, False),
        (r"a.all(x, x.matches('^\\d{4}-\\d{2}-\\d{2}$'))", ["2026-03-01"] * 1000, True),
        ("a.contains('needle')", MEGABYTE, False),
        ("size(a.replace('x', 'yy'))", MEGABYTE, 2_000_000),
        ("size(a)", MEGABYTE, 1_000_000),
        ("length(a)", "é" * 1_000_000, 1_000_000),
        ("size(a.split('x'))", MEGABYTE, 1_000_001),
        ("size(a.upperAscii())", MEGABYTE, 1_000_000),
        ("a == a", MEGABYTE, True),
        ("7 in a", list(range(100_000)), True),
        ("size(a)", list(range(500_000)), 500_000),
        ("a.map(x, x * 2).filter(x, x > 1996)", list(range(1000)), [1998]),
        ("a.map(x, a.map(y, x * y)).size()", list(range(90)), 90),
    ],
)
def test_large_values_are_answered(expression: str, a: object, value: object):
    assert evaluate(expression, context(a)) == value


@pytest.mark.parametrize(
    "expression",
    [
        "(" * 2000 + "1" + ")" * 2000,
        "[" * 2000 + "]" * 2000,
        "{1:" * 1000 + "1" + "}" * 1000,
        "1" + "+1" * 2000,
        "a" + ".b" * 2000,
        "a" + "[0]" * 1300,
        "true?1:" * 500 + "1",
        "size([" * 500,
        "''" + ".trim()" * 500,
        nested(200, "x"),
        "'" * 4000,
        "(" * 4000,
        "\\" * 4000,
        "é" * 2000,
        "1" * 4000,
        "1e" + "9" * 4000,
        "\u202e" + "a",
    ],
)  # fmt: skip
def test_an_expression_of_any_shape_is_refused_with_a_short_sentence(expression: str):
    with pytest.raises(ExpressionInvalid) as refused:
        evaluate(expression, context())

    assert len(str(refused.value)) < 600
    assert str(refused.value).isprintable()


@pytest.mark.parametrize(
    "expression", ["!" * 4000 + "true", "-" * 4000 + "1", "true" + "&&true" * 680, "a == null" + "||a == null" * 370]
)
def test_long_chains_that_the_library_takes_are_answered(expression: str):
    assert evaluate(expression, context()) in (True, 1)


@pytest.mark.parametrize("levels", [200, 300, 20_000, 1_000_000])
def test_deeply_nested_values_are_taken_or_refused(levels: int):
    """At 20,000 levels the library's stack would be full, and the process gone."""
    deep: Any = 1
    for _ in range(levels):
        deep = [deep]
    if levels == 200:
        assert evaluate("size(a)", context(deep)) == 1
        return
    with pytest.raises(InvalidValue, match="not JSON"):
        context(deep)


@pytest.mark.parametrize("value", ["\ud800", "a\0b", {"a\0": 1}, {"\udfff": 1}, 2**64, {1: 2}, {1, 2}, b"x", object()])
def test_values_that_the_library_would_cut_or_choke_on_are_refused(value: object):
    with pytest.raises(InvalidValue):
        context([value])


def test_an_escaped_backslash_is_no_nul():
    assert evaluate("a", context("\\u0000")) == "\\u0000"


@given(st.text(max_size=40) | st.text(alphabet="ab.[]{}()'\"?:+-*/<>=!&|, 019\\\n`r$", max_size=60))
def test_any_text_as_an_expression_is_evaluated_or_refused(expression: str):
    check_expression(expression, NAMES)
    with suppress(ExpressionInvalid):
        evaluate(expression, context({"b": [1, "x"]}, "text"))


def grown(seed: int) -> tuple[str, str]:
    """Two expressions at random over the text `a` and the list `b`: one that makes a text, one that makes a list."""
    chance = random.Random(seed)
    text, items = "a", "b"
    for _ in range(chance.randint(1, 5)):
        text = chance.choice(
            [
                f"({text} + a)",
                f"{text}.replace('x', 'yxz')",
                f"{text}.replace('', a)",
                f"{items}.join({text})",
                f"'%s %s'.format([{text}, {items}])",
                f"[{text}].map(t, t + t + a)[0]",
                f"{text}.upperAscii()",
                f"(size({text}) > 9 ? {text} : {items}[0])",
            ]
        )
        items = chance.choice(
            [
                f"({items} + b)",
                f"{items}.map(i, i + a)",
                f"{items}.filter(i, size(i) > 1)",
                "a.split('x')",
                f"[{text}, a]",
                f"{items}.map(i, i.replace('x', a))",
                f"b.map(i, [i, {text}]).map(l, l[1])",
            ]
        )
    return text, items


@given(st.integers(0, 10**9), st.text("xyz", max_size=20), st.lists(st.text("xyz", max_size=10), max_size=12))
def test_no_result_is_larger_than_what_was_estimated(seed: int, a: str, b: list[str]):
    values = context(a, b)
    for expression in grown(seed):
        try:
            program = compile_expression(expression, NAMES)
            assert afford(program, values) <= AFFORDABLE
            result = run(program, values)
        except ExpressionInvalid:
            continue
        estimated = _Estimate(expression, values).extent(program.tree.root, {})
        size = len(result) if isinstance(result, str) else sum(map(len, result))
        assert size <= estimated.size
        if isinstance(result, list):
            assert len(result) <= estimated.count
        assert orjson.dumps(result)
