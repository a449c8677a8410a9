"""Who asks, and what problems mean."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from accsd.db.views.joblib import actor_id
from accsd.errors import NotFound
from accsd.gateway.answers import answer
from accsd.gateway.context import caller_of
from accsd.gateway.joblib.access import ANY, JoblibRoute, is_superuser, needs
from accsd.gateway.joblib.desk import desk_of
from accsd.gateway.joblib.problems import PROBLEMS
from accsd.gateway.joblib.schemas import EXPLAINED, ME
from accsd.gateway.problems import KINDS
from accsd.gateway.schemas import answers

router = APIRouter(prefix="/v1", route_class=JoblibRoute)


@router.get("/me", operation_id="joblib.me", summary="Who asks", responses=answers(ME), openapi_extra=needs(ANY))
async def me(request: Request) -> Response:
    caller = caller_of(request)
    found = await actor_id(desk_of(request).context.reads, caller.actor)
    return answer({"id": found, "name": caller.actor, "is_superuser": is_superuser(caller)})


@router.get(
    "/problems/{problem_id}",
    operation_id="joblib.problem",
    summary="What a problem means",
    responses=answers(EXPLAINED),
    openapi_extra=needs(ANY),
)
async def problem(request: Request, problem_id: str) -> Response:
    known = PROBLEMS.get(problem_id) or KINDS.get(problem_id.replace("-", "_"))
    if known is None:
        raise NotFound(f'there is no problem "{problem_id[:100]}"')
    shown = {"type": f"/v1/problems/{problem_id}", "title": known.title, "status": known.status, "detail": known.page}
    return answer(shown)
