"""Who may: a token of the store, its scope, and what is whose."""

from starlette.requests import Request

from accsd.gateway.access import by_token, network_of, require_door
from accsd.gateway.context import context_of
from accsd.gateway.judge.accounts import DOOR
from accsd.gateway.judge.pace import Windows
from accsd.gateway.judge.refusals import Refusal
from accsd.model.access import Caller, Scope
from accsd.settings.doors import JudgeSettings


async def admitted(request: Request, scope: Scope, windows: Windows, settings: JudgeSettings) -> Caller:
    """The caller, by a bearer's token and nothing else. Whoever shows none that is valid is counted by address."""
    context = context_of(request)
    caller = await by_token(context, request)
    if caller is None:
        windows.take("unknown", network_of(request), settings.per_address)
        raise Refusal("UNAUTHORIZED", "the request has no token that is valid")
    request.state.caller = caller
    require_door(caller, DOOR)
    if not caller.may(scope):
        raise Refusal("FORBIDDEN", f'this needs the scope "{scope}"')
    return caller


def may_see(caller: Caller, owner: str | None) -> bool:
    """Its owner, and whoever may do what he likes with everybody's work."""
    return caller.may(Scope.OPERATE) or (owner is not None and owner == caller.actor)
