"""Payloads of tasks as workflows: `{params, pipeline: [{id, uses, with, save_as, if, timeout_seconds, max_retries}]}`.

All that can't be translated is said at once, then all that is wrong with the workflow, each with its place in the body
of the request.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, cast

from accsd.db import Database
from accsd.db.tools import bound_workflow, find_tools
from accsd.errors import ExpressionInvalid, Place, WorkflowInvalid
from accsd.expressions import problem_of
from accsd.gateway.ordinaut.cel import condition_in_cel, text_in_cel
from accsd.model import WorkflowDef
from accsd.model.tool import BUILTIN
from accsd.pipeline.document import as_workflow
from accsd.pipeline.flow import check_workflow

PAYLOAD: Final = "payload"
PIPELINE: Final = "pipeline"
BACKOFFS: Final = ("exponential_jitter", "linear", "fixed")
_SERVICE: Final = "service:"
_FIELDS: Final = ("id", "uses", "with", "save_as", "if", "timeout_seconds", "max_retries")
_OURS: Final = {"key": "id", "service": "uses", "max_attempts": "max_retries", "timeout": "timeout_seconds"}
# What Ordinaut has for trying things out: gives back what it was given.
_ECHOES: Final = frozenset({"debug.echo", "debug.log"})
_ECHO: Final = "accs.transform"
_MOST_RETRIES: Final = 100
_LONGEST_TIMEOUT: Final = 30 * 86_400


@dataclass(frozen=True, slots=True)
class TaskWork:
    """What a task does: what goes into a version of its workflow."""

    payload: Mapping[str, Any]
    max_retries: int
    backoff_strategy: str
    dedupe_key: str | None = None
    dedupe_window_seconds: int = 0
    key: str | None = None  # the Idempotency-Key of the request that made it, and
    request: str | None = None  #   the digest of its body

    def document(self) -> dict[str, Any]:
        """As it is kept with the workflow."""
        return {
            PAYLOAD: dict(self.payload),
            "max_retries": self.max_retries,
            "backoff_strategy": self.backoff_strategy,
            "dedupe_key": self.dedupe_key,
            "dedupe_window_seconds": self.dedupe_window_seconds,
            "key": self.key,
            "request": self.request,
        }


async def workflow_of(
    db: Database, name: str, title: str, work: TaskWork, *, by: str, step_timeout: timedelta
) -> WorkflowDef:
    """The workflow of a task, with the versions of its tools. Raises WorkflowInvalid with all that is wrong."""
    steps = _steps(work.payload)
    used = {str(step.get("uses")) for step in steps}
    known = {tool.name for tool in await find_tools(db, sorted(used & _ECHOES))} if used & _ECHOES else set[str]()
    for step in steps:
        if step.get("uses") in _ECHOES - known:
            step["uses"] = _ECHO
    document: dict[str, Any] = {
        "name": name,
        "title": " ".join(title.split()) or None,
        "params": work.payload.get("params") or {},
        PIPELINE: [_with_policy(step, work) for step in steps],
    }
    try:
        found = WorkflowDef.model_validate(as_workflow(document))
        check_workflow(found)
        found = await bound_workflow(db, found, by=by)
    except WorkflowInvalid as error:
        raise _placed(error) from None
    return _timed(found, step_timeout)


def uses_of(workflow: WorkflowDef) -> list[str]:
    """What its steps use, as one writes it: a tool, or service:NAME."""
    return [
        f"{_SERVICE}{step.service}" if step.uses is None else step.uses.partition("@")[0] for step in workflow.steps
    ]


def pipeline_of(steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The steps of a workflow that was not written here, as a task shows them. Their expressions are CEL."""
    shown: list[dict[str, Any]] = []
    for step in steps:
        uses = step.get("uses") or f"{_SERVICE}{step.get('service')}"
        given = {**step.get("default_params", {}), **step.get("with", {})}
        rest = {name: step[name] for name in ("save_as", "if", "for_each", "depends_on") if step.get(name)}
        shown.append({"id": step.get("key"), "uses": uses, "with": given, **rest})
    return shown


# One step


def _steps(payload: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Translated, with the ids of those that have none."""
    pipeline, params = payload.get(PIPELINE), payload.get("params")
    complaints: list[tuple[Place, str]] = []
    if not isinstance(pipeline, list) or not pipeline:
        complaints.append(((PAYLOAD, PIPELINE), "payload.pipeline must be a list with one step or more"))
    if params is not None and not isinstance(params, dict):
        complaints.append(((PAYLOAD, "params"), "payload.params must be an object"))
    if complaints:
        raise _invalid(complaints)
    steps: list[dict[str, Any]] = []
    for number, written in enumerate(cast("list[Any]", pipeline)):
        place = (PAYLOAD, PIPELINE, number)
        if isinstance(written, dict):
            steps.append(_step(cast("dict[str, Any]", written), number, place, complaints))
        else:
            complaints.append((place, f"step number {number + 1} must be an object"))
    if complaints:
        raise _invalid(complaints)
    return steps


def _step(written: dict[str, Any], number: int, place: Place, complaints: list[tuple[Place, str]]) -> dict[str, Any]:
    key = written.get("id") or f"step_{number}"
    named = f'step "{key}"' if isinstance(key, str) else f"step number {number + 1}"

    def complain(field: str, what: str) -> None:
        complaints.append(((*place, field), f"{named}: {field} {what}"))

    for field in written:
        if field not in _FIELDS:
            complain(field, f"is not known; a step has {', '.join(_FIELDS)}")
    step: dict[str, Any] = {"id": key, "uses": _tool_name(written.get("uses"), complain)}
    if "with" in written:
        step["with"] = _translated(written["with"], (*place, "with"), named, complaints)
    if (condition := written.get("if")) is not None:
        step["if"] = _condition(condition, (*place, "if"), named, complaints)
    if written.get("save_as") is not None:
        step["save_as"] = written["save_as"]
    if (retries := _whole(written, "max_retries", 0, _MOST_RETRIES, complain)) is not None:
        step["max_attempts"] = retries + 1
    if (seconds := _whole(written, "timeout_seconds", 1, _LONGEST_TIMEOUT, complain)) is not None:
        step["timeout"] = seconds
    return step


def _tool_name(uses: Any, complain: Callable[[str, str], None]) -> str:
    """Tools have no hyphens here: `weather-mcp.forecast` is the tool weather_mcp.forecast."""
    if not isinstance(uses, str) or not uses.strip():
        complain("uses", "must name a tool, such as weather.forecast, or service:NAME")
        return ""
    return uses if uses.startswith(_SERVICE) else uses.replace("-", "_")


def _whole(
    written: Mapping[str, Any], field: str, least: int, most: int, complain: Callable[[str, str], None]
) -> int | None:
    value = written.get(field)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        complain(field, f"must be a whole number from {least} to {most}")
        return None
    return value


def _condition(written: Any, place: Place, named: str, complaints: list[tuple[Place, str]]) -> Any:
    if isinstance(written, bool):
        return written
    if not isinstance(written, str):
        complaints.append((place, f"{named}: if must be an expression"))
        return None
    try:
        return condition_in_cel(written)
    except ExpressionInvalid as error:
        complaints.append((place, f"{named}: if: {problem_of(error, ()).what}"))
        return None


def _translated(written: Any, place: Place, named: str, complaints: list[tuple[Place, str]]) -> Any:
    """Keys are no templates."""
    match written:
        case str():
            try:
                return text_in_cel(written)
            except ExpressionInvalid as error:
                where = ".".join(map(str, place[3:]))
                complaints.append((place, f"{named}: {where}: {problem_of(error, ()).what}"))
                return written
        case dict():
            members = cast("dict[str, Any]", written).items()
            return {key: _translated(value, (*place, key), named, complaints) for key, value in members}
        case list():
            items = enumerate(cast("list[Any]", written))
            return [_translated(value, (*place, index), named, complaints) for index, value in items]
        case _:
            return written


def _with_policy(step: dict[str, Any], work: TaskWork) -> dict[str, Any]:
    """2.4: what the task says of retries is said to every step that says nothing itself."""
    strategy = work.backoff_strategy.removesuffix("_jitter")
    return {"max_attempts": work.max_retries + 1, "backoff": {"strategy": strategy}, **step}


def _timed(workflow: WorkflowDef, timeout: timedelta) -> WorkflowDef:
    """With the time that a step has where neither it nor its tool says one. What waits by its nature has its own."""
    return workflow.model_copy(
        update={
            "steps": [
                step
                if step.timeout is not None or (step.uses or "").startswith(BUILTIN)
                else step.model_copy(update={"timeout": timeout.total_seconds()})
                for step in workflow.steps
            ]
        }
    )


# What is wrong


def _invalid(complaints: list[tuple[Place, str]]) -> WorkflowInvalid:
    shown = "; ".join(said for _, said in complaints[:5])
    return WorkflowInvalid(f"the pipeline is wrong: {shown}", complaints=complaints)


def _placed(error: WorkflowInvalid) -> WorkflowInvalid:
    """With the places of the request's body instead of the workflow's."""
    found = [(_place(place), said) for place, said in error.complaints] or [((PAYLOAD, PIPELINE), error.message)]
    return WorkflowInvalid(error.message, step=error.step, hint=error.hint, complaints=found)


def _place(place: Place) -> Place:
    match place:
        case ("steps" | "pipeline", int() as number, str() as field, *rest):
            return (PAYLOAD, PIPELINE, number, _OURS.get(field, field.rstrip("_")), *rest)
        case ("steps" | "pipeline", *rest):
            return (PAYLOAD, PIPELINE, *rest)
        case _:
            return (PAYLOAD, *place)
