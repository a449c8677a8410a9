"""What is said of expressions when they are written (PL4), and where the library is missing."""

import subprocess
import sys
from collections.abc import Iterator

import pytest

from accsd.errors import ConfigError
from accsd.expressions import (
    Context,
    Names,
    check_condition,
    check_document,
    check_expression,
    evaluate,
    render,
)
from accsd.expressions.program import compile_expression, environment

NAMES = Names(values=("params", "steps", "event"), moments=("event.at", "now"))


@pytest.mark.parametrize(
    ("expression", "references"),
    [
        ("1 + 1", []),
        ("event.payload.y", [("event", "payload", "y")]),
        ("steps.a.b + steps['my-step'].c[0].d", [("steps", "a", "b"), ("steps", "my-step", "c", 0, "d")]),
        ("steps.a + steps.a", [("steps", "a")]),
        ("steps.?a.?b.orValue(params.x)", [("steps", "a", "b"), ("params", "x")]),
        ("has(steps.a.b) ? 1 : 2", [("steps", "a", "b")]),
        ("steps[params.which].x", [("steps",), ("params", "which")]),
        ("steps.a.list.filter(i, i.ok && i.n > params.n)", [("steps", "a", "list"), ("params", "n")]),
        ("steps.a.map(steps, steps.b)", [("steps", "a")]),
        ("{'k': event.at, params.key: [now]}", [("event", "at"), ("params", "key"), ("now",)]),
        ("type(steps.a) == int && math.abs(params.n) > 1", [("steps", "a"), ("params", "n")]),
        ("'${steps.b}' + \"steps.c\"", []),
        ("steps", [("steps",)]),
        (".steps.a", [("steps", "a")]),
        ("steps.a[-1]", [("steps", "a", -1)]),
    ],
)
def test_the_paths_that_an_expression_refers_to_are_known(expression: str, references: list[tuple[str | int, ...]]):
    findings = check_expression(expression, NAMES)

    assert findings.problems == ()
    assert list(findings.references) == references


def test_every_problem_of_a_document_is_found_with_its_place():
    document = {"a": "${evnt.x}", "b": ["fine ${params.x}", "${1 +}", "x ${"], "c": {"d": "${steps.a} ${nope()}"}}

    findings = check_document(document, NAMES, at=("with",))

    assert [(problem.path, problem.what.partition(": ")[2]) for problem in findings.problems] == [
        ("with.b.2", "no } closes its ${; write $${ for a ${ that is meant literally"),
        ("with.a", 'there is no variable "evnt" (did you mean "event"?); there are params, steps, event, now'),
        ("with.b.1", "it ends too early"),
        ("with.c.d", 'there is no function "nope" with such arguments'),
    ]
    assert findings.references == (("params", "x"), ("steps", "a"))


@pytest.mark.parametrize("expression", ["1", "'x'", "now", "[true]", "size(steps.a)", "steps.a.map(x, x)"])
def test_a_condition_whose_type_is_known_and_not_bool_is_refused(expression: str):
    """PL4."""
    (problem,) = check_condition(expression, NAMES).problems

    assert "a condition must give true or false" in problem.what


@pytest.mark.parametrize("expression", ["true", "steps.a", "steps.a > 3", "steps.a.exists(x, x.ok)", "has(steps.a)"])
def test_a_condition_that_is_or_may_be_true_or_false_is_taken(expression: str):
    assert check_condition(expression, NAMES).problems == ()


@pytest.mark.parametrize(
    ("expression", "proposal"),
    [
        ("steps.w.temp * 1.8", "double(steps.w.temp)"),
        ("1.5 + steps.list[0]", "double(…)"),
        ("steps.list.map(x, x / 2.0)", "double(x)"),
    ],
)
def test_arithmetic_that_fails_for_whole_numbers_is_warned_of(expression: str, proposal: str):
    """9.2 (2)."""
    findings = check_document({"x": "${" + expression + "}"}, NAMES)

    assert findings.problems == ()
    (warning,) = findings.warnings
    assert warning.path == "x"
    assert proposal in warning.what
    for sound in ("double(steps.w.temp) * 1.8", "steps.w.temp * 2", "steps.w.temp > 1.8"):
        assert check_expression(sound, NAMES).warnings == ()


def test_a_document_with_too_many_expressions_or_too_deep_is_refused():
    """EX5."""
    (problem,) = check_document(["${1}"] * 201, NAMES).problems
    assert "201 expressions; the limit is 200" in problem.what

    deep: object = "x"
    for _ in range(100_000):
        deep = [deep]
    (problem,) = check_document(deep, NAMES).problems
    assert "deeper than 64" in problem.what


def test_an_expression_is_compiled_once_and_few_are_kept():
    compile_expression.cache_clear()
    for number in range(1500):
        check_expression(f"params.x == {number % 1200}", NAMES)

    cache = compile_expression.cache_info()
    assert cache.currsize == 1000
    check_expression("params.x == 299", NAMES)
    assert compile_expression.cache_info().hits == cache.hits + 1


def test_the_same_expression_under_other_names_is_another_one():
    assert check_expression("params.x", NAMES).problems == ()
    assert check_expression("params.x", Names(values=("event",))).problems != ()


@pytest.fixture
def _without_library(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for cache in (compile_expression, environment):
        cache.cache_clear()
    for module in [name for name in sys.modules if name.startswith("cel_expr_python")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "cel_expr_python", None)
    yield
    for cache in (compile_expression, environment):
        cache.cache_clear()


@pytest.mark.usefixtures("_without_library")
def test_without_the_library_expressions_are_refused_with_the_words_what_to_install():
    context = Context({"event": {}}, NAMES)
    for use in (
        lambda: evaluate("1", context),
        lambda: render({"x": "${1}"}, context),
        lambda: check_expression("1", NAMES),
        lambda: check_document({"x": "${1}"}, NAMES),
    ):
        with pytest.raises(ConfigError, match="need the package cel-expr-python") as refused:
            use()
        assert "pip install 'cel-expr-python" in (refused.value.hint or "")


@pytest.mark.usefixtures("_without_library")
def test_without_the_library_documents_without_expressions_are_rendered_and_checked():
    assert render({"x": "$${1}"}, Context({}, NAMES)) == {"x": "${1}"}
    assert check_document({"x": [1, "y"]}, NAMES).problems == ()


def test_neither_a_node_nor_an_import_of_the_room_imports_the_library():
    program = """
import sys
import accsd.expressions
assert "cel_expr_python" not in sys.modules
import accsd.agent.agent, accsd.work.attempt, accsd.sdk.service, accsd.daemon.daemon
assert "cel_expr_python" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
