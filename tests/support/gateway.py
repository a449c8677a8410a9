"""A gateway in this process that is asked over real HTTP, and callers with every kind of credential.

async with serving(db_url) as gateway:
    answer = await gateway.get("/jobs", scope="read")
"""

import asyncio
import socket
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import anyio
import httpx

from accsd.db import Database
from accsd.db.access import create_share, create_token, revoke_token
from accsd.db.listen import Listener
from accsd.gateway.context import GatewayContext
from accsd.gateway.roles import make_context
from accsd.gateway.server import GatewayServer
from accsd.health import Health
from accsd.metrics import Metrics
from accsd.model.access import Scope
from accsd.roles import Role
from accsd.settings import Settings
from accsd.storage import ObjectStore, open_store
from accsd.supervisor import Post, RoleObserver, ServingRole, Supervisor
from tests.support.eventually import eventually

PLENTY = {"reads_per_second": 100_000, "writes_per_second": 100_000, "logins_per_minute": 100_000}


class Gateway:
    """A running gateway. `context` is its own; `client` asks it."""

    def __init__(self, context: GatewayContext, url: str, client: httpx.AsyncClient) -> None:
        self.context = context
        self.url = url
        self.client = client
        self._tokens: dict[str, str] = {}

    async def token(self, scope: str, **named: Any) -> str:
        """The text of a token with this scope; the same one each time, unless it is to be a special one."""
        if scope in self._tokens and not named:
            return self._tokens[scope]
        count = len(self._tokens)
        given: dict[str, Any] = {"actor": scope, **named}
        made = await create_token(self.context.verbs, f"{scope}-{count}", [Scope(scope)], **given)
        if not named:
            self._tokens[scope] = made.token
        return made.token

    async def expired(self) -> str:
        made = await create_token(self.context.verbs, "expired", [Scope.ADMIN], lives=timedelta(microseconds=1))
        return made.token

    async def revoked(self) -> str:
        made = await create_token(self.context.verbs, "revoked", [Scope.ADMIN])
        await revoke_token(self.context.verbs, made.id)
        return made.token

    async def share(self, job_id: UUID) -> str:
        made = await create_share(self.context.verbs, job_id, lives=timedelta(days=1), by="somebody")
        return made.token

    async def ask(
        self, method: str, path: str, *, scope: str | None = None, token: str | None = None, **given: Any
    ) -> httpx.Response:
        headers = dict(given.pop("headers", {}))
        credential = token if scope is None else await self.token(scope)
        if credential is not None:
            headers["Authorization"] = f"Bearer {credential}"
        where = path if path.startswith(("/hooks", "/health", "/problems")) else f"/api/v1{path}"
        return await self.client.request(method, where, headers=headers, **given)

    async def get(self, path: str, **given: Any) -> httpx.Response:
        return await self.ask("GET", path, **given)

    async def post(self, path: str, body: Any = None, **given: Any) -> httpx.Response:
        return await self.ask("POST", path, json=body if body is not None else {}, **given)


@asynccontextmanager
async def serving(
    db_url: str,
    *,
    folder: Path | None = None,
    hears: bool = False,
    works: bool = False,
    gateway: dict[str, Any] | None = None,
    **more: Any,
) -> AsyncGenerator[Gateway]:
    """`folder`: of an object store. `hears`: with a listener; without one the hub polls. `works`: with the roles of its
    doors."""
    given = {"listen": f"127.0.0.1:{_free_port()}", "limits": PLENTY} | (gateway or {})
    listen = str(given["listen"])
    settings = Settings.model_validate({"database": {"url": db_url}, "gateway": given, **more})
    async with AsyncExitStack() as stack:
        db = await Database.open(settings.database.model_copy(update={"pool_size": 1}))
        stack.push_async_callback(db.close)
        listener = Listener(settings.database, "accs_", behind_pooler=False, is_off=not hears, db=db)
        store: ObjectStore | None = None
        if folder is not None:
            store = await stack.enter_async_context(open_store(settings.storage, default_folder=folder))
        context = await make_context(
            settings, listener=listener, metrics=Metrics(), health=Health("test"), store=store, resources=stack
        )
        # Without verify=False each client reads all certificates of the system (20 ms), for no TLS.
        client = await stack.enter_async_context(
            httpx.AsyncClient(base_url=f"http://{listen}", timeout=30, verify=False)
        )
        stop = anyio.Event()
        # in a task of its own: pytest ends a fixture in another task than the one that it began in
        beside = [role for door in context.doors for role in door.roles] if works else []
        roles = asyncio.create_task(_serve([listener, context.hub, GatewayServer(context)], beside, context, stop))
        try:
            await eventually(lambda: _answers(client), within=20)
            yield Gateway(context, f"http://{listen}", client)
        finally:
            stop.set()
            await roles


async def _serve(
    roles: Sequence[ServingRole], beside: Sequence[Role[Any]], context: GatewayContext, stop: anyio.Event
) -> None:
    observer = RoleObserver(context.health, context.metrics)
    async with Supervisor(observer) as supervisor, anyio.create_task_group() as group:
        for role in roles:
            group.start_soon(role.serve)
        for row in beside:
            for name, make in row.members(context).items():
                supervisor.keep(Post(name, make))
        await stop.wait()
        group.cancel_scope.cancel()


async def _answers(client: httpx.AsyncClient) -> bool:
    try:
        return (await client.get("/health")).status_code == 200
    except httpx.TransportError:
        return False


def _free_port() -> int:
    with socket.socket() as tried:
        tried.bind(("127.0.0.1", 0))
        return tried.getsockname()[1]
