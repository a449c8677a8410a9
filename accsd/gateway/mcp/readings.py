"""The tools that only look."""

from collections.abc import Iterable
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Annotated, Any, Final, Literal
from uuid import UUID

from pydantic import Field

from accsd.db import topics
from accsd.db.access import actors_named
from accsd.db.tools import bound_workflow, find_tools
from accsd.db.views import firings as firing_views
from accsd.db.views import jobs as job_views
from accsd.db.views import schedules as schedule_views
from accsd.db.views import workflows as workflow_views
from accsd.db.views.dead_letters import LetterFilter, list_letters
from accsd.db.views.schedules import ScheduleRow
from accsd.errors import InvalidValue, NotFound
from accsd.explain import occurrences
from accsd.explain import schedule_definitions as definitions
from accsd.explain import schedules as words
from accsd.explain import why as explained
from accsd.explain.bar import explain_job
from accsd.explain.jobs import dead_because
from accsd.explain.log import AttemptLines
from accsd.gateway.mcp.desk import Desk
from accsd.gateway.mcp.tool import MORE, ROW, ROWS, Arguments, Tool, ToolAnswer, ToolKind
from accsd.gateway.mcp.untrusted import ROW_BYTES
from accsd.gateway.problems import HttpProblem, pointer
from accsd.gateway.reach import events_within, job_within
from accsd.model import WorkflowDef
from accsd.model.access import Scope
from accsd.model.schedule import ScheduleDef
from accsd.model.tool import ToolDef
from accsd.pipeline.document import as_workflow, is_pipeline
from accsd.pipeline.flow import check_workflow
from accsd.planning.recurrence import explain, instant_of, lint, parse_time, zone_rules

_LISTED: Final = 20
_TASKS: Final = 100  # of a job that is shown
_LINES: Final = 50
_MOST_LINES: Final = 500

Limit = Annotated[int, Field(ge=1, le=500, description="Rows at most; gateway.mcp.rows bounds it.")]
Name = Annotated[str, Field(min_length=1, max_length=200)]
Document = Annotated[dict[str, Any], Field(description="As JSON.")]


def count(n: int, what: str, plural: str | None = None) -> str:
    return f"{n:,} {what if n == 1 else plural or what + 's'}"


# Schedules


class ListSchedules(Arguments):
    state: Literal["active", "paused", "snoozed", "held", "ended", "broken"] | None = None
    workflow: Name | None = None
    created_by: Name | None = Field(default=None, description="Only what this actor has made.")
    made_by: Literal["person", "service", "assistant"] | None = Field(
        default=None, description="Only what actors of this kind have made."
    )
    limit: Limit = _LISTED


async def list_schedules(desk: Desk, given: ListSchedules) -> ToolAnswer:
    states = [given.state] if given.state else []
    rows = await schedule_views.schedules(desk.reads, states=states, workflow=given.workflow)
    kinds = await kinds_of(desk, {row.created_by for row in rows})
    found = [
        row
        for row in rows
        if desk.caller.reaches("workflows", row.workflow)
        and given.created_by in (None, row.created_by)
        and given.made_by in (None, kinds.get(row.created_by or ""))
    ]
    shown = found[: min(given.limit, desk.limits.rows)]
    items = [schedule_row(desk, row, kinds) for row in shown]
    return ToolAnswer(f"{count(len(found), 'schedule')}.", {"items": items, "more": len(found) > len(shown)})


async def kinds_of(desk: Desk, actors: Iterable[str | None]) -> dict[str, str]:
    """What kind of actor each of these is (MC8); who has never had a token is not known."""
    found = await actors_named(desk.reads, [each for each in actors if each])
    return {name: actor.kind for name, actor in found.items()}


def schedule_row(desk: Desk, row: ScheduleRow, kinds: dict[str, str]) -> dict[str, Any]:
    return {
        "id": row.id,
        "kind": row.schedule_kind,
        "state": row.state,
        "next_due": row.next_due,
        "open_jobs": row.open_jobs,
        "made_by": kinds.get(row.created_by or ""),
        "is_yours": desk.is_own(row.created_by),
        **desk.marked(
            most=ROW_BYTES,
            name=row.name,
            workflow=row.workflow,
            when=row.schedule_expr,
            timezone=row.timezone,
            created_by=row.created_by,
            title=row.title,
            reason=row.reason,
        ),
    }


class OneSchedule(Arguments):
    schedule: Name = Field(description="Its name or id.")


async def show_schedule(desk: Desk, given: OneSchedule) -> ToolAnswer:
    row = await desk.schedule(given.schedule)
    picture = (await words.picture_of(desk.reads, row.name, desk.spread)).document()
    kinds = await kinds_of(desk, {row.created_by})
    ahead = [occurrence(each) for each in picture["next"]]
    shown = {
        "id": row.id,
        "revision": row.revision,
        "kind": row.schedule_kind,
        "state": row.state,
        "since": row.since,
        "runs": row.runs,
        "open_jobs": row.open_jobs,
        "priority": row.priority,
        "missed": row.missed,
        "overlap": row.overlap,
        "made_by": kinds.get(row.created_by or ""),
        "is_yours": desk.is_own(row.created_by),
        "next": ahead,
        "ledger": [
            {key: each[key] for key in ("nominal", "due_at", "outcome", "job_id", "job_status")}
            for each in picture["ledger"]
        ],
        **desk.marked(
            name=row.name,
            words=picture["words"],
            state_words=picture["state_words"],
            workflow=row.workflow,
            created_by=row.created_by,
            title=row.title,
            description=row.description,
            definition=definitions.definition_of(row),
            ledger_words=[each["words"] for each in picture["ledger"]],
            warnings=picture["warnings"],
            losing=picture["losing"],
            history=picture["history"],
        ),
    }
    due = f"; the next time is {ahead[0]['due_at'].isoformat()}" if ahead else ""
    return ToolAnswer(f"The schedule {given.schedule} is {row.state}{due}.", {"schedule": shown})


def occurrence(each: dict[str, Any]) -> dict[str, Any]:
    """Without notes, which repeat what people have said."""
    return {key: value for key, value in each.items() if key != "notes"}


class PreviewSchedule(Arguments):
    when: Document = Field(
        description='When, as in create_schedule: {"cron": "30 2 * * 1-5", "timezone": "Europe/Berlin"}; or rrule,'
        " every, at, with start_at, end_at, exclude, only_on, spread."
    )
    after: datetime | None = Field(default=None, description="With an offset. Now, if it is left out.")
    n: Annotated[int, Field(ge=1, le=100)] = 10


async def preview_schedule(desk: Desk, given: PreviewSchedule) -> ToolAnswer:
    wanted = ScheduleDef.model_validate({"name": "preview", "workflow": "preview", **given.when})
    draft = await definitions.drafted(desk.reads, wanted, spread=desk.spread)
    after = given.after or draft.now
    if after.tzinfo is None:
        raise InvalidValue("after needs an offset: 2026-11-18T12:00:00Z")
    ahead = [] if draft.rule is None else occurrences.ahead(draft.rule, after, given.n)
    meaning = draft.words if draft.rule is None else explain(draft.rule)
    return ToolAnswer(
        f"{count(len(ahead), 'time')} after {after.isoformat()}.",
        {
            "words": meaning,
            "occurrences": [occurrence(occurrences.preview_document(row)) for row in ahead],
            "warnings": [] if draft.rule is None else [asdict(each) for each in lint(draft.rule, after)],
        },
    )


class Explain(Arguments):
    schedule: Name | None = Field(default=None, description="With `at`: what happened, or will happen, at that time.")
    at: Annotated[str, Field(max_length=40)] | None = Field(
        default=None, description="2026-11-18T02:30, on the schedule's own clock, or with an offset."
    )
    job: Annotated[str, Field(max_length=40)] | None = Field(default=None, description="Where a job's time went.")


async def explain_one(desk: Desk, given: Explain) -> ToolAnswer:
    if given.job is not None and given.schedule is None and given.at is None:
        return await _explain_job(desk, given.job)
    if given.schedule is None or given.at is None or given.job is not None:
        raise InvalidValue("give a schedule and at, or a job")
    row = await desk.schedule(given.schedule)
    moment = parse_time(given.at)
    found = await (_named_time(desk, row, moment) if row.has_times else _minute(desk, row, moment))
    rows = [{key: each[key] for key in ("nominal", "due_at", "outcome", "job_id")} for each in found.get("rows", ())]
    shown = {"answer": found["answer"], "rows": rows, **desk.marked(sentences=found["sentences"])}
    return ToolAnswer(
        f"At {given.at} the answer for the schedule {given.schedule} is: {found['answer']}.", {"found": shown}
    )


async def _named_time(desk: Desk, row: ScheduleRow, moment: datetime) -> dict[str, Any]:
    rule = occurrences.rule_of(row, desk.spread)
    around = occurrences.named_at(rule, moment)
    nominal = around.named[0].nominal if around.named else rule.zone.local(moment) if moment.tzinfo else moment
    rows = await firing_views.firings_at(desk.reads, row.id, nominal.replace(tzinfo=None, fold=0))
    marks = occurrences.marks_of(
        await schedule_views.skips_of(desk.reads, row.id), await schedule_views.snoozes_of(desk.reads, row.id)
    )
    return words.what_happened(row, nominal, around, rows, marks)


async def _minute(desk: Desk, row: ScheduleRow, moment: datetime) -> dict[str, Any]:
    begin = moment if moment.tzinfo is not None else instant_of(moment, zone_rules().zone(row.timezone))
    around = await firing_views.firings_around(desk.reads, row.id, begin, begin + timedelta(minutes=1))
    return words.what_happened_around(row, begin, around)


async def _explain_job(desk: Desk, name: str) -> ToolAnswer:
    job_id = await desk.job(name)
    found = (await explain_job(desk.reads, job_id)).document()
    shown = {
        "id": job_id,
        "seconds": {each["kind"]: each["seconds"] for each in found["sum"]},
        "complete": found["complete"],
        **desk.marked(critical_path=found["critical_path"], segments=found["segments"], eta=found["eta"]),
    }
    return ToolAnswer(f"Where the time of job {job_id} went.", {"found": shown})


# Workflows and tools


class ListWorkflows(Arguments):
    workflow: Name | None = Field(default=None, description="Only this one, with its steps.")
    limit: Limit = _LISTED


async def list_workflows(desk: Desk, given: ListWorkflows) -> ToolAnswer:
    if given.workflow is not None:
        return ToolAnswer(f"The workflow {given.workflow}.", {"items": [await workflow_shown(desk, given.workflow)],
                                                        "more": False})  # fmt: skip
    found = [row for row in await workflow_views.workflows(desk.reads) if desk.caller.reaches("workflows", row.name)]
    shown = found[: min(given.limit, desk.limits.rows)]
    items = [
        {
            "id": row.id,
            "version": row.version,
            "steps": row.steps,
            "is_active": row.is_active,
            "is_paused": row.paused_at is not None,
            **desk.marked(most=ROW_BYTES, name=row.name, title=row.title, created_by=row.created_by),
        }
        for row in shown
    ]
    return ToolAnswer(f"{count(len(found), 'workflow')}.", {"items": items, "more": len(found) > len(shown)})


async def workflow_shown(desk: Desk, name: str) -> dict[str, Any]:
    if not desk.caller.reaches("workflows", name):
        raise NotFound(f'there is no workflow "{name}"')
    found = await workflow_views.workflow_named(desk.reads, name)
    return {
        "id": found.id,
        "version": found.version,
        "steps": len(found.steps),
        "is_active": found.is_active,
        **desk.marked(
            name=found.name,
            title=found.title,
            created_by=found.created_by,
            options_schema=found.options_schema,
            definition=found.steps,
        ),
    }


class ListTools(Arguments):
    beginning: Annotated[str, Field(max_length=100)] | None = Field(default=None, description="media.")
    limit: Limit = _LISTED


async def list_tools(desk: Desk, given: ListTools) -> ToolAnswer:
    newest: dict[str, ToolDef] = {}
    for tool in await find_tools(desk.reads):
        if tool.is_active and tool.name.startswith(given.beginning or ""):
            newest.setdefault(tool.name, tool)
    found = [tool for tool in newest.values() if desk.caller.reaches("tools", tool.name)]
    shown = found[: min(given.limit, desk.limits.rows)]
    items = [
        {
            "version": tool.version,
            **desk.marked(
                most=4 * ROW_BYTES,
                name=tool.name,
                description=tool.description,
                input_schema=tool.input_schema,
                output_schema=tool.output_schema,
            ),
        }
        for tool in shown
    ]
    return ToolAnswer(f"{count(len(found), 'tool')}.", {"items": items, "more": len(found) > len(shown)})


class CheckPipeline(Arguments):
    document: Document = Field(description="A workflow or pipeline, as `accsd workflows apply` takes it, as JSON.")


async def check_pipeline(desk: Desk, given: CheckPipeline) -> ToolAnswer:
    found, warnings = await read_pipeline(desk, given.document)
    return ToolAnswer(
        f"The pipeline is well formed and has {count(len(found.steps), 'step')}; nothing was written.",
        {"name": found.name, "steps": len(found.steps), "warnings": warnings},
    )


async def read_pipeline(desk: Desk, document: dict[str, Any]) -> tuple[WorkflowDef, list[str]]:
    """WorkflowInvalid has every mistake."""
    found = WorkflowDef.model_validate(as_workflow(document))
    warnings = check_workflow(found, steps_at="pipeline" if is_pipeline(document) else "steps")
    return await bound_workflow(desk.reads, found), [f"{pointer(place)}: {said}" for place, said in warnings]


# Jobs


class OneJob(Arguments):
    job: Annotated[str, Field(min_length=1, max_length=40)] = Field(
        description="Its id, or the beginning or end of one."
    )


async def show_job(desk: Desk, given: OneJob) -> ToolAnswer:
    job_id = await desk.job(given.job)
    shown = await job_shown(desk, job_id)
    return ToolAnswer(f"Job {job_id} is {shown['status']}.", {"job": shown})


async def job_shown(desk: Desk, job_id: UUID) -> dict[str, Any]:
    row = job_within(desk.caller, await job_views.job(desk.reads, job_id))
    tasks = await job_views.tasks_of(desk.reads, job_id, limit=_TASKS + 1)
    kinds = await kinds_of(desk, {row.created_by})
    return {
        "id": job_id,
        "version": row.version,
        "status": row.status,
        "progress": row.progress,
        "priority": row.priority,
        "created_at": row.created_at,
        "started_at": row.started_at,
        "finished_at": row.finished_at,
        "tasks": row.task_count,
        "open_tasks": row.open_tasks,
        "made_by": kinds.get(row.created_by or ""),
        "is_yours": desk.is_own(row.created_by),
        "task_ids": [str(task.id) for task in tasks[:_TASKS]],
        **desk.marked(
            workflow=row.workflow,
            created_by=row.created_by,
            error_code=row.error_code,
            error_message=row.error_message,
            tasks=[
                {
                    "step": task.task_key,
                    "service": task.service,
                    "status": task.status,
                    "attempt": task.attempt,
                    "attempt_id": task.attempt_id,
                    "node": task.node,
                    "error_code": task.error_code,
                    "error_message": task.error_message,
                }
                for task in tasks[:_TASKS]
            ],
            options=row.options,
            results={task.task_key: task.results for task in tasks[:_TASKS] if task.results},
            trigger=row.trigger,
        ),
    } | ({"more_tasks": True} if len(tasks) > _TASKS else {})


class WhyJob(Arguments):
    job: Annotated[str, Field(max_length=40)] | None = None
    task: Annotated[str, Field(max_length=300)] | None = Field(default=None, description="Its id, or JOB/STEP.")


async def why(desk: Desk, given: WhyJob) -> ToolAnswer:
    if (given.job is None) == (given.task is None):
        raise InvalidValue("give a job or a task")
    if given.job is not None:
        job_id = await desk.job(given.job)
        found = await explained.why_job(desk.reads, job_id, desk.settings.lease)
    else:
        found = [await explained.why_task(desk.reads, await desk.task(given.task or ""), desk.settings.lease)]
    rows = explained.document(found)
    shown = rows[: desk.limits.rows]
    items = [
        {
            "job_id": each["job_id"],
            "task_id": each["task_id"],
            "is_critical": each["is_critical"],
            "blocker": each.get("blocker"),
            **desk.marked(
                most=ROW_BYTES,
                **{key: value for key, value in each.items() if key not in ("job_id", "task_id", "is_critical")},
            ),
        }
        for each in shown
    ]
    return ToolAnswer(f"{count(len(rows), 'reason')}.", {"items": items, "more": len(rows) > len(shown)})


class LogsAsked(Arguments):
    task: Annotated[str, Field(min_length=1, max_length=300)] = Field(description="Its id, or JOB/STEP.")
    attempt: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = Field(
        default=None, description="The attempt_id; the last one, if it is left out."
    )
    lines: Annotated[int, Field(ge=1, le=_MOST_LINES)] = _LINES
    around_first_error: bool = False


async def logs(desk: Desk, given: LogsAsked) -> ToolAnswer:
    task_id = await desk.task(given.task)
    attempt = given.attempt or (await job_views.task(desk.reads, task_id)).attempt_id
    if attempt < 1:
        raise NotFound(f"task {task_id} has not been tried yet, so it has no log")
    if desk.store is None:
        raise HttpProblem("stored_elsewhere", "there is no object store here", hint="configure storage.url for it")
    opened = await AttemptLines.open(desk.reads, desk.store, task_id, attempt)
    window = await (opened.around_error(given.lines) if given.around_first_error else opened.tail(given.lines))
    numbers = [line.n for line in window.lines]
    shown = {
        "task_id": task_id,
        "attempt": attempt,
        "first_line": numbers[0] if numbers else None,
        "last_line": numbers[-1] if numbers else None,
        "total_lines": window.total_lines,
        "complete": window.is_complete,
        **desk.marked(text="\n".join(line.text for line in window.lines)),
    }
    said = f"{count(len(numbers), 'line')} of {window.total_lines:,} of attempt {attempt} at task {task_id}."
    return ToolAnswer(said, {"log": shown})


# Events and dead letters


class ListEvents(Arguments):
    topic: Annotated[str, Field(max_length=200)] | None = Field(
        default=None, description="A topic; its last segment may be * or **."
    )
    limit: Limit = _LISTED


async def list_events(desk: Desk, given: ListEvents) -> ToolAnswer:
    most = min(given.limit, desk.limits.rows)
    rows = await topics.events(desk.reads, pattern=given.topic, limit=most + 1)
    found = await events_within(desk, desk.caller, rows)
    items = [
        {
            "id": row.id,
            "at": row.at,
            "matched": row.matched,
            "job_ids": [str(each.job_id) for each in row.caused if each.job_id is not None],
            **desk.marked(
                most=ROW_BYTES,
                topic=row.topic,
                source=row.source,
                caused=[asdict(each) for each in row.caused],
                payload=row.payload,
            ),
        }
        for row in found[:most]
    ]
    return ToolAnswer(f"The newest {count(len(items), 'event')}.", {"items": items, "more": len(rows) > most})


class ListDeadLetters(Arguments):
    workflow: Name | None = None
    service: Name | None = None
    limit: Limit = _LISTED


async def list_dead_letters(desk: Desk, given: ListDeadLetters) -> ToolAnswer:
    wanted = LetterFilter(service=given.service, workflow=given.workflow, within=desk.within)
    page = await list_letters(desk.reads, wanted, after=None, limit=min(given.limit, desk.limits.rows))
    items = [
        {
            "id": row.id,
            "job_id": row.job_id,
            "created_at": row.created_at,
            **desk.marked(
                most=ROW_BYTES,
                workflow=row.workflow,
                step=row.task_key,
                service=row.service,
                error_code=row.error_code,
                because=dead_because(row),
                error_message=row.error_message,
            ),
        }
        for row in page.rows
    ]
    return ToolAnswer(f"{count(len(items), 'dead letter')}.", {"items": items, "more": page.next is not None})


def _tool(name: str, title: str, about: str, takes: type[Any], read: Any, gives: dict[str, Any]) -> Tool[Any]:
    return Tool(name, title, about, Scope.READ, ToolKind.READ, takes, gives, read=read, is_idempotent=True)


_LIST: Final = {"items": ROWS, "more": MORE}
READINGS: Final[tuple[Tool[Any], ...]] = (
    _tool("list_schedules", "List schedules", "The schedules, and how each stands.", ListSchedules, list_schedules,
          _LIST),
    _tool("show_schedule", "Show a schedule", "One schedule: what it means, its state, what is next, what happened.",
          OneSchedule, show_schedule, {"schedule": ROW}),
    _tool("preview_schedule", "Preview times", "The times of a definition that is not written yet, in words and in a"
          " list.", PreviewSchedule, preview_schedule,
          {"words": {"type": "string"}, "occurrences": ROWS, "warnings": ROWS}),
    _tool("explain", "Explain", "What happened, or will happen, to a schedule at a time; or where a job's time went.",
          Explain, explain_one, {"found": ROW}),
    _tool("list_workflows", "List workflows", "The workflows that can be run; one of them with its steps and the"
          " options that it takes.", ListWorkflows, list_workflows, _LIST),
    _tool("list_tools", "List tools", "What the steps of a pipeline may use, with the types of what it takes and"
          " gives.", ListTools, list_tools, _LIST),
    _tool("check_pipeline", "Check a pipeline", "Whether a pipeline is well formed, every mistake with its place."
          " Writes nothing.", CheckPipeline, check_pipeline, {"name": {"type": "string"}, "steps": {"type": "integer"},
          "warnings": {"type": "array", "items": {"type": "string"}}}),
    _tool("show_job", "Show a job", "One job with its tasks, options and results.", OneJob, show_job, {"job": ROW}),
    _tool("why", "Why it waits", "Why a job or task does not run: every reason, and what to do.", WhyJob, why,
          _LIST),
    _tool("logs", "Read a log", "The end of a task's log, or what is around its first error.", LogsAsked, logs,
          {"log": ROW}),
    _tool("list_events", "List events", "The newest events, and what each one caused.", ListEvents, list_events,
          _LIST),
    _tool("list_dead_letters", "List dead letters", "Tasks that failed for good, the newest first.", ListDeadLetters,
          list_dead_letters, _LIST),
)  # fmt: skip
