"""Nodes: what each offers and does, why it is awake; to wake, send to sleep, drain and resume them."""

from dataclasses import asdict
from typing import Any, Final

from fastapi import APIRouter, Body, Path, Query
from starlette.requests import Request
from starlette.responses import Response

from accsd.db import Database, Pausable, Verdict, forget_node
from accsd.db.views import fleet
from accsd.db.views.fleet import LiveTask, NodeEvent, NodeView
from accsd.errors import VerbRefused
from accsd.explain import power
from accsd.explain.fleet import node_because
from accsd.gateway.access import GuardedRoute, scoped
from accsd.gateway.answers import answer, document
from accsd.gateway.bodies import Reason
from accsd.gateway.conditional import told
from accsd.gateway.context import GatewayContext, caller_of, context_of
from accsd.gateway.messages import Topic
from accsd.gateway.problems import HttpProblem
from accsd.gateway.reach import Reach
from accsd.gateway.routes.pauses import pause_thing, resume_thing
from accsd.gateway.routes.verbs import done, verbs_of
from accsd.gateway.schemas import ANYTHING, TEXT, answers, listed, objects, row_schema
from accsd.model.access import Scope

router = APIRouter(prefix="/api/v1", route_class=GuardedRoute, tags=["nodes"])
_NAME: Final = Path(min_length=1, max_length=200)
_SHOWN: Final = objects(state=TEXT, state_since={"type": ["string", "null"]}, why=TEXT)
NODE: Final = {"allOf": [row_schema(NodeView), _SHOWN]}


def node_shown(context: GatewayContext, node: NodeView) -> dict[str, Any]:
    silent = context.settings.lease
    words = {"state": node.state(silent), "state_since": node.since(silent), "why": node_because(node, silent)}
    return document(node) | words


@router.get(
    "/nodes",
    operation_id="nodes.list",
    summary="The machines of the fleet",
    responses=answers(listed(NODE)),
    openapi_extra=scoped(Scope.READ, Reach.FREE),
)
async def list_nodes(request: Request, all_kinds: bool = False) -> Response:
    """With `all_kinds` also what works under a node's name without being a machine."""
    context = context_of(request)
    found = [node for node in await fleet.nodes(context.reads) if all_kinds or node.is_machine]
    return answer({"items": [node_shown(context, node) for node in found]})


@router.get(
    "/nodes/{name}",
    operation_id="nodes.get",
    summary="A machine",
    responses=answers(NODE),
    openapi_extra=scoped(Scope.READ, Reach.FREE),
)
async def get_node(request: Request, name: str = _NAME) -> Response:
    """With `Prefer: wait=30` the answer comes when it is awake, or, with `If-None-Match`, as soon as it differs."""
    context = context_of(request)

    async def read() -> dict[str, Any]:
        return node_shown(context, await fleet.node_named(context.reads, name))

    return await told(request, Topic.node(name), read, lambda shown: shown["state"] == "awake")


@router.get(
    "/nodes/{name}/history",
    operation_id="nodes.history",
    summary="What happened to a machine",
    responses=answers(listed(row_schema(NodeEvent))),
    openapi_extra=scoped(Scope.READ, Reach.FREE),
)
async def history(request: Request, name: str = _NAME, limit: int = Query(100, ge=1, le=1000)) -> Response:
    context = context_of(request)
    await fleet.node_named(context.reads, name)
    rows = await fleet.node_history(context.reads, name, limit=limit)
    return answer({"items": [document(row) for row in rows]})


@router.get(
    "/nodes/{name}/tasks",
    operation_id="nodes.tasks",
    summary="What a machine does now",
    responses=answers(listed(row_schema(LiveTask))),
    openapi_extra=scoped(Scope.READ),
)
async def tasks(request: Request, name: str = _NAME) -> Response:
    context = context_of(request)
    await fleet.node_named(context.reads, name)
    rows = await fleet.live_tasks(context.reads, limit=10_000)
    return answer({"items": [document(row) for row in rows if row.node == name]})


@router.post(
    "/nodes/{name}/wake",
    operation_id="nodes.wake",
    summary="Wake a machine",
    responses=answers(ANYTHING),
    openapi_extra=scoped(Scope.OPERATE),
)
async def wake(request: Request, name: str = _NAME, dry_run: bool = False) -> Response:
    """By its wake method, and by the next one if a call does not get through. The calls are this gateway's; `GET
    /nodes/NAME` with `Prefer: wait` says when it is there."""
    context = context_of(request)
    node = await fleet.node_named(context.reads, name)
    if node.is_here(3 * context.settings.heartbeat):
        return answer({"answer": Verdict.REPEATED, "node": node_shown(context, node), "calls": []})
    by = caller_of(request).actor
    if dry_run:
        known = await power.known_node(context.reads, name, context.settings)
        methods = power.caller(context.verbs, context.settings, by=by).methods(known)
        return answer({"dry_run": True, "methods": list(methods), "usual_seconds": node.latency})
    calls = [asdict(call) for call in await power.call(verbs_of(request), name, context.settings, by=by)]
    if calls and not calls[-1]["ok"]:
        raise HttpProblem(
            "unavailable",
            f"node {name} was not woken: {calls[-1]['error']}",
            hint=f"`accsd doctor --node {name}`",
            calls=calls,
        )
    return answer({"answer": Verdict.ACCEPTED, "node": node_shown(context, node), "calls": calls})


@router.post(
    "/nodes/{name}/sleep",
    operation_id="nodes.sleep",
    summary="Ask a machine to sleep",
    responses=answers(ANYTHING),
    openapi_extra=scoped(Scope.OPERATE),
)
async def sleep(request: Request, name: str = _NAME) -> Response:
    """It stays awake while it has work, is needed soon, or somebody objects; then the refusal is its own sentence."""
    context = context_of(request)
    node = await fleet.node_named(context.reads, name)
    if node.whereabouts(context.settings.lease) == "asleep":
        return answer({"answer": Verdict.REPEATED, "said": None})
    power.check_awake(node, context.settings)
    said = await power.ask_to_sleep(verbs_of(request), name, by=caller_of(request).actor)
    return answer({"answer": Verdict.ACCEPTED, "said": said})


@router.post(
    "/nodes/{name}/drain",
    operation_id="nodes.drain",
    summary="Let a machine end what it has, and take nothing new",
    responses=answers(ANYTHING),
    openapi_extra=scoped(Scope.OPERATE),
)
async def drain(
    request: Request, name: str = _NAME, asked: Reason = Body(default=Reason()), dry_run: bool = False
) -> Response:
    await fleet.node_named(context_of(request).reads, name)
    return await pause_thing(request, Pausable.NODE, name, asked, dry_run=dry_run)


@router.post(
    "/nodes/{name}/resume",
    operation_id="nodes.resume",
    summary="Let a machine work again",
    responses=answers(ANYTHING),
    openapi_extra=scoped(Scope.OPERATE),
)
async def resume(
    request: Request, name: str = _NAME, asked: Reason = Body(default=Reason()), dry_run: bool = False
) -> Response:
    """One that is drained, or whose services are in quarantine."""
    await fleet.node_named(context_of(request).reads, name)
    return await resume_thing(request, Pausable.NODE, name, asked, dry_run=dry_run)


@router.delete(
    "/nodes/{name}",
    operation_id="nodes.forget",
    summary="Forget a machine that is gone for good",
    responses=answers(ANYTHING),
    openapi_extra=scoped(Scope.OPERATE),
)
async def forget(request: Request, name: str = _NAME, dry_run: bool = False) -> Response:
    await fleet.node_named(context_of(request).reads, name)

    async def work(db: Database) -> tuple[Verdict, str | None]:
        return await forget_node(db, name)

    verdict, reason = await done(request, work, dry_run=dry_run)
    if verdict is Verdict.REFUSED:
        raise VerbRefused("forget_node", reason or "unknown", subject=f"node {name}")
    return answer({"answer": verdict} | ({"dry_run": True} if dry_run else {}))
