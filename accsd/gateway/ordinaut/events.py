"""/events: a topic and a payload, and the tasks that listen to exactly this topic start."""

from collections.abc import Sequence
from typing import Any, Final
from uuid import UUID

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from accsd.db import Database, topics
from accsd.db.access import actor_ids
from accsd.db.views.jobs import clock
from accsd.gateway.access import require_limit, require_own, scoped
from accsd.gateway.answers import answer
from accsd.gateway.context import caller_of, context_of
from accsd.gateway.ordinaut.agents import agent_named
from accsd.gateway.ordinaut.shapes import OPERATION, EventIn, OrdinautRoute, done
from accsd.gateway.problems import HttpProblem
from accsd.gateway.reach import Reach, events_within, within
from accsd.gateway.routes.jobs import idempotency_key
from accsd.gateway.routes.verbs import done_together
from accsd.gateway.schemas import ANYTHING, answers, objects
from accsd.model.access import Scope

router = APIRouter(prefix="/events", route_class=OrdinautRoute, tags=["events"])
_IDS: Final = {"type": "array", "items": {"type": "string", "format": "uuid"}}
_PUBLISHED: Final = {"allOf": [OPERATION, objects(event_id={"type": ["string", "null"]}, triggered_tasks=_IDS)]}


@router.post(
    "",
    operation_id="events.publish",
    summary="Publish an event",
    status_code=202,
    responses=answers(_PUBLISHED, 202, "Published") | answers(_PUBLISHED, 200, "Published before, or a dry run"),
    openapi_extra=scoped(Scope.SUBMIT, Reach.FREE),
)
async def publish(request: Request, wanted: EventIn, dry_run: bool = False) -> Response:
    """After the answer no crash loses it. `triggered_tasks` are the active tasks that have it before them; each starts
    one run, which finds the payload in `trigger.event.payload`."""
    context, caller = context_of(request), caller_of(request)
    require_limit(caller, "events", wanted.topic)
    source = await _source(request, wanted.source_agent_id)
    key = idempotency_key(request)

    async def work(db: Database) -> tuple[topics.Emitted, Sequence[UUID]]:
        made = await topics.emit_event(db, wanted.topic, wanted.payload, key=key, source=source)
        return made, await topics.listeners_of(db, made.event_id, within=within(caller))

    made, listening = await done_together(request, work, dry_run=dry_run)
    event_id = None if dry_run else str(made.event_id)
    said = done(
        f"the event has the topic {wanted.topic}",
        event_id=event_id,
        stream_id=event_id,
        topic=wanted.topic,
        triggered_tasks=listening,
        published_at=await clock(context.reads),
    )
    said |= {"event_id": event_id, "triggered_tasks": listening} | ({"dry_run": True} if dry_run else {})
    return answer(said, status=202 if made.verdict == "accepted" and not dry_run else 200)


async def _source(request: Request, agent_id: UUID | None) -> str:
    """Who has seen it happen. Only who may operate speaks for another agent."""
    if agent_id is None:
        return caller_of(request).actor
    name = await agent_named(context_of(request).reads, agent_id)
    if name is None:
        raise HttpProblem(
            "unknown_agent",
            f"source_agent_id: there is no agent {agent_id}",
            hint="leave it out: then it is whoever asks; GET /agents has the ids",
        )
    if name != caller_of(request).actor:
        require_own(request, name)
    return name


@router.get(
    "/topics",
    operation_id="events.topics",
    summary="The topics that active tasks listen to",
    responses=answers(objects(total_topics={"type": "integer"}, topics={"type": "array", "items": ANYTHING})),
    openapi_extra=scoped(Scope.READ, Reach.NARROWED),
)
async def list_topics(request: Request) -> Response:
    context, caller = context_of(request), caller_of(request)
    found = await topics.listened_topics(context.reads, within=within(caller))
    listed = [{"topic": topic, "active_tasks": len(ids), "task_ids": ids} for topic, ids in found.items()]
    return answer({"total_topics": len(listed), "topics": listed})


@router.get(
    "/stream/recent",
    operation_id="events.recent",
    summary="Events, the newest first",
    responses=answers(objects(total_events={"type": "integer"}, events={"type": "array", "items": ANYTHING})),
    openapi_extra=scoped(Scope.READ, Reach.NARROWED),
)
async def recent(request: Request, count: int = Query(50, ge=1, le=500)) -> Response:
    """Those of topics that begin with `accs.` are accsd's own."""
    context, caller = context_of(request), caller_of(request)
    rows = await events_within(context, caller, await topics.events(context.reads, limit=count))
    ids = await actor_ids(context.reads, [row.source for row in rows if row.source is not None])
    shown: list[dict[str, Any]] = [
        {
            "event_id": str(row.id),
            "stream_id": str(row.id),
            "topic": row.topic,
            "payload": context.redaction.inside(dict(row.payload)),
            "source_agent_id": ids.get(row.source or ""),
            "published_by": row.source,
            "published_at": row.at,
        }
        for row in rows
    ]
    return answer({"total_events": len(shown), "events": shown})


@router.delete(
    "/stream/cleanup",
    operation_id="events.cleanup",
    summary="Nothing: old events go by themselves",
    responses=answers(OPERATION),
    openapi_extra=scoped(Scope.OPERATE, Reach.FREE),
)
async def clean_up(request: Request, max_age_hours: int = Query(24, ge=0), dry_run: bool = False) -> Response:
    """Events leave by months, through the archive, after `retention.topics`. Nobody deletes them by hand."""
    del request, dry_run
    said = "accsd removes events by itself, after retention.topics: nothing was deleted"
    return answer(done(said, deleted_count=0, max_age_hours=max_age_hours))
