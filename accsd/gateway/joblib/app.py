"""The door's application: its routes, its own words for what is wrong, and the sockets beside them."""

from functools import cache
from typing import Any, Final

from fastapi import FastAPI
from fastapi.encoders import jsonable_encoder
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from accsd.errors import AccsdError
from accsd.gateway.bare import bare_app
from accsd.gateway.joblib import jobs, me, providers, tasks, workers
from accsd.gateway.joblib.access import require_guards
from accsd.gateway.joblib.desk import Desk
from accsd.gateway.joblib.problems import refused_input, response_of
from accsd.gateway.joblib.schemas import PROBLEM, REFUSED
from accsd.gateway.joblib.sockets import PATH
from accsd.gateway.problems import HttpProblem
from accsd.settings.doors import JoblibSettings

_PREFIXES: Final = ("/v1/joblib/", "/v1/problems/", f"{PATH}/")
_RESULTS: Final = ("/v1/joblib/providers/", "/results")


def serves(path: str) -> bool:
    return path.startswith(_PREFIXES) or path in ("/v1/me", PATH)


def largest_body(settings: JoblibSettings, method: str, path: str) -> int | None:
    """Results of providers may be larger than other bodies."""
    is_result = method == "POST" and path.startswith(_RESULTS[0]) and path.endswith(_RESULTS[1])
    return settings.provider_result_bytes if is_result else None


class JoblibApp:
    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._routes = make_routes()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["state"]["joblib"] = self._desk
        is_socket = scope["path"] == PATH or scope["path"].startswith(f"{PATH}/")
        await (self._desk.sockets if is_socket else self._routes)(scope, receive, send)


@cache
def make_routes() -> FastAPI:
    # The bare paths of names take the rest of an address: those with an end come first (JB-6).
    app = bare_app(
        (me.router, workers.router, tasks.router, jobs.router, providers.router),
        title="accsd: the joblib door",
        description="Typed jobs and remote workers, for clients of zndraw-joblib.",
        told=_refused,
    )
    require_guards(app)
    return app


async def _refused(request: Request, error: Exception) -> Response:
    match error:
        case RequestValidationError():
            return refused_input(jsonable_encoder(error.errors(), custom_encoder={bytes: repr, Exception: str}))
        case HTTPException(status_code=404):
            return response_of(HttpProblem("not_found", "there is no such path"))
        case HTTPException(status_code=405):
            allowed = dict(error.headers or {})
            return response_of(HttpProblem("method_not_allowed", "that method is not for this path", headers=allowed))
        case HTTPException():
            return refused_input([{"loc": ["body"], "msg": str(error.detail), "type": "value_error"}])
        case AccsdError() | ValidationError():
            return response_of(error)
        case _:
            raise error  # the entrance logs it, and answers


def openapi() -> dict[str, Any]:
    """The description of the door, with the problems that every route may answer."""
    found = make_routes().openapi()
    schemas = found.setdefault("components", {}).setdefault("schemas", {})
    schemas.pop("HTTPValidationError", None)
    schemas.pop("ValidationError", None)
    schemas |= {"Problem": PROBLEM, "RefusedInput": REFUSED}
    problem = {
        "description": "A problem (RFC 9457)",
        "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
    }
    refused = {
        "description": "What was sent is not what is expected",
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/RefusedInput"}}},
    }
    for methods in found["paths"].values():
        for operation in methods.values():
            operation["responses"] |= {"422": refused, "4XX": problem, "5XX": problem}
            operation["security"] = [{"bearer": []}]
    found["components"]["securitySchemes"] = {
        "bearer": {"type": "http", "scheme": "bearer", "description": "accsd tokens create NAME --scope submit"}
    }
    return found
