"""Who gets in: one guard over every route, which denies by default.

Each route says who may call it (`scoped(Scope.READ)`, `public()`, `shared()`), and the application does not start with
one that does not. The guard finds the caller by a token or by a browser's session, counts the request, and compares
scopes before the route reads anything of the request.
"""

from collections.abc import Callable, Coroutine, Iterator
from ipaddress import ip_address, ip_network
from typing import Any, ClassVar, Final
from urllib.parse import urlsplit
from uuid import UUID

from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from accsd.db.access import caller_of_session, caller_of_token
from accsd.db.audit import note_reveal
from accsd.db.views.artifacts import artifact_of_share
from accsd.errors import Bug
from accsd.explain.redaction import Redaction
from accsd.gateway.bodies import StrictRequest
from accsd.gateway.context import GatewayContext, caller_of, context_of
from accsd.gateway.problems import HttpProblem
from accsd.gateway.reach import Reach, reach_of, require_reach
from accsd.model.access import Caller, Scope

COOKIE: Final = "accsd_session"
SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_SCOPE: Final = "x-scope"
_SHARED: Final = "x-shared"
_REACH: Final = "x-reach"
_NOBODY: Final = "none"


def scoped(scope: Scope, reach: Reach | None = None) -> dict[str, Any]:
    """For `openapi_extra`: the scope that a caller needs, and how the route minds a token's limits (reach.py)."""
    return {_SCOPE: scope.value} | ({} if reach is None else {_REACH: reach.value})


def of_session() -> dict[str, Any]:
    """About the session that asks, whatever it is limited to: a share's, too."""
    return scoped(Scope.READ, Reach.FREE) | {_SHARED: "session"}


def shared(*, artifacts: bool = False) -> dict[str, Any]:
    """Needs the scope read, and whoever has a share link of the job that the path names may call it, too; with
    `artifacts` only if the link is to show them."""
    return {_SCOPE: Scope.READ.value, _SHARED: "artifacts" if artifacts else True}


def public() -> dict[str, Any]:
    """Anybody may call it: what it answers is no secret, or it proves by itself who asks."""
    return {_SCOPE: _NOBODY}


class GuardedRoute(APIRoute):
    """A route that lets in only whom it names."""

    door: ClassVar[str | None] = None  # a route of a door: its name, and there a browser's session is no credential

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()
        extra = self.openapi_extra or {}
        scope, share = extra.get(_SCOPE), extra.get(_SHARED)
        reach = reach_of(self.path, None if _REACH not in extra else Reach(extra[_REACH]))

        known = frozenset(each.alias for each in self.dependant.query_params)

        async def guarded(request: Request) -> Response:
            if scope == _NOBODY:
                count_unknown(request)
            else:
                caller = request.state.caller = await _admitted(request, Scope(scope), share=share, door=self.door)
                if scope == Scope.ADMIN.value and caller.limits:
                    raise HttpProblem(
                        "scope_missing", f"{_credential(caller)} has limits: it could get rid of them here"
                    )
                await require_reach(context_of(request), caller, reach, request.path_params)
            # a sender of webhooks may add what it likes to the address
            if scope != _NOBODY and request.method not in SAFE and (unknown := set(request.query_params) - known):
                raise HttpProblem(
                    "invalid",
                    f"there is no parameter {min(unknown)} here, and nothing was done",
                    errors=[{"pointer": f"/query/{each}", "detail": "it is not known"} for each in sorted(unknown)],
                )
            return await handler(StrictRequest(request.scope, request.receive))

        return guarded


def require_guards(app: FastAPI) -> None:
    """An application with a route that says nothing of who may call it does not start."""
    for route in all_routes(app):
        extra = route.openapi_extra if isinstance(route, GuardedRoute) else None
        if not extra or _SCOPE not in extra:
            raise Bug(f"the route {getattr(route, 'path', route)} does not say who may call it")


def all_routes(app: FastAPI) -> Iterator[BaseRoute]:
    """Every route, those of included routers, too."""
    todo: list[BaseRoute] = list(app.routes)
    while todo:
        route = todo.pop(0)
        inner = getattr(route, "original_router", None)
        if inner is None:
            yield route
        else:
            todo += inner.routes


def counted_as(caller: Caller) -> str:
    """For whom a request counts."""
    return caller.token_id or caller.session_id or caller.actor


def count_unknown(request: Request) -> None:
    """Whoever shows no credential is counted by address."""
    what = "read" if request.method in SAFE else "write"
    context_of(request).buckets.take(what, f"from {network_of(request)}")


async def _admitted(request: Request, scope: Scope, *, share: object, door: str | None) -> Caller:
    context = context_of(request)
    caller = await (authenticated(context, request) if door is None else by_token(context, request))
    if caller is None:
        count_unknown(request)  # as a request and not as a login: others behind this address may want to log in
        what = "no token and no session that is" if door is None else "no token that is"
        raise HttpProblem("unauthenticated", f"the request has {what} valid")
    require_door(caller, door)
    what = "write" if request.method not in SAFE else "read" if caller.subject is None else "share"
    context.buckets.take(what, counted_as(caller))
    if caller.shared_job is not None:
        await _require_shared(request, caller, caller.shared_job, share)
    require_scope(caller, scope, "this")
    return caller


async def authenticated(context: GatewayContext, request: Request) -> Caller | None:
    """The caller of a token, or of a session; None: nobody that is known. A request by a cookie that would change
    something must come from our own page."""
    if request.headers.get("authorization", "").partition(" ")[2]:
        return await by_token(context, request)
    cookie = request.cookies.get(COOKIE)
    if cookie is None:
        return None
    if request.method not in SAFE:
        require_same_origin(request)
    return await caller_of_session(context.reads, cookie, verbs=context.verbs)


async def by_token(context: GatewayContext, request: HTTPConnection) -> Caller | None:
    """The caller of a bearer token, and of nothing else."""
    given = bearer_of(request)
    return await caller_of_token(context.reads, given, verbs=context.verbs) if given else None


def is_shut(context: GatewayContext, caller: Caller) -> bool:
    """Links let nobody in while shares are switched off, whenever they were made."""
    return caller.subject is not None and not context.settings.gateway.shares


def bearer_of(request: HTTPConnection) -> str:
    """The token that a request shows; empty: none."""
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    return given.strip() if scheme.lower() == "bearer" else ""


def require_door(caller: Caller, door: str | None) -> None:
    """A token that is made for one door opens no other, nor the native API, which is none. A share link opens no
    door."""
    if door is not None and caller.subject is not None:
        raise HttpProblem("scope_missing", "a share link shows one job to people, and nothing else")
    if (made_for := caller.limits.get("door")) not in (None, door):
        raise HttpProblem("scope_missing", f"{_credential(caller)} is limited to the door {made_for}")


def require_same_origin(request: Request) -> None:
    """A page of another origin can make a browser send our cookie, but neither of these (Fetch Metadata)."""
    site = request.headers.get("sec-fetch-site")
    origin = request.headers.get("origin")
    is_ours = site == "same-origin" if site is not None else origin is not None and _is_our_origin(request, origin)
    if not is_ours or request.headers.get("x-accsd") != "1":
        raise HttpProblem("not_same_origin", "a request with a session cookie has to come from this gateway's own page")


def _is_our_origin(request: Request, origin: str) -> bool:
    return urlsplit(origin).netloc == request.headers.get("host") and urlsplit(origin).scheme == request.url.scheme


def network_of(request: HTTPConnection) -> str:
    """The same for counting: whoever has one IPv6 address has the 2^64 of its network."""
    address = address_of(request)
    try:
        found = ip_address(address)
    except ValueError:
        return address
    return address if found.version == 4 else str(ip_network((found, 64), strict=False))


def address_of(request: HTTPConnection) -> str:
    """Where the request comes from, as far as it is known: proxies that are trusted have said so (app.py)."""
    return request.client.host if request.client is not None else "unknown"


async def redaction_for(request: Request, kind: str, target: str, *, reveal: bool) -> Redaction | None:
    """What strikes out secrets; None: this caller is to see them, which is in the audit before they are shown."""
    context, caller = context_of(request), caller_of(request)
    if not reveal:
        return context.redaction
    require_scope(caller, Scope.ADMIN, "to see masked values")
    db = context.verbs.acting("http", request.state.request_id)
    await note_reveal(db, kind, target, by=caller.actor)
    return None


def require_own(request: Request, owner: str | None) -> None:
    """What belongs to somebody else needs the scope operate; so does what belongs to nobody."""
    require_owner(caller_of(request), owner, own_jobs=context_of(request).settings.gateway.own_jobs)


def require_owner(caller: Caller, owner: str | None, *, own_jobs: bool) -> None:
    """The same for callers that come by another way."""
    if caller.may(Scope.OPERATE):
        return
    if not own_jobs or owner is None or owner != caller.actor:
        raise HttpProblem(
            "not_yours",
            f'it belongs to {owner or "nobody"}, and {_credential(caller)} has no scope "operate"',
            hint="`accsd tokens create NAME --scope operate` makes a token that may",
            scope=Scope.OPERATE.value,
        )


def require_scope(caller: Caller, scope: Scope, what: str) -> None:
    """For what a route allows to few of those whom it lets in."""
    if not caller.may(scope):
        raise HttpProblem(
            "scope_missing",
            f'{what} needs the scope "{scope}"; {_credential(caller)} has {_listed(caller)}',
            hint=f"`accsd tokens create NAME --scope {scope}` makes a token that may",
            scope=scope.value,
        )


def require_limit(caller: Caller, kind: str, name: str) -> None:
    """A token may be limited to certain names: {"workflows": ["media-*"]}."""
    if not caller.reaches(kind, name):
        allowed = ", ".join(caller.limits[kind])
        raise HttpProblem(
            "scope_missing", f'{_credential(caller)} is limited to {kind} {allowed}, and this is "{name}"'
        )


async def _require_shared(request: Request, caller: Caller, job_id: UUID, share: object) -> None:
    if is_shut(context_of(request), caller):
        raise HttpProblem("unauthenticated", "shares are switched off, and no link shows anything")
    if share == "session":
        return
    if not share or not await _is_about(request, job_id):
        raise HttpProblem("scope_missing", "a share link shows one job, and nothing else")
    if share == "artifacts" and not caller.limits.get("artifacts"):
        raise HttpProblem("scope_missing", "this share link shows no artifacts")


async def _is_about(request: Request, job_id: UUID) -> bool:
    given = request.path_params
    if "artifact_id" in given:
        return await artifact_of_share(context_of(request).reads, str(given["artifact_id"]), job_id) is not None
    try:
        return UUID(str(given.get("job_id"))) == job_id
    except ValueError:
        return False


def _credential(caller: Caller) -> str:
    return f"token {caller.token_id}" if caller.token_id else f"the session of {caller.actor}"


def _listed(caller: Caller) -> str:
    return ", ".join(sorted(caller.scopes)) or "none"
