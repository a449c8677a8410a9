"""What becomes of a step: RS4, RS5, FO1, FO7, EX1 to EX5, with the facts that a resolver would have read."""

from datetime import UTC, datetime
from typing import Any

import pytest

from accsd.expressions import Context
from accsd.expressions.program import compile_expression
from accsd.model import WorkflowDef
from accsd.model.outcome import DatabaseCode
from accsd.pipeline import resolution
from accsd.pipeline.flow import Flow
from accsd.pipeline.resolution import Decision, Facts, Fail, Multiply, Result, Run, Skip, decide

NOW = datetime(2026, 11, 18, 9, 0, tzinfo=UTC)
SKIPPED = Result(False, None)


def decided(fields: dict[str, Any], *, results: dict[str, Any] | None = None, **facts: Any) -> Decision:
    """Of step b, which depends on each step that has a result."""
    known = {key: each if isinstance(each, Result) else Result(True, each) for key, each in (results or {}).items()}
    above = [{"key": key, "service": "s"} for key in known]
    b = {"key": "b", "service": "s", "depends_on": list(known), **fields}
    workflow = WorkflowDef.model_validate({"name": "w", "params": facts.pop("defaults", {}), "steps": [*above, b]})
    return decide(
        Flow(workflow).step("b"),
        Facts(
            params=facts.get("params", {}),
            job={"id": "j", "workflow": "w", "version": 1, "created_at": NOW},
            trigger=facts.get("trigger", {}),
            now=NOW,
            results=known,
        ),
    )


def given(decision: Decision) -> Any:
    assert isinstance(decision, Run), decision
    return decision.given["with"]


def failed(decision: Decision) -> tuple[str, str]:
    assert isinstance(decision, Fail), decision
    return decision.code, decision.message


# Run


def test_whole_values_keep_their_types_and_texts_are_filled_in():
    """EX1"""
    document = {
        "n": "${steps.a.n}",
        "list": "${steps.a.list}",
        "text": "${steps.a.n} of ${steps.a.x}, ${steps.a.yes}, ${steps.a.list}",
        "deep": [{"x": "${params.q}"}],
        "literal": "$${steps.a.n}",
        "${steps.a.n}": 1,
        "plain": None,
    }
    values = {"a": {"n": 3, "x": 2.5, "yes": True, "list": [1, {"a": None}]}}
    assert given(decided({"with": document}, results=values, params={"q": "hd"})) == {
        "n": 3,
        "list": [1, {"a": None}],
        "text": '3 of 2.5, true, [1,{"a":null}]',
        "deep": [{"x": "hd"}],
        "literal": "${steps.a.n}",
        "${steps.a.n}": 1,  # EX2: keys are no templates
        "plain": None,
    }


def test_what_was_filled_in_is_never_evaluated_again():
    """EX2"""
    hostile = {"a": {"x": "${params.secret}"}}
    assert given(decided({"with": {"y": "${steps.a.x}", "z": "<${steps.a.x}>"}}, results=hostile)) == {
        "y": "${params.secret}",
        "z": "<${params.secret}>",
    }


def test_params_are_the_defaults_overlaid_by_the_options():
    """PL5"""
    fields = {"with": {"q": "${params.q}", "r": "${params.r}"}}
    assert given(decided(fields, defaults={"q": 1, "r": 2}, params={"r": 3})) == {"q": 1, "r": 3}


def test_the_job_the_trigger_and_the_moment_are_there():
    """PL5"""
    fields = {
        "with": {
            "job": "${job.workflow}/${job.version}",
            "at": "${now}",
            "later": "${now + duration('24h')}",
            "for": "${trigger.nominal}",
            "hour": "${job.created_at.getHours('Europe/Berlin')}",
        }
    }
    assert given(decided(fields, trigger={"nominal": "2026-11-18T02:30:00"})) == {
        "job": "w/1",
        "at": "2026-11-18T09:00:00Z",
        "later": "2026-11-19T09:00:00Z",
        "for": "2026-11-18T02:30:00",
        "hour": 10,
    }


def test_a_step_without_templates_is_given_the_moment_alone():
    assert decided({"if": "true", "with": {"a": 1}}) == Run({"now": "2026-11-18T09:00:00Z"})


@pytest.mark.parametrize(
    ("delay", "seconds"),
    [(90, 90), ("10m", 600), ("${60 * 2}", 120), ("${params.wait}", 5400), ("${params.n}s", 3), (0, 0)],
)
def test_a_delay_is_seconds_or_a_duration(delay: Any, seconds: float):
    decision = decided({"delay": delay}, params={"wait": "1h30m", "n": 3})
    assert isinstance(decision, Run)
    assert decision.delay == seconds


@pytest.mark.parametrize("delay", ["${-1}", "${'soon'}", "${true}", "${[1]}", "${1e12}", "${params.nothing}"])
def test_a_delay_that_is_none_is_an_error(delay: str):
    assert failed(decided({"delay": delay}))[0] == "template_error"


# Conditions


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ("steps.a.n > 25", True),
        ("${steps.a.n > 25}", True),
        ("steps.a.n < 25", False),
        (False, False),
        (True, True),
        ("steps.?a.?nothing.orValue(1) == 2", False),
        ("has(steps.a.n) && steps.a.n == 30", True),
        ("length(steps.a.list) == 2", True),
    ],
)
def test_a_condition_decides_whether_the_step_runs(condition: Any, holds: bool):
    decision = decided({"if": condition}, results={"a": {"n": 30, "list": [1, 2]}})
    assert isinstance(decision, Run) if holds else decision == Skip(DatabaseCode.CONDITION_FALSE)


FAILING = [
    "steps.a.nothing > 1",
    "steps.a.n",
    "steps.a.n / 0 == 1",
    "steps.a.n > 'x'",
    "params.x",
    "'true'",
    "steps.a.list[9] == 1",
]


def fails(condition: str) -> None:
    code, message = failed(decided({"if": condition}, results={"a": {"n": 30, "list": []}}))
    assert code == "condition_error"
    assert message.startswith('step "b": ')
    assert condition in message


@pytest.mark.parametrize("condition", FAILING)
def test_an_evaluation_error_is_never_true(condition: str):
    """RS5; 9.2, trap 1"""
    fails(condition)


@pytest.mark.parametrize("condition", FAILING)
def test_a_planted_bug_that_takes_an_error_for_true_is_shown(condition: str, monkeypatch: pytest.MonkeyPatch):
    """The library answers an error as a value, and every value of it is true."""

    def naive(expression: str, context: Context) -> bool:
        return bool(compile_expression(expression, context.names).compiled.eval(context.activation))

    monkeypatch.setattr(resolution, "evaluate_condition", naive)
    with pytest.raises(AssertionError, match="Run"):
        fails(condition)


# What is missing


def test_a_missing_field_is_an_error_that_names_step_place_and_expression():
    """EX4"""
    code, message = failed(decided({"with": {"deep": ["${steps.a.part}"]}}, results={"a": {"parts": []}}))
    assert code == "template_error"
    assert message.startswith('step "b": with.deep.0: expression "steps.a.part"')
    assert 'did you mean "parts"' in message


def test_who_refers_to_a_skipped_step_without_a_guard_is_skipped_too():
    """RS5"""
    fields = {"with": {"n": "${steps.a.n}"}}
    assert decided(fields, results={"a": SKIPPED}) == Skip(
        DatabaseCode.INPUT_SKIPPED, "it refers to steps.a, which was skipped"
    )
    assert isinstance(decided({"if": "steps.a.n > 1"}, results={"a": SKIPPED}), Skip)
    assert given(decided({"with": {"n": "${steps.?a.?n.orValue(7)}"}}, results={"a": SKIPPED})) == {"n": 7}


def test_of_steps_that_share_a_name_the_last_one_that_is_done_counts():
    """PL3"""
    workflow = WorkflowDef.model_validate(
        {
            "name": "w",
            "steps": [
                {"key": "x", "service": "s", "save_as": "light"},
                {"key": "y", "service": "s", "save_as": "light"},
                {"key": "b", "service": "s", "depends_on": ["x", "y"], "with": {"l": "${steps.light.on}"}},
            ],
        }
    )

    def light(**results: Result) -> Decision:
        return decide(Flow(workflow).step("b"), Facts({}, {}, {}, NOW, results))

    assert given(light(x=Result(True, {"on": 1}), y=Result(True, {"on": 2}))) == {"l": 2}
    assert given(light(x=Result(True, {"on": 1}), y=SKIPPED)) == {"l": 1}
    assert isinstance(light(x=SKIPPED, y=SKIPPED), Skip)


def test_results_that_are_too_large_are_left_out_and_said_to_be():
    """EX5"""
    large = Result(True, {"x": "a" * 3_000_000}, 3_000_008)
    results = {"a": large, "c": Result(True, {"x": "b" * 500_000}, 500_008)}
    assert failed(decided({"if": "steps.a.x == steps.c.x"}, results=results))[1].count("was left out") == 1
    assert "was left out" in failed(decided({"if": "steps.a.x == ''"}, results={"a": Result(True, None, 9_999_999)}))[1]


def test_what_is_rendered_has_a_bound():
    """EX5"""
    code, message = failed(decided({"with": {"x": "${steps.a.x}"}}, results={"a": {"x": "a" * 300_000}}))
    assert code == "template_error"
    assert "262144 bytes" in message


# Items


def items(decision: Decision) -> list[Any]:
    assert isinstance(decision, Multiply), decision
    return [None if each is None else each["with"]["x"] for each in decision.given]


@pytest.mark.parametrize(
    ("for_each", "expected"),
    [
        ("${steps.a.list}", [1, "two", None]),
        ("steps.a.list", [1, "two", None]),
        ("${steps.a.map}", [{"key": "k", "value": 1}, {"key": "l", "value": [2]}]),
        ("${2 + 1}", [0, 1, 2]),
        (2, [0, 1]),
        (["p", "${params.q}", {"r": "${params.q}"}], ["p", "hd", {"r": "hd"}]),
        ({"b": 1, "a": "${params.q}"}, [{"key": "a", "value": "hd"}, {"key": "b", "value": 1}]),
        ("${[]}", []),
        (0, []),
    ],
)
def test_a_step_is_multiplied_by_a_list_an_object_or_a_number(for_each: Any, expected: list[Any]):
    """FO1"""
    results = {"a": {"list": [1, "two", None], "map": {"l": [2], "k": 1}}}
    assert (
        items(decided({"for_each": for_each, "with": {"x": "${item}"}}, results=results, params={"q": "hd"}))
        == expected
    )


def test_items_know_their_number_and_everything_else():
    fields = {"for_each": 3, "with": {"x": "${index}/${params.n}/${steps.a.n}"}}
    assert items(decided(fields, results={"a": {"n": 5}}, params={"n": 9})) == ["0/9/5", "1/9/5", "2/9/5"]


def test_a_condition_of_the_step_comes_first_and_one_of_the_items_for_each():
    """FO7"""
    fields = {"for_each": "${steps.a.list}", "if_item": "item > 1", "with": {"x": "${item}"}}
    assert items(decided(fields, results={"a": {"list": [1, 2, 3]}})) == [None, 2, 3]
    assert decided(fields | {"if": "false"}, results={"a": {"list": [1]}}) == Skip(DatabaseCode.CONDITION_FALSE)


def test_items_may_each_have_a_delay():
    """FO10"""
    decision = decided({"for_each": 3, "delay": "${index * 60}", "with": {"x": "${item}"}})
    assert isinstance(decision, Multiply)
    assert decision.delays == [0, 60, 120]


@pytest.mark.parametrize(
    ("tolerate", "expected"), [(None, 0), (0, 0), (2, 2), (9, 4), ("50%", 2), ("49%", 1), ("100%", 4)]
)
def test_so_many_items_may_fail(tolerate: Any, expected: int):
    """FO6"""
    decision = decided({"for_each": 4, "with": {"x": "${item}"}} | ({} if tolerate is None else {"tolerate": tolerate}))
    assert isinstance(decision, Multiply)
    assert decision.tolerate == expected


@pytest.mark.parametrize("for_each", ["${'text'}", "${true}", "${1.5}", "${-1}", "${null}", "${steps.a.nothing}"])
def test_what_is_no_list_is_an_error(for_each: str):
    assert failed(decided({"for_each": for_each}, results={"a": {}}))[0] == "template_error"


@pytest.mark.parametrize(
    ("for_each", "most"), [("${1001}", None), ("${9223372036854775807}", None), ("${[1, 2, 3]}", 2), (3, 2)]
)
def test_too_many_items_fail_before_any_task_exists(for_each: Any, most: int | None):
    """FO1"""
    fields = {"for_each": for_each} | ({} if most is None else {"max_items": most})
    assert failed(decided(fields))[0] == "fan_out_too_large"


def test_items_that_each_refer_to_much_are_refused_before_they_cost_much():
    fields = {"for_each": 1000, "with": {"x": "${size(steps.a.x) + index}"}}
    code, message = failed(decided(fields, results={"a": Result(True, {"x": "a" * 100_000}, 100_008)}))
    assert code == "template_error"
    assert "refer to item" in message


def test_items_that_would_take_seconds_together_are_refused_though_each_is_affordable():
    """Each evaluation compiles the pattern anew, which takes 128 ms."""
    code, message = failed(
        decided({"for_each": 10_000, "max_items": 10_000, "with": {"x": r"${'abc'.matches('^\\pL{1,100}$')}"}})
    )

    assert code == DatabaseCode.TEMPLATE_ERROR
    assert "it could take seconds for all items together (do it in a step)" in message


def test_ten_thousand_items_are_worked_out():
    decision = decided({"for_each": 10_000, "max_items": 10_000, "with": {"x": "${item}", "t": "part ${index}"}})
    assert isinstance(decision, Multiply)
    assert len(decision.given) == 10_000
    assert decision.given[9_999] == {"now": "2026-11-18T09:00:00Z", "with": {"x": 9_999, "t": "part 9999"}}
