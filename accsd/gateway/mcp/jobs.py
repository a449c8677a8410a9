"""The tools that make work and stop it: jobs, events, pipelines, dead letters, and all that one actor has made."""

from collections.abc import Sequence
from typing import Annotated, Any, Final

from pydantic import Field

from accsd.db import Database, Verdict, redrive, topics
from accsd.db import schedules as schedule_verbs
from accsd.db.cancel import cancel_jobs
from accsd.db.retry import retry_jobs
from accsd.db.submit import Submission, submit_jobs
from accsd.db.views import jobs as job_views
from accsd.db.views import schedules as schedule_views
from accsd.db.views.dead_letters import settled_letters
from accsd.db.views.job_list import JobFilter, list_jobs
from accsd.db.views.jobs import JobRow, TaskRow
from accsd.db.views.schedules import ScheduleRow
from accsd.db.views.workflows import no_such_workflow
from accsd.db.workflows import apply_workflows, find_workflow, workflow_id, workflows_by_id
from accsd.errors import InvalidValue, NotFound, VerbRefused
from accsd.gateway.mcp.cost import cost_of_run
from accsd.gateway.mcp.desk import Desk
from accsd.gateway.mcp.readings import (
    Document,
    Name,
    OneJob,
    count,
    kinds_of,
    read_pipeline,
    schedule_row,
)
from accsd.gateway.mcp.tool import ROWS, Arguments, Deed, Effect, Tool, ToolAnswer, ToolKind, WriteArguments
from accsd.gateway.mcp.untrusted import ROW_BYTES
from accsd.gateway.problems import HttpProblem
from accsd.model.access import Scope
from accsd.model.state import TaskStatus

_MOST_LETTERS: Final = 100
_MOST_TOGETHER: Final = 100  # schedules, and jobs, of one actor that are listed, paused or undone at once
_LIVE: Final = (TaskStatus.STARTING, TaskStatus.RUNNING)


# Made


class Submit(WriteArguments):
    workflow: Name = Field(description="list_workflows has the names, and the options that each takes.")
    version: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = Field(default=None, description="The newest one.")
    options: dict[str, Any] = Field(default_factory=dict)
    priority: Annotated[int, Field(ge=-(2**31), le=2**31 - 1)] = 0


async def submit(desk: Desk, given: Submit, key: str) -> Deed:
    desk.require_limit("workflows", given.workflow)
    try:
        known = await workflow_id(desk.reads, given.workflow, given.version)
    except NotFound:
        raise await no_such_workflow(desk.reads, given.workflow, given.version) from None
    [workflow] = await workflows_by_id(desk.reads, [known])
    await _refuse_a_backlog(desk)

    async def work(db: Database) -> Effect:
        now = await workflow_id(db, given.workflow, given.version)
        wanted = Submission(now, given.options, given.priority, key=key, trigger={"via": "mcp"})
        [made] = await submit_jobs(db, [wanted], created_by=desk.caller.actor)
        if made.job_id is None:
            raise VerbRefused("submit", made.reason or "unknown", subject=f"workflow {given.workflow}")
        return Effect(
            f"A job of the workflow {given.workflow} would be submitted.",
            f"Job {made.job_id} is submitted.",
            {"version": workflow.version, "steps": len(workflow.steps)},
            [str(now)],
            {"job_id": made.job_id, "status": made.status, "repeated": made.verdict is Verdict.REPEATED},
        )

    async def cost(db: Database) -> dict[str, Any]:
        return await cost_of_run(desk, db, workflow.steps)

    return Deed(work, cost, is_own=True)


async def _refuse_a_backlog(desk: Desk) -> None:
    most = desk.settings.gateway.backlog
    if most is None:
        return
    pending = await desk.reads.fetchval(
        "SELECT count(*) FROM (SELECT FROM accs.pending_jobs LIMIT $1) p", most + 1, repeatable=True
    )
    if pending > most:
        raise HttpProblem("backlog_full", f"more than {most} jobs are pending", hint="come back in a while")


class EmitEvent(WriteArguments):
    topic: Annotated[str, Field(min_length=1, max_length=200)] = Field(description="shop.order.created")
    payload: dict[str, Any] = Field(default_factory=dict)


async def emit_event(desk: Desk, given: EmitEvent, key: str) -> Deed:
    desk.require_limit("events", given.topic)

    async def work(db: Database) -> Effect:
        made = await topics.emit_event(db, given.topic, given.payload, key=key, source=desk.caller.actor)
        meets = f"{count(made.matched, 'schedule')} listen{'s' if made.matched == 1 else ''} to it"
        return Effect(
            f"An event {given.topic} would be emitted; {meets}.",
            f"Event {made.event_id} is emitted; {meets}.",
            {"matched": made.matched},
            [made.matched],
            {"event_id": made.event_id, "repeated": made.verdict is Verdict.REPEATED},
        )

    return Deed(work, is_own=True)


class SavePipeline(WriteArguments):
    document: Document = Field(
        description='A workflow or pipeline with its name: {"name": "media", "steps": [{"key": "a", "service": "s"}]}.'
        " It becomes a new version where it differs from the newest."
    )


async def save_pipeline(desk: Desk, given: SavePipeline, key: str) -> Deed:
    del key  # the same document again changes nothing
    wanted, warnings = await read_pipeline(desk, given.document)
    desk.require_limit("workflows", wanted.name)
    if wanted.files:
        raise InvalidValue("a pipeline that an assistant writes brings no files", hint="accsd workflows apply does")
    known = await find_workflow(desk.reads, wanted.name)

    async def work(db: Database) -> Effect:
        [made] = await apply_workflows(db, [wanted], created_by=desk.caller.actor, reason=given.reason)
        said = f"{made.change} as version {made.version}" if made.change != "unchanged" else "unchanged"
        return Effect(
            f"The pipeline {wanted.name} would be {said}.",
            f"The pipeline {wanted.name} is {said}.",
            {
                "name": wanted.name,
                "version": made.version,
                "previous": made.previous,
                "change": made.change,
                "steps": len(wanted.steps),
                "warnings": [{"message": each} for each in warnings],
            },
            [made.version, made.previous, made.change],
        )

    async def cost(db: Database) -> dict[str, Any]:
        return await cost_of_run(desk, db, wanted.steps_document())

    return Deed(work, cost, is_own=known is None or desk.is_own(known.created_by))


# Stopped, and run again


class CancelJob(WriteArguments, OneJob):
    pass


async def cancel_job(desk: Desk, given: CancelJob, key: str) -> Deed:
    del key
    known = await _own_job(desk, given.job)

    async def work(db: Database) -> Effect:
        before = await job_views.tasks_of(db, known.id)
        made = (await cancel_jobs(db, [known.id], reason=given.reason, by=desk.caller.actor))[known.id]
        made.or_raise("cancel")
        job = await job_views.job(db, known.id)
        stops = _numbers(before, *_LIVE)
        never = _numbers(before, TaskStatus.QUEUED)
        more = f"{count(len(stops), 'running task')} stopped, {count(len(never), 'task')} never begun"
        return Effect(
            f"Job {known.id} would be cancelled: {more}.",
            f"Job {known.id} is cancelled: {more}.",
            {
                "job_id": known.id,
                "stops": len(stops),
                "never_begins": len(never),
                "stays": len(before) - len(stops) - len(never),
                **desk.marked(stops=stops, never_begins=never),
            },
            # A task may have gone on meanwhile; that the job was run again, or has ended, is another matter.
            [str(known.id), made.verdict, job.generation],
        )

    return Deed(work, is_own=desk.is_own(known.created_by))


class Retry(WriteArguments, OneJob):
    from_step: Name | None = Field(default=None, description="This step and all below it; without it what failed.")


async def retry(desk: Desk, given: Retry, key: str) -> Deed:
    del key
    known = await _own_job(desk, given.job)

    async def work(db: Database) -> Effect:
        runs = {task.id: task.generation for task in await job_views.tasks_of(db, known.id)}
        made = (await retry_jobs(db, [known.id], from_step=given.from_step, by=desk.caller.actor, reason=given.reason))[
            known.id
        ]
        made.or_raise("retry")
        after = await job_views.tasks_of(db, known.id)
        again = [task for task in after if task.generation > runs.get(task.id, task.generation)]
        return Effect(
            f"Of job {known.id}, {count(len(again), 'task')} would run again.",
            f"Of job {known.id}, {count(len(again), 'task')} run{'s' if len(again) == 1 else ''} again.",
            {
                "job_id": known.id,
                "runs_again": len(again),
                "kept": len(after) - len(again),
                **desk.marked(runs_again=[task.task_key for task in again]),
            },
            [made.verdict, sorted([str(task.id), task.generation] for task in again)],
        )

    return Deed(work, is_own=desk.is_own(known.created_by))


async def _own_job(desk: Desk, name: str) -> JobRow:
    row = await job_views.job(desk.reads, await desk.job(name))
    desk.require_own(row.created_by)
    return row


def _numbers(tasks: Sequence[TaskRow], *statuses: TaskStatus) -> list[str]:
    return [task.task_key for task in tasks if task.status in statuses]


class Redrive(WriteArguments):
    ids: Annotated[list[Annotated[int, Field(ge=1, lt=2**63)]], Field(min_length=1, max_length=_MOST_LETTERS)] = Field(
        description="Of list_dead_letters."
    )


async def redrive_letters(desk: Desk, given: Redrive, key: str) -> Deed:
    del key
    ids = list(dict.fromkeys(given.ids))
    if desk.within is not None and (outside := await job_views.letters_outside(desk.reads, ids, desk.within)):
        raise NotFound(f"there is no dead letter {outside[0]}")

    async def work(db: Database) -> Effect:
        settled = await settled_letters(db, ids)
        made = await redrive(db, ids, by=desk.caller.actor, reason=given.reason)
        taken = [each.dead_letter_id for each in made if each.verdict is not Verdict.REFUSED]
        if not taken:
            raise VerbRefused("redrive", made[0].reason or "unknown", subject=f"dead letter {ids[0]}")
        return Effect(
            f"{count(len(taken), 'dead letter')} would be sent back to work.",
            f"Sent back to work: {count(len(taken), 'dead letter')}.",
            {
                "items": [{"id": each.dead_letter_id, "answer": each.verdict, "reason": each.reason} for each in made],
            },
            [[[each.dead_letter_id, each.verdict, each.reason] for each in made], settled],
        )

    return Deed(work)


# All that one actor has made (MC8)


class Made(Arguments):
    created_by: Name | None = Field(default=None, description="An actor; the caller itself, if it is left out.")


class PauseMade(WriteArguments, Made):
    pass


class UndoMade(WriteArguments, Made):
    pass


async def list_made(desk: Desk, given: Made) -> ToolAnswer:
    actor = given.created_by or desk.caller.actor
    kinds = await kinds_of(desk, {actor})
    schedules = await _schedules_of(desk, desk.reads, actor)
    jobs = await _open_jobs_of(desk, desk.reads, actor)
    return ToolAnswer(
        f"{actor} has made {count(len(schedules), 'schedule')} that {'has' if len(schedules) == 1 else 'have'} not"
        f" ended, and has {count(len(jobs), 'open job')}.",
        {
            "made_by": kinds.get(actor, "unknown"),
            "schedules": [schedule_row(desk, row, kinds) for row in schedules],
            "jobs": [
                {"id": row.id, "status": row.status, **desk.marked(most=ROW_BYTES, workflow=row.workflow)}
                for row in jobs
            ],
        },
    )


async def _schedules_of(desk: Desk, db: Database, actor: str) -> list[ScheduleRow]:
    """By id, which is the order in which they are locked."""
    rows = [
        row
        for row in await schedule_views.schedules(db)
        if row.created_by == actor and desk.caller.reaches("workflows", row.workflow)
    ]
    if len(rows) > _MOST_TOGETHER:
        raise InvalidValue(f"these are {len(rows)} schedules: more than {_MOST_TOGETHER} are not changed at once")
    return sorted(rows, key=lambda row: row.id)


async def _open_jobs_of(desk: Desk, db: Database, actor: str) -> list[JobRow]:
    wanted = JobFilter(statuses=("queued", "running"), by=actor, within=desk.within)
    page = await list_jobs(db, wanted, limit=_MOST_TOGETHER + 1)
    if len(page.rows) > _MOST_TOGETHER or page.next is not None:
        raise InvalidValue(
            f"more than {_MOST_TOGETHER} jobs are open: too many to be listed or cancelled at once",
            hint="a person can: accsd jobs, accsd cancel",
        )
    return sorted(page.rows, key=lambda row: row.id)


async def pause_made(desk: Desk, given: PauseMade, key: str) -> Deed:
    del key
    actor = _actor(desk, given)

    async def work(db: Database) -> Effect:
        rows = [row for row in await _locked_schedules_of(desk, db, actor) if row.state not in ("paused", "broken")]
        for row in rows:
            made = await schedule_verbs.pause_schedule(db, row.name, by=desk.caller.actor, reason=given.reason)
            made.or_raise("pause_schedule", row.name)
        kinds = await kinds_of(desk, {actor})
        return Effect(
            f"{count(len(rows), 'schedule')} that {actor} has made would be paused.",
            f"Paused: {count(len(rows), 'schedule')} that {actor} has made.",
            {"made_by": kinds.get(actor), "schedules": [schedule_row(desk, row, kinds) for row in rows]},
            [[str(row.id), row.revision] for row in rows],
        )

    return Deed(work, is_own=actor == desk.caller.actor)


async def undo_made(desk: Desk, given: UndoMade, key: str) -> Deed:
    del key
    actor = _actor(desk, given)

    async def work(db: Database) -> Effect:
        rows = await _locked_schedules_of(desk, db, actor)
        for row in rows:
            made, _ = await schedule_verbs.end_schedule(db, row.name, by=desk.caller.actor, reason=given.reason)
            made.or_raise("end_schedule", row.name)
        runs = [run.job_id for row in rows for run in await schedule_views.open_runs_of(db, row.id)]
        jobs = sorted({*runs, *(job.id for job in await _open_jobs_of(desk, db, actor))})
        if jobs:
            await cancel_jobs(db, jobs, reason=given.reason, by=desk.caller.actor)
        kinds = await kinds_of(desk, {actor})
        stopped = count(len(jobs), "open job")
        return Effect(
            f"{count(len(rows), 'schedule')} that {actor} has made would be ended, and {stopped} cancelled.",
            f"Ended: {count(len(rows), 'schedule')} that {actor} has made; cancelled: {stopped}.",
            {
                "made_by": kinds.get(actor),
                "schedules": [schedule_row(desk, row, kinds) for row in rows],
                "jobs": [{"id": each} for each in jobs],
            },
            [[[str(row.id), row.revision] for row in rows], [str(each) for each in jobs]],
        )

    return Deed(work, is_own=actor == desk.caller.actor)


async def _locked_schedules_of(desk: Desk, db: Database, actor: str) -> list[ScheduleRow]:
    """As they are once nobody else can change them."""
    known = await _schedules_of(desk, db, actor)
    await schedule_verbs.lock_schedules(db, [row.id for row in known])
    return await _schedules_of(desk, db, actor)


def _actor(desk: Desk, given: Made) -> str:
    actor = given.created_by or desk.caller.actor
    desk.require_own(actor)
    return actor


_MADE: Final = {"schedules": ROWS, "jobs": ROWS, "made_by": {"type": ["string", "null"]}}


def _tool(
    name: str,
    title: str,
    about: str,
    takes: type[Any],
    prepare: Any,
    *,
    scope: Scope = Scope.SUBMIT,
    kind: ToolKind = ToolKind.WRITE,
    is_idempotent: bool = False,
    gives: dict[str, Any] | None = None,
) -> Tool[Any]:
    return Tool(name, title, about, scope, kind, takes, gives or {}, prepare=prepare, is_idempotent=is_idempotent)


JOB_TOOLS: Final[tuple[Tool[Any], ...]] = (
    _tool("submit", "Submit a job", "Run a workflow once, now.", Submit, submit),
    _tool("emit_event", "Emit an event", "Emit an event; schedules that listen to its topic run.", EmitEvent,
          emit_event),
    _tool("save_pipeline", "Save a pipeline", "Write a workflow or pipeline. Jobs of earlier versions keep theirs.",
          SavePipeline, save_pipeline, scope=Scope.OPERATE, is_idempotent=True),
    _tool("cancel_job", "Cancel a job", "Stop a job: running tasks are stopped, finished ones stay.", CancelJob,
          cancel_job, kind=ToolKind.DESTRUCTIVE, is_idempotent=True),
    _tool("retry", "Retry a job", "Run a finished job again: what failed, or one step and all below it.", Retry, retry,
          kind=ToolKind.DESTRUCTIVE),
    _tool("redrive", "Redrive dead letters", "Send tasks that failed for good back to work.", Redrive, redrive_letters,
          scope=Scope.OPERATE, kind=ToolKind.DESTRUCTIVE),
    Tool("list_made", "List what was made", "The schedules and open jobs that one actor has made.", Scope.READ,
         ToolKind.READ, Made, _MADE, read=list_made, is_idempotent=True),
    _tool("pause_made", "Pause what was made", "Pause all schedules that one actor has made.", PauseMade, pause_made,
          is_idempotent=True, gives=_MADE),
    _tool("undo_made", "Undo what was made", "End all schedules that one actor has made, and cancel its open jobs.",
          UndoMade, undo_made, kind=ToolKind.DESTRUCTIVE, is_idempotent=True, gives=_MADE),
)  # fmt: skip
