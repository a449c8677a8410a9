"""Providers: read-only capabilities that workers serve by push (JB-40 to JB-46)."""

from datetime import UTC, datetime
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Header
from starlette.requests import Request
from starlette.responses import Response

from accsd.db.joblib import PutProvider, drop_provider, put_provider
from accsd.db.views.joblib import JoblibProvider, provider_named, provider_of, providers_seen, worker_of
from accsd.gateway.answers import answer
from accsd.gateway.context import caller_of
from accsd.gateway.joblib.access import READ, WORK, JoblibRoute, is_superuser, needs, reach, reaches, require_superuser
from accsd.gateway.joblib.board import canonical, hash_of
from accsd.gateway.joblib.bodies import DEFAULT_LIMIT, Limit, Offset, ProviderRegistration, page, provider_document
from accsd.gateway.joblib.desk import desk_of
from accsd.gateway.joblib.events import Emission
from accsd.gateway.joblib.names import EVERYWHERE, GLOBAL, full_name, parts_of
from accsd.gateway.joblib.problems import JoblibProblem
from accsd.gateway.joblib.schemas import PAGE_OF_PROVIDERS, PROVIDER
from accsd.gateway.joblib.tasks import wait_of
from accsd.gateway.schemas import answers

router = APIRouter(prefix="/v1/joblib", route_class=JoblibRoute, tags=["providers"])


@router.put(
    "/rooms/{room_id}/providers",
    operation_id="joblib.register_provider",
    summary="Register a provider, or replace it",
    status_code=201,
    responses=answers(PROVIDER, 201, "New") | answers(PROVIDER, 200, "Replaced"),
    openapi_extra=needs(WORK),
)
async def register(request: Request, room_id: str, wanted: ProviderRegistration) -> Response:
    at, caller = desk_of(request), caller_of(request)
    if room_id in EVERYWHERE:
        require_superuser(caller, f"to register a provider of {room_id}")
    allowed = at.settings.allowed_provider_categories
    if allowed is not None and wanted.category not in allowed:
        raise JoblibProblem("invalid-category", f"Provider category '{wanted.category}' not in allowed list: {allowed}")
    name = full_name(room_id, wanted.category, wanted.name)
    if not reaches(caller, name):
        raise JoblibProblem("forbidden", f"token {caller.token_id} is limited to others than {name}")
    made = await put_provider(
        at.verbs(request.state.request_id),
        (room_id, wanted.category, wanted.name),
        wanted.schema_,
        wanted.content_type,
        worker=wanted.worker_id,
        user=caller.actor,
        is_admin=is_superuser(caller),
    )
    provider = _put(room_id, wanted, made, caller.actor)
    at.changed(providers=[room_id])
    return answer(provider_document(provider, made.worker), status=200 if made.verdict == "repeated" else 201)


def _put(room: str, wanted: ProviderRegistration, made: PutProvider, owner: str) -> JoblibProvider:
    if made.reason == "not_yours":
        raise JoblibProblem("forbidden", "Provider already registered by another user")
    if made.id is None:
        raise JoblibProblem("worker-not-found", f"Worker '{wanted.worker_id}' not found or not owned by user")
    when = made.created_at or datetime.now(UTC)
    said = (room, wanted.category, wanted.name, wanted.schema_, wanted.content_type)
    return JoblibProvider(made.id, *said, owner=owner, node="", created_at=when)


@router.get(
    "/rooms/{room_id}/providers",
    operation_id="joblib.list_providers",
    summary="The providers of a room and those of @global",
    responses=answers(PAGE_OF_PROVIDERS),
    openapi_extra=needs(READ),
)
async def list_page(request: Request, room_id: str, limit: Limit = DEFAULT_LIMIT, offset: Offset = 0) -> Response:
    found = await providers_seen(
        desk_of(request).context.reads, room_id, limit=limit, offset=offset, within=reach(request)
    )
    return answer(page(map(_shown, found.rows), found, limit, offset))


def _shown(provider: JoblibProvider) -> dict[str, object]:
    return provider_document(provider, worker_of(provider.node))


@router.get(
    "/rooms/{room_id}/providers/{provider_name:path}/info",
    operation_id="joblib.get_provider",
    summary="A provider by its full name",
    responses=answers(PROVIDER),
    openapi_extra=needs(READ),
)
async def info(request: Request, room_id: str, provider_name: str) -> Response:
    return answer(_shown(await _visible(request, room_id, provider_name)))


@router.get(
    "/rooms/{room_id}/providers/{provider_name:path}",
    operation_id="joblib.read_provider",
    summary="Read from a provider",
    responses={200: {"description": "What it has answered, with its content type"}},
    openapi_extra=needs(READ),
)
async def read(request: Request, room_id: str, provider_name: str) -> Response:
    """All parameters of the query are handed to it. Waits for `Prefer: wait=N`, or a few seconds (JB-46)."""
    at = desk_of(request)
    provider = await _visible(request, room_id, provider_name)
    params = dict(request.query_params)
    key = provider.full_name, hash_of(params)
    if (known := at.board.result(key)) is not None:
        return Response(known, headers={"Content-Type": provider.content_type})
    if at.board.ask(key):
        asked = {"request_id": key[1], "provider_name": provider.full_name, "params": canonical(params)}
        await at.sockets.request("provider_request", asked, f"providers:{provider.full_name}")
    wanted = wait_of(request, at.settings.provider_long_poll_max_seconds)
    patience = at.settings.provider_long_poll_default_seconds if wanted is None else wanted
    body = await at.board.wait(key, patience)
    if body is None:
        raise JoblibProblem(
            "provider-timeout",
            f"Provider '{provider.full_name}' did not respond within {patience}s",
            headers={"Retry-After": "2"},
        )
    applied = {} if wanted is None else {"Preference-Applied": f"wait={wanted}"}
    return Response(body, headers={"Content-Type": provider.content_type} | applied)


@router.post(
    "/providers/{provider_id}/results",
    operation_id="joblib.put_result",
    summary="What a provider answers",
    status_code=204,
    openapi_extra=needs(WORK),
)
async def put_result(request: Request, provider_id: UUID, x_request_hash: Annotated[str, Header()]) -> Response:
    """The body is kept as it is, under the hash of the request."""
    at = desk_of(request)
    provider = await _own(request, provider_id)
    at.board.put((provider.full_name, x_request_hash[:200]), await request.body())
    ready = {"provider_name": provider.full_name, "request_hash": x_request_hash[:200]}
    await at.sockets.emit(Emission("provider_result_ready", ready, f"room:{provider.room}", ""))
    return Response(status_code=204)


@router.delete(
    "/providers/{provider_id}",
    operation_id="joblib.remove_provider",
    summary="Remove a provider",
    status_code=204,
    openapi_extra=needs(WORK),
)
async def remove(request: Request, provider_id: UUID) -> Response:
    provider = await _own(request, provider_id)
    await drop_provider(desk_of(request).context.verbs, provider_id)
    desk_of(request).changed(providers=[provider.room])
    return Response(status_code=204)


async def _own(request: Request, provider_id: UUID) -> JoblibProvider:
    found = await provider_of(desk_of(request).context.reads, provider_id)
    caller = caller_of(request)
    if found is None or not reaches(caller, found.full_name):
        raise JoblibProblem("provider-not-found", f"Provider '{provider_id}' not found")
    if found.owner != caller.actor and not is_superuser(caller):
        raise JoblibProblem("forbidden", "Provider belongs to different user")
    return found


async def _visible(request: Request, room: str, name: str) -> JoblibProvider:
    parts = parts_of(name)
    if parts is None:
        raise JoblibProblem("provider-not-found", f"Invalid provider name format: {name[:300]}")
    is_seen = (room == GLOBAL or parts[0] in (GLOBAL, room)) and reaches(caller_of(request), name)
    found = await provider_named(desk_of(request).context.reads, *parts) if is_seen else None
    if found is None:
        raise JoblibProblem("provider-not-found", f"Provider '{name[:300]}' not found from room '{room}'")
    return found
