"""Search: one field for ids, keys and names."""

from typing import Final

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from accsd.db.views.search import KINDS, search
from accsd.gateway.access import GuardedRoute, scoped
from accsd.gateway.answers import answer, document
from accsd.gateway.context import caller_of, context_of
from accsd.gateway.reach import Reach, within
from accsd.gateway.schemas import TEXT, answers, objects
from accsd.model.access import Scope

router = APIRouter(prefix="/api/v1", route_class=GuardedRoute, tags=["search"])
_HITS: Final = {"type": "array", "items": objects(kind=TEXT, id=TEXT, name=TEXT, why=TEXT)}


@router.get(
    "/search",
    operation_id="search",
    summary="Jobs by id or key, everything else by name",
    responses=answers(
        objects(groups={"type": "array", "items": objects(kind=TEXT, items=_HITS)}, complete={"type": "boolean"})
    ),
    openapi_extra=scoped(Scope.READ, Reach.NARROWED),
)
async def find(request: Request, q: str = Query(min_length=1, max_length=200)) -> Response:
    """At most 20 hits, by kind. `complete: false`: there are more, or the time was too short."""
    caller = caller_of(request)
    found = await search(context_of(request).reads, q, actor=caller.actor, within=within(caller))
    groups = [
        {"kind": kind, "items": [document(hit) for hit in found.hits if hit.kind == kind]}
        for kind in KINDS
        if any(hit.kind == kind for hit in found.hits)
    ]
    return answer({"groups": groups, "complete": found.complete})
