"""The door for assistants: schedules, jobs and pipelines as tools of the Model Context Protocol (docs/doors/mcp.md).

`/mcp` of the gateway and `accsd mcp` have the same tools. calls.py carries one out; readings, schedules and jobs say
what each does; untrusted keeps apart what others wrote; server alone knows the library `mcp`, which has our name, too:
all imports here are absolute.
"""

from accsd.gateway.context import GatewayContext
from accsd.gateway.doors import Door
from accsd.gateway.mcp.app import McpApp


def make_door(context: GatewayContext) -> Door:
    return Door("mcp", serves=lambda path: path in ("/mcp", "/mcp/"), app=McpApp(context))
