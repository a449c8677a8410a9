"""The application: its routes, and the entrance that every request passes before it meets one.

The entrance is plain ASGI, because a stream must pass through it unbuffered: it numbers the request, refuses foreign
host names and large bodies, believes trusted proxies, adds the headers that browsers obey, and turns every error into
a problem document.
"""

import re
import time
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from ipaddress import ip_address
from typing import Any, Final, cast
from uuid import uuid4

from fastapi import APIRouter, FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from accsd import __version__
from accsd.errors import AccsdError
from accsd.gateway.access import SAFE, require_guards
from accsd.gateway.bare import bare_app
from accsd.gateway.context import GatewayContext, context_of
from accsd.gateway.doors import Door
from accsd.gateway.problems import HttpProblem, pointer, response_of
from accsd.gateway.routes import ROUTERS
from accsd.log import get_logger
from accsd.settings import GatewaySettings

_log = get_logger(component="gateway")
_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
_MOST_PARAMETERS: Final = 100
_HEADERS: Final = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=(), payment=(), usb=()",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "Cache-Control": "no-store",
    "Accsd-Version": __version__,
}
_PREFLIGHT: Final = {
    "Access-Control-Allow-Methods": "GET, POST, PUT, PATCH, DELETE",
    "Access-Control-Allow-Headers": (
        "authorization, content-type, if-match, if-none-match, idempotency-key, prefer, last-event-id"
    ),
    "Access-Control-Max-Age": "600",
}


def make_app(context: GatewayContext) -> ASGIApp:
    """The application as the server runs it."""
    return Entrance(make_routes(), context.settings.gateway, context)


@cache
def make_routes() -> FastAPI:
    """The routes alone. The entrance gives each request its context."""
    return assembled(
        ROUTERS,
        title="accsd",
        description="Multi-step workflows on machines that may be asleep. Errors are problem documents (RFC 9457).",
    )


def assembled(routers: Iterable[APIRouter], *, title: str, description: str) -> FastAPI:
    """An application of guarded routes whose errors are problem documents: the native API, or a door that is alike."""
    app = bare_app(routers, title=title, description=description, told=_problem)
    require_guards(app)
    return app


async def _problem(request: Request, error: Exception) -> Response:
    base_path = context_of(request).settings.gateway.base_path
    return response_of(_translated(error), request_id=request.state.request_id, base_path=base_path)


def _translated(error: Exception) -> Exception:
    match error:
        case RequestValidationError():
            errors = [{"pointer": _pointer(each["loc"]), "detail": each["msg"]} for each in error.errors()]
            return HttpProblem(
                "invalid", "; ".join(f"{each['pointer']}: {each['detail']}" for each in errors[:5]), errors=errors
            )
        case HTTPException(status_code=404):
            return HttpProblem("not_found", "there is no such path", hint="/api/v1/openapi.json lists them")
        case HTTPException(status_code=405):
            return HttpProblem(
                "method_not_allowed", "that method is not for this path", headers=dict(error.headers or {})
            )
        case HTTPException():
            return HttpProblem("invalid", str(error.detail))
        case _:
            return error


def _pointer(place: Iterable[str | int]) -> str:
    """`/body/options/frames`, or `/query/limit`."""
    return pointer([str(part) for part in place])


class Entrance:
    def __init__(self, app: ASGIApp, settings: GatewaySettings, context: GatewayContext) -> None:
        self._app = app
        self._settings = settings
        self._context = context

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await self._connect(scope, receive, send)
        elif scope["type"] == "http":
            await self._answer(scope, receive, send)

    async def _connect(self, scope: Scope, receive: Receive, send: Send) -> None:
        """A WebSocket is a door's, or nobody's."""
        passage = _Passage(scope, receive, send, self._settings)
        scope["state"]["context"] = self._context
        with suppress(HttpProblem):
            passage.approach()
            for door in self._context.doors:
                if door.speaks_websocket and door.serves(scope["path"]):
                    await door.app(scope, receive, send)
                    return
        await send({"type": "websocket.close", "code": 1008})

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        passage = _Passage(scope, receive, send, self._settings)
        scope["state"]["context"] = self._context
        began = time.monotonic()
        door: Door | None = None
        try:
            passage.approach()
            door = next((door for door in self._context.doors if door.serves(scope["path"])), None)
            passage.enter(None if door is None else door.largest(scope["method"], scope["path"]))
            if passage.is_preflight:
                await Response(status_code=204, headers=_PREFLIGHT)(scope, receive, passage.send)
            else:
                await (self._app if door is None else door.app)(scope, passage.receive, passage.send)
        except Exception as error:  # noqa: BLE001 - one request must not be able to stop the daemon
            await self._tell(passage, error, door)
        finally:
            took = time.monotonic() - began
            if scope["method"] not in SAFE:
                self._context.hub.stir()  # what this request has changed is told at once
            self._context.metrics.http_answered(scope["method"], passage.status or 0, took)
            tell = _log.debug if scope["method"] in ("GET", "HEAD") else _log.info
            caller = scope["state"].get("caller")
            tell("request", method=scope["method"], path=scope["path"], status=passage.status,
                 took_ms=round(took * 1000, 1), request_id=passage.request_id,
                 actor=None if caller is None else caller.actor)  # fmt: skip

    async def _tell(self, passage: "_Passage", error: Exception, door: Door | None) -> None:
        if not isinstance(error, AccsdError):
            _log.error("request_failed", path=passage.scope["path"], request_id=passage.request_id, exc_info=error)
        if passage.status is not None:
            return  # a part of the answer is on its way: the connection is closed, and the client sees that
        if door is not None and door.tell is not None:
            answer = door.tell(error)
        else:
            answer = response_of(error, request_id=passage.request_id, base_path=self._settings.base_path)
        await answer(passage.scope, passage.receive, passage.send)


class _Passage:
    """One request on its way through the entrance."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, settings: GatewaySettings) -> None:
        self.scope = scope
        self.status: int | None = None
        self._receive = receive
        self._send = send
        self._settings = settings
        self._largest = self._left = settings.limits.body
        self.headers: Headers = Headers(scope=scope)
        given = self.headers.get("x-request-id", "")
        self.request_id: str = given if _REQUEST_ID.fullmatch(given) else uuid4().hex
        scope.setdefault("state", {})["request_id"] = self.request_id

    def approach(self) -> None:
        self._believe_proxies()
        self._below_the_base_path()
        hosts = self.headers.getlist("host")
        if len(hosts) > 1:
            raise HttpProblem("unknown_host", "the request names several hosts")
        host = hosts[0] if hosts else ""
        if not names_us(host, self._settings):
            raise HttpProblem("unknown_host", f'this gateway is not called "{host[:100]}"')

    def enter(self, largest: int | None) -> None:
        """`largest`: how many bytes a body may have here, if not as many as everywhere."""
        if largest is not None:
            self._largest = self._left = largest
        length = self.headers.get("content-length", "0")
        if not length.isascii() or not length.isdigit() or len(length) > 18 or int(length) > self._largest:
            raise self._too_large()
        if cast("bytes", self.scope["query_string"]).count(b"&") >= _MOST_PARAMETERS:
            raise HttpProblem("invalid", f"a request has at most {_MOST_PARAMETERS} parameters")

    @property
    def is_preflight(self) -> bool:
        """Whether a browser asks on behalf of a page of an allowed origin what it may send."""
        return self.scope["method"] == "OPTIONS" and self._allowed_origin is not None

    @property
    def _allowed_origin(self) -> str | None:
        origin = self.headers.get("origin")
        return origin if origin is not None and origin in self._settings.cors_origins else None

    def _believe_proxies(self) -> None:
        """Takes the client's address and scheme from a proxy that is trusted, and from nobody else."""
        client = self.scope.get("client")
        if client is None or not self._is_proxy(client[0]):
            return
        said = [part.strip() for part in self.headers.get("x-forwarded-for", "").split(",") if part.strip()]
        for address in reversed(said):  # the nearest one wrote the last
            if not _is_address(address):
                break  # whoever wrote that is no proxy of ours: what stands before it is his word alone
            self.scope["client"] = (address, 0)
            if not self._is_proxy(address):
                break
        if self.headers.get("x-forwarded-proto") in ("http", "https"):
            self.scope["scheme"] = self.headers["x-forwarded-proto"]

    def _is_proxy(self, address: str) -> bool:
        try:
            found = ip_address(address)
        except ValueError:
            return False
        return any(found in network for network in self._settings.trusted_proxies)

    def _below_the_base_path(self) -> None:
        base, path = self._settings.base_path, cast("str", self.scope["path"])
        if not base:
            return
        if path != base and not path.startswith(f"{base}/"):
            raise HttpProblem("not_found", f"everything is below {base}/")
        self.scope["path"] = path.removeprefix(base) or "/"
        self.scope["raw_path"] = cast("bytes", self.scope["raw_path"]).removeprefix(base.encode())

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request":
            self._left -= len(message.get("body", b""))
            if self._left < 0:
                raise self._too_large()
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(raw=message.setdefault("headers", []))
            for name, value in _HEADERS.items():
                headers.setdefault(name, value)
            headers["X-Request-Id"] = self.request_id
            if (origin := self._allowed_origin) is not None:
                headers["Access-Control-Allow-Origin"] = origin
                headers["Cross-Origin-Resource-Policy"] = "cross-origin"
                headers.add_vary_header("Origin")
        await self._send(message)

    def _too_large(self) -> HttpProblem:
        return HttpProblem("too_large", f"a body has at most {self._largest} bytes")


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def names_us(host: str, settings: GatewaySettings) -> bool:
    """Whether the header names an address, localhost, or a name that is configured: a page of a foreign name that
    resolves to this machine must not reach us through a person's browser (DNS rebinding)."""
    name = (host if host.endswith("]") else host.rpartition(":")[0] or host).lower()
    configured = {each.lower() for each in settings.hosts} | {(settings.listen or "").rpartition(":")[0].lower()}
    if name == "localhost" or name in configured:
        return bool(name)
    try:
        ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


def openapi() -> dict[str, Any]:
    """The description of the API, with the problems that every route may answer."""
    return described_by(make_routes())


def described_by(app: FastAPI, *, with_sessions: bool = True) -> dict[str, Any]:
    """The same of an application that was `assembled`. `with_sessions`: a browser's cookie is a credential, too."""
    found = app.openapi()
    if "Problem" in found.get("components", {}).get("schemas", {}):
        return found  # FastAPI keeps what it has made
    schemas = found.setdefault("components", {}).setdefault("schemas", {})
    schemas.pop("HTTPValidationError", None)
    schemas.pop("ValidationError", None)
    schemas["Problem"] = _PROBLEM_SCHEMA
    credentials = _BEARER | (_SESSION if with_sessions else {})
    problem = {
        "description": "A problem (RFC 9457)",
        "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
    }
    for methods in found["paths"].values():
        for operation in methods.values():
            responses = operation["responses"]
            responses.pop("422", None)
            responses["4XX"] = problem
            responses["5XX"] = problem
            if operation.get("x-scope") != "none":
                operation["security"] = [{name: []} for name in credentials]
    found["components"]["securitySchemes"] = credentials
    return found


_BEARER: Final = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "accsd tokens create NAME --scope read"}
}
_SESSION: Final = {"session": {"type": "apiKey", "in": "cookie", "name": "accsd_session"}}


_PROBLEM_SCHEMA: Final = {
    "type": "object",
    "required": ["type", "title", "status", "detail", "instance", "code"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "instance": {"type": "string", "description": "The request id."},
        "code": {"type": "string"},
        "hint": {"type": "string"},
        "errors": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"pointer": {"type": "string"}, "detail": {"type": "string"}},
            },
        },
        "retry_after_seconds": {"type": "number"},
    },
}
