"""Tasks and runs as Ordinaut shows them."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, cast
from uuid import UUID

from accsd.db import Database
from accsd.db.access import actor_ids
from accsd.db.views.runs import RunRow
from accsd.db.views.schedules import ScheduleRow
from accsd.db.views.workflows import WorkflowContent, contents_of
from accsd.explain.redaction import Redaction
from accsd.gateway.ordinaut.definitions import priority_of_task, work_of
from accsd.gateway.ordinaut.pipelines import PIPELINE, TaskWork, pipeline_of

_STATUS: Final = {"ended": "canceled", "paused": "paused"}  # every other state is active
_SUCCESS: Final = {"done": True, "error": False, "cancelled": False}
_LARGEST_LISTED: Final = 64 * 1024  # of the payload of a task in a list
HIDDEN: Final = "the error is hidden: ask with include_errors=true"


def status_of(state: str) -> str:
    return _STATUS.get(state, "active")


async def task_documents(
    db: Database, rows: Sequence[ScheduleRow], redaction: Redaction, *, is_list: bool = True
) -> list[dict[str, Any]]:
    most = _LARGEST_LISTED if is_list else None
    contents = await contents_of(db, [(row.workflow, row.version) for row in rows], most=most)
    ids = await actor_ids(db, [row.created_by for row in rows if row.created_by is not None])
    return [
        _task(row, content, ids.get(row.created_by or ""), redaction)
        for row, content in zip(rows, contents, strict=True)
    ]


def _task(
    row: ScheduleRow, content: WorkflowContent | None, owner: UUID | None, redaction: Redaction
) -> dict[str, Any]:
    work = work_shown(row, content)
    return {
        "id": row.id,
        "title": row.title or row.name,
        "description": row.description or "",
        "created_by": owner,
        "schedule_kind": row.schedule_kind,
        "schedule_expr": row.schedule_expr,
        "timezone": row.timezone,
        "payload": redaction.inside(dict(work.payload)),
        "status": status_of(row.state),
        "priority": priority_of_task(row.priority),
        "dedupe_key": work.dedupe_key,
        "dedupe_window_seconds": work.dedupe_window_seconds,
        "max_retries": work.max_retries,
        "backoff_strategy": work.backoff_strategy,
        "concurrency_key": row.run_key,
        "created_at": row.created_at,
        "updated_at": row.updated_at,
        "name": row.name,
        "workflow": row.workflow,
        "condition": row.condition,
        "state": row.state,
        "state_reason": None if row.state == "active" else row.reason,
        "next_run_at": None if status_of(row.state) != "active" else row.next_due,
        "last_run_id": row.last_job_id,
    }


def work_shown(row: ScheduleRow, content: WorkflowContent | None) -> TaskWork:
    """What a task does: as it was written here, or as the steps of its workflow say it."""
    kept = None if content is None else work_of(content.meta)
    if kept is not None:
        return kept
    window = int((row.cooldown or timedelta(0)).total_seconds())
    if content is None or content.omitted is not None:
        payload: dict[str, Any] = {PIPELINE: []} if content is None else {"omitted": content.omitted}
        return TaskWork(payload, 0, "exponential_jitter", dedupe_window_seconds=window)
    attempts = max((int(step.get("max_attempts", 3)) for step in content.steps), default=1)
    payload = {"params": {**content.params, **row.options}, PIPELINE: pipeline_of(content.steps)}
    return TaskWork(payload, attempts - 1, _strategy(content.steps), dedupe_window_seconds=window)


def _strategy(steps: Sequence[Mapping[str, Any]]) -> str:
    backoff: Any = steps[0].get("backoff") if steps else None
    said = cast("dict[str, Any]", backoff).get("strategy") if isinstance(backoff, dict) else None
    return said if said in ("linear", "fixed") else "exponential_jitter"


# Runs


def run_document(row: RunRow, redaction: Redaction, *, with_errors: bool = True) -> dict[str, Any]:
    failed = next((step for step in row.steps if step["status"] == "error"), None)
    error = row.error_message or (failed or {}).get("error_message") or row.error_code
    shown = error if with_errors or error is None else HIDDEN
    return {
        "id": row.id,
        "task_id": row.schedule_id,
        "status": row.status,
        "success": _SUCCESS.get(row.status),
        "error": None if row.status == "done" else shown,
        "error_code": row.error_code,
        "attempt": max(map(_attempts, row.steps), default=0),
        "output": _output(row, redaction),
        "steps": [_step(step, redaction, with_errors=with_errors) for step in row.steps],
        "trigger": None if row.trigger is None else redaction.inside(row.trigger),
        "workflow": row.workflow,
        "workflow_version": row.version,
        "lease_owner": row.lease_owner,
        "leased_until": row.leased_until,
        "started_at": row.started_at,
        "finished_at": row.finished_at,
        "created_at": row.created_at,
    }


def _output(row: RunRow, redaction: Redaction) -> dict[str, Any] | None:
    """The results by the names that expressions use; of several steps of one name that of the last one that is done."""
    if not row.steps:
        return None
    names = {step.get("key"): step.get("save_as") or step.get("key") for step in row.definition}
    steps = {names.get(step["key"], step["key"]): _results(step) for step in row.steps if step["status"] == "done"}
    return redaction.inside({"params": {**row.params, **row.options}, "steps": steps})


def _attempts(step: Mapping[str, Any]) -> int:
    """Those that failed, and the one that runs or ended well."""
    return step["attempt"] + (step["status"] in ("starting", "running", "done"))


def _results(step: Mapping[str, Any]) -> Any:
    return {"omitted": step["omitted"]} if step.get("omitted") is not None else step.get("results")


def _step(step: Mapping[str, Any], redaction: Redaction, *, with_errors: bool) -> dict[str, Any]:
    error = step.get("error_message")
    return {
        "id": step["key"],
        "status": step["status"],
        "attempt": _attempts(step),
        "error_code": step.get("error_code"),
        "error": error if with_errors or error is None else HIDDEN,
        "node": step.get("node"),
        "started_at": step.get("started_at"),
        "finished_at": step.get("finished_at"),
        "output": redaction.inside(_results(step)),
    }
