"""A workflow is sound, or it is refused by a sentence that names it and its step."""

import gc
import weakref
from typing import Any

import pytest
from pydantic import ValidationError

from accsd.errors import WorkflowInvalid
from accsd.model import WorkflowDef, WorkflowStep
from accsd.model.tool import ToolDef

MEDIA: dict[str, Any] = {
    "name": "media",
    "version": 2,
    "steps": [
        {"key": "ingest", "service": "ingest", "depends_on": [], "default_params": {"source": "s3://in"}},
        {"key": "audio", "service": "audio-norm", "depends_on": ["ingest"], "default_params": {"lufs": -16}},
        {"key": "render", "service": "renderer", "depends_on": ["audio"], "requires": {"gpu": True}},
    ],
}


def changed(step: int = 2, **fields: Any) -> dict[str, Any]:
    """MEDIA with one of its steps changed."""
    steps = [dict(each) for each in MEDIA["steps"]]
    steps[step] |= fields
    return MEDIA | {"steps": steps}


def refusal_of(document: Any) -> WorkflowInvalid:
    with pytest.raises(WorkflowInvalid) as refused:
        WorkflowDef.model_validate(document)
    return refused.value


def test_a_sound_workflow_knows_its_order_and_the_defaults_of_its_steps():
    workflow = WorkflowDef.model_validate(MEDIA)

    assert workflow.plan().order == ("ingest", "audio", "render")
    assert workflow.steps[2].max_attempts == 3
    assert workflow.steps[2].backoff is None
    assert workflow.is_active


def test_the_stored_steps_are_those_that_were_written():
    assert WorkflowDef.model_validate(MEDIA).steps_document() == [
        MEDIA["steps"][0],
        MEDIA["steps"][1],
        MEDIA["steps"][2] | {"default_params": {}},
    ]


def test_keyword_arguments_and_step_objects_are_checked_in_the_same_way():
    steps = [WorkflowStep(key="a", service="s"), WorkflowStep(key="b", service="s", depends_on=["x"])]

    with pytest.raises(WorkflowInvalid, match='workflow "w": step "b" depends on "x", which does not exist'):
        WorkflowDef(name="w", steps=steps)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        (
            {"depends_on": ["nowhere"]},
            'workflow "media": step "render" depends on "nowhere", which does not exist',
        ),
        ({"depends_on": ["render"]}, 'workflow "media": step "render" depends on itself'),
        ({"depend_on": []}, 'step "render": has an unknown field "depend_on" (did you mean "depends_on"?)'),
        ({"max_attempt": 1}, '(did you mean "max_attempts"?)'),
        ({"priority": 1}, 'unknown field "priority"'),
        ({"service": "builder"}, 'step "render": service "builder" is reserved'),
        ({"service": "a b"}, 'step "render": service "a b" is not a service name'),
        ({"service": "x" * 41}, "is not a service name"),
        ({"depends_on": "audio"}, 'step "render": depends_on must be a list'),
        ({"max_attempts": 0}, 'step "render": max_attempts must be greater than or equal to 1'),
        ({"timeout": 0}, 'step "render": timeout must be greater than 0'),
        ({"timeout": float("inf")}, 'step "render": timeout must be a finite number'),
        ({"backoff": []}, 'step "render": backoff is an empty list'),
        ({"backoff": {"strategy": "expo"}}, 'step "render": backoff strategy must be'),
        ({"requires": {"gpu": [1]}}, 'step "render": requires has a label "gpu" that is neither text'),
        ({"concurrency_limit": 2}, "has a concurrency_limit but no concurrency_key"),
        (
            {"concurrency_key": "k", "concurrency_limit": 0},
            "concurrency_limit must be greater than or equal to 1",
        ),
        (
            {"default_params": {"x": float("nan")}},
            'step "render": default_params holds a value that PostgreSQL',
        ),
        ({"default_params": {"x": "\x00"}}, "default_params holds a value that PostgreSQL cannot keep"),
        ({"default_params": {"x": "y" * 70_000}}, "default_params is larger than 64 KiB"),
    ],
)
def test_a_wrong_step_is_refused_by_name(fields: dict[str, Any], sentence: str):
    refusal = refusal_of(changed(**fields))

    assert sentence in str(refusal)
    assert refusal.step == "render"


@pytest.mark.parametrize("key", ["", "../x", ".hidden", "a/b", "ä", "k" * 101, "a\n"])
def test_a_key_that_could_not_stand_in_an_object_key_is_refused(key: str):
    assert "is not a step key" in str(refusal_of(changed(key=key)))


def test_a_step_without_a_key_is_named_by_its_number():
    assert 'workflow "media": step number 4: key is missing' in str(
        refusal_of(MEDIA | {"steps": [*MEDIA["steps"], {"service": "s"}]})
    )


def test_duplicates_cycles_and_empty_workflows_are_refused():
    assert 'two steps have the key "audio"' in str(refusal_of(changed(key="audio", depends_on=[])))
    assert "ingest → render → audio → ingest" in str(refusal_of(changed(0, depends_on=["render"])))
    assert "there are no steps" in str(refusal_of(MEDIA | {"steps": []}))


@pytest.mark.parametrize("document", [None, 3, "x", [], {"steps": {}}, {"name": "w"}, {"name": "w", "steps": [None]}])
def test_anything_else_is_refused_with_the_same_kind_of_error(document: Any):
    assert str(refusal_of(document)).startswith("workflow")


def test_many_problems_make_one_message_of_bounded_length():
    steps = [{"key": f"k{n}", "service": "a b"} for n in range(1000)]

    assert str(refusal_of({"name": "w", "steps": steps})).endswith("; and 995 more")


def test_a_workflow_of_a_hundred_thousand_steps_is_accepted_and_one_more_is_not():
    steps = [{"key": f"k{n}", "service": "s"} for n in range(100_001)]

    assert len(WorkflowDef.model_validate({"name": "w", "steps": steps[1:]}).steps) == 100_000
    assert "at most 100000" in str(refusal_of({"name": "w", "steps": steps}))


def test_who_keeps_a_refusal_keeps_no_document():
    """Pydantic's error is out of sight of the garbage collector: as the context of ours it would hold all frames."""

    class Canary(dict[str, object]):
        pass

    def refused() -> weakref.ref[Canary]:
        document = Canary(name="w", steps=[{"key": "a", "service": "s", "delay": "x"}])
        kept: WorkflowInvalid | None = None
        try:
            WorkflowDef.model_validate(document)
        except WorkflowInvalid as error:
            kept = error
        assert kept
        return weakref.ref(document)

    gone = refused()
    gc.collect()

    assert gone() is None


@pytest.mark.parametrize("delay", [-1, 1e300, "400d"])
def test_a_delay_that_no_step_can_have_is_refused_when_the_workflow_is_written(delay: object):
    with pytest.raises(WorkflowInvalid, match="delay must be between 0 and a year"):
        WorkflowDef.model_validate({"name": "w", "steps": [{"key": "a", "service": "s", "delay": delay}]})


def test_an_example_of_a_tool_that_no_database_keeps_is_refused():
    deep: object = 1
    for _ in range(300):
        deep = [deep]
    with pytest.raises(ValidationError, match="PostgreSQL cannot keep"):
        ToolDef.model_validate({"name": "a.b", "service": "s", "input_schema": {}, "examples": [{"x": deep}]})
