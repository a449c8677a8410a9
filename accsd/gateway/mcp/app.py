"""The door's application: who gets in at /mcp, and from where (MC1)."""

from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.types import Message, Receive, Scope, Send

from accsd.gateway.context import GatewayContext
from accsd.gateway.door_access import caller_at_door
from accsd.gateway.mcp.desk import Desk
from accsd.gateway.mcp.server import make_server, serve_http
from accsd.gateway.problems import HttpProblem
from accsd.model.access import Caller


class McpApp:
    def __init__(self, context: GatewayContext) -> None:
        self._context = context

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        if request.method != "POST":
            raise HttpProblem(
                "method_not_allowed", "there are no sessions and no streams here: POST", headers={"Allow": "POST"}
            )
        self._require_origin(request)
        caller = request.state.caller = await self._caller(request)
        body = await request.body()  # here, where it can be refused for its size
        context = self._context
        desk = Desk(
            settings=context.settings,
            reads=context.reads,
            verbs=context.verbs.acting("mcp", request.state.request_id),
            store=context.store,
            caller=caller,
        )

        async def desks() -> Desk:
            return desk

        largest = context.settings.gateway.limits.body
        await serve_http(make_server(desks), scope, _replayed(body, receive), _plain(send), largest=largest)

    def _require_origin(self, request: Request) -> None:
        """A browser says which page asks: it must be one that is allowed. A program says nothing."""
        origin = request.headers.get("origin")
        if origin is None or origin in self._context.settings.gateway.cors_origins:
            return
        found = urlsplit(origin)
        if (found.scheme, found.netloc) != (request.url.scheme, request.headers.get("host")):
            raise HttpProblem(
                "not_same_origin",
                "a page of another origin asks; gateway.cors_origins has those that may",
            )

    async def _caller(self, request: Request) -> Caller:
        hint = "accsd tokens create NAME --kind assistant --scope submit"
        return await caller_at_door(self._context, request, "mcp", hint=hint)


def _replayed(body: bytes, receive: Receive) -> Receive:
    first: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return first.pop() if first else await receive()

    return replay


def _plain(send: Send) -> Send:
    """The library names statuses; whoever reads them here wants numbers."""

    async def sent(message: Message) -> None:
        if "status" in message:
            message["status"] = int(message["status"])
        await send(message)

    return sent
