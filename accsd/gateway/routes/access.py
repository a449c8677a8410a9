"""Who asks: sessions of browsers, tokens, links that share one job, and the audit."""

from datetime import datetime, timedelta
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Body, Path, Query
from pydantic import BeforeValidator, Field
from starlette.requests import Request
from starlette.responses import Response

from accsd import __version__
from accsd.db import access, audit
from accsd.db.audit import AuditRow
from accsd.db.views import jobs as job_views
from accsd.errors import NotFound
from accsd.explain.identifiers import job_named
from accsd.gateway.access import (
    COOKIE,
    GuardedRoute,
    authenticated,
    is_shut,
    network_of,
    of_session,
    public,
    require_same_origin,
    scoped,
)
from accsd.gateway.answers import answer, document
from accsd.gateway.bodies import Body as RequestBody
from accsd.gateway.bodies import Reason
from accsd.gateway.context import GatewayContext, caller_of, context_of
from accsd.gateway.problems import HttpProblem
from accsd.gateway.reach import Reach
from accsd.gateway.routes.verbs import verbs_of
from accsd.gateway.schemas import ANYTHING, answers, listed, paged, row_schema
from accsd.gateway.shares import shown_to
from accsd.model.access import SHARE_LIVES, TOKEN_LIVES, Caller, Scope, Token
from accsd.values.units import parse_duration

router = APIRouter(prefix="/api/v1", route_class=GuardedRoute, tags=["access"])
Lifetime = Annotated[timedelta, BeforeValidator(parse_duration)]


@router.get(
    "/me",
    operation_id="me",
    summary="Who asks, and how accsd does",
    responses=answers(ANYTHING),
    openapi_extra=scoped(Scope.READ, Reach.FREE),
)
async def me(request: Request) -> Response:
    return answer(await _me(context_of(request), caller_of(request)))


async def _me(context: GatewayContext, caller: Caller) -> dict[str, Any]:
    listening = context.listener.state
    return {
        **_who(caller),
        "version": __version__,
        "clock": await job_views.clock(context.reads),
        "hearing": shown_to(caller, "hearing", {"state": listening.hearing, "reason": listening.reason}),
        "features": {"shares": context.settings.gateway.shares},
        "limits": context.settings.gateway.limits.model_dump(mode="json"),
    }


def _who(caller: Caller) -> dict[str, Any]:
    return {
        "actor": caller.actor,
        "kind": caller.kind,
        "scopes": sorted(caller.scopes),
        "token_id": caller.token_id,
        "limited_to": dict(caller.limits),
        "subject": caller.subject,
    }


# Sessions


@router.get(
    "/session",
    operation_id="session.get",
    summary="Whether somebody is logged in",
    responses=answers(ANYTHING),
    openapi_extra=public(),
)
async def session(request: Request) -> Response:
    """As /me, or `actor: null`: a page that asks whether it has to show a login must not be refused for it."""
    context = context_of(request)
    caller = await authenticated(context, request)
    if caller is None or not caller.may(Scope.READ) or is_shut(context, caller):
        return answer({"actor": None})
    return answer(await _me(context, caller))


class Login(RequestBody):
    """A token, the token of a share link, or a one-time code of `accsd open`."""

    token: str | None = Field(default=None, max_length=200)
    share: str | None = Field(default=None, max_length=200)
    code: str | None = Field(default=None, max_length=200)


@router.post(
    "/session",
    operation_id="session.open",
    summary="Log in",
    status_code=201,
    responses=answers(ANYTHING, 201),
    openapi_extra=public(),
)
async def log_in(request: Request, given: Login) -> Response:
    """Exchanges a token or a one-time code for a cookie that scripts can't read."""
    context = context_of(request)
    context.buckets.take("login", network_of(request))
    if "origin" in request.headers or "sec-fetch-site" in request.headers:
        require_same_origin(request)  # nobody else's page logs a person in as somebody
    agent = request.headers.get("user-agent", "")[:200]
    token = await _token_of(context, given)
    opened = await access.open_session(context.verbs, token=token, code=given.code, user_agent=agent)
    if opened is None:
        raise HttpProblem(
            "unauthenticated", "neither the token nor the code lets anybody in", hint="`accsd open` makes another link"
        )
    made = answer({**_who(opened.caller), "expires_at": opened.expires_at}, status=201)
    made.set_cookie(
        COOKIE,
        opened.cookie,
        max_age=7 * 86400,
        path=context.settings.gateway.base_path or "/",
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
    )
    return made


async def _token_of(context: GatewayContext, given: Login) -> str | None:
    """The token that somebody logs in with. One in a link that he was sent has to be a share: with another token he
    would work as its owner, and not know it."""
    token = given.token if given.share is None else given.share
    caller = None if token is None else await access.caller_of_token(context.reads, token)
    if caller is None or is_shut(context, caller) or (given.share is not None and caller.subject is None):
        return None
    return token


@router.delete(
    "/session",
    operation_id="session.end",
    summary="Log out",
    status_code=204,
    responses={204: {"description": "Logged out"}},
    openapi_extra=of_session(),
)
async def log_out(request: Request) -> Response:
    context, caller = context_of(request), caller_of(request)
    if caller.session_id is not None:
        await access.end_session(context.verbs, caller.session_id)
    ended = Response(status_code=204)
    ended.delete_cookie(COOKIE, path=context.settings.gateway.base_path or "/")
    return ended


# Tokens


class TokenAsked(RequestBody):
    name: str = Field(min_length=1, max_length=100)
    scopes: list[Scope] = Field(min_length=1, max_length=5)
    actor: str | None = Field(default=None, min_length=1, max_length=200)
    kind: Literal["person", "service", "assistant"] | None = None
    limits: dict[str, Any] = Field(default_factory=dict)
    expires_in: Lifetime | Literal["never"] = Field(default=TOKEN_LIVES, description='"90d", or "never"')
    reason: str | None = Field(default=None, max_length=1000)


@router.get(
    "/tokens",
    operation_id="tokens.list",
    summary="All tokens, without what lets anybody in",
    responses=answers(listed(row_schema(Token))),
    openapi_extra=scoped(Scope.ADMIN),
)
async def list_tokens(request: Request) -> Response:
    return answer({"items": [document(row) for row in await access.tokens(context_of(request).verbs)]})


@router.post(
    "/tokens",
    operation_id="tokens.create",
    summary="Make a token",
    status_code=201,
    responses=answers(ANYTHING, 201),
    openapi_extra=scoped(Scope.ADMIN),
)
async def create_token(request: Request, asked: TokenAsked) -> Response:
    """Its text is in this answer, and nowhere else."""
    made = await access.create_token(
        verbs_of(request),
        asked.name,
        asked.scopes,
        actor=asked.actor,
        kind=asked.kind,
        limits=asked.limits,
        lives=None if isinstance(asked.expires_in, str) else asked.expires_in,
        by=caller_of(request).actor,
        reason=asked.reason,
    )
    return answer(document(made), status=201)


@router.delete(
    "/tokens/{token_id}",
    operation_id="tokens.revoke",
    summary="Revoke a token, with its sessions",
    responses=answers(ANYTHING),
    openapi_extra=scoped(Scope.ADMIN),
)
async def revoke_token(
    request: Request, token_id: str = Path(max_length=100), asked: Reason = Body(default=Reason())
) -> Response:
    by = caller_of(request).actor
    verdict = await access.revoke_token(verbs_of(request), token_id, by=by, reason=asked.reason)
    return answer({"answer": verdict})


class ShareAsked(RequestBody):
    expires_in: Lifetime = Field(default=timedelta(days=7), description='At most "30d"')
    artifacts: bool = False
    reason: str | None = Field(default=None, max_length=1000)


@router.post(
    "/jobs/{job_id}/shares",
    operation_id="jobs.share",
    summary="A link that shows one job",
    status_code=201,
    responses=answers(ANYTHING, 201),
    openapi_extra=scoped(Scope.OPERATE),
)
async def share(request: Request, job_id: str, asked: ShareAsked = Body(default=ShareAsked())) -> Response:
    """A token with the scope read, for that job alone. Off unless `gateway.shares` is true."""
    context = context_of(request)
    if not context.settings.gateway.shares:
        raise HttpProblem("scope_missing", "shares are switched off", hint="set gateway.shares = true")
    found = await job_named(context.reads, job_id)
    made = await access.create_share(
        verbs_of(request),
        found,
        lives=min(asked.expires_in, SHARE_LIVES),
        artifacts=asked.artifacts,
        by=caller_of(request).actor,
        reason=asked.reason,
        of_token=caller_of(request).token_id,
    )
    return answer(document(made), status=201)


@router.get(
    "/jobs/{job_id}/shares",
    operation_id="jobs.shares",
    summary="The links that show a job, without what lets anybody in",
    responses=answers(listed(row_schema(Token))),
    openapi_extra=scoped(Scope.OPERATE),
)
async def list_shares(request: Request, job_id: str) -> Response:
    return answer({"items": [document(row) for row in await _shares(context_of(request), job_id)]})


@router.delete(
    "/jobs/{job_id}/shares/{token_id}",
    operation_id="jobs.unshare",
    summary="Revoke a link that shows a job, with its sessions",
    responses=answers(ANYTHING),
    openapi_extra=scoped(Scope.OPERATE),
)
async def revoke_share(
    request: Request, job_id: str, token_id: str = Path(max_length=100), asked: Reason = Body(default=Reason())
) -> Response:
    if token_id not in {row.id for row in await _shares(context_of(request), job_id)}:
        raise NotFound(f"no link {token_id} shows this job")
    by = caller_of(request).actor
    return answer({"answer": await access.revoke_token(verbs_of(request), token_id, by=by, reason=asked.reason)})


async def _shares(context: GatewayContext, job_id: str) -> list[Token]:
    subject = f"job:{await job_named(context.reads, job_id)}"
    return [row for row in await access.tokens(context.verbs) if row.subject == subject]


# The audit

_MOST: Final = 500


@router.get(
    "/audit",
    operation_id="audit.list",
    summary="Who did what",
    responses=answers(paged(row_schema(AuditRow))),
    openapi_extra=scoped(Scope.READ, Reach.FREE),
)
async def list_audit(
    request: Request,
    actor: str | None = Query(None, max_length=200),
    target: str | None = Query(None, max_length=500),
    since: datetime | None = None,
    before: int | None = Query(None, ge=1, le=2**53, description="Only entries older than this id"),
    limit: int = Query(100, ge=1, le=_MOST),
) -> Response:
    """Every operator verb, whoever called it: by a command, over HTTP or in SQL. Without the scope admin, or with
    limits: one's own."""
    context, caller = context_of(request), caller_of(request)
    whose = actor if caller.may(Scope.ADMIN) and not caller.limits else caller.actor
    rows = await audit.audit(context.reads, actor=whose, target=target, since=since, before=before, limit=limit)
    following = str(rows[-1].id) if len(rows) == limit else None
    return answer({"items": [document(row, context.redaction) for row in rows], "next": following})
