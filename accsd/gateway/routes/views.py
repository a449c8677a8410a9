"""Saved views: queries of the job list under a name, of one's own or shared by all."""

from typing import Any, Final

from fastapi import APIRouter, Path
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from accsd.db.answers import Verdict
from accsd.db.lists import SavedView, drop_view, save_view, views
from accsd.errors import InvalidValue, NotFound
from accsd.gateway.access import GuardedRoute, scoped
from accsd.gateway.answers import answer, document
from accsd.gateway.bodies import Body as RequestBody
from accsd.gateway.context import caller_of, context_of
from accsd.gateway.problems import HttpProblem
from accsd.gateway.reach import Reach
from accsd.gateway.routes.verbs import verbs_of
from accsd.gateway.schemas import answers, listed, objects, row_schema
from accsd.model.access import Scope

router = APIRouter(prefix="/api/v1", route_class=GuardedRoute, tags=["views"])
_NAME: Final = Path(min_length=1, max_length=100)
VIEW: Final = {"allOf": [row_schema(SavedView), objects(is_shared={"type": "boolean"})]}


class ViewAsked(RequestBody):
    """What the view shows: the parameters of a list, and whatever the page keeps with them."""

    query: dict[str, Any] = Field(examples=[{"q": "status:error since:2d"}])


@router.get(
    "/views",
    operation_id="views.list",
    summary="One's own views, and the shared ones",
    responses=answers(listed(VIEW)),
    openapi_extra=scoped(Scope.READ, Reach.FREE),
)
async def list_views(request: Request) -> Response:
    return answer(
        {"items": [_shown(view) for view in await views(context_of(request).reads, caller_of(request).actor)]}
    )


@router.get(
    "/views/{name}",
    operation_id="views.get",
    summary="A saved view",
    responses=answers(VIEW),
    openapi_extra=scoped(Scope.READ, Reach.FREE),
)
async def get_view(request: Request, name: str = _NAME, shared: bool = False) -> Response:
    """One's own before the shared one of the same name."""
    found = await _named(request, name, shared=shared)
    if found is None:
        raise NotFound(f'there is no view "{name}"')
    return answer(_shown(found), headers={"ETag": _etag(found)})


@router.put(
    "/views/{name}",
    operation_id="views.save",
    summary="Save a view",
    responses=answers(VIEW),
    openapi_extra=scoped(Scope.READ, Reach.FREE),
)
async def put_view(request: Request, wanted: ViewAsked, name: str = _NAME, shared: bool = False) -> Response:
    """Makes it, or with `If-Match` changes it. A shared one needs the scope operate."""
    caller = caller_of(request)
    _require_operate(request, shared=shared)
    owner = None if shared else caller.actor
    current = await _named(request, name, shared=shared, only=True)
    made = await save_view(
        verbs_of(request), name, wanted.query, owner=owner, by=caller.actor, if_revision=_revision(request, current)
    )
    if made.verdict is Verdict.REFUSED:
        raise HttpProblem(
            "stale", f'the view "{name}" has changed since you have read it', current=f'"{made.revision}"'
        )
    saved = await _named(request, name, shared=shared, only=True, verbs=True)
    if saved is None:
        raise NotFound(f'the view "{name}" was dropped meanwhile')
    return answer(_shown(saved), status=201 if current is None else 200, headers={"ETag": _etag(saved)})


@router.delete(
    "/views/{name}",
    operation_id="views.drop",
    summary="Drop a view",
    responses=answers(objects(answer={"type": "string"})),
    openapi_extra=scoped(Scope.READ, Reach.FREE),
)
async def delete_view(request: Request, name: str = _NAME, shared: bool = False) -> Response:
    """A shared one needs the scope operate."""
    caller = caller_of(request)
    _require_operate(request, shared=shared)
    said = await drop_view(verbs_of(request), name, owner=None if shared else caller.actor, by=caller.actor)
    return answer({"answer": said.value})


def _require_operate(request: Request, *, shared: bool) -> None:
    if shared and not caller_of(request).may(Scope.OPERATE):
        raise HttpProblem("scope_missing", 'what all see needs the scope "operate"', scope=Scope.OPERATE.value)


async def _named(
    request: Request, name: str, *, shared: bool, only: bool = False, verbs: bool = False
) -> SavedView | None:
    """One's own view of a name, or else, unless `only` that is meant, the shared one; `shared` means only that one."""
    context = context_of(request)
    known = await views(context.verbs if verbs else context.reads, caller_of(request).actor)
    found = [
        view for view in known if view.name == name and (view.owner is None) in ((shared,) if only else (True, shared))
    ]
    return found[0] if found else None


def _revision(request: Request, current: SavedView | None) -> int:
    """The revision that `If-Match` names; 0 where there is no view yet."""
    given = request.headers.get("if-match")
    if current is None:
        return 0
    if given is None:
        raise HttpProblem(
            "precondition_required", "this changes a view: say which version you have read", current=_etag(current)
        )
    if given.strip() == "*":
        return current.revision
    number = given.strip().strip('"')
    if not number.isascii() or not number.isdecimal() or len(number) > 9:
        raise InvalidValue(f"If-Match is the ETag of the view, as {_etag(current)}")
    return int(number)


def _etag(view: SavedView) -> str:
    return f'"{view.revision}"'


def _shown(view: SavedView) -> dict[str, Any]:
    return document(view) | {"is_shared": view.owner is None}
