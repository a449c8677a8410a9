"""Pipeline documents as Ordinaut's users write them: `{params, pipeline: [{id, uses, with, save_as, if}]}`. What its
tests assert of pipelines is kept here, or departed from knowingly; what they assert of schedules is in
test_recurrence_*.py."""

from datetime import UTC, datetime
from typing import Any

import pytest

from accsd.errors import WorkflowInvalid
from accsd.model import WorkflowDef
from accsd.model.outcome import DatabaseCode
from accsd.pipeline.document import as_workflow
from accsd.pipeline.flow import Flow, check_workflow
from accsd.pipeline.resolution import Decision, Facts, Fail, Result, Run, Skip, decide

NOW = datetime(2026, 11, 18, 7, 30, tzinfo=UTC)

BRIEFING: dict[str, Any] = {
    "name": "morning-briefing",
    "params": {"city": "Chisinau", "chat": 42, "limit": 25},
    "pipeline": [
        {"id": "events", "uses": "service:calendar", "with": {"day": "${now}"}, "save_as": "calendar"},
        {"id": "forecast", "uses": "service:weather", "with": {"city": "${params.city}"}, "save_as": "weather"},
        {
            "id": "warn",
            "uses": "service:telegram",
            "if": "${steps.weather.temp > params.limit}",
            "with": {"chat_id": "${params.chat}", "text": "hot: ${steps.weather.temp}"},
        },
        {
            "id": "send",
            "uses": "service:telegram",
            "with": {
                "chat_id": "${params.chat}",
                "text": "${params.city}: ${steps.weather.summary}, ${length(steps.calendar.items)} events",
                "first": "${steps.calendar.items[0].title}",
                "tags": ["daily", "${params.city}", {"at": "${now}"}],
                "${params.city}": "a key",
            },
        },
    ],
}
RESULTS: dict[str, Any] = {
    "events": {"items": [{"title": "standup"}, {"title": "lunch"}]},
    "forecast": {"temp": 21, "summary": "clear"},
    "warn": None,
}


def compiled(document: dict[str, Any] = BRIEFING) -> WorkflowDef:
    workflow = WorkflowDef.model_validate(as_workflow(document))
    check_workflow(workflow)
    return workflow


def decided(key: str, document: dict[str, Any] = BRIEFING, results: dict[str, Any] = RESULTS) -> Decision:
    found = {each: Result(value is not None, value) for each, value in results.items()}
    job = {"id": "j", "workflow": "w", "version": 1, "created_at": NOW}
    facts = Facts(params={}, job=job, trigger={}, now=NOW, results=found)
    return decide(Flow(compiled(document)).step(key), facts)


def sent(key: str, document: dict[str, Any] = BRIEFING, results: dict[str, Any] = RESULTS) -> dict[str, Any]:
    decision = decided(key, document, results)
    assert isinstance(decision, Run), decision
    return decision.given["with"]


def pipeline(*steps: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"name": "p", **fields, "pipeline": [{"uses": "service:s", **step} for step in steps]}


def refused(*steps: dict[str, Any], **fields: Any) -> str:
    with pytest.raises(WorkflowInvalid) as caught:
        compiled(pipeline(*steps, **fields))
    return str(caught.value)


# Kept


def test_the_steps_run_in_the_order_of_the_document():
    assert [(step.key, step.depends_on) for step in compiled().steps] == [
        ("events", []),
        ("forecast", ["events"]),
        ("warn", ["forecast"]),
        ("send", ["warn"]),
    ]


def test_several_expressions_stand_in_one_text_with_length_and_nested_and_indexed_access():
    given = sent("send")
    assert given["text"] == "Chisinau: clear, 2 events"
    assert given["first"] == "standup"


def test_templates_inside_lists_and_objects_are_filled_in_and_keys_are_not():
    given = sent("send")
    assert given["tags"] == ["daily", "Chisinau", {"at": "2026-11-18T07:30:00Z"}]
    assert given["${params.city}"] == "a key"


def test_now_is_there():
    assert sent("events") == {"day": "2026-11-18T07:30:00Z"}


def test_a_false_condition_leaves_no_output():
    assert decided("warn") == Skip(DatabaseCode.CONDITION_FALSE)
    step = {"id": "after", "with": {"x": "${steps.warn.id}"}}
    decision = decided("after", {**BRIEFING, "pipeline": [*BRIEFING["pipeline"], {"uses": "service:s", **step}]})
    assert isinstance(decision, Skip)
    assert decision.reason == DatabaseCode.INPUT_SKIPPED


def test_a_true_condition_lets_the_step_run():
    assert sent("warn", results=RESULTS | {"forecast": {"temp": 31, "summary": ""}})["text"] == "hot: 31"


def test_values_that_were_found_are_never_evaluated_again():
    hostile = RESULTS | {"forecast": {"temp": 1, "summary": "${params.chat}"}}
    assert sent("send", results=hostile)["text"] == "Chisinau: ${params.chat}, 2 events"


def test_the_variables_that_a_step_refers_to_are_known():
    flow = Flow(compiled()).step("send")
    assert dict(flow.reads) == {"weather": ("forecast",), "calendar": ("events",)}


def test_a_syntax_error_names_the_expression():
    assert 'expression "params.x +"' in refused({"id": "a", "with": {"x": "${params.x +}"}})


def test_two_steps_of_one_id_are_refused():
    assert '"a"' in refused({"id": "a"}, {"id": "a"})


# That a tool which nobody knows is refused needs a database that knows some: tests/db/test_tools.py.


# Departed from


def test_a_whole_value_keeps_its_type_where_ordinaut_makes_a_text_of_it():
    assert sent("send")["chat_id"] == 42


def test_a_missing_value_is_an_error_where_ordinaut_writes_null():
    decision = decided("b", pipeline({"id": "a"}, {"id": "b", "with": {"x": "${steps.a.none}"}}), {"a": {}})
    assert isinstance(decision, Fail)
    assert decision.code == DatabaseCode.TEMPLATE_ERROR
    assert "there is no steps.a.none" in decision.message


def test_an_unterminated_expression_is_refused_where_ordinaut_takes_it_for_text():
    assert "with.x" in refused({"id": "a", "with": {"x": "costs ${5"}})
    literal = pipeline({"id": "a"}, {"id": "b", "with": {"x": "costs $${5", "y": "${1}"}})
    assert sent("b", literal, {"a": {}}) == {"x": "costs ${5", "y": 1}


def test_a_step_that_comes_later_is_refused_before_anything_runs():
    assert 'does not depend on "b"' in refused({"id": "a", "with": {"x": "${steps.b.n}"}}, {"id": "b"})


def test_a_condition_that_is_no_truth_value_is_an_error_where_ordinaut_takes_it_for_true():
    decision = decided("b", pipeline({"id": "a"}, {"id": "b", "if": "${steps.a.count}"}), {"a": {"count": 3}})
    assert isinstance(decision, Fail)
    assert decision.code == DatabaseCode.CONDITION_ERROR
