"""The door's application: its routes, and their description."""

from functools import cache
from typing import Any, Final

from fastapi import FastAPI
from starlette.types import Receive, Scope, Send

from accsd.gateway.app import assembled, described_by
from accsd.gateway.ordinaut import agents, events, runs, tasks

_ROOTS: Final = frozenset({"tasks", "events", "runs", "agents"})


def serves(path: str) -> bool:
    return path.split("/")[1] in _ROOTS


@cache
def make_routes() -> FastAPI:
    return assembled(
        [module.router for module in (tasks, events, runs, agents)],
        title="accsd for clients of Ordinaut",
        description="Tasks, events, runs and agents as Ordinaut has them. Errors are problem documents (RFC 9457).",
    )


def openapi() -> dict[str, Any]:
    return described_by(make_routes(), with_sessions=False)


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """Its paths may end in a slash: Ordinaut's do, and its clients write them with and without. None is redirected."""
    if scope["path"].endswith("/"):
        scope = {**scope, "path": scope["path"].rstrip("/"), "raw_path": scope["raw_path"].rstrip(b"/")}
    await make_routes()(scope, receive, send)
