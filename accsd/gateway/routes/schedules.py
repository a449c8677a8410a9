"""Schedules: listed, shown, previewed, made, changed, and what people do to one that is there."""

from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Body, Path, Query
from pydantic import BeforeValidator, Field
from starlette.requests import Request
from starlette.responses import Response

from accsd.db import Database, Verdict, firings
from accsd.db import schedules as verbs
from accsd.db.views import firings as ledger_views
from accsd.db.views import schedules as views
from accsd.db.views.firings import FiringRow, LedgerFilter
from accsd.db.views.schedules import ScheduleRow
from accsd.errors import InvalidValue, ScheduleInvalid, VerbRefused
from accsd.explain import occurrences
from accsd.explain import schedule_definitions as definitions
from accsd.explain import schedules as words
from accsd.explain.ledger import fate
from accsd.gateway.access import GuardedRoute, require_limit, require_own, require_scope, scoped
from accsd.gateway.answers import answer, document
from accsd.gateway.bodies import Body as RequestBody
from accsd.gateway.bodies import Reason
from accsd.gateway.conditional import etag, require_version
from accsd.gateway.context import GatewayContext, caller_of, context_of
from accsd.gateway.reach import Reach, require_topic
from accsd.gateway.routes.jobs import idempotency_key
from accsd.gateway.routes.verbs import done
from accsd.gateway.schemas import ANYTHING, answers, listed, row_schema
from accsd.model.access import Caller, Scope
from accsd.model.schedule import ScheduleDef
from accsd.planning.recurrence import explain, lint
from accsd.values.units import parse_duration

router = APIRouter(prefix="/api/v1", route_class=GuardedRoute, tags=["schedules"])
_NAME: Final = Path(min_length=1, max_length=200)
Length = Annotated[timedelta, BeforeValidator(parse_duration)]


class Why(RequestBody):
    reason: str | None = Field(default=None, max_length=1000)


class Paused(Why):
    until: datetime | None = Field(default=None, description="It goes on then by itself.")


class Resumed(Why):
    recover: Literal["none", "one", "all"] = "none"


class Snoozed(Why):
    """For a time, or until a time."""

    length: Length | None = Field(default=None, alias="for", description='"2h"')
    until: datetime | None = None


class Skipped(Why):
    nominal: datetime = Field(description="Local to the schedule's zone, or with an offset.")


class RunAsked(Why):
    options: dict[str, Any] | None = None
    force: bool = Field(default=False, description="Also beside a run that has not ended.")


class Ended(Why):
    cancel: bool = Field(default=False, description="Cancel its open jobs, too.")


@router.get(
    "/schedules",
    operation_id="schedules.list",
    summary="The schedules",
    responses=answers(listed(ANYTHING)),
    openapi_extra=scoped(Scope.READ, Reach.NARROWED),
)
async def list_schedules(
    request: Request,
    state: list[str] = Query(default=[], max_length=6),
    workflow: str | None = Query(None, max_length=200),
    ended: bool = False,
    recent: int = Query(0, ge=0, le=50, description="With so many of the last outcomes of each"),
) -> Response:
    context, caller = context_of(request), caller_of(request)
    known = await views.schedules(context.reads, states=state, workflow=workflow, ended=ended)
    rows = [row for row in known if caller.reaches("workflows", row.workflow)]
    items = [_document(context, row) for row in rows]
    if recent:
        outcomes = await ledger_views.last_outcomes(context.reads, [row.id for row in rows], each=recent)
        for row, item in zip(rows, items, strict=True):
            item["recent"] = [document(each) for each in outcomes[row.id]]
    return answer({"items": items})


def _document(context: GatewayContext, row: ScheduleRow) -> dict[str, Any]:
    found = words.schedule_document(row, words.rule_or_none(row, _spread(context)))
    return {key: context.redaction.of(key, value) for key, value in found.items()} | {
        "state_words": words.state_words(row)
    }


def _spread(context: GatewayContext) -> timedelta:
    return context.settings.scheduler.spread


@router.post(
    "/schedules",
    operation_id="schedules.create",
    summary="Make a schedule",
    status_code=201,
    responses=answers(ANYTHING, 201, "Made") | answers(ANYTHING, 200, "A dry run"),
    openapi_extra=scoped(Scope.SUBMIT, Reach.NARROWED),
)
async def create(request: Request, written: dict[str, Any] = Body(), dry_run: bool = False) -> Response:
    """The body is the document of `accsd schedules apply`, as JSON. The answer says what it means and what is next; a
    dry run says the same, and writes nothing. The same again with an `Idempotency-Key` is the same schedule."""
    context = context_of(request)
    wanted = ScheduleDef.model_validate(written)
    require_limit(caller_of(request), "workflows", wanted.workflow)
    draft = await definitions.drafted(context.reads, wanted, spread=_spread(context))
    _require_rights(caller_of(request), draft)
    if draft.row is not None and _was_made_so(request, draft):
        said = definitions.document(draft, "unchanged", id=draft.row.id, revision=draft.row.revision)
        return answer(_written_document(context, said) | _dry(dry_run), headers={"Idempotency-Replayed": "true"})
    if draft.row is not None:
        raise VerbRefused(
            "create", "already_there", subject=f"schedule {wanted.name}", hint=f"PATCH /api/v1/schedules/{wanted.name}"
        )
    await definitions.check_workflow(context.reads, wanted)
    return await _written(request, draft, dry_run=dry_run, reason=None)


def _was_made_so(request: Request, draft: definitions.Draft) -> bool:
    """Whether this caller has made the very same before, and asks again because it may not have heard the answer."""
    row = draft.row
    is_own = row is not None and row.created_by == caller_of(request).actor
    return is_own and idempotency_key(request) is not None and not draft.changes


def _require_rights(caller: Caller, draft: definitions.Draft) -> None:
    """What of a definition needs more than the right to make a schedule, as far as it is new (CO9, EV3)."""
    wanted, written = draft.definition, draft.changes.keys()
    source: object = (wanted.condition or {}).get("source")
    if "condition" in written and isinstance(source, dict) and "sql" in source:
        require_scope(caller, Scope.ADMIN, "a probe by SQL")
    if wanted.event is not None and "schedule_expr" in written:
        if wanted.event == "**":
            require_scope(caller, Scope.ADMIN, "to listen to all topics")
        require_topic(caller, wanted.event)


@router.post(
    "/schedules/preview",
    operation_id="schedules.preview",
    summary="When something would be due",
    responses=answers(ANYTHING),
    openapi_extra=scoped(Scope.READ, Reach.FREE),
)
async def preview(
    request: Request,
    written: dict[str, Any] = Body(),
    begin: datetime | None = Query(None, alias="from"),
    n: int = Query(10, ge=1, le=1000),
) -> Response:
    """The times of a definition that is not written yet: what it means, the next ones, what the clock's changes do."""
    context = context_of(request)
    wanted = ScheduleDef.model_validate({"name": "preview", "workflow": "preview", **written})
    draft = await definitions.drafted(context.reads, wanted, spread=_spread(context))
    after = begin or draft.now
    if after.tzinfo is None:
        raise InvalidValue("from needs an offset: 2026-11-18T12:00:00Z")
    ahead = [] if draft.rule is None else occurrences.ahead(draft.rule, after, n)
    return answer(
        {
            "words": draft.words if draft.rule is None else explain(draft.rule),
            "occurrences": [occurrences.preview_document(row) for row in ahead],
            "warnings": [] if draft.rule is None else [asdict(each) for each in lint(draft.rule, after)],
        }
    )


@router.get(
    "/schedules/hold",
    operation_id="schedules.get_hold",
    summary="Whether all schedules stand still",
    responses=answers(ANYTHING),
    openapi_extra=scoped(Scope.READ, Reach.FREE),
)
async def get_hold(request: Request) -> Response:
    found = await views.hold(context_of(request).reads)
    return answer({"held": found is not None} | ({} if found is None else document(found)))


@router.post(
    "/schedules/hold",
    operation_id="schedules.hold",
    summary="Stop all schedules",
    responses=answers(ANYTHING),
    openapi_extra=scoped(Scope.OPERATE),
)
async def hold(request: Request, asked: Reason = Body(default=Reason()), dry_run: bool = False) -> Response:
    """Nothing is settled until the hold is lifted; then what was due meanwhile is late."""
    return await _hold(request, asked, lift=False, dry_run=dry_run)


@router.delete(
    "/schedules/hold",
    operation_id="schedules.lift_hold",
    summary="Let all schedules go on",
    responses=answers(ANYTHING),
    openapi_extra=scoped(Scope.OPERATE),
)
async def lift_hold(request: Request, asked: Reason = Body(default=Reason()), dry_run: bool = False) -> Response:
    return await _hold(request, asked, lift=True, dry_run=dry_run)


async def _hold(request: Request, asked: Reason, *, lift: bool, dry_run: bool) -> Response:
    by = caller_of(request).actor

    async def work(db: Database) -> Verdict:
        return await verbs.hold_schedules(db, lift=lift, by=by, reason=asked.reason)

    return answer({"answer": await done(request, work, dry_run=dry_run)} | _dry(dry_run))


# One schedule


@router.get(
    "/schedules/{name}",
    operation_id="schedules.get",
    summary="A schedule: what it means, what is next, what happened",
    responses=answers(ANYTHING),
    openapi_extra=scoped(Scope.READ, Reach.SCHEDULE),
)
async def get_schedule(request: Request, name: str = _NAME) -> Response:
    context = context_of(request)
    shown = await _shown(context, name)
    tag = etag(_versioned(shown))
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers={"ETag": tag})
    return answer(shown, headers={"ETag": tag})


async def _shown(context: GatewayContext, name: str) -> dict[str, Any]:
    found = (await words.picture_of(context.reads, name, _spread(context))).document()
    return context.redaction.inside(found)  # its history repeats the options


def _versioned(shown: dict[str, Any]) -> dict[str, Any]:
    """A schedule is another one when its definition or its state is."""
    return {key: shown.get(key) for key in ("id", "revision", "state")}


@router.patch(
    "/schedules/{name}",
    operation_id="schedules.change",
    summary="Change a schedule",
    responses=answers(ANYTHING),
    openapi_extra=scoped(Scope.SUBMIT, Reach.SCHEDULE),
)
async def change(
    request: Request,
    written: dict[str, Any] = Body(),
    name: str = _NAME,
    dry_run: bool = False,
    reason: str | None = Query(None, max_length=1000),
) -> Response:
    """What is given changes, null goes back to its default, the rest stays. Needs `If-Match`. It never makes anything
    in the past due."""
    context = context_of(request)
    row = await views.schedule_named(context.reads, name)
    require_own(request, row.created_by)
    if not dry_run:
        require_version(request, _versioned(await _shown(context, row.name)))
    kept = definitions.definition_of(row)
    edited = {key: value for key, value in {**kept, **written}.items() if value is not None or key not in written}
    if edited.get("name", row.name) != row.name:
        raise ScheduleInvalid("a schedule keeps its name", complaints=[(("name",), "it can't be changed")])
    draft = await definitions.drafted(context.reads, ScheduleDef.model_validate(edited), spread=_spread(context))
    _require_rights(caller_of(request), draft)
    if {"workflow", "version"} & draft.changes.keys():
        require_limit(caller_of(request), "workflows", draft.definition.workflow)
        await definitions.check_workflow(context.reads, draft.definition)
    return await _written(request, draft, dry_run=dry_run, reason=reason)


async def _written(request: Request, draft: definitions.Draft, *, dry_run: bool, reason: str | None) -> Response:
    context, by = context_of(request), caller_of(request).actor
    kind = definitions.change_of(draft)

    async def work(db: Database) -> verbs.ScheduleAnswer:
        return definitions.or_refused(draft, await definitions.write(db, draft, by=by, reason=reason))

    made = await done(request, work, dry_run=dry_run)
    if dry_run:
        return answer(_written_document(context, definitions.document(draft, kind)) | _dry(dry_run))
    now = (
        await definitions.drafted(context.reads, draft.definition, spread=_spread(context))
        if draft.row is None
        else draft
    )
    said = definitions.document(now, kind, id=made.id, revision=made.revision)
    return answer(_written_document(context, said), status=201 if kind == "created" else 200)


def _written_document(context: GatewayContext, said: dict[str, Any]) -> dict[str, Any]:
    return context.redaction.inside(said)


@router.delete(
    "/schedules/{name}",
    operation_id="schedules.end",
    summary="End a schedule",
    responses=answers(ANYTHING),
    openapi_extra=scoped(Scope.SUBMIT, Reach.SCHEDULE),
)
async def end(
    request: Request, name: str = _NAME, asked: Ended = Body(default=Ended()), dry_run: bool = False
) -> Response:
    """Nothing follows. It stays with its ledger."""
    row = await _own(request, name)

    async def work(db: Database) -> tuple[verbs.ScheduleAnswer, int]:
        by = caller_of(request).actor
        return await verbs.end_schedule(db, row.name, by=by, reason=asked.reason, cancel=asked.cancel)

    made, cancelled = await done(request, work, dry_run=dry_run)
    return _answered(made, "end_schedule", row.name, dry_run, cancelled_jobs=cancelled)


async def _own(request: Request, name: str) -> ScheduleRow:
    row = await views.schedule_named(context_of(request).reads, name)
    require_own(request, row.created_by)
    return row


def _answered(made: verbs.ScheduleAnswer, verb: str, name: str, dry_run: bool, **more: Any) -> Response:
    made.or_raise(verb, name)
    return answer({"answer": made.verdict, "reason": made.reason, **more} | _dry(dry_run))


def _dry(dry_run: bool) -> dict[str, Any]:
    return {"dry_run": True} if dry_run else {}


@router.get(
    "/schedules/{name}/firings",
    operation_id="schedules.firings",
    summary="What is due next",
    responses=answers(listed(ANYTHING)),
    openapi_extra=scoped(Scope.READ, Reach.SCHEDULE),
)
async def next_firings(
    request: Request, name: str = _NAME, n: int = Query(10, alias="next", ge=1, le=1000)
) -> Response:
    context = context_of(request)
    row = await views.schedule_named(context.reads, name)
    rule = occurrences.rule_of(row, _spread(context))
    marks = occurrences.marks_of(
        await views.skips_of(context.reads, row.id), await views.snoozes_of(context.reads, row.id)
    )
    left = None if row.max_runs is None else row.max_runs - row.runs
    found = occurrences.ahead(rule, row.now, n, marks=marks, runs_left=left)
    return answer({"items": [occurrences.preview_document(each) for each in found]})


@router.get(
    "/schedules/{name}/ledger",
    operation_id="schedules.ledger",
    summary="What became of each due time",
    responses=answers(listed(row_schema(FiringRow))),
    openapi_extra=scoped(Scope.READ, Reach.SCHEDULE),
)
async def ledger(
    request: Request,
    name: str = _NAME,
    since: datetime | None = None,
    outcome: list[Literal["fired", "caught_up", "skipped", "missed", "merged", "snoozed"]] = Query(default=[]),
    limit: int = Query(100, ge=1, le=1000),
) -> Response:
    """The newest first."""
    context = context_of(request)
    row = await views.schedule_named(context.reads, name)
    if since is not None and since.tzinfo is None:
        raise InvalidValue("since needs an offset: 2026-11-18T12:00:00Z")
    rows = await ledger_views.ledger_of(context.reads, row.id, LedgerFilter(since=since, outcomes=outcome, limit=limit))
    return answer({"items": [document(each, context.redaction) | {"words": fate(each, row.timezone)} for each in rows]})


@router.post(
    "/schedules/{name}/pause",
    operation_id="schedules.pause",
    summary="Let a schedule start nothing",
    responses=answers(ANYTHING),
    openapi_extra=scoped(Scope.SUBMIT, Reach.SCHEDULE),
)
async def pause(
    request: Request, name: str = _NAME, asked: Paused = Body(default=Paused()), dry_run: bool = False
) -> Response:
    row = await _own(request, name)

    async def work(db: Database) -> verbs.ScheduleAnswer:
        by = caller_of(request).actor
        return await verbs.pause_schedule(db, row.name, until=asked.until, by=by, reason=asked.reason)

    return _answered(await done(request, work, dry_run=dry_run), "pause_schedule", row.name, dry_run)


@router.post(
    "/schedules/{name}/resume",
    operation_id="schedules.resume",
    summary="Let a paused schedule go on",
    responses=answers(ANYTHING),
    openapi_extra=scoped(Scope.SUBMIT, Reach.SCHEDULE),
)
async def resume(
    request: Request, name: str = _NAME, asked: Resumed = Body(default=Resumed()), dry_run: bool = False
) -> Response:
    """`recover`: of what the pause has skipped run nothing, the latest, or all."""
    row = await _own(request, name)

    async def work(db: Database) -> tuple[verbs.ScheduleAnswer, int]:
        by = caller_of(request).actor
        return await verbs.resume_schedule(db, row.name, recover=asked.recover, by=by, reason=asked.reason)

    made, recovered = await done(request, work, dry_run=dry_run)
    return _answered(made, "resume_schedule", row.name, dry_run, recovered=recovered)


@router.post(
    "/schedules/{name}/snooze",
    operation_id="schedules.snooze",
    summary="Put the next occurrence off",
    responses=answers(ANYTHING),
    openapi_extra=scoped(Scope.SUBMIT, Reach.SCHEDULE),
)
async def snooze(request: Request, asked: Snoozed, name: str = _NAME, dry_run: bool = False) -> Response:
    """`{"for": "2h"}` or `{"until": "…"}`; and no other occurrence."""
    if (asked.length is None) == (asked.until is None):
        raise InvalidValue('a snooze is "for" a time, or "until" a time')
    row = await _own(request, name)

    async def work(db: Database) -> firings.OccurrenceAnswer:
        by = caller_of(request).actor
        return await firings.snooze(db, row.name, length=asked.length, until=asked.until, by=by, reason=asked.reason)

    return _occurrence(await done(request, work, dry_run=dry_run), "snooze", row.name, dry_run)


@router.post(
    "/schedules/{name}/unsnooze",
    operation_id="schedules.unsnooze",
    summary="Give what was snoozed its own time back",
    responses=answers(ANYTHING),
    openapi_extra=scoped(Scope.SUBMIT, Reach.SCHEDULE),
)
async def unsnooze(
    request: Request, name: str = _NAME, asked: Why = Body(default=Why()), dry_run: bool = False
) -> Response:
    row = await _own(request, name)

    async def work(db: Database) -> firings.OccurrenceAnswer:
        return await firings.unsnooze(db, row.name, by=caller_of(request).actor, reason=asked.reason)

    return _occurrence(await done(request, work, dry_run=dry_run), "unsnooze", row.name, dry_run)


@router.post(
    "/schedules/{name}/skip",
    operation_id="schedules.skip",
    summary="Let one occurrence not run",
    responses=answers(ANYTHING),
    openapi_extra=scoped(Scope.SUBMIT, Reach.SCHEDULE),
)
async def skip(request: Request, asked: Skipped, name: str = _NAME, dry_run: bool = False) -> Response:
    return await _marked(request, name, asked, skip=True, dry_run=dry_run)


@router.post(
    "/schedules/{name}/unskip",
    operation_id="schedules.unskip",
    summary="Let an occurrence run that was to be skipped",
    responses=answers(ANYTHING),
    openapi_extra=scoped(Scope.SUBMIT, Reach.SCHEDULE),
)
async def unskip(request: Request, asked: Skipped, name: str = _NAME, dry_run: bool = False) -> Response:
    return await _marked(request, name, asked, skip=False, dry_run=dry_run)


async def _marked(request: Request, name: str, asked: Skipped, *, skip: bool, dry_run: bool) -> Response:
    row = await _own(request, name)
    rule = occurrences.rule_of(row, _spread(context_of(request)))
    which = occurrences.the_one(row.name, rule, asked.nominal)

    async def work(db: Database) -> firings.OccurrenceAnswer:
        return await firings.skip_occurrence(
            db, row.name, which.nominal, fold=which.fold, skip=skip, by=caller_of(request).actor, reason=asked.reason
        )

    return _occurrence(await done(request, work, dry_run=dry_run), "skip_occurrence", row.name, dry_run)


def _occurrence(made: firings.OccurrenceAnswer, verb: str, name: str, dry_run: bool) -> Response:
    if made.verdict is Verdict.REFUSED:
        raise VerbRefused(verb, made.reason or "unknown", subject=f"schedule {name}")
    return answer(document(made) | _dry(dry_run))


@router.post(
    "/schedules/{name}/run_now",
    operation_id="schedules.run_now",
    summary="Start a job of a schedule now",
    responses=answers(ANYTHING),
    openapi_extra=scoped(Scope.SUBMIT, Reach.SCHEDULE),
)
async def run_now(
    request: Request, name: str = _NAME, asked: RunAsked = Body(default=RunAsked()), dry_run: bool = False
) -> Response:
    """Paused or not. It moves no due time. The same `Idempotency-Key` again is the same job."""
    row = await _own(request, name)
    key, by = idempotency_key(request), caller_of(request).actor

    async def work(db: Database) -> firings.Ran:
        return await firings.run_now(
            db, row.name, options=asked.options, key=key, force=asked.force, by=by, reason=asked.reason
        )

    made = await done(request, work, dry_run=dry_run)
    if made.verdict is Verdict.REFUSED:
        raise VerbRefused("run_now", made.reason or "unknown", subject=f"schedule {row.name}", held=dict(made.detail))
    return answer(document(made) | _dry(dry_run))
