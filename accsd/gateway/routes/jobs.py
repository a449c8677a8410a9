"""Jobs: listed, submitted, shown, waited for, changed, cancelled, run again, explained, compared."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any, Final, Literal
from uuid import UUID

from fastapi import APIRouter, Body, Query
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from accsd.db import Database
from accsd.db.answers import Answer
from accsd.db.cancel import cancel_jobs
from accsd.db.rehearsal import as_rehearsed
from accsd.db.retry import retry_jobs
from accsd.db.submit import Submission, Submitted, change_jobs, check_options, rerun_job, submit_jobs
from accsd.db.views import events as event_views
from accsd.db.views import jobs as job_views
from accsd.db.views.artifacts import StoredArtifact, artifacts_of
from accsd.db.views.events import AttemptRow, EventRow
from accsd.db.views.job_list import ListPosition, list_jobs
from accsd.db.views.jobs import JobRow, TaskRow
from accsd.db.views.workflows import no_such_workflow
from accsd.db.workflows import StoredWorkflow, workflow_id, workflows_by_id
from accsd.errors import InvalidValue, NotFound, VerbRefused
from accsd.explain import why as explained
from accsd.explain.archive import ArchivedLines
from accsd.explain.bar import explain_job
from accsd.explain.blast import cancel_preview, retry_preview
from accsd.explain.fold import folded
from accsd.explain.identifiers import job_named
from accsd.explain.redaction import Redaction
from accsd.gateway.access import GuardedRoute, redaction_for, require_limit, require_own, scoped, shared
from accsd.gateway.answers import answer, document, large_answer
from accsd.gateway.bodies import Body as RequestBody
from accsd.gateway.bodies import Reason
from accsd.gateway.conditional import require_version, told
from accsd.gateway.context import GatewayContext, caller_of, context_of, require_store
from accsd.gateway.messages import Topic
from accsd.gateway.paging import DEFAULT_LIMIT, MAX_LIMIT, Page
from accsd.gateway.problems import HttpProblem
from accsd.gateway.query import read_filter
from accsd.gateway.reach import Reach, job_within, require_jobs, within
from accsd.gateway.routes.verbs import done, verbs_of
from accsd.gateway.schemas import ANYTHING, answers, listed, objects, paged, row_schema
from accsd.gateway.shares import refuse_share, shown_to
from accsd.model.access import Caller, Scope, own_key
from accsd.model.state import JobStatus
from accsd.storage import ObjectStore

router = APIRouter(prefix="/api/v1", route_class=GuardedRoute, tags=["jobs"])
_TASKS: Final = 1_000  # of a job's own document; more are at /tasks
_MOST_TASKS: Final = 5_000  # of one page
_MOST_EVENTS: Final = 5_000
_MOST_ATTEMPTS: Final = 5_000
_MOST_TRANSITIONS: Final = 400_000
_MOST_WHY: Final = 50
_MOST_SUBMITTED: Final = 1_000
_LONGEST_KEY: Final = 200

JOB: Final = row_schema(JobRow)
TASK: Final = row_schema(TaskRow)
_SUBMITTED: Final = objects(
    id={"type": "string", "format": "uuid"}, status={"type": "string"}, repeated={"type": "boolean"}
)


class JobSubmission(RequestBody):
    """A job to submit."""

    workflow: str = Field(min_length=1, max_length=200, examples=["media"])
    version: int | None = Field(default=None, ge=1, le=2**31 - 1)
    options: dict[str, Any] = Field(default_factory=dict)
    priority: int = Field(default=0, ge=-(2**31), le=2**31 - 1)
    scheduled_at: datetime | None = Field(default=None, description="Not before.")
    trace_id: str | None = Field(default=None, max_length=200)


class JobSubmissions(RequestBody):
    jobs: list[JobSubmission] = Field(min_length=1, max_length=_MOST_SUBMITTED)


class JobChange(RequestBody):
    """What changes. Of a job that has started only the priority can."""

    priority: int | None = Field(default=None, ge=-(2**31), le=2**31 - 1)
    options: dict[str, Any] | None = None
    scheduled_at: datetime | None = None
    reason: str | None = Field(default=None, max_length=1000)


class RetryAsked(RequestBody):
    from_step: str | None = Field(default=None, max_length=200)
    reason: str | None = Field(default=None, max_length=1000)


class RerunAsked(RequestBody):
    options: dict[str, Any] = Field(description="All options of the new job.")


class WhyAsked(RequestBody):
    ids: list[str] = Field(min_length=1, max_length=_MOST_WHY)


# The list


@router.get(
    "/jobs",
    operation_id="jobs.list",
    summary="Jobs, newest first",
    responses=answers(paged(JOB)),
    openapi_extra=scoped(Scope.READ, Reach.NARROWED),
)
async def list_page(
    request: Request,
    q: str | None = Query(None, max_length=2_000, description='status:error workflow:media option.shot:"010" took:>1h'),
    status: str | None = Query(None, max_length=100),
    workflow: str | None = Query(None, max_length=200),
    service: str | None = Query(None, max_length=200),
    node: str | None = Query(None, max_length=200),
    since: str | None = Query(None, max_length=100, description="2d, today, 2026-11-18T06:00Z"),
    until: str | None = Query(None, max_length=100),
    took: str | None = Query(None, max_length=20),
    created_by: str | None = Query(None, max_length=200),
    error_code: str | None = Query(None, max_length=200),
    key: str | None = Query(None, max_length=500),
    order: Literal["newest", "oldest"] = "newest",
    limit: int = Query(DEFAULT_LIMIT, ge=1, le=MAX_LIMIT),
    cursor: str | None = Query(None, max_length=1_100),
) -> Response:
    """A page may be short, or empty, and not the last: `scan` says how far a filter has looked."""
    context = context_of(request)
    given = {
        "q": q, "status": status, "workflow": workflow, "service": service, "node": node, "since": since,
        "until": until, "took": took, "created_by": created_by, "error_code": error_code, "key": key,
    }  # fmt: skip
    said = {name: value for name, value in given.items() if value}
    asked = said | {"order": order}
    position = None if cursor is None else _position(context.cursors.open(cursor, asked))
    caller = caller_of(request)
    wanted = replace(read_filter(said, await job_views.clock(context.reads)), within=within(caller))
    page = await list_jobs(context.reads, wanted, after=position, limit=limit, oldest_first=order == "oldest")
    following = None if page.next is None else context.cursors.seal((page.next.order_seq, str(page.next.id)), asked)
    rows = [document(job_within(caller, row), context.redaction) for row in page.rows]
    shown = Page(rows, following, page.scan, page.as_of).document()
    return answer(shown | {"filter": replace(wanted, within=None).document()})


def _position(opened: Sequence[int | str]) -> ListPosition:
    order_seq, job_id = opened
    return ListPosition(int(order_seq), UUID(str(job_id)))


# Submission


@router.post(
    "/jobs",
    operation_id="jobs.submit",
    summary="Submit a job",
    status_code=201,
    responses=answers(JOB, 201, "Submitted") | answers(JOB, 200, "Submitted before with this key, or a dry run"),
    openapi_extra=scoped(Scope.SUBMIT, Reach.NARROWED),
)
async def submit(request: Request, wanted: JobSubmission, dry_run: bool = False) -> Response:
    """Submits one job. The same `Idempotency-Key` again is the same job."""
    context = context_of(request)
    found = await _workflow(context, wanted.workflow, wanted.version)
    require_limit(caller_of(request), "workflows", found.name)
    key = idempotency_key(request)
    submission = _submission(wanted, found.id, key)
    if dry_run:
        return answer(await _dry_submission(context, submission, found))
    await refuse_a_backlog(context)
    [made] = await submit_jobs(context.verbs, [submission], created_by=caller_of(request).actor)
    job_id = _or_refused(made, found.name)
    shown = await read_job(context, job_id, context.redaction, caller_of(request))
    if made.verdict != "repeated":
        where = f"{context.settings.gateway.base_path}/api/v1/jobs/{job_id}"
        return answer(shown, status=201, headers={"Location": where})
    _require_same(await job_views.job(context.reads, job_id), submission, found)
    return answer(shown, headers={"Idempotency-Replayed": "true"})


@router.post(
    "/jobs/batch",
    operation_id="jobs.submit_batch",
    summary="Submit up to 1,000 jobs",
    responses=answers(
        listed(
            objects(status={"type": "integer"}, id={"type": ["string", "null"]}, reason={"type": ["string", "null"]})
        )
    ),
    openapi_extra=scoped(Scope.SUBMIT, Reach.NARROWED),
)
async def submit_batch(request: Request, wanted: JobSubmissions, dry_run: bool = False) -> Response:
    """Submits jobs in one transaction, and answers for each in their order. With an `Idempotency-Key` all of it can be
    sent again."""
    context, caller = context_of(request), caller_of(request)
    key = idempotency_key(request)
    workflows = {
        (each.workflow, each.version): await _workflow(context, each.workflow, each.version) for each in wanted.jobs
    }
    for found in workflows.values():
        require_limit(caller, "workflows", found.name)
    await refuse_a_backlog(context)
    found_for = [workflows[each.workflow, each.version] for each in wanted.jobs]
    submissions = [
        _submission(each, found_for[number].id, None if key is None else f"{key}/{number}")
        for number, each in enumerate(wanted.jobs)
    ]

    async def work(db: Database) -> list[Submitted]:
        return await submit_jobs(db, submissions, created_by=caller.actor)

    if key is None or dry_run:
        made = await done(request, work, dry_run=dry_run)
    else:
        made = await _submitted_once(request, work, list(zip(submissions, found_for, strict=True)))
    statuses = {"accepted": 201, "repeated": 200, "refused": 409}
    rows = [{"status": statuses[each.verdict], "id": each.job_id, "reason": each.reason} for each in made]
    return answer({"items": rows} | ({"dry_run": True} if dry_run else {}))


async def _submitted_once(
    request: Request,
    work: Callable[[Database], Awaitable[list[Submitted]]],
    asked: Sequence[tuple[Submission, StoredWorkflow]],
) -> list[Submitted]:
    """Undone as a whole if the key belongs to another batch."""
    mismatch: HttpProblem | None = None

    async def compared(db: Database) -> list[Submitted]:
        nonlocal mismatch
        made = await work(db)
        try:
            for each, (submission, found) in zip(made, asked, strict=True):
                if each.verdict == "repeated" and each.job_id is not None:
                    _require_same(await job_views.job(db, each.job_id), submission, found)
        except HttpProblem as problem:
            mismatch = problem
        return made

    made, _ = await as_rehearsed(verbs_of(request), compared, lambda _: mismatch is None)
    if mismatch is not None:
        raise mismatch
    return made


def idempotency_key(request: Request) -> str | None:
    """The key of the request, as it is stored: an actor's own."""
    given = request.headers.get("idempotency-key")
    if given is None:
        return None
    if not 1 <= len(given) <= _LONGEST_KEY or not given.isprintable():
        raise InvalidValue(f"an Idempotency-Key has 1 to {_LONGEST_KEY} printable characters")
    return own_key(caller_of(request).actor, given)


async def _workflow(context: GatewayContext, name: str, version: int | None) -> StoredWorkflow:
    """The newest active version, unless one is named."""
    try:
        [found] = await workflows_by_id(context.reads, [await workflow_id(context.reads, name, version)])
    except NotFound:
        raise await no_such_workflow(context.reads, name, version) from None
    return found


def _submission(wanted: JobSubmission, workflow: UUID, key: str | None) -> Submission:
    return Submission(workflow, wanted.options, wanted.priority, wanted.scheduled_at, key, wanted.trace_id)


async def _dry_submission(context: GatewayContext, submission: Submission, found: StoredWorkflow) -> dict[str, Any]:
    await check_options(context.reads, [submission])
    return {
        "dry_run": True,
        "workflow": found.name,
        "version": found.version,
        "options": context.redaction.inside(dict(submission.options or {})),
        "steps": [
            {"key": step["key"], "service": step.get("service"), "uses": step.get("uses")} for step in found.steps
        ],
    }


async def refuse_a_backlog(context: GatewayContext) -> None:
    most = context.settings.gateway.backlog
    if most is None:
        return
    pending = await context.reads.fetchval(
        "SELECT count(*) FROM (SELECT FROM accs.pending_jobs LIMIT $1) p", most + 1, repeatable=True
    )
    if pending > most:
        raise HttpProblem(
            "backlog_full", f"more than {most} jobs are pending", headers={"Retry-After": "30"}, pending=pending
        )


def _or_refused(made: Submitted, workflow: str) -> UUID:
    if made.job_id is None:
        raise VerbRefused("submit", made.reason or "unknown", subject=f"workflow {workflow}")
    return made.job_id


def _require_same(made: JobRow, asked: Submission, found: StoredWorkflow) -> None:
    """A key that belongs to another request is a mistake of the client's. What is compared is not redacted: two
    secrets look alike."""
    known = (made.workflow, made.options, made.priority, made.scheduled_at, made.trace_id)
    given = (found.name, dict(asked.options or {}), asked.priority, asked.scheduled_at, asked.trace_id)
    if known != given:
        raise HttpProblem(
            "idempotency_mismatch", f"this key was used for job {made.id}, which is another", subject=str(made.id)
        )


# One job


@router.get(
    "/jobs/{job_id}",
    operation_id="jobs.get",
    summary="A job with its tasks",
    responses=answers({"allOf": [JOB, objects(tasks=listed(TASK))]}),
    openapi_extra=shared(),
)
async def get_job(request: Request, job_id: str, reveal: bool = False) -> Response:
    """`job_id` may be the beginning or the end of an id. With `Prefer: wait=30` the answer comes when the job has
    ended, or, with `If-None-Match`, as soon as it differs. `reveal` shows an admin what is masked, and is audited."""
    context = context_of(request)
    found = await job_named(context.reads, job_id)
    redaction = await redaction_for(request, "job", str(found), reveal=reveal)

    async def read() -> dict[str, Any]:
        return await read_job(context, found, redaction, caller_of(request), with_tasks=True)

    return await told(request, Topic.job(found), read, lambda shown: JobStatus(shown["status"]).is_terminal)


async def read_job(
    context: GatewayContext, job_id: UUID, redaction: Redaction | None, caller: Caller, *, with_tasks: bool = False
) -> dict[str, Any]:
    row = job_within(caller, await job_views.job(context.reads, job_id))
    shown = shown_to(caller, "job", document(row, redaction))
    if with_tasks:
        tasks = await job_views.tasks_of(context.reads, job_id, limit=_TASKS + 1)
        shown["tasks"] = {
            "items": [shown_to(caller, "task", document(task, redaction)) for task in tasks[:_TASKS]],
            "next": _TASKS if len(tasks) > _TASKS else None,
        }
    return shown


@router.get(
    "/jobs/{job_id}/tasks",
    operation_id="jobs.tasks",
    summary="The tasks of a job, by pages",
    responses=answers(objects(items={"type": "array", "items": TASK}, next={"type": ["integer", "null"]})),
    openapi_extra=shared(),
)
async def get_tasks(
    request: Request,
    job_id: str,
    after: int = Query(0, ge=0, le=1_000_000),
    limit: int = Query(1_000, ge=1, le=_MOST_TASKS),
    key: str | None = Query(None, max_length=300, description="Only the task with this key."),
) -> Response:
    context, caller = context_of(request), caller_of(request)
    found = await job_named(context.reads, job_id)
    tasks = await job_views.tasks_of(context.reads, found, limit=limit + 1, offset=after, key=key)

    def made() -> dict[str, Any]:
        rows = [shown_to(caller, "task", document(task, context.redaction)) for task in tasks[:limit]]
        return {"items": rows, "next": after + limit if len(tasks) > limit else None}

    return await large_answer(made, len(tasks))


@router.get(
    "/jobs/{job_id}/fold",
    operation_id="jobs.fold",
    summary="The steps of a job as a graph of what differs",
    responses=answers(ANYTHING),
    openapi_extra=shared(),
)
async def fold(request: Request, job_id: str) -> Response:
    """For jobs with more tasks than a client wants to read. Steps that are alike are one of the `nodes`: its `units`
    name each step and how many items it became, `states` has a letter for each of their tasks (the step, then its
    items), `parents` are the places of the nodes before it."""
    context = context_of(request)
    found = await job_named(context.reads, job_id)
    sketches = await job_views.sketches_of(context.reads, found)
    return await large_answer(lambda: folded(sketches), len(sketches))


@router.patch(
    "/jobs/{job_id}",
    operation_id="jobs.change",
    summary="Change priority, options or due time",
    responses=answers(JOB),
    openapi_extra=scoped(Scope.SUBMIT),
)
async def change(request: Request, job_id: str, wanted: JobChange, dry_run: bool = False) -> Response:
    """Needs `If-Match` with the ETag that `GET /jobs/{job_id}` gave."""
    context, found = context_of(request), await job_named(context_of(request).reads, job_id)
    before = await read_job(context, found, context.redaction, caller_of(request), with_tasks=True)
    require_own(request, before["created_by"])
    require_version(request, before)

    async def work(db: Database) -> JobRow:
        made = await change_jobs(
            db,
            [found],
            priority=wanted.priority,
            options=wanted.options,
            scheduled_at=wanted.scheduled_at,
            by=caller_of(request).actor,
            reason=wanted.reason,
        )
        made[found].or_raise("change_jobs")
        return await job_views.job(db if dry_run else context.reads, found)

    row = job_within(caller_of(request), await done(request, work, dry_run=dry_run))
    shown = document(row, context.redaction)
    return answer(shown | ({"dry_run": True} if dry_run else {}))


@router.post(
    "/jobs/{job_id}/cancel",
    operation_id="jobs.cancel",
    summary="Cancel a job",
    responses=answers(ANYTHING),
    openapi_extra=scoped(Scope.SUBMIT),
)
async def cancel(
    request: Request, job_id: str, asked: Reason = Body(default=Reason()), dry_run: bool = False
) -> Response:
    """Running tasks are stopped; steps that are done stay done. A dry run lists both."""
    context = context_of(request)
    found = await job_named(context.reads, job_id)
    job = await job_views.job(context.reads, found)
    require_own(request, job.created_by)
    verb = partial(cancel_jobs, job_ids=[found], reason=asked.reason, by=caller_of(request).actor)
    if dry_run:
        return answer(await cancel_preview(context.verbs, found, verb))
    return await _answered(request, "cancel", (await verb(verbs_of(request)))[found])


@router.post(
    "/jobs/{job_id}/retry",
    operation_id="jobs.retry",
    summary="Run a finished job again",
    responses=answers(ANYTHING),
    openapi_extra=scoped(Scope.SUBMIT),
)
async def retry(
    request: Request, job_id: str, asked: RetryAsked = Body(default=RetryAsked()), dry_run: bool = False
) -> Response:
    """What has not succeeded, or one step and everything below it. A dry run lists what would run again."""
    context = context_of(request)
    found = await job_named(context.reads, job_id)
    job = await job_views.job(context.reads, found)
    require_own(request, job.created_by)
    verb = partial(
        retry_jobs, job_ids=[found], from_step=asked.from_step, reason=asked.reason, by=caller_of(request).actor
    )
    if dry_run:
        return answer(await retry_preview(context.verbs, found, verb))
    return await _answered(request, "retry", (await verb(verbs_of(request)))[found])


@router.post(
    "/jobs/{job_id}/rerun",
    operation_id="jobs.rerun",
    summary="A new job with other options",
    status_code=201,
    responses=answers(JOB, 201, "The new job") | answers(JOB, 200, "A dry run"),
    openapi_extra=scoped(Scope.SUBMIT),
)
async def rerun(request: Request, job_id: str, asked: RerunAsked, dry_run: bool = False) -> Response:
    """Submits a job of the same workflow version and priority; its trigger names the earlier one (`rerun_of`)."""
    context = context_of(request)
    found = await job_named(context.reads, job_id)
    await refuse_a_backlog(context)

    async def work(db: Database) -> JobRow:
        made = await rerun_job(db, found, asked.options, created_by=caller_of(request).actor)
        return await job_views.job(db if dry_run else context.reads, made)

    made = await done(request, work, dry_run=dry_run)
    shown = document(job_within(caller_of(request), made), context.redaction)
    if dry_run:
        return answer(shown | {"dry_run": True})
    where = f"{context.settings.gateway.base_path}/api/v1/jobs/{made.id}"
    return answer(shown, status=201, headers={"Location": where})


async def _answered(request: Request, verb: str, made: Answer) -> Response:
    made.or_raise(verb)
    context = context_of(request)
    job = await read_job(context, made.id, context.redaction, caller_of(request))
    return answer({"answer": made.verdict, "reason": made.reason, "job": job})


# Why, and what happened


@router.get(
    "/jobs/{job_id}/why",
    operation_id="jobs.why",
    summary="Why a job does not run",
    responses=answers(listed(ANYTHING)),
    openapi_extra=scoped(Scope.READ),
)
async def why(request: Request, job_id: str) -> Response:
    """Every blocker in the words of `accsd why`, with what to do about it. Not for share links: it names what the job
    waits for, other jobs among them."""
    context = context_of(request)
    found = await job_named(context.reads, job_id)
    return answer({"items": await _why(context, found)})


@router.post(
    "/why",
    operation_id="jobs.why_many",
    summary="Why up to 50 jobs do not run",
    responses=answers(ANYTHING),
    openapi_extra=scoped(Scope.READ, Reach.NARROWED),
)
async def why_many(request: Request, asked: WhyAsked) -> Response:
    context = context_of(request)
    await require_jobs(context, caller_of(request), asked.ids)
    found = {each: await job_named(context.reads, each) for each in asked.ids}
    return answer({"items": {each: await _why(context, job) for each, job in found.items()}})


async def _why(context: GatewayContext, job_id: UUID) -> list[dict[str, Any]]:
    return explained.document(await explained.why_job(context.reads, job_id, context.settings.lease))


@router.get(
    "/jobs/{job_id}/explain",
    operation_id="jobs.explain",
    summary="Where a job's time went, and when it may end",
    responses=answers(ANYTHING),
    openapi_extra=shared(),
)
async def explain(request: Request, job_id: str) -> Response:
    """The critical path in pieces (waiting, waking, starting, running, lost), the sum of all tasks, the likely end."""
    context = context_of(request)
    found = await job_named(context.reads, job_id)
    archived, _ = _archived(context, found)
    explanation = await archived.ask(lambda lines: explain_job(context.reads, found, lines))
    return await large_answer(explanation.document, explanation.task_count)


@router.get(
    "/jobs/{job_id}/events",
    operation_id="jobs.events",
    summary="What happened in a job",
    responses=answers(listed(row_schema(EventRow))),
    openapi_extra=shared(),
)
async def events(
    request: Request, job_id: str, limit: int = Query(500, ge=1, le=_MOST_EVENTS), chatter: bool = False
) -> Response:
    """The newest ones, in their order. With `chatter`, log lines and progress too."""
    context, caller = context_of(request), caller_of(request)
    if chatter:
        refuse_share(caller, "no logs")
    found = await job_named(context.reads, job_id)
    archived, missing = _archived(context, found)
    rows = await archived.ask(
        lambda lines: event_views.newest_events(context.reads, found, limit, lines, chatter=chatter)
    )
    items = [shown_to(caller, "event", document(row, context.redaction)) for row in rows]
    return answer({"items": items, "missing": missing})


@router.get(
    "/jobs/{job_id}/attempts",
    operation_id="jobs.attempts",
    summary="The attempts at a job's tasks",
    responses=answers(listed(row_schema(AttemptRow))),
    openapi_extra=shared(),
)
async def attempts(request: Request, job_id: str, limit: int = Query(500, ge=1, le=_MOST_ATTEMPTS)) -> Response:
    context = context_of(request)
    found = await job_named(context.reads, job_id)
    archived, missing = _archived(context, found)
    rows = await archived.ask(lambda lines: event_views.attempts_of(context.reads, found, limit, lines))
    return answer({"items": [document(row) for row in rows], "missing": missing})


def _archived(context: GatewayContext, job_id: UUID) -> tuple[ArchivedLines, list[str]]:
    """What of a job's history is in the store; the list hears why some of it could not be read."""
    missing: list[str] = []

    @asynccontextmanager
    async def opened() -> AsyncGenerator[ObjectStore]:
        yield require_store(context)

    return ArchivedLines(context.reads, job_id, opened, lambda error: missing.append(str(error))), missing


ARTIFACT: Final = row_schema(StoredArtifact)


@router.get(
    "/jobs/{job_id}/artifacts",
    operation_id="jobs.artifacts",
    summary="The artifacts of a job",
    responses=answers(listed({"allOf": [ARTIFACT, objects(name={"type": "string"})]})),
    openapi_extra=shared(artifacts=True),
)
async def artifacts(request: Request, job_id: str, logs: bool = False) -> Response:
    """Parts of logs are left out unless `logs` is true."""
    context, caller = context_of(request), caller_of(request)
    if logs:
        refuse_share(caller, "no logs")
    found = await job_named(context.reads, job_id)
    rows = await artifacts_of(context.reads, found)
    return answer({"items": [artifact_document(caller, row) for row in rows if logs or not row.is_log_segment]})


def artifact_document(caller: Caller, row: StoredArtifact) -> dict[str, Any]:
    return shown_to(caller, "artifact", document(row) | {"name": row.name})


@router.get(
    "/jobs/{job_id}/history",
    operation_id="jobs.history",
    summary="Every transition of a job's tasks, as columns",
    responses=answers(ANYTHING),
    openapi_extra=shared(),
)
async def history(request: Request, job_id: str) -> Response:
    """For a replay: `tasks` names the tasks in the order of the workflow, `made_after_seconds` says when each was made,
    and each transition is a place in `tasks`, a time and a status."""
    context = context_of(request)
    found = await job_named(context.reads, job_id)
    archived, missing = _archived(context, found)
    rows = await archived.ask(
        lambda lines: event_views.transitions_of(context.reads, found, lines, limit=_MOST_TRANSITIONS)
    )
    tasks = await event_views.tasks_made(context.reads, found)  # after them: no transition is of an unknown task

    def made() -> dict[str, Any]:
        places = {name: number for number, name in enumerate(tasks)}
        first = min((*(row.ts for row in rows[:1]), *tasks.values()), default=None)
        return {
            "tasks": list(tasks),
            "made_after_seconds": _since(first, tasks.values()),
            "from": first,
            "task": [places[row.task_key] for row in rows],
            "after_seconds": _since(first, (row.ts for row in rows)),
            "status": [row.status for row in rows],
            "missing": missing,
        }

    return await large_answer(made, len(rows))


def _since(first: datetime | None, moments: Iterable[datetime]) -> list[float]:
    return [] if first is None else [round((each - first).total_seconds(), 6) for each in moments]


@router.get(
    "/jobs/{job_id}/compare",
    operation_id="jobs.compare",
    summary="Two jobs, trimmed to what can be compared",
    responses=answers(ANYTHING),
    openapi_extra=scoped(Scope.READ),
)
async def compare(
    request: Request, job_id: str, other: str = Query("last_good", alias="with", max_length=40)
) -> Response:
    """`with=last_good`: the last job of the same workflow before this one that was done; or the id of another one."""
    context = context_of(request)
    found = await job_named(context.reads, job_id)
    if other != "last_good":
        await require_jobs(context, caller_of(request), [other])  # before a part of an id is looked up
    beside = await _compared(context, found, other)
    await require_jobs(context, caller_of(request), [beside])
    both = [await _trimmed(context, each, caller_of(request)) for each in (found, beside)]
    return answer({"job": both[0], "with": both[1]})


async def _compared(context: GatewayContext, job_id: UUID, other: str) -> UUID:
    if other != "last_good":
        return await job_named(context.reads, other)
    found = await job_views.last_good(context.reads, job_id)
    if found is None:
        raise NotFound("no earlier job of this workflow was done", hint="`?with=JOB` compares with any other job")
    return found


_OF_FILE: Final = ("id", "content_type", "size_bytes", "checksum")


async def _trimmed(context: GatewayContext, job_id: UUID, caller: Caller) -> dict[str, Any]:
    shown = await read_job(context, job_id, context.redaction, caller)
    tasks: Sequence[TaskRow] = await job_views.tasks_of(context.reads, job_id, limit=_TASKS)
    rows = await artifacts_of(context.reads, job_id)
    kept = ("task_key", "service", "status", "node", "attempt", "took", "error_code", "params", "results")
    shown["tasks"] = [
        {name if name != "took" else "took_seconds": context.redaction.of(name, getattr(task, name)) for name in kept}
        for task in tasks
    ]
    shown["artifacts"] = [
        {"task_key": row.task_key, "name": row.name} | {name: getattr(row, name) for name in _OF_FILE}
        for row in rows
        if not row.is_log_segment
    ]
    return shown
