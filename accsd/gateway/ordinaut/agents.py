"""/agents: an agent is an actor, its secret a token, and its scopes those of its tokens.

What Ordinaut calls an access token is another token that is got for the secret: it lives shortly, and dies with it.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final
from uuid import UUID

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from accsd.db import Database
from accsd.db import access as store
from accsd.db.access import ActorRow, Exchanged
from accsd.errors import InvalidValue, NotFound
from accsd.gateway.access import network_of, public, require_door, scoped
from accsd.gateway.answers import answer
from accsd.gateway.context import caller_of, context_of
from accsd.gateway.ordinaut.shapes import (
    AGENT,
    DOOR,
    OPERATION,
    TOKEN,
    AgentChange,
    AgentCredentials,
    AgentIn,
    OrdinautRoute,
    Refresh,
    done,
    listed,
    page,
)
from accsd.gateway.problems import HttpProblem
from accsd.gateway.routes.verbs import done_together, verbs_of
from accsd.gateway.schemas import answers, objects
from accsd.model.access import NAMED, TOKEN_LIVES, CreatedToken, Scope, Token, read_token
from accsd.settings.doors import OrdinautSettings

router = APIRouter(prefix="/agents", route_class=OrdinautRoute, tags=["agents"])
_NAME: Final = "agent secret"
_SECRET: Final = {"properties": {"agent_secret": {"type": "string", "description": "Shown once."}}}
_WITH_SECRET: Final = {"allOf": [AGENT, {"type": "object", **_SECRET}]}
_CREDENTIALS: Final = objects(agent_id={"type": "string"}, agent_secret={"type": "string"}, message={"type": "string"})


async def agent_named(db: Database, agent_id: UUID) -> str | None:
    """The name of the agent with this id."""
    rows = await store.actors(db, ids=[agent_id])
    return rows[0].name if rows else None


# Kept


@router.post(
    "",
    operation_id="agents.create",
    summary="Make an agent",
    status_code=201,
    responses=answers(_WITH_SECRET, 201, "Made") | answers(AGENT, 200, "A dry run"),
    openapi_extra=scoped(Scope.ADMIN),
)
async def create(request: Request, wanted: AgentIn, dry_run: bool = False) -> Response:
    """The answer has its secret, once."""
    by, (scopes, limits) = caller_of(request).actor, read_scopes(wanted.scopes)

    async def work(db: Database) -> tuple[ActorRow, CreatedToken]:
        if await store.actor_ids(db, [wanted.name]):
            raise HttpProblem("agent_exists", f'there is an agent "{wanted.name}" already')
        agent_id = await store.put_actor(db, wanted.name, kind=wanted.kind, by=by)
        secret = await store.create_token(db, _NAME, scopes, actor=wanted.name, limits=limits, by=by)
        return (await store.actors(db, ids=[agent_id]))[0], secret

    row, secret = await done_together(request, work, dry_run=dry_run)
    shown = _document(row, written_scopes(secret.scopes, secret.limits))
    return answer(shown | {"dry_run": True}) if dry_run else answer(shown | {"agent_secret": secret.token}, status=201)


@router.get(
    "",
    operation_id="agents.list",
    summary="Agents, the newest first",
    responses=answers(listed(AGENT)),
    openapi_extra=scoped(Scope.ADMIN),
)
async def list_agents(
    request: Request,
    name_filter: str | None = Query(None, max_length=100),
    scope_filter: str | None = Query(None, max_length=200),
    limit: int = Query(50, ge=1, le=200),
    offset: int = Query(0, ge=0, le=10_000_000),
) -> Response:
    found = await _agents(request)
    if name_filter:
        found = [each for each in found if name_filter.lower() in each["name"].lower()]
    if scope_filter:
        found = [each for each in found if scope_filter in each["scopes"]]
    return answer(page(found[offset : offset + limit], len(found), limit, offset))


@router.get(
    "/{agent_id}",
    operation_id="agents.get",
    summary="An agent",
    responses=answers(AGENT),
    openapi_extra=scoped(Scope.ADMIN),
)
async def get_agent(request: Request, agent_id: UUID) -> Response:
    found = await _agents(request, agent_id)
    if not found:
        raise _none(agent_id)
    return answer(found[0])


@router.put(
    "/{agent_id}",
    operation_id="agents.update",
    summary="Give an agent other scopes",
    responses=answers(_WITH_SECRET),
    openapi_extra=scoped(Scope.ADMIN),
)
async def update(request: Request, agent_id: UUID, wanted: AgentChange, dry_run: bool = False) -> Response:
    """Scopes belong to tokens: the agent gets a new secret, which is in this answer once, and what it had lets it in no
    more. Its name stays: it is in the history."""
    row = await _row(request, agent_id)
    if wanted.name not in (None, row.name):
        raise InvalidValue(f'an agent keeps its name, which is "{row.name}"', hint="make another agent")
    scopes, limits = read_scopes(wanted.scopes)
    secret = await _renewed(request, row, scopes, limits, dry_run=dry_run)
    shown = _document(row, written_scopes(secret.scopes, secret.limits))
    return answer(shown | ({"dry_run": True} if dry_run else {"agent_secret": secret.token}))


@router.post(
    "/{agent_id}/credentials",
    operation_id="agents.credentials",
    summary="Give an agent a new secret",
    responses=answers(_CREDENTIALS),
    openapi_extra=scoped(Scope.ADMIN),
)
async def credentials(request: Request, agent_id: UUID, dry_run: bool = False) -> Response:
    """What it had lets it in no more. A password can't be chosen."""
    row = await _row(request, agent_id)
    newest = next((each for each in await _secrets(request) if each.actor == row.name), None)
    if newest is None:
        raise InvalidValue(f'agent "{row.name}" has no token whose scopes it could keep', hint="PUT its scopes")
    secret = await _renewed(request, row, newest.scopes, newest.limits, dry_run=dry_run)
    said = {"agent_id": agent_id, "message": "the secret is shown this once"}
    return answer(said | ({"dry_run": True} if dry_run else {"agent_secret": secret.token}))


@router.delete(
    "/{agent_id}",
    operation_id="agents.delete",
    summary="Lock an agent out",
    responses=answers(OPERATION),
    openapi_extra=scoped(Scope.ADMIN),
)
async def delete(request: Request, agent_id: UUID, dry_run: bool = False) -> Response:
    """Its tokens are dead, and its tasks start nothing: their ledger says owner_disabled. Nothing is deleted."""
    row, by = await _row(request, agent_id), caller_of(request).actor
    if row.name == by:
        raise HttpProblem("not_yourself", "an agent does not lock itself out")

    async def work(db: Database) -> UUID:
        return await store.put_actor(db, row.name, kind=row.kind, limits=row.limits, disabled=True, by=by)

    await done_together(request, work, dry_run=dry_run)
    made = done("the agent is locked out", agent_id=agent_id, agent_name=row.name)
    return answer(made | ({"dry_run": True} if dry_run else {}))


async def _renewed(
    request: Request, row: ActorRow, scopes: Iterable[Scope], limits: Mapping[str, Any], *, dry_run: bool
) -> CreatedToken:
    by = caller_of(request).actor
    old = [each for each in await _secrets(request) if each.actor == row.name and each.state == "live"]

    async def work(db: Database) -> CreatedToken:
        secret = await store.create_token(db, _NAME, scopes, actor=row.name, limits=limits, by=by)
        for each in old:
            await store.revoke_token(db, each.id, by=by, reason="the agent has got a new secret")
        return secret

    return await done_together(request, work, dry_run=dry_run)


async def _row(request: Request, agent_id: UUID) -> ActorRow:
    rows = await store.actors(context_of(request).reads, ids=[agent_id])
    if not rows:
        raise _none(agent_id)
    return rows[0]


def _none(agent_id: UUID) -> NotFound:
    return NotFound(f"there is no agent {agent_id}", hint="GET /agents lists them")


async def _agents(request: Request, agent_id: UUID | None = None) -> list[dict[str, Any]]:
    rows = await store.actors(context_of(request).reads, ids=None if agent_id is None else [agent_id])
    scopes: dict[str, dict[str, None]] = {}
    for token in await _secrets(request):
        if token.state == "live":
            scopes.setdefault(token.actor, {}).update(dict.fromkeys(written_scopes(token.scopes, token.limits)))
    return [_document(row, list(scopes.get(row.name, ()))) for row in rows]


async def _secrets(request: Request) -> list[Token]:
    """All tokens but shares, the newest first."""
    return [each for each in await store.tokens(context_of(request).verbs) if each.subject is None]


def _document(row: ActorRow, scopes: Sequence[str]) -> dict[str, Any]:
    return {
        "id": row.id,
        "name": row.name,
        "kind": row.kind,
        "scopes": list(scopes),
        "webhook_url": None,
        "created_at": row.created_at,
        "disabled_at": row.disabled_at,
    }


# Scopes as one text each


def read_scopes(written: Sequence[str]) -> tuple[list[Scope], dict[str, list[str]]]:
    """`submit`, and what narrows it: `events:github` (that topic and what is below it), `tools:telegram`,
    `workflows:shop-`. Raises InvalidValue."""
    scopes: list[Scope] = []
    limits: dict[str, list[str]] = {}
    for each in written:
        what, given, name = each.partition(":")
        if given and what in NAMED and name:
            limits.setdefault(what, []).extend(_patterns(what, name))
        elif each in set(Scope):
            scopes.append(Scope(each))
        else:
            known = ", ".join([*Scope, *(f"{named}:…" for named in NAMED)])
            raise InvalidValue(f'there is no scope "{each[:100]}"; there are {known}')
    if not scopes:
        raise InvalidValue(f"name one of the scopes {', '.join(Scope)}: the others only narrow it")
    return scopes, limits


def _patterns(what: str, name: str) -> list[str]:
    if name.endswith("*"):
        return [name]
    return {"events": [name, f"{name}.*"], "tools": [name, f"{name}.*"], "workflows": [f"{name}*"]}.get(what, [name])


def written_scopes(scopes: Iterable[Scope], limits: Mapping[str, Any]) -> list[str]:
    narrowed = [f"{what}:{name}" for what in NAMED for name in limits.get(what, ())]
    return [*(scope.value for scope in scopes), *narrowed]


# Tokens


@router.post(
    "/auth/token",
    operation_id="agents.token",
    summary="An access token for a secret",
    responses=answers(TOKEN),
    openapi_extra=public(),
)
async def token(request: Request, given: AgentCredentials) -> Response:
    """`agent_secret` is a token of that agent. The access token has its scopes and limits, and dies with it."""
    return await _exchanged(request, given.agent_secret, given.agent_id)


@router.post(
    "/auth/refresh",
    operation_id="agents.refresh",
    summary="Another access token",
    responses=answers(TOKEN),
    openapi_extra=public(),
)
async def refresh(request: Request, given: Refresh) -> Response:
    """The secret gives a new one. An access token gives one that ends when it does itself."""
    return await _exchanged(request, given.refresh_token, None)


async def _exchanged(request: Request, secret: str, agent_id: UUID | None) -> Response:
    context = context_of(request)
    settings = context.settings.gateway.ordinaut or OrdinautSettings()
    made = await store.exchange_token(verbs_of(request), secret, lives=settings.access_lives, actor=agent_id)
    if made is None:
        context.buckets.take("login", network_of(request))
        raise HttpProblem("unauthenticated", "the agent and its secret do not let anybody in")
    return answer(_token(made, secret))


def _token(made: Exchanged, secret: str) -> dict[str, Any]:
    lives = made.expires_in or TOKEN_LIVES
    return {
        "access_token": made.token,
        "refresh_token": secret,
        "token_type": "bearer",
        "expires_in": max(1, int(lives.total_seconds())),
        "scope": " ".join(scope.value for scope in made.scopes),
    }


@router.post(
    "/auth/revoke",
    operation_id="agents.revoke",
    summary="End a token that one has",
    responses=answers(OPERATION),
    openapi_extra=public(),
)
async def revoke(request: Request, given: Refresh) -> Response:
    """With a secret end the access tokens that were got for it. One that lets nobody in is ended already."""
    context = context_of(request)
    caller = await store.caller_of_token(context.reads, given.refresh_token)
    known = read_token(given.refresh_token)
    if caller is None or known is None:
        context.buckets.take("login", network_of(request))
        return answer(done("the token lets nobody in"))
    require_door(caller, DOOR)  # whoever has a link to a job does not end it for everybody else
    await store.revoke_token(verbs_of(request), known.id, by=caller.actor, reason="by whoever has it")
    return answer(done("the token lets nobody in any more"))
