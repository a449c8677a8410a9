"""What can be said of a workflow's expressions before anything runs (PL1 to PL5), and pipelines as they are written."""

from typing import Any

import pytest

from accsd.errors import WorkflowInvalid
from accsd.model import WorkflowDef
from accsd.pipeline.document import as_workflow
from accsd.pipeline.flow import Flow, check_workflow


def workflow(*steps: dict[str, Any], **fields: Any) -> WorkflowDef:
    return WorkflowDef.model_validate({"name": "w", "steps": list(steps), **fields})


def step(key: str, after: str = "", /, **fields: Any) -> dict[str, Any]:
    return {"key": key, "service": "s", "depends_on": after.split(), **fields}


def problems(*steps: dict[str, Any], **fields: Any) -> list[str]:
    with pytest.raises(WorkflowInvalid) as caught:
        check_workflow(workflow(*steps, **fields))
    return [sentence for _, sentence in caught.value.complaints]


# Pipelines


def test_a_step_of_a_pipeline_depends_on_the_one_before_it_unless_it_says_otherwise():
    """PL1"""
    made = as_workflow(
        {
            "name": "p",
            "params": {"x": 1},
            "pipeline": [
                {"id": "a", "uses": "service:one"},
                {"id": "b", "uses": "service:two", "with": {"n": "${steps.a.n}"}},
                {"id": "c", "uses": "service:three", "depends_on": []},
                {"id": "d", "service": "four", "depends_on": ["a", "c"]},
            ],
        }
    )
    found = WorkflowDef.model_validate(made)
    assert [(s.key, s.service, s.depends_on) for s in found.steps] == [
        ("a", "one", []),
        ("b", "two", ["a"]),
        ("c", "three", []),
        ("d", "four", ["a", "c"]),
    ]
    assert found.params == {"x": 1}
    assert check_workflow(found) == []


def test_a_workflow_implies_no_dependencies():
    """PL1"""
    made = as_workflow({"name": "p", "steps": [{"key": "a", "uses": "service:one"}, {"key": "b", "service": "two"}]})
    assert [s.depends_on for s in WorkflowDef.model_validate(made).steps] == [[], []]


def test_a_document_has_steps_or_a_pipeline():
    with pytest.raises(WorkflowInvalid, match="not both"):
        as_workflow({"name": "p", "steps": [], "pipeline": []})


@pytest.mark.parametrize(
    "document", [None, 5, [], {"pipeline": 5}, {"pipeline": [5, None, {"id": 7}]}, {"pipeline": {}}]
)
def test_what_is_no_pipeline_is_refused_in_words(document: Any):
    with pytest.raises(WorkflowInvalid):
        WorkflowDef.model_validate(as_workflow(document))


# Names


def test_a_dash_or_a_dot_in_a_key_reads_as_an_underscore_where_that_is_unambiguous():
    """PL2"""
    flow = Flow(workflow(step("my-step"), step("b", "my-step", **{"if": "steps.my_step.x && steps['my-step'].x"})))
    assert flow.check().problems == ()
    assert flow.step("b").reads == {"my_step": ("my-step",), "my-step": ("my-step",)}
    (problem,) = problems(step("a-b"), step("a.b"), step("c", "a-b a.b", **{"if": "steps.a_b.x"}))
    assert 'there is no step "a_b"' in problem


def test_several_steps_may_have_the_same_name_for_their_results():
    """PL3"""
    flow = Flow(
        workflow(
            step("day", save_as="light"),
            step("night", save_as="light"),
            step("c", "day night", **{"if": "steps.light.on"}),
        )
    )
    assert flow.check().problems == ()
    assert flow.step("c").reads == {"light": ("day", "night")}


def test_results_of_a_step_that_is_not_above_are_refused_with_the_missing_dependency():
    """PL4"""
    (problem,) = problems(step("a"), step("b", **{"with": {"n": "${steps.a.n}"}}))
    assert 'does not depend on "a"; add it to depends_on' in problem
    assert check_workflow(workflow(step("a"), step("b", "a"), step("c", "b", **{"with": {"n": "${steps.a.n}"}}))) == []


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"if": "steps.weathr.x > 1"}, 'there is no step "weathr" (did you mean "weather"?)'),
        ({"if": "nonsense.x"}, 'there is no variable "nonsense"'),
        ({"if": "steps.weather.x >"}, "it ends too early"),
        ({"if": "1 + 2"}, "a condition must give true or false"),
        ({"if": "is ${steps.weather.x} warm"}, "it must be one expression"),
        ({"with": {"a": {"b": ["${steps.weather.x"]}}}, "no } closes its ${"),
        ({"with": {"a": "${item}"}}, 'there is no variable "item"'),
        ({"for_each": "${steps.weather.x + }"}, "it ends too early"),
        ({"for_each": 1001}, "has 1001 items; max_items is 1000"),
        ({"for_each": -1}, "must not be below 0"),
        ({"delay": "${params.x"}, "no } closes its ${"),
        ({"for_each": 3, "if_item": "'x'", "with": {"a": "${item}"}}, "a condition must give true or false"),
    ],
)
def test_a_mistake_in_an_expression_is_found_before_anything_runs(fields: dict[str, Any], said: str):
    """PL4; the error names step, place and expression"""
    (problem,) = problems(step("weather"), step("b", "weather", **fields))
    assert problem.startswith('step "b": ')
    assert said in problem


def test_all_mistakes_are_told_at_once_with_their_places():
    with pytest.raises(WorkflowInvalid) as caught:
        check_workflow(workflow(step("a", **{"if": "x.y", "with": {"n": ["${z}"]}})))
    assert [place for place, _ in caught.value.complaints] == [("steps", 0, "if"), ("steps", 0, "with", "n", 0)]


def test_params_that_no_option_can_have_are_refused_where_the_schema_is_closed():
    closed = {"type": "object", "properties": {"width": {}}, "additionalProperties": False}
    a = step("a", **{"with": {"w": "${params.widht}", "h": "${params.height}"}})
    (problem,) = problems(a, options_schema=closed, params={"height": 3})
    assert 'there is no params.widht (did you mean "width"?)' in problem
    assert check_workflow(workflow(a, options_schema={"type": "object"})) == []


def test_a_computed_name_reads_every_step_above():
    flow = Flow(workflow(step("a"), step("b", "a"), step("c"), step("d", "b", **{"if": "steps[params.which].x"})))
    assert set(flow.step("d").reads) == {"a", "b"}


def test_an_item_that_nothing_refers_to_is_a_surprise():
    ((place, said),) = check_workflow(workflow(step("a", for_each=3)))
    assert place == ("steps", 0, "for_each")
    assert "all tasks do the same" in said


def test_arithmetic_that_fails_for_whole_numbers_is_a_surprise():
    """9.2, trap 2"""
    ((_, said),) = check_workflow(workflow(step("w"), step("b", "w", **{"with": {"f": "${steps.w.temp * 1.8}"}})))
    assert "double(steps.w.temp)" in said


def test_a_workflow_with_expressions_has_a_bound():
    many = [step(f"s{n}") for n in range(10_001)]
    (problem,) = problems(*many, step("last", "s1", **{"if": "steps.s1.x"}))
    assert "at most 10000 steps" in problem


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"max_parallel": 2}, "has max_parallel but no for_each"),
        ({"for_each": 3, "max_parallel": 2, "concurrency_key": "k"}, "exclude each other"),
        ({"concurrency_key": "map/x"}, "is reserved"),
        ({"save_as": "a-b"}, "letters, digits"),
        ({"for_each": 3, "tolerate": "101%"}, "a share of them such as 10%"),
        ({"for_each": 3, "max_items": 10_001}, "max_items"),
        ({"delay": "soon"}, "90s, 10m"),
        ({"with": 5}, "with must be a table"),
    ],
)
def test_fields_that_make_no_sense_are_refused(fields: dict[str, Any], said: str):
    with pytest.raises(WorkflowInvalid, match=said):
        workflow(step("a", **fields))
