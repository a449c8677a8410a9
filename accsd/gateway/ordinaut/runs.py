"""/runs: a run is a job that a schedule has started, with the output of each step by its name."""

from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from accsd.db.views import runs as views
from accsd.db.views.jobs import clock
from accsd.db.views.runs import RunFigures, RunFilter
from accsd.errors import NotFound
from accsd.gateway.access import scoped
from accsd.gateway.answers import answer, large_answer
from accsd.gateway.context import caller_of, context_of
from accsd.gateway.ordinaut.documents import run_document
from accsd.gateway.ordinaut.shapes import RUN, OrdinautRoute, listed, moment, page
from accsd.gateway.ordinaut.tasks import task_row
from accsd.gateway.reach import Reach, require_jobs, within
from accsd.gateway.schemas import ANYTHING, answers
from accsd.model.access import Scope

router = APIRouter(prefix="/runs", route_class=OrdinautRoute, tags=["runs"])
_DAYS: Final = Query(30, ge=1, le=365)
_FEW_DAYS: Final = Query(7, ge=1, le=365)


@router.get(
    "",
    operation_id="runs.list",
    summary="Runs, the newest first",
    responses=answers(listed(RUN)),
    openapi_extra=scoped(Scope.READ, Reach.NARROWED),
)
async def list_runs(
    request: Request,
    task_id: UUID | None = None,
    success: bool | None = None,
    include_errors: bool = False,
    start_time: datetime | None = None,
    end_time: datetime | None = None,
    limit: int = Query(50, ge=1, le=200),
    offset: int = Query(0, ge=0, le=10_000_000),
) -> Response:
    """Of one task, or among the newest 10,000 jobs; `total` counts those that were looked at. Results of more than 64
    KiB are left out."""
    context = context_of(request)
    wanted = RunFilter(
        schedule_id=task_id,
        success=success,
        since=moment(start_time),
        until=moment(end_time),
        within=within(caller_of(request)),
    )
    rows, total = await views.run_page(context.reads, wanted, limit=limit, offset=offset)

    def made() -> dict[str, Any]:
        shown = [run_document(row, context.redaction, with_errors=include_errors) for row in rows]
        return page(shown, total, limit, offset)

    return await large_answer(made, sum(1 + len(row.steps) for row in rows))


@router.get(
    "/{run_id}",
    operation_id="runs.get",
    summary="A run",
    responses=answers(RUN),
    openapi_extra=scoped(Scope.READ, Reach.NARROWED),
)
async def get_run(request: Request, run_id: UUID) -> Response:
    context = context_of(request)
    row = await views.find_run(context.reads, run_id)
    if row is None:
        raise NotFound(f"there is no run {run_id}", hint="GET /runs lists them")
    await require_jobs(context, caller_of(request), [run_id])
    return answer(run_document(row, context.redaction))


@router.get(
    "/task/{task_id}/latest",
    operation_id="runs.latest",
    summary="The last run of a task, or null",
    responses=answers({"anyOf": [RUN, {"type": "null"}]}),
    openapi_extra=scoped(Scope.READ, Reach.NARROWED),
)
async def latest(request: Request, task_id: UUID) -> Response:
    context = context_of(request)
    await task_row(context.reads, caller_of(request), task_id)
    rows, _ = await views.run_page(context.reads, RunFilter(schedule_id=task_id), limit=1)
    return answer(run_document(rows[0], context.redaction) if rows else None)


@router.get(
    "/task/{task_id}/stats",
    operation_id="runs.stats",
    summary="Figures over the runs of a task",
    responses=answers(ANYTHING),
    openapi_extra=scoped(Scope.READ, Reach.NARROWED),
)
async def stats(request: Request, task_id: UUID, days: int = _DAYS) -> Response:
    context = context_of(request)
    await task_row(context.reads, caller_of(request), task_id)
    since = await clock(context.reads) - timedelta(days=days)
    found = await views.run_figures(context.reads, RunFilter(schedule_id=task_id, since=since))
    times = {"last_run": found.last, "last_success": found.last_done, "last_failure": found.last_failed}
    return answer({"task_id": task_id, "period_days": days, **_figures(found), **times})


@router.get(
    "/stats/summary",
    operation_id="runs.summary",
    summary="Figures over the runs of all tasks",
    responses=answers(ANYTHING),
    openapi_extra=scoped(Scope.READ, Reach.NARROWED),
)
async def summary(request: Request, days: int = _FEW_DAYS) -> Response:
    context = context_of(request)
    since = await clock(context.reads) - timedelta(days=days)
    wanted = RunFilter(since=since, within=within(caller_of(request)))
    found = await views.run_figures(context.reads, wanted)
    said = {"total_tasks_executed": found.schedules, "runs_per_day": round(found.total / days, 1)}
    return answer({"period_days": days, **_figures(found), **said})


def _figures(found: RunFigures) -> dict[str, Any]:
    """Rates are of all runs, those that are open included."""
    took = 0.0 if found.took is None else found.took.total_seconds()
    return {
        "total_runs": found.total,
        "successful_runs": found.done,
        "failed_runs": found.failed,
        "success_rate": round(found.done / max(found.total, 1), 3),
        "failure_rate": round(found.failed / max(found.total, 1), 3),
        "avg_execution_time_seconds": round(took, 2),
    }
