"""Tools, and what is told to others: the catalogue that a pipeline is written from, and the outbox."""

from typing import Any, Final, Literal

from fastapi import APIRouter, Body, Path, Query
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from accsd.db import Database, outbox
from accsd.db.outbox import OutboxAnswer, OutboxRow, TargetRow
from accsd.db.tools import WrittenTool, find_tools, no_such_tool, put_tool, retire_tool, tool_offers
from accsd.errors import InvalidValue
from accsd.explain.tools import offer_state
from accsd.gateway.access import GuardedRoute, require_limit, scoped
from accsd.gateway.answers import answer, document
from accsd.gateway.bodies import Body as RequestBody
from accsd.gateway.context import caller_of, context_of
from accsd.gateway.reach import Reach
from accsd.gateway.routes.verbs import done
from accsd.gateway.schemas import ANYTHING, answers, listed, row_schema
from accsd.model.access import Scope
from accsd.model.tool import ToolDef

router = APIRouter(prefix="/api/v1", route_class=GuardedRoute, tags=["tools"])
_NAME: Final = Path(min_length=1, max_length=200)


@router.get(
    "/tools",
    operation_id="tools.list",
    summary="The newest version of each tool",
    responses=answers(listed(ANYTHING)),
    openapi_extra=scoped(Scope.READ, Reach.FREE),
)
async def list_tools(request: Request, all_versions: bool = False, offered: bool = False) -> Response:
    """With `offered` what nodes offer instead, and what became of it."""
    db = context_of(request).reads
    found = await find_tools(db)
    if offered:
        offers = await tool_offers(db)
        return answer({"items": [document(offer) | {"state": offer_state(offer, found)} for offer in offers]})
    if not all_versions:
        newest: dict[str, ToolDef] = {}
        for tool in found:
            if tool.is_active:
                newest.setdefault(tool.name, tool)
        found = list(newest.values())
    return answer({"items": [_document(tool) for tool in found]})


@router.get(
    "/tools/{name}",
    operation_id="tools.get",
    summary="A tool: what it takes and gives",
    responses=answers(ANYTHING),
    openapi_extra=scoped(Scope.READ, Reach.FREE),
)
async def get_tool(
    request: Request, name: str = _NAME, version: int | None = Query(None, ge=1, le=2**31 - 1)
) -> Response:
    context = context_of(request)
    found = [tool for tool in await find_tools(context.reads, [name]) if version in (None, tool.version)]
    if not found:
        raise await no_such_tool(context.reads, name, version)
    return answer(_document(next((tool for tool in found if tool.is_active), found[0])))


def _document(tool: ToolDef) -> dict[str, Any]:
    return tool.model_dump(mode="json") | {"service": tool.runs_on}


@router.put(
    "/tools/{name}",
    operation_id="tools.apply",
    summary="Write a tool",
    responses=answers(row_schema(WrittenTool)) | answers(row_schema(WrittenTool), 201, "A new version"),
    openapi_extra=scoped(Scope.OPERATE, Reach.NARROWED),
)
async def apply(
    request: Request, written: dict[str, Any] = Body(), name: str = _NAME, dry_run: bool = False
) -> Response:
    """The body is the document of `accsd tools apply`, as JSON."""
    caller = caller_of(request)
    require_limit(caller, "tools", name)
    if written.get("name", name) != name:
        raise InvalidValue(f'the path says "{name}" and the document "{written["name"]}"')
    wanted = ToolDef.model_validate({**written, "name": name})

    async def work(db: Database) -> WrittenTool:
        return await put_tool(db, wanted, by=caller.actor)

    made = await done(request, work, dry_run=dry_run)
    said = document(made) | ({"dry_run": True} if dry_run else {})
    return answer(said, status=201 if made.verdict == "accepted" and not dry_run else 200)


@router.post(
    "/tools/{name}/retire",
    operation_id="tools.retire",
    summary="Let no new workflow use a tool",
    responses=answers(ANYTHING),
    openapi_extra=scoped(Scope.OPERATE, Reach.NARROWED),
)
async def retire(
    request: Request, name: str = _NAME, version: int | None = Query(None, ge=1, le=2**31 - 1), dry_run: bool = False
) -> Response:
    require_limit(caller_of(request), "tools", name)

    async def work(db: Database) -> str:
        return await retire_tool(db, name, version)

    return answer({"answer": await done(request, work, dry_run=dry_run)} | ({"dry_run": True} if dry_run else {}))


# The outbox


class Redriven(RequestBody):
    """These events, or without ids those that were given up."""

    ids: list[int] | None = Field(default=None, max_length=10_000)
    target: str | None = Field(default=None, max_length=200)


@router.get(
    "/outbox",
    operation_id="outbox.list",
    summary="What is told to others",
    responses=answers(listed(row_schema(OutboxRow))),
    openapi_extra=scoped(Scope.READ),
)
async def list_outbox(
    request: Request,
    target: str | None = Query(None, max_length=200),
    state: list[Literal["waiting", "delivered", "dead"]] = Query(default=[], max_length=3),
    limit: int = Query(100, ge=1, le=500),
) -> Response:
    context = context_of(request)
    rows = await outbox.events(context.reads, target=target, states=state, limit=limit)
    return answer({"items": [document(row, context.redaction) for row in rows]})


@router.get(
    "/outbox/targets",
    operation_id="outbox.targets",
    summary="Who is told",
    responses=answers(listed(row_schema(TargetRow))),
    openapi_extra=scoped(Scope.READ),
)
async def list_targets(request: Request) -> Response:
    return answer({"items": [document(row) for row in await outbox.targets(context_of(request).reads)]})


@router.post(
    "/outbox/redrive",
    operation_id="outbox.redrive",
    summary="Send events again",
    responses=answers(listed(ANYTHING)),
    openapi_extra=scoped(Scope.OPERATE),
)
async def redrive(request: Request, asked: Redriven = Body(default=Redriven()), dry_run: bool = False) -> Response:
    async def work(db: Database) -> list[OutboxAnswer]:
        return await outbox.redrive_events(db, asked.ids, target=asked.target)

    made = await done(request, work, dry_run=dry_run)
    rows = [{"id": each.id, "answer": each.verdict, "reason": each.reason} for each in made]
    return answer({"items": rows} | ({"dry_run": True} if dry_run else {}))
