"""/tasks: a task is a schedule and the workflow of the same name that its pipeline is compiled to."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from accsd.db import Database, Verdict, firings
from accsd.db import schedules as verbs
from accsd.db import workflows as stored
from accsd.db.views.schedules import ScheduleFilter, ScheduleRow, schedule_named, schedule_page
from accsd.db.views.workflows import contents_of
from accsd.errors import InvalidValue, NotFound, Place, VerbRefused
from accsd.explain import schedule_definitions as definitions
from accsd.explain.redaction import STRUCK_OUT
from accsd.gateway.access import require_limit, require_own, scoped
from accsd.gateway.answers import answer, large_answer
from accsd.gateway.context import GatewayContext, caller_of, context_of
from accsd.gateway.ordinaut.agents import agent_named
from accsd.gateway.ordinaut.definitions import (
    META,
    changed_definition,
    check_window,
    end_of_name,
    new_definition,
    new_name,
    work_of,
)
from accsd.gateway.ordinaut.documents import status_of, task_documents, work_shown
from accsd.gateway.ordinaut.pipelines import TaskWork, uses_of, workflow_of
from accsd.gateway.ordinaut.shapes import (
    OPERATION,
    TASK,
    Kind,
    OrdinautRoute,
    SnoozeIn,
    Status,
    TaskChange,
    TaskIn,
    done,
    listed,
    page,
)
from accsd.gateway.problems import HttpProblem, pointers
from accsd.gateway.quota import least_interval, require_interval
from accsd.gateway.reach import Reach, require_topic, within
from accsd.gateway.routes.jobs import idempotency_key
from accsd.gateway.routes.verbs import done_together
from accsd.gateway.schemas import answers
from accsd.model import WorkflowDef
from accsd.model.access import Caller, Scope
from accsd.model.schedule import ScheduleDef
from accsd.settings.doors import OrdinautSettings

router = APIRouter(prefix="/tasks", route_class=OrdinautRoute, tags=["tasks"])
_STATES: Final = {"active": ("active", "broken"), "paused": ("paused",), "canceled": ("ended",)}
_TIMES: Final = frozenset({"schedule_kind", "schedule_expr", "timezone", "exclude", "only_on", "spread"})
_WORK: Final = frozenset({"payload", "max_retries", "backoff_strategy", "dedupe_key", "dedupe_window_seconds"})


# Read


@router.get(
    "",
    operation_id="tasks.list",
    summary="Tasks, the newest first",
    responses=answers(listed(TASK)),
    openapi_extra=scoped(Scope.READ, Reach.NARROWED),
)
async def list_tasks(
    request: Request,
    status: Status | None = None,
    created_by: UUID | None = None,
    schedule_kind: Kind | None = None,
    limit: int = Query(50, ge=1, le=200),
    offset: int = Query(0, ge=0, le=10_000_000),
) -> Response:
    """Every schedule is one, whoever has made it."""
    context = context_of(request)
    owner = None if created_by is None else await agent_named(context.reads, created_by)
    if created_by is not None and owner is None:
        return answer(page([], 0, limit, offset))
    wanted = ScheduleFilter(
        states=None if status is None else _STATES[status],
        kind=schedule_kind,
        created_by=owner,
        within=within(caller_of(request)),
    )
    rows, total = await schedule_page(context.reads, wanted, limit=limit, offset=offset)
    documents = await task_documents(context.reads, rows, context.redaction)
    return await large_answer(lambda: page(documents, total, limit, offset), len(rows))


@router.get(
    "/{task_id}",
    operation_id="tasks.get",
    summary="A task",
    responses=answers(TASK),
    openapi_extra=scoped(Scope.READ, Reach.NARROWED),
)
async def get_task(request: Request, task_id: UUID) -> Response:
    context = context_of(request)
    row = await task_row(context.reads, caller_of(request), task_id)
    return answer(await _shown(context, context.reads, row))


async def task_row(db: Database, caller: Caller, task_id: UUID) -> ScheduleRow:
    """The schedule with this id, if the caller reaches it. Raises NotFound."""
    wanted = ScheduleFilter(ids=[task_id], within=within(caller))
    rows, _ = await schedule_page(db, wanted, limit=1)
    if not rows:
        raise NotFound(f"there is no task {task_id}", hint="GET /tasks lists them")
    return rows[0]


async def _shown(context: GatewayContext, db: Database, row: ScheduleRow) -> dict[str, Any]:
    [found] = await task_documents(db, [row], context.redaction, is_list=False)
    return found


# Made


@router.post(
    "",
    operation_id="tasks.create",
    summary="Make a task",
    status_code=201,
    responses=answers(TASK, 201, "Made") | answers(TASK, 200, "Made before with this key, or a dry run"),
    openapi_extra=scoped(Scope.SUBMIT, Reach.NARROWED),
)
async def create(request: Request, wanted: TaskIn, dry_run: bool = False) -> Response:
    """A schedule, and a workflow of the same name that is compiled from the pipeline; both or none. The same
    `Idempotency-Key` again is the same task."""
    context, key = context_of(request), idempotency_key(request)
    owner = await _owner(request, wanted.created_by)
    task = await _new_task(request, wanted, key)

    async def work(db: Database) -> tuple[dict[str, Any], bool]:
        await db.fetchval("SELECT accs.lock_workflows()")
        if (known := await _made_before(db, key)) is not None:
            return await _shown(context, db, _same(known, task)), False
        await _refuse_taken(db, task.name)
        await _write(request, db, task, created_by=owner)
        row = await schedule_named(db, task.name)
        return await _shown(context, db, row), True

    shown, is_new = await done_together(request, work, dry_run=dry_run)
    if dry_run:
        return answer(shown | {"dry_run": True})
    where = f"{context.settings.gateway.base_path}/tasks/{shown['id']}"
    headers = {"Location": where} if is_new else {"Idempotency-Replayed": "true"}
    return answer(shown, status=201 if is_new else 200, headers=headers)


@dataclass(frozen=True, slots=True)
class _Task:
    """A task that was found good. `workflow` None: that stays."""

    name: str
    draft: definitions.Draft
    work: TaskWork
    workflow: WorkflowDef | None


async def _new_task(request: Request, wanted: TaskIn, key: str | None) -> _Task:
    caller, settings = caller_of(request), _settings(request)
    name = wanted.name or new_name(wanted.title, key)
    require_limit(caller, "workflows", name)
    work = TaskWork(
        wanted.payload,
        wanted.max_retries,
        wanted.backoff_strategy,
        wanted.dedupe_key,
        wanted.dedupe_window_seconds,
        key,
        None if key is None else hashlib.sha256(wanted.model_dump_json().encode()).hexdigest(),
    )
    workflow = await _workflow(request, name, wanted.title, work)
    draft = await _drafted(request, new_definition(name, wanted, timezone=settings.timezone))
    if draft.row is not None and key is None:
        raise _taken(name)
    check_window(draft.rule, draft, work.dedupe_window_seconds)
    return _Task(name, draft, work, workflow)


async def _workflow(request: Request, name: str, title: str, work: TaskWork) -> WorkflowDef:
    context, caller, settings = context_of(request), caller_of(request), _settings(request)
    timeout = settings.step_timeout
    workflow = await workflow_of(context.reads, name, title, work, by=caller.actor, step_timeout=timeout)
    for number, uses in enumerate(uses_of(workflow)):
        if uses.startswith("service:"):
            require_limit(caller, "services", uses.removeprefix("service:"))
        else:
            require_limit(caller, "tools", uses)
        if not caller.may(Scope.OPERATE) and not _fits(uses, settings.tools):
            what = f'to use {uses} in a pipeline needs the scope "operate", or gateway.ordinaut.tools'
            place = f"/payload/pipeline/{number}/uses"
            raise HttpProblem(
                "scope_missing", what, scope=Scope.OPERATE.value, errors=[{"pointer": place, "detail": what}]
            )
    return workflow


def _fits(uses: str, patterns: list[str]) -> bool:
    return any(uses.startswith(each[:-1]) if each.endswith("*") else uses == each for each in patterns)


async def _drafted(request: Request, wanted: ScheduleDef) -> definitions.Draft:
    context, caller = context_of(request), caller_of(request)
    draft = await definitions.drafted(context.reads, wanted, spread=context.settings.scheduler.spread)
    if wanted.event is not None and "schedule_expr" in draft.changes:
        require_topic(caller, wanted.event)
    if caller.kind == "assistant" and draft.rule is not None and _TIMES & draft.changes.keys():
        least = await least_interval(context.reads, caller, _settings(request).least_interval)
        require_interval(draft.rule, draft.now, least, setting="gateway.ordinaut.least_interval")
    return draft


async def _owner(request: Request, created_by: UUID | None) -> str | None:
    """Whose the task is to be; None: whoever asks. Only who may operate makes one for somebody else."""
    if created_by is None:
        return None
    name = await agent_named(context_of(request).reads, created_by)
    if name is None:
        raise HttpProblem(
            "unknown_agent",
            f"created_by: there is no agent {created_by}",
            hint="leave it out: then it is whoever asks; GET /agents has the ids",
        )
    if name != caller_of(request).actor:
        require_own(request, name)
    return name


async def _made_before(db: Database, key: str | None) -> tuple[ScheduleRow, TaskWork] | None:
    """What a request with this key has made. The lock that the caller has lets no other one make it now."""
    if key is None:
        return None
    ids = await db.fetch(
        "SELECT id FROM public.schedules WHERE right(name, 17) = $1", f"-{end_of_name(key)}", repeatable=True
    )
    rows, _ = await schedule_page(db, ScheduleFilter(ids=[row["id"] for row in ids]), limit=10)
    for row in rows:
        [content] = await contents_of(db, [(row.workflow, 1)])
        work = None if content is None else work_of(content.meta)
        if work is not None and work.key == key:
            return row, work
    return None


def _same(known: tuple[ScheduleRow, TaskWork], task: _Task) -> ScheduleRow:
    row, work = known
    if work.request != task.work.request:
        raise HttpProblem("idempotency_mismatch", f"this key was used for task {row.id}, which is another")
    return row


async def _refuse_taken(db: Database, name: str) -> None:
    if await stored.find_workflow(db, name) is not None:
        raise _taken(name)


def _taken(name: str) -> VerbRefused:
    return VerbRefused(
        "create", "already_there", subject=f"task {name}", hint="choose another name, or PUT /tasks/ID changes one"
    )


async def _write(request: Request, db: Database, task: _Task, *, created_by: str | None) -> None:
    by = caller_of(request).actor
    if task.workflow is not None:
        newest = await stored.find_workflow(db, task.workflow.name)
        numbered = task.workflow.model_copy(update={"version": 1 if newest is None else newest.version + 1})
        await stored.apply_workflow(db, numbered, created_by=by, meta={META: task.work.document()})
    draft = task.draft
    if created_by is not None and created_by != by:
        draft = replace(draft, changes={**draft.changes, "created_by": created_by})
    definitions.or_refused(draft, await definitions.write(db, draft, by=by))


def _settings(request: Request) -> OrdinautSettings:
    return context_of(request).settings.gateway.ordinaut or OrdinautSettings()


# Changed


@router.put(
    "/{task_id}",
    operation_id="tasks.update",
    summary="Change a task",
    responses=answers(TASK),
    openapi_extra=scoped(Scope.SUBMIT, Reach.NARROWED),
)
async def update(request: Request, task_id: UUID, wanted: TaskChange, dry_run: bool = False) -> Response:
    """What is given changes, the rest stays. It never makes anything in the past due; runs that have started keep
    the pipeline that they began with."""
    context = context_of(request)
    row = await _own(request, task_id)
    task = await _changed(request, row, wanted)

    async def work(db: Database) -> dict[str, Any]:
        if task is not None:
            await _write(request, db, task, created_by=None)
        if wanted.status is not None and wanted.status != status_of(row.state):
            await _move(request, db, row, wanted.status)
        return await _shown(context, db, await task_row(db, caller_of(request), task_id))

    shown = await done_together(request, work, dry_run=dry_run)
    return answer(shown | ({"dry_run": True} if dry_run else {}))


@router.patch(
    "/{task_id}",
    operation_id="tasks.patch",
    summary="Change a task, as by PUT",
    responses=answers(TASK),
    openapi_extra=scoped(Scope.SUBMIT, Reach.NARROWED),
)
async def patch(request: Request, task_id: UUID, wanted: TaskChange, dry_run: bool = False) -> Response:
    return await update(request, task_id, wanted, dry_run)


async def _changed(request: Request, row: ScheduleRow, wanted: TaskChange) -> _Task | None:
    """What is to be written; None: nothing but the status changes."""
    given = {field: value for field, value in wanted.model_dump(exclude_unset=True).items() if field != "status"}
    if not given:
        return None
    if row.state == "ended":
        raise HttpProblem("not_active", "a task that is canceled is changed no more", hint="make a new one")
    context = context_of(request)
    [content] = await contents_of(context.reads, [(row.workflow, row.version)])
    work = work_shown(row, content)
    if work_fields := {field: given[field] for field in _WORK & given.keys() if given[field] is not None}:
        _refuse_masks(work_fields.get("payload"), work.payload)
        work = replace(work, **work_fields)
    definition = changed_definition(definitions.definition_of(row), row.schedule_kind, work, wanted)
    draft = await _drafted(request, definition)
    check_window(draft.rule, draft, work.dedupe_window_seconds)
    workflow = None
    if work_fields:
        _refuse_others_workflow(row, None if content is None else work_of(content.meta))
        workflow = await _workflow(request, row.workflow, definition.title or row.name, work)
    return _Task(row.name, draft, work, workflow)


def _refuse_others_workflow(row: ScheduleRow, work: TaskWork | None) -> None:
    """A workflow that was written elsewhere may have fields that a payload can't say, and other schedules."""
    if work is None or row.workflow != row.name or row.version is not None:
        raise InvalidValue(
            f"the workflow {row.workflow} of this task was not written by this door",
            hint=f"PUT /api/v1/workflows/{row.workflow} changes it",
        )


def _refuse_masks(given: object, stands: object) -> None:
    """Values that look secret are shown as ***: one that comes back like that would overwrite the real one."""
    if found := list(_masks(given, stands, ("payload",))):
        what = f"is {STRUCK_OUT}, as it was shown: write its value, or leave payload out"
        detail = "; ".join(f"{'.'.join(map(str, place))} {what}" for place in found[:5])
        raise HttpProblem("invalid", detail, errors=pointers([(place, what) for place in found]))


def _masks(given: Any, stands: Any, place: Place) -> Iterator[Place]:
    match given:
        case str() if given == STRUCK_OUT and stands != STRUCK_OUT and stands is not None:
            yield place
        case dict():
            for key, value in given.items():  # pyright: ignore[reportUnknownVariableType]
                yield from _masks(value, stands.get(key) if isinstance(stands, dict) else None, (*place, key))  # pyright: ignore
        case list():
            for number, value in enumerate(given):  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
                known = stands[number] if isinstance(stands, list) and number < len(stands) else None  # pyright: ignore
                yield from _masks(value, known, (*place, number))
        case _:
            pass


async def _own(request: Request, task_id: UUID) -> ScheduleRow:
    row = await task_row(context_of(request).reads, caller_of(request), task_id)
    require_own(request, row.created_by)
    return row


# Paused, resumed, canceled


async def _move(request: Request, db: Database, row: ScheduleRow, status: str) -> None:
    by = caller_of(request).actor
    if row.state == "ended":
        raise HttpProblem("not_active", "a task that is canceled stays so", hint="make a new one")
    if status == "canceled":
        made, _ = await verbs.end_schedule(db, row.name, by=by)
    elif status == "active":
        made, _ = await verbs.resume_schedule(db, row.name, by=by)
    elif row.state == "broken":
        what = f"it is broken, so that it starts nothing: {row.reason}"
        raise HttpProblem("not_active", what, hint="a change that mends it lets it go on")
    else:
        made = await verbs.pause_schedule(db, row.name, by=by)
    made.or_raise(status, row.name)


async def _moved(request: Request, task_id: UUID, status: str, *, dry_run: bool) -> Response:
    row = await _own(request, task_id)
    before = status_of(row.state)
    if before == status:
        return answer(done(f"the task is {status} already", task_id=task_id, status=status))

    async def work(db: Database) -> None:
        await _move(request, db, row, status)

    await done_together(request, work, dry_run=dry_run)
    said = {"task_id": task_id, "old_status": before, "new_status": status}
    return _did(f"the task is {status} now", said, dry_run=dry_run)


def _did(message: str, details: dict[str, Any], *, dry_run: bool) -> Response:
    return answer(done(message, **details) | ({"dry_run": True} if dry_run else {}))


@router.post(
    "/{task_id}/pause",
    operation_id="tasks.pause",
    summary="Let a task start nothing",
    responses=answers(OPERATION),
    openapi_extra=scoped(Scope.SUBMIT, Reach.NARROWED),
)
async def pause(request: Request, task_id: UUID, dry_run: bool = False) -> Response:
    """What runs goes on."""
    return await _moved(request, task_id, "paused", dry_run=dry_run)


@router.post(
    "/{task_id}/resume",
    operation_id="tasks.resume",
    summary="Let a paused task go on",
    responses=answers(OPERATION),
    openapi_extra=scoped(Scope.SUBMIT, Reach.NARROWED),
)
async def resume(request: Request, task_id: UUID, dry_run: bool = False) -> Response:
    """What was due in the pause is in the ledger as skipped, and is not made up for."""
    return await _moved(request, task_id, "active", dry_run=dry_run)


@router.post(
    "/{task_id}/cancel",
    operation_id="tasks.cancel",
    summary="End a task",
    responses=answers(OPERATION),
    openapi_extra=scoped(Scope.SUBMIT, Reach.NARROWED),
)
async def cancel(request: Request, task_id: UUID, dry_run: bool = False) -> Response:
    """For good. What runs goes on; the task stays with its runs."""
    return await _moved(request, task_id, "canceled", dry_run=dry_run)


@router.delete(
    "/{task_id}",
    operation_id="tasks.delete",
    summary="End a task, as by cancel",
    responses=answers(OPERATION),
    openapi_extra=scoped(Scope.SUBMIT, Reach.NARROWED),
)
async def delete(request: Request, task_id: UUID, dry_run: bool = False) -> Response:
    return await _moved(request, task_id, "canceled", dry_run=dry_run)


# Run, put off


@router.post(
    "/{task_id}/run_now",
    operation_id="tasks.run_now",
    summary="Start a run now",
    responses=answers(OPERATION),
    openapi_extra=scoped(Scope.SUBMIT, Reach.NARROWED),
)
async def run_now(request: Request, task_id: UUID, dry_run: bool = False) -> Response:
    """It moves no due time. With a `concurrency_key` it waits for its turn. The same `Idempotency-Key` again is the
    same run."""
    row = await _own(request, task_id)
    _require_active(row, "run")
    key, by = idempotency_key(request), caller_of(request).actor

    async def work(db: Database) -> firings.Ran:
        return await firings.run_now(db, row.name, key=key, by=by)

    made = await done_together(request, work, dry_run=dry_run)
    if made.verdict is Verdict.REFUSED:
        raise VerbRefused("run_now", made.reason or "unknown", subject=f"task {task_id}", held=dict(made.detail))
    run = None if dry_run else made.job_id
    said = {"task_id": task_id, "run_id": run, "due_work_id": run}
    return _did("a run has been started" if made.verdict is Verdict.ACCEPTED else "it was started before", said,
                dry_run=dry_run)  # fmt: skip


@router.post(
    "/{task_id}/snooze",
    operation_id="tasks.snooze",
    summary="Put the next run off",
    responses=answers(OPERATION),
    openapi_extra=scoped(Scope.SUBMIT, Reach.NARROWED),
)
async def snooze(request: Request, task_id: UUID, asked: SnoozeIn, dry_run: bool = False) -> Response:
    """The next one, and no other, by so many seconds from its own time on."""
    row = await _own(request, task_id)
    _require_active(row, "be snoozed")
    length, by = timedelta(seconds=asked.delay_seconds), caller_of(request).actor

    async def work(db: Database) -> firings.OccurrenceAnswer:
        return await firings.snooze(db, row.name, length=length, by=by, reason=asked.reason)

    made = await done_together(request, work, dry_run=dry_run)
    if made.verdict is Verdict.REFUSED:
        raise VerbRefused("snooze", made.reason or "unknown", subject=f"task {task_id}")
    said = {
        "task_id": task_id,
        "delay_seconds": asked.delay_seconds,
        "affected_work_items": 1,
        "due_at": made.due_at,
    }
    return _did(f"the next run is put off by {asked.delay_seconds} s", said, dry_run=dry_run)


def _require_active(row: ScheduleRow, what: str) -> None:
    if (status := status_of(row.state)) != "active":
        raise HttpProblem("not_active", f"a task that is {status} can't {what}: it must be active")
