"""What a limited token reaches: `limits.workflows` narrows all that it reads and changes, not its submissions alone.

What a path names is looked up before the route is entered, and is "not there" for a token that does not reach it; lists
narrow themselves (`within`). A route that says nothing of this is closed to such a token: a new one leaks nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Any, Final, Protocol, cast
from uuid import UUID

from accsd.db import Database
from accsd.db.operations import operation
from accsd.db.topics import TopicEvent
from accsd.db.views import jobs as job_views
from accsd.db.views import schedules as schedule_views
from accsd.db.views.artifacts import artifact
from accsd.db.views.backfills import schedule_of_backfill
from accsd.db.views.jobs import JobRow
from accsd.db.why import job_of_task
from accsd.errors import NotFound
from accsd.gateway.context import GatewayContext
from accsd.gateway.messages import Topic
from accsd.gateway.problems import HttpProblem
from accsd.model.access import Caller


class Reach(StrEnum):
    """How a route minds `limits.workflows`."""

    CLOSED = "closed"  # it shows all workflows together
    FREE = "free"  # nothing of a workflow is in it
    NARROWED = "narrowed"  # it looks itself, at its body or its rows
    NAMED = "named"  # by its path: the guard looks
    WORKFLOW = "workflow"  # the {name} of its path is a workflow's
    SCHEDULE = "schedule"  # a schedule's


_IDS = ("job_id", "task_id", "artifact_id", "operation_id", "backfill_id")


def reach_of(path: str, said: Reach | None) -> Reach:
    """What the route has said; without that its path tells, and otherwise it is closed."""
    if said is not None:
        return said
    return Reach.NAMED if any(f"{{{each}}}" in path for each in _IDS) else Reach.CLOSED


class Reads(Protocol):
    """Where names are looked up: the context of a gateway, or the desk of `accsd mcp`."""

    @property
    def reads(self) -> Database: ...


def within(caller: Caller) -> Sequence[str] | None:
    """The names of workflows that the caller reaches, each may end in *; None: all."""
    return caller.limits.get("workflows")


async def require_reach(context: GatewayContext, caller: Caller, reach: Reach, path: Mapping[str, Any]) -> None:
    """Raises NotFound for what the caller's limits leave out, and HttpProblem for a route that they close."""
    if within(caller) is None:
        return
    match reach:
        case Reach.FREE | Reach.NARROWED:
            return
        case Reach.CLOSED:
            raise closed(caller)
        case Reach.WORKFLOW:
            if not caller.reaches("workflows", path["name"]):
                raise NotFound(f"there is no workflow {path['name']}", hint=_hint(caller))
        case Reach.SCHEDULE:
            await require_schedule(context, caller, path["name"])
        case Reach.NAMED:
            await _require_named(context, caller, path)


async def _require_named(context: GatewayContext, caller: Caller, path: Mapping[str, Any]) -> None:
    db = context.reads
    if "job_id" in path:
        await require_jobs(context, caller, [path["job_id"]])
    elif "task_id" in path:
        await require_jobs(context, caller, [await _job_of(context, caller, path["task_id"])])
    elif "artifact_id" in path:
        await require_jobs(context, caller, [(await artifact(db, _number(path["artifact_id"]))).job_id])
    elif "operation_id" in path:
        await require_operation(context, caller, _uuid(path["operation_id"]))
    else:
        await require_schedule(context, caller, await schedule_of_backfill(db, _uuid(path["backfill_id"])))


async def require_jobs(context: Reads, caller: Caller, jobs: Sequence[object]) -> None:
    """Jobs by their whole ids: what begins or ends like another one's would tell that there is one."""
    if (names := within(caller)) is None:
        return
    ids = [_uuid(each) for each in jobs]
    if outside := await job_views.jobs_outside(context.reads, ids, names):
        raise NotFound(f"there is no job {outside[0]}", hint=_hint(caller))


async def require_schedule(context: Reads, caller: Caller, name: str) -> None:
    if within(caller) is None:
        return
    row = await schedule_views.schedule_named(context.reads, name)
    if not caller.reaches("workflows", row.workflow):
        raise NotFound(f"there is no schedule {name}", hint=_hint(caller))


async def require_operation(context: GatewayContext, caller: Caller, operation_id: UUID) -> None:
    """An operation may be over jobs of every workflow: a limited token sees those of its own actor."""
    if within(caller) is None:
        return
    if (await operation(context.reads, operation_id)).by != caller.actor:
        raise NotFound(f"there is no operation {operation_id}", hint=_hint(caller))


async def require_topics(context: GatewayContext, caller: Caller, topics: Sequence[Topic]) -> None:
    """Each topic of a stream is allowed like the route that has the same."""
    if within(caller) is None:
        return
    for topic in topics:
        match topic.kind:
            case "job":
                await require_jobs(context, caller, [topic.name])
            case "log":
                await require_jobs(context, caller, [await _job_of(context, caller, topic.name.partition(":")[0])])
            case "operation":
                await require_operation(context, caller, UUID(topic.name))
            case _:
                raise closed(caller)


_OUR_TOPICS: Final = "accs"


def require_topic(caller: Caller, pattern: str) -> None:
    """A schedule tells its job what it has heard: it listens to no topic that the caller may not read. accsd's own tell
    of the jobs of all workflows."""
    if within(caller) is not None and pattern.partition(".")[0] in (_OUR_TOPICS, "**", "*"):
        raise closed(caller)
    if not caller.reaches("events", pattern):
        reached = ", ".join(caller.limits["events"])
        raise HttpProblem(
            "scope_missing", f'token {caller.token_id} is limited to events {reached}, and this is "{pattern}"'
        )


async def events_within(context: Reads, caller: Caller, rows: Sequence[TopicEvent]) -> Sequence[TopicEvent]:
    """Of these events what the caller reaches: of accsd's own those about its workflows, and of what each has caused
    what it has caused there."""
    kept = [row for row in rows if caller.reaches("events", row.topic)]
    if (names := within(caller)) is None:
        return kept
    kept = [row for row in kept if _is_about_a_reached_one(caller, row.topic, row.payload)]
    known = await schedule_views.schedules(context.reads, ended=True)
    reached = {row.name for row in known if caller.reaches("workflows", row.workflow)}
    jobs = [row.job_id for row in kept if row.job_id is not None]
    outside = set(await job_views.jobs_outside(context.reads, jobs, names))
    return [
        replace(
            row,
            caused=[each for each in row.caused if each.schedule in reached],
            job_id=None if row.job_id in outside else row.job_id,
        )
        for row in kept
    ]


def _is_about_a_reached_one(caller: Caller, topic: str, payload: object) -> bool:
    if topic.partition(".")[0] != _OUR_TOPICS:
        return True
    about = cast("dict[str, Any]", payload).get("workflow") if isinstance(payload, dict) else None
    return isinstance(about, str) and caller.reaches("workflows", about)


def job_within(caller: Caller, row: JobRow) -> JobRow:
    """The job, without what the events that started it tell of workflows that the caller does not reach."""
    if within(caller) is None or row.trigger is None:
        return row
    hidden = ("event", "events", "event_ids", "chain")
    trigger = {name: value for name, value in row.trigger.items() if name not in hidden}
    for name in ("event", "events"):
        if (found := row.trigger.get(name)) is not None:
            trigger[name] = _events_of_trigger(caller, found)
    return replace(row, trigger=trigger)


def _events_of_trigger(caller: Caller, found: object) -> object:
    """They are a document that a client may have written. Which job has emitted one is left out: it may be anyone's."""
    if isinstance(found, list):
        return [_events_of_trigger(caller, each) for each in cast("list[object]", found)]
    if not isinstance(found, dict):
        return None
    event = cast("dict[str, Any]", found)
    if not _is_about_a_reached_one(caller, str(event.get("topic")), event.get("payload")):
        return None
    return {name: value for name, value in event.items() if name != "job_id"}


def closed(caller: Caller) -> HttpProblem:
    return HttpProblem(
        "scope_missing",
        f"this shows all workflows together, and token {caller.token_id} is limited to "
        f"{', '.join(caller.limits['workflows'])}",
        hint="ask for jobs, or use a token without that limit",
    )


async def _job_of(context: GatewayContext, caller: Caller, task_id: object) -> UUID:
    found = await job_of_task(context.reads, _uuid(task_id))
    if found is None:
        raise NotFound(f"there is no task {task_id}", hint=_hint(caller))
    return found


def _uuid(given: object) -> UUID:
    try:
        return UUID(str(given))
    except ValueError:
        raise NotFound(
            f'there is no "{given}"', hint="a token with limits names jobs and tasks by their whole id"
        ) from None


def _number(given: object) -> int:
    text = str(given)
    if not (text.isascii() and text.isdigit() and len(text) < 17):
        raise NotFound(f'there is no artifact "{text[:50]}"')
    return int(text)


def _hint(caller: Caller) -> str:
    return f"token {caller.token_id} is limited to workflows {', '.join(caller.limits['workflows'])}"
