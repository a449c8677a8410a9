"""The door's application: one guard over its routes, which denies by default, and errors as SeqPulse's clients have
them: `{"detail": …}`, with the code and the hint of our own beside it."""

import asyncio
from collections.abc import Callable, Coroutine
from functools import cache
from typing import Any, Final, cast

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from accsd.errors import AccsdError, Bug, DatabaseBusy
from accsd.gateway.access import SAFE
from accsd.gateway.answers import answer
from accsd.gateway.bare import bare_app
from accsd.gateway.bodies import StrictRequest
from accsd.gateway.problems import KINDS, described
from accsd.gateway.seqpulse.desk import Desk
from accsd.gateway.seqpulse.projects import WatchedProject
from accsd.model.access import Scope as TokenScope

# Beside the kinds of problems that every route may answer.
STATUSES: Final = {
    "env_not_allowed": 400,
    "ENDPOINT_MISMATCH": 409,
    "preflight_failed": 422,
    "PROJECT_ENDPOINT_BLOCKED": 423,
}
_ANSWERS_SEC: Final = 2.8  # SP-1: the client waits for 4 s
_DESK: Final = "seqpulse"


class SeqpulseApp:
    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._routes = make_routes()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["state"][_DESK] = self._desk
        await self._routes(scope, receive, send)


def desk_of(request: Request) -> Desk:
    return cast("Desk", getattr(request.state, _DESK))


def project_of(request: Request) -> WatchedProject:
    return cast("WatchedProject", request.state.project)


@cache
def make_routes() -> FastAPI:
    """The routes alone. The door gives each request its desk."""
    from accsd.gateway.seqpulse.routes import router  # whose routes are of the class below

    return bare_app(
        [router],
        title="accsd for SeqPulse",
        description="What SeqPulse's clients call: deployments, their samples, verdicts and hints.",
        told=_told,
    )


def guarded(scope: TokenScope) -> dict[str, Any]:
    """For `openapi_extra`: the scope that a caller needs."""
    return {"x-scope": scope.value}


class KeyedRoute(APIRoute):
    """A route that lets in the tokens of projects. One that does not say which scope it needs can't be made."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()
        said = (self.openapi_extra or {}).get("x-scope")
        if said is None:
            raise Bug(f"the route {self.path} does not say who may call it")
        scope = TokenScope(said)

        async def keyed(request: Request) -> Response:
            desk = desk_of(request)
            caller, request.state.project = await desk.admitted(request, scope)
            request.state.caller = caller
            left = desk.quotas.take(caller.token_id or caller.actor)
            response = await handler(StrictRequest(request.scope, request.receive))
            response.headers.update(left)
            return response

        async def in_time(request: Request) -> Response:
            try:
                async with asyncio.timeout(None if request.method in SAFE else _ANSWERS_SEC):
                    return await keyed(request)
            except TimeoutError:
                raise DatabaseBusy(
                    "the database took too long; whether it was done is not known",
                    hint="send it again: it is done once",
                ) from None

        return in_time


async def _told(_: Request, error: Exception) -> Response:
    return told(error)


def told(error: Exception) -> Response:
    """An error as SeqPulse's clients read it."""
    if isinstance(error, RequestValidationError):
        detail = [{"loc": each["loc"], "msg": each["msg"], "type": each["type"]} for each in error.errors()]
        return answer({"detail": detail, "code": "invalid"}, status=422)
    if isinstance(error, HTTPException):
        return answer({"detail": error.detail}, status=error.status_code, headers=error.headers)
    code, members, headers = described(error)
    kind = KINDS.get(code, KINDS["refused"])
    detail = error.message if isinstance(error, AccsdError) and code != "bug" else kind.page
    body = {"detail": f"{code}: {detail}" if code.isupper() else detail, "code": code, **members}
    if isinstance(error, AccsdError) and error.hint:
        body["hint"] = error.hint
    if kind.status == 401:
        headers = {**headers, "WWW-Authenticate": 'Bearer realm="accsd"'}
    return answer(body, status=STATUSES.get(code, kind.status), headers=headers)


def openapi() -> dict[str, Any]:
    """The description of this door."""
    found = make_routes().openapi()
    schemas = found.setdefault("components", {}).setdefault("schemas", {})
    if "Error" in schemas:
        return found  # FastAPI keeps what it has made
    schemas.pop("HTTPValidationError", None)
    schemas.pop("ValidationError", None)
    schemas["Error"] = _ERROR
    problem = {
        "description": "An error",
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
    }
    for methods in found["paths"].values():
        for operation in methods.values():
            operation["responses"].pop("422", None)
            operation["responses"] |= {"4XX": problem, "5XX": problem}
            operation["security"] = [{"key": []}]
    found["components"]["securitySchemes"] = {
        "key": {
            "type": "apiKey",
            "in": "header",
            "name": "X-API-Key",
            "description": "accsd tokens create ci --scope submit --limit door=seqpulse --limit project=NAME",
        }
    }
    return found


_ERROR: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["detail"],
    "properties": {
        "detail": {"description": "A sentence; of a body that is wrong, a list of places"},
        "code": {"type": "string"},
        "hint": {"type": "string"},
    },
}
