"""Pipelines as people write them, made into workflows: `{params, pipeline: [{id, uses, with, save_as, if}]}`.

A pipeline is a list in order: a step depends on the one before it, unless it says otherwise. A workflow implies
nothing."""

from typing import Any, Final, cast

from accsd.errors import WorkflowInvalid

_SERVICE: Final = "service:"


def is_pipeline(document: Any) -> bool:
    return isinstance(document, dict) and "pipeline" in document


def as_workflow(document: Any) -> Any:
    """The same with `steps`. What is no mapping or list where one should be is left as it is: the model says so.
    Raises WorkflowInvalid."""
    if not isinstance(document, dict):
        return document
    written = cast("dict[str, Any]", document)
    if "pipeline" in written and "steps" in written:
        raise WorkflowInvalid("a workflow has steps or a pipeline, not both", complaints=[(("pipeline",), _BOTH)])
    field = "pipeline" if "pipeline" in written else "steps"
    entries = written.get(field)
    if not isinstance(entries, list):
        return {("steps" if name == "pipeline" else name): value for name, value in written.items()}
    steps: list[Any] = []
    for number, entry in enumerate(cast("list[Any]", entries)):
        before = cast("dict[str, Any]", steps[-1]).get("key") if steps and isinstance(steps[-1], dict) else None
        steps.append(_step(entry, (field, number), follows=before if field == "pipeline" else None))
    return {name: value for name, value in written.items() if name != field} | {"steps": steps}


_BOTH: Final = "pipeline and steps exclude each other"


def _step(entry: Any, place: tuple[str | int, ...], *, follows: Any) -> Any:
    if not isinstance(entry, dict):
        return entry
    if place[0] == "steps" and "uses" not in entry:
        return cast("dict[str, Any]", entry)  # as it is: of 100,000 steps a copy takes 20 MB
    step = dict(cast("dict[str, Any]", entry))
    if "id" in step and "key" not in step and place[0] == "pipeline":
        step = {"key": step.pop("id"), **step}
    if follows is not None:
        step.setdefault("depends_on", [follows])
    uses = step.get("uses")
    if isinstance(uses, str) and uses.startswith(_SERVICE) and "service" not in step:
        del step["uses"]
        step["service"] = uses.removeprefix(_SERVICE)
    return step
