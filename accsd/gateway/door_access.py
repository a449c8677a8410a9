"""Who gets in at a door that words its refusals itself: whoever has a live token that is not made for another door."""

from starlette.requests import HTTPConnection

from accsd.db.access import caller_of_token
from accsd.gateway.access import bearer_of, network_of, require_door
from accsd.gateway.context import GatewayContext
from accsd.gateway.problems import HttpProblem
from accsd.model.access import Caller


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
