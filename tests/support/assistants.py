"""An assistant: the real client of the Model Context Protocol, over HTTP or over standard input and output."""

import json
import sys
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Literal

import httpx2
import mcp_types as types
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

from tests.support.gateway import Gateway

Action = Literal["accept", "decline", "cancel"]


class Assistant:
    """`asked` are the questions that its person has seen."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.asked: list[str] = []

    async def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """The structured answer. An error is one with `error` in it."""
        made = await self.client.call_tool(tool, arguments)
        first, second = made.content
        assert isinstance(first, types.TextContent)
        assert isinstance(second, types.TextContent)
        assert "\n" not in first.text, "one sentence"
        assert json.loads(second.text) == made.structured_content
        found: dict[str, Any] = made.structured_content
        assert made.is_error == ("error" in found)
        return found

    async def do(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """Both steps: what was done."""
        preview = await self.call(tool, **arguments)
        assert preview.get("status") == "preview", preview
        done = await self.call(tool, **arguments, confirm=preview["confirm"])
        assert done.get("status") == "done", done
        return done

    async def error(self, tool: str, **arguments: Any) -> dict[str, Any]:
        return (await self.call(tool, **arguments))["error"]

    async def tools(self) -> dict[str, types.Tool]:
        return {tool.name: tool for tool in (await self.client.list_tools()).tools}


@asynccontextmanager
async def over_http(
    gateway: Gateway, token: str, *, mode: str = "auto", answer: Callable[[], Action] | None = None
) -> AsyncGenerator[Assistant]:
    """`mode`: legacy is the handshake of before 2026-07-28. `answer`: its person can be asked, and says this."""
    async with (
        httpx2.AsyncClient(headers={"Authorization": f"Bearer {token}"}, timeout=30) as http,
        _connected(streamable_http_client(f"{gateway.url}/mcp", http_client=http), mode, answer) as found,
    ):
        yield found


@asynccontextmanager
async def over_stdio(
    environment: Mapping[str, str],
    *options: str,
    mode: str = "auto",
    answer: Callable[[], Action] | None = None,
) -> AsyncGenerator[Assistant]:
    command = StdioServerParameters(
        command=sys.executable, args=["-m", "accsd", "mcp", *options], env=dict(environment)
    )
    async with _connected(command, mode, answer) as found:
        yield found


@asynccontextmanager
async def _connected(server: Any, mode: str, answer: Callable[[], Action] | None) -> AsyncGenerator[Assistant]:
    asked: list[str] = []

    async def answered(context: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
        del context
        assert answer is not None
        asked.append(params.message)
        action = answer()
        return types.ElicitResult(action=action, content={"confirm": True} if action == "accept" else None)

    async with Client(server, mode=mode, elicitation_callback=answered if answer else None) as client:
        found = Assistant(client)
        found.asked = asked
        yield found
