"""Backfills: runs of a schedule for times that lie behind."""

from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from fastapi import APIRouter, Body, Query
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from accsd.db import Verdict, firings
from accsd.db.firings import Backfill
from accsd.db.views import backfills as views
from accsd.db.views import schedules as schedule_views
from accsd.db.views.backfills import BackfillRow
from accsd.errors import InvalidValue, NotFound, VerbRefused
from accsd.explain import occurrences
from accsd.gateway.access import GuardedRoute, require_own, scoped
from accsd.gateway.answers import answer, document
from accsd.gateway.bodies import Body as RequestBody
from accsd.gateway.context import caller_of, context_of
from accsd.gateway.reach import Reach, require_schedule, within
from accsd.gateway.routes.jobs import idempotency_key
from accsd.gateway.routes.verbs import verbs_of
from accsd.gateway.schemas import ANYTHING, answers, listed, row_schema
from accsd.model.access import Scope

router = APIRouter(prefix="/api/v1", route_class=GuardedRoute, tags=["schedules"])


class BackfillAsked(RequestBody):
    schedule: str = Field(min_length=1, max_length=200)
    begin: datetime = Field(alias="from")
    end: datetime | None = Field(default=None, alias="to", description="Before this time; now, if it is left out.")
    order: Literal["oldest", "newest"] = "oldest"
    parallel: int = Field(default=1, ge=1, le=1000)
    existing: Literal["none", "failed", "all"] = "none"
    options: dict[str, Any] | None = None
    priority: int | None = Field(default=None, ge=-(2**31), le=2**31 - 1)
    force: bool = False
    token: str | None = Field(
        default=None, max_length=200, description="Of a dry run: refused if it would do something else by now."
    )
    reason: str | None = Field(default=None, max_length=1000)


class BackfillEnded(RequestBody):
    cancel_jobs: bool = False
    reason: str | None = Field(default=None, max_length=1000)


@router.get(
    "/backfills",
    operation_id="backfills.list",
    summary="Backfills, the newest first",
    responses=answers(listed(row_schema(BackfillRow))),
    openapi_extra=scoped(Scope.READ, Reach.NARROWED),
)
async def list_backfills(
    request: Request, schedule: str | None = Query(None, max_length=200), limit: int = Query(50, ge=1, le=500)
) -> Response:
    context = context_of(request)
    if schedule is not None:
        await require_schedule(context, caller_of(request), schedule)
    elif within(caller_of(request)) is not None:
        raise InvalidValue("a token with limits names a schedule")
    which = None if schedule is None else (await schedule_views.schedule_named(context.reads, schedule)).id
    rows = await views.backfills(context.reads, schedule_id=which, limit=limit)
    return answer({"items": [document(row, context.redaction) for row in rows]})


@router.post(
    "/backfills",
    operation_id="backfills.start",
    summary="Run a schedule for times that lie behind",
    status_code=202,
    responses=answers(ANYTHING, 202, "Begun") | answers(ANYTHING, 200, "A dry run, or the key was known"),
    openapi_extra=scoped(Scope.SUBMIT, Reach.NARROWED),
)
async def start(request: Request, asked: BackfillAsked, dry_run: bool = False) -> Response:
    """A dry run lists what would happen to each time, and gives a token for the real call. The same `Idempotency-Key`
    again is the same backfill."""
    context = context_of(request)
    await require_schedule(context, caller_of(request), asked.schedule)
    row = await schedule_views.schedule_named(context.reads, asked.schedule)
    require_own(request, row.created_by)
    if asked.begin.tzinfo is None or (asked.end is not None and asked.end.tzinfo is None):
        raise InvalidValue("from and to need an offset: 2026-11-18T12:00:00Z")
    rule = occurrences.rule_of(row, context.settings.scheduler.spread)
    last = row.now if asked.end is None else min(asked.end, row.now)
    found = occurrences.behind(rule, asked.begin, last, newest_first=asked.order == "newest")
    wanted = Backfill(
        revision=row.revision,
        nominals=[each.nominal for each in found],
        folds=[each.fold for each in found],
        dues=[each.due_at for each in found],
        parallel=asked.parallel,
        existing=asked.existing,
        options=asked.options,
        priority=asked.priority,
        force=asked.force,
    )
    made = await firings.start_backfill(
        verbs_of(request),
        row.name,
        wanted,
        dry_run=dry_run,
        token=asked.token,
        by=caller_of(request).actor,
        reason=asked.reason,
        key=idempotency_key(request),
        request=asked.model_dump(mode="json", by_alias=True, exclude={"schedule", "token", "reason"}),
    )
    if made.reason == "not_an_occurrence":
        raise NotFound(f"{row.name} names no time between these that lies behind")
    if made.verdict is Verdict.REFUSED:
        raise VerbRefused("start_backfill", made.reason or "unknown", subject=f"schedule {row.name}")
    if made.verdict is Verdict.REPEATED:
        return answer(document(made), headers={"Idempotency-Replayed": "true"})
    if not dry_run:
        return answer(document(made), status=202)
    plan = await views.preview_backfill(context.reads, row.id, wanted.nominals, wanted.folds, wanted.existing)
    return answer(document(made) | {"dry_run": True, "occurrences": [document(each) for each in plan]})


@router.delete(
    "/backfills/{backfill_id}",
    operation_id="backfills.cancel",
    summary="End a backfill",
    responses=answers(ANYTHING),
    openapi_extra=scoped(Scope.OPERATE),
)
async def cancel(request: Request, backfill_id: UUID, asked: BackfillEnded = Body(default=BackfillEnded())) -> Response:
    by = caller_of(request).actor
    made = await firings.cancel_backfill(
        verbs_of(request), backfill_id, cancel=asked.cancel_jobs, by=by, reason=asked.reason
    )
    if made.verdict is Verdict.REFUSED:
        raise VerbRefused("cancel_backfill", made.reason or "unknown", subject=f"backfill {backfill_id}")
    return answer({"answer": made.verdict})
