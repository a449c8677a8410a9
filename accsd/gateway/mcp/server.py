"""The tools and resources by the Model Context Protocol. Only this module speaks the `mcp` library (MC1).

A server is made for one desk: over HTTP for one request, which needs no session; over stdio for one process. A client
that can ask its person is asked to (elicitation): with the revision of 2026-07-28 by an answer that wants input, before
it by a request of the server's where the transport carries one. All others get a preview to confirm.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

import mcp_types as types
from mcp.server import Server, ServerRequestContext
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from starlette.types import Receive, Scope, Send

from accsd import __version__
from accsd.gateway.answers import encode
from accsd.gateway.mcp import resources
from accsd.gateway.mcp.calls import Preview, Said, call, cancelled, refusal, tools_of
from accsd.gateway.mcp.confirmation import refused
from accsd.gateway.mcp.desk import Desk
from accsd.gateway.mcp.tool import Tool, ToolKind
from accsd.gateway.mcp.untrusted import NOTICE

logging.getLogger("mcp").setLevel(logging.CRITICAL)  # what a client did wrong is no news of ours

Context = ServerRequestContext[Any, Any]
Desks = Callable[[], Awaitable[Desk]]
_ASKED: Final = "confirm"
_FORM: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {_ASKED: {"type": "boolean", "title": "Do it", "description": "Whether this is to happen."}},
    "required": [_ASKED],
}
_INSTRUCTIONS: Final = (
    "accsd runs workflows at times, after events and on demand, on machines that may be asleep. Every tool that writes"
    " has two steps: without confirm it says what would happen and writes nothing; tell the user what it said, and call"
    " it again with the same arguments and the confirm of the preview if they agree. What you have made can be listed"
    f" (list_made), paused (pause_made) and undone (undo_made). {NOTICE}"
)


def make_server(desks: Desks) -> Server[Any]:
    """`desks` gives the desk of a request, with its caller as he is now, or raises."""

    async def list_tools(ctx: Context, params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        del ctx, params
        return types.ListToolsResult(tools=[_described(tool) for tool in tools_of(await _desk())])

    async def call_tool(
        ctx: Context, params: types.CallToolRequestParams
    ) -> types.CallToolResult | types.InputRequiredResult:
        try:
            return await _called(ctx, await desks(), params)
        except Exception as error:  # noqa: BLE001 - an assistant reads what was wrong, and the connection stays
            return _result(refusal(error))

    async def list_resources(ctx: Context, params: types.PaginatedRequestParams | None) -> types.ListResourcesResult:
        del ctx, params
        found = await _answered(resources.listed(await _desk()))
        return types.ListResourcesResult(
            resources=[
                types.Resource(uri=each.uri, name=each.name, mime_type=resources.MIME, _meta=each.called)
                for each in found
            ]
        )

    async def list_templates(
        ctx: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListResourceTemplatesResult:
        del ctx, params
        return types.ListResourceTemplatesResult(
            resource_templates=[
                types.ResourceTemplate(
                    uri_template=each.uri, name=each.name, description=each.about, mime_type=resources.MIME
                )
                for each in resources.TEMPLATES
            ]
        )

    async def read_resource(ctx: Context, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
        del ctx
        uri = str(params.uri)
        said = await _answered(resources.read(await _desk(), uri))
        text = encode(said.document).decode()
        return types.ReadResourceResult(
            contents=[types.TextResourceContents(uri=uri, mime_type=resources.MIME, text=text)]
        )

    async def _desk() -> Desk:
        return await _answered(desks())

    server = Server[Any](
        "accsd",
        version=__version__,
        title="accsd",
        instructions=_INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_list_resources=list_resources,
        on_list_resource_templates=list_templates,
        on_read_resource=read_resource,
    )
    server.middleware.clear()  # telemetry of its own
    return server


async def _answered(work: Awaitable[Any]) -> Any:
    """What is no call of a tool has no other way to say what was wrong."""
    try:
        return await work
    except Exception as error:  # noqa: BLE001
        said = refusal(error)
        raise MCPError(types.INVALID_PARAMS, said.sentence, dict(said.document)) from None


async def _called(
    ctx: Context, desk: Desk, params: types.CallToolRequestParams
) -> types.CallToolResult | types.InputRequiredResult:
    if params.input_responses is not None:  # the person has answered
        if not _agrees(params.input_responses.get(_ASKED)):
            return _result(cancelled())
        if params.request_state is None:
            raise refused("unknown_confirmation", "the answer does not say to which preview it belongs")
        return _result(_done(await call(desk, params.name, params.arguments, confirm=params.request_state)))
    said = await call(desk, params.name, params.arguments)
    if isinstance(said, Said):
        return _result(said)
    if not _has_forms(ctx):
        return _result(said.said())
    if ctx.protocol_version in MODERN_PROTOCOL_VERSIONS:
        form = types.ElicitRequestFormParams(message=said.question(), requested_schema=_FORM)
        return types.InputRequiredResult(
            input_requests={_ASKED: types.ElicitRequest(params=form)}, request_state=said.confirm
        )
    return await _asked(ctx, desk, params, said)


async def _asked(
    ctx: Context, desk: Desk, params: types.CallToolRequestParams, preview: Preview
) -> types.CallToolResult:
    """Asks the person while the call waits; nothing is held meanwhile."""
    if not ctx.session.can_send_request:
        return _result(preview.said())
    try:
        answer = await ctx.session.elicit_form(preview.question(), _FORM, related_request_id=ctx.request_id)
    except MCPError:
        return _result(preview.said())  # it can't ask, after all
    if not _agrees(answer):
        return _result(cancelled())
    return _result(_done(await call(desk, params.name, params.arguments, confirm=preview.confirm)))


def _done(said: Said | Preview) -> Said:
    assert isinstance(said, Said), "a call that is confirmed has no preview"
    return said


def _agrees(answer: object) -> bool:
    if not isinstance(answer, types.ElicitResult) or answer.action != "accept":
        return False
    return (answer.content or {}).get(_ASKED) is True


def _has_forms(ctx: Context) -> bool:
    """Whether the client can show a form to its person. Before 2025-11-25 nobody said what kind it can show."""
    found = ctx.session.client_capabilities
    if found is None or found.elicitation is None:
        return False
    return found.elicitation.form is not None or found.elicitation.url is None


def _described(tool: Tool[Any]) -> types.Tool:
    return types.Tool(
        name=tool.name,
        title=tool.title,
        description=tool.about,
        input_schema=tool.input_schema,
        output_schema=tool.output_schema,
        annotations=types.ToolAnnotations(
            title=tool.title,
            read_only_hint=tool.kind is ToolKind.READ,
            destructive_hint=tool.kind is ToolKind.DESTRUCTIVE,
            idempotent_hint=tool.is_idempotent,
            open_world_hint=False,
        ),
    )


def _result(said: Said) -> types.CallToolResult:
    """The sentence, and beside the structured answer the same as text, for clients that know no other."""
    document = dict(said.document)
    texts = [said.sentence, encode(document).decode()]
    return types.CallToolResult(
        content=[types.TextContent(text=text) for text in texts],
        structured_content=document,
        is_error=said.is_error,
    )


# The two ways


async def serve_http(server: Server[Any], scope: Scope, receive: Receive, send: Send, *, largest: int) -> None:
    """Answers one request. Each has a manager of its own, since nothing outlives it: any gateway may have the next."""
    manager = StreamableHTTPSessionManager(
        server,
        json_response=True,
        stateless=True,
        # the entrance has looked at the host, and the door at the origin
        security_settings=TransportSecuritySettings(enable_dns_rebinding_protection=False),
        max_request_body_size=largest,
    )
    async with manager.run():
        await manager.handle_request(scope, receive, send)


async def serve_stdio(server: Server[Any]) -> None:
    """Answers until the client closes our input."""
    async with stdio_server() as (incoming, outgoing):
        await server.run(incoming, outgoing, server.create_initialization_options())
