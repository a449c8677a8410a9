"""What an assistant does, without one: makes a schedule, says what it will do, and undoes it.

    export ACC_TOKEN=$(accsd tokens create helper --kind assistant --scope submit -o name)
    python try.py backup                       # starts `accsd mcp`
    python try.py backup http://127.0.0.1:8460/mcp

Needs `pip install 'accsd[doors]'` and a workflow of that name.
"""

import asyncio
import os
import sys
import time
from typing import Any

import httpx2
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client


async def main(workflow: str, url: str | None = None) -> None:
    if url is None:
        ours = {name: value for name, value in os.environ.items() if name.startswith("ACC_")}
        server: Any = StdioServerParameters(command=sys.executable, args=["-m", "accsd", "mcp"], env=ours)
    else:
        headers = {"Authorization": f"Bearer {os.environ['ACC_TOKEN']}"}
        server = streamable_http_client(url, http_client=httpx2.AsyncClient(headers=headers))
    async with Client(server) as client:

        async def call(tool: str, **arguments: Any) -> dict[str, Any]:
            made = await client.call_tool(tool, arguments)
            print(f"{tool}: {made.content[0].text}")
            return made.structured_content

        wanted = {
            "name": f"try-{time.time():.0f}",
            "workflow": workflow,
            "cron": "30 2 * * 1-5",
            "timezone": "Europe/Berlin",
        }
        preview = await call("create_schedule", **wanted)
        if "error" in preview:
            print(preview["error"])
            return
        print("  it means:", preview["effect"]["words"])
        print("  it costs:", preview["cost"]["runs_per_day"], "runs a day")
        await call("create_schedule", **wanted, confirm=preview["confirm"])
        await call("list_made")
        preview = await call("undo_made")
        await call("undo_made", confirm=preview["confirm"])


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
