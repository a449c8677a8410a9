"""Who gets in: each route names the scopes of which one is enough; with one that does not the application does not
start. A superuser of the original is a token with the scope admin."""

from collections.abc import Callable, Coroutine
from typing import Any, Final

from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response

from accsd.db.views.joblib import JoblibWorker, Within
from accsd.errors import Bug
from accsd.gateway.access import all_routes
from accsd.gateway.bodies import StrictRequest
from accsd.gateway.context import caller_of, context_of
from accsd.gateway.door_access import caller_at_door
from accsd.gateway.joblib.names import require_room
from accsd.gateway.joblib.problems import JoblibProblem
from accsd.gateway.reach import within
from accsd.model.access import Caller, Scope

DOOR: Final = "joblib"
_SCOPE: Final = "x-scope"
READ: Final = (Scope.READ,)
SUBMIT: Final = (Scope.SUBMIT,)
WORK: Final = (Scope.AGENT, Scope.SUBMIT)
ANY: Final = (Scope.READ, Scope.SUBMIT, Scope.AGENT)


def needs(scopes: tuple[Scope, ...]) -> dict[str, Any]:
    """For `openapi_extra`: any of these is enough."""
    return {_SCOPE: " ".join(scope.value for scope in scopes)}


class JoblibRoute(APIRoute):
    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()
        scopes = [Scope(each) for each in (self.openapi_extra or {}).get(_SCOPE, "").split()]

        async def guarded(request: Request) -> Response:
            caller = request.state.caller = await caller_at_door(
                context_of(request), request, DOOR, hint="`accsd tokens create NAME --scope submit` makes one"
            )
            if "room_id" in request.path_params:
                require_room(request.path_params["room_id"])
            require_scope(caller, scopes)
            return await handler(StrictRequest(request.scope, request.receive))

        return guarded


def require_guards(app: FastAPI) -> None:
    for route in all_routes(app):
        extra = route.openapi_extra if isinstance(route, JoblibRoute) else None
        if not extra or _SCOPE not in extra:
            raise Bug(f"the route {getattr(route, 'path', route)} does not say who may call it")


def require_scope(caller: Caller, scopes: "list[Scope] | tuple[Scope, ...]") -> None:
    if not any(caller.may(scope) for scope in scopes):
        named = " or ".join(f'"{scope}"' for scope in scopes)
        raise JoblibProblem("forbidden", f"this needs the scope {named}, which token {caller.token_id} does not have")


def is_superuser(caller: Caller) -> bool:
    return caller.may(Scope.ADMIN)


def require_superuser(caller: Caller, what: str) -> None:
    if not is_superuser(caller):
        raise JoblibProblem("forbidden", f'{what} needs the scope "admin"')


def require_own(caller: Caller, worker: JoblibWorker, *, or_superuser: bool = False) -> None:
    if worker.user != caller.actor and not (or_superuser and is_superuser(caller)):
        raise JoblibProblem("forbidden", f"worker {worker.id} belongs to another user")


def reach(request: Request) -> Within:
    """The jobs that the caller's token is limited to; None: all."""
    return within(caller_of(request))


def reaches(caller: Caller, job: str) -> bool:
    return caller.reaches("workflows", job)
