"""Tasks as schedules: what a task says becomes the definition of a schedule, and the other way round."""

import hashlib
import re
import secrets
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

from accsd.errors import InvalidValue, ScheduleInvalid
from accsd.explain import schedule_definitions as definitions
from accsd.gateway.ordinaut.pipelines import TaskWork
from accsd.gateway.ordinaut.shapes import TaskChange, TaskIn
from accsd.gateway.problems import HttpProblem
from accsd.gateway.quota import shortest_interval
from accsd.model.schedule import KINDS, TIMES, ScheduleDef, is_for
from accsd.planning.recurrence import Rule

META: Final = "ordinaut"  # the member of workflows.meta that is this door's
_FIELD_OF: Final = {kind: field for field, kind in KINDS.items()}
_MIDDLE: Final = 5  # Ordinaut's priority of a task that says none: 0 of a job
_LONGEST_SLUG: Final = 60


def new_name(title: str, key: str | None) -> str:
    """A name for a task that has none, as its title. The same key again gives the same end of it."""
    slug = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:_LONGEST_SLUG].strip("-")
    return f"{slug or 'task'}-{end_of_name(key)}"


def end_of_name(key: str | None) -> str:
    return secrets.token_hex(4) if key is None else hashlib.sha256(key.encode()).hexdigest()[:16]


def priority_of_job(priority: int) -> int:
    return _MIDDLE - priority


def priority_of_task(priority: int) -> int:
    return min(9, max(1, _MIDDLE - priority))


def new_definition(name: str, wanted: TaskIn, *, timezone: str) -> ScheduleDef:
    """The schedule of a new task."""
    return _validated(
        {
            "name": name,
            "title": wanted.title,
            "description": wanted.description,
            "workflow": name,
            "timezone": wanted.timezone or timezone,
            "priority": priority_of_job(wanted.priority),
            **_when(wanted.schedule_kind, wanted.schedule_expr, wanted.condition),
            **_exclusion(wanted.concurrency_key),
            **_cooldown(wanted.schedule_kind, wanted.dedupe_window_seconds),
        }
    )


def changed_definition(kept: Mapping[str, Any], kind: str, work: TaskWork, change: TaskChange) -> ScheduleDef:
    """`kept` is what stands there, as one would write it; `work` what the task does after the change."""
    given = change.model_dump(exclude_unset=True)
    new_kind = change.schedule_kind or kind
    edited = {field: value for field, value in kept.items() if is_for(field, new_kind)}
    if {"schedule_kind", "schedule_expr", "condition"} & given.keys():
        expr = given.get("schedule_expr") or (_expression(kept, kind) if new_kind == kind else None)
        edited = {field: value for field, value in edited.items() if field not in KINDS}
        stands = kept.get("condition") if kind == new_kind == "condition" else None
        edited |= _when(new_kind, expr, given.get("condition") or stands)
    edited |= {field: given[field] for field in ("title", "description", "timezone") if given.get(field) is not None}
    if change.priority is not None:
        edited["priority"] = priority_of_job(change.priority)
    if "concurrency_key" in given:
        edited |= _exclusion(change.concurrency_key)
    if {"dedupe_window_seconds", "schedule_kind"} & given.keys():
        edited.pop("cooldown", None)
        edited |= _cooldown(new_kind, work.dedupe_window_seconds)
    return _validated(edited)


def check_window(rule: Rule | None, draft: definitions.Draft, window: int) -> None:
    """A task of times runs once for each, so that its window means nothing, unless the times are nearer than that."""
    if rule is None or not window:
        return
    shortest = shortest_interval(rule, draft.now, below=timedelta(seconds=window))
    if shortest is not None:
        what = f"the times are {shortest.total_seconds():g} s apart, and dedupe_window_seconds is {window}"
        raise ScheduleInvalid(
            f"{what}: say by the times how often it is to run", complaints=[(("dedupe_window_seconds",), what)]
        )


def _when(kind: str, expr: str | None, condition: Mapping[str, Any] | None) -> dict[str, Any]:
    if not expr:
        raise _wrong("schedule_expr", f"a task of kind {kind} says when by schedule_expr")
    if kind == "event" and "*" in expr:
        raise _wrong(
            "schedule_expr",
            "a task listens to one topic, which is matched exactly; POST /api/v1/schedules makes one for many",
        )
    if kind == "condition":
        said = {"is": True, "fire_initially": True} if condition is None else dict(condition)
        if said.get("source", "outside") != "outside":
            raise _wrong("condition", "the condition of a task is reported from outside; it has no probe")
        return {"condition": {**said, "name": expr}}
    return {_FIELD_OF[kind]: expr}


def _expression(kept: Mapping[str, Any], kind: str) -> Any:
    found = kept[_FIELD_OF[kind]]
    return found["name"] if kind == "condition" else found


def _exclusion(key: str | None) -> dict[str, Any]:
    """Runs of one key wait for each other; without one a task may run beside itself."""
    return {"overlap": "allow", "run_key": None} if key is None else {"overlap": "queue_all", "run_key": key}


def _cooldown(kind: str, window: int) -> dict[str, Any]:
    return {"cooldown": timedelta(seconds=window)} if window and kind not in TIMES.values() else {}


def _validated(document: dict[str, Any]) -> ScheduleDef:
    """ScheduleInvalid names the fields as the client does."""
    try:
        return ScheduleDef.model_validate(document)
    except ScheduleInvalid as error:
        complaints = [((_named(place[0]), *place[1:]) if place else (), said) for place, said in error.complaints]
        raise ScheduleInvalid(error.message, hint=error.hint, complaints=complaints) from None


def _named(field: str | int) -> str | int:
    if field in KINDS and field != "condition":
        return "schedule_expr"
    return {"run_key": "concurrency_key", "cooldown": "dedupe_window_seconds"}.get(str(field), field)


def _wrong(field: str, what: str) -> HttpProblem:
    return HttpProblem("invalid", what, errors=[{"pointer": f"/{field}", "detail": what}])


def work_of(meta: Mapping[str, Any] | None) -> TaskWork | None:
    """What a workflow's `meta` keeps of a task; None: it was not written here."""
    kept = (meta or {}).get(META)
    if not isinstance(kept, Mapping):
        return None
    try:
        return TaskWork(**kept)  # pyright: ignore[reportUnknownArgumentType]
    except TypeError:
        raise InvalidValue("what is kept with the workflow of this task was written by another version") from None
