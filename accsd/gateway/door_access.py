"""Who gets in at a door: whoever has a live token that is not made for another door."""

from starlette.requests import HTTPConnection

from accsd.db.access import caller_of_token
from accsd.gateway.access import network_of
from accsd.gateway.context import GatewayContext
from accsd.gateway.problems import HttpProblem
from accsd.model.access import Caller


def bearer_of(connection: HTTPConnection) -> str:
    """The token that a request shows; empty: none."""
    scheme, _, given = connection.headers.get("authorization", "").partition(" ")
    return given.strip() if scheme.lower() == "bearer" else ""


async def caller_at_door(
    context: GatewayContext, request: HTTPConnection, door: str, *, token: str | None = None, hint: str | None = None
) -> Caller:
    """Whose token it is: that of the header, or one that came another way. A browser's cookie is no credential here.
    Raises `unauthenticated`, and for a token that this door does not take `scope_missing`."""
    given = bearer_of(request) if token is None else token
    caller = await caller_of_token(context.reads, given, verbs=context.verbs) if given else None
    if caller is None:
        context.buckets.take("login", network_of(request))
        raise HttpProblem("unauthenticated", "the request has no token that is valid", hint=hint)
    require_door(caller, door)
    return caller


def require_door(caller: Caller, door: str) -> None:
    """A share link shows one job to people, and a token that is made for another door stays there."""
    if caller.subject is not None:
        raise HttpProblem("scope_missing", "a share link shows one job to people, and nothing else")
    if caller.limits.get("door") not in (None, door):
        raise HttpProblem("scope_missing", f"token {caller.token_id} is limited to the door {caller.limits['door']}")
