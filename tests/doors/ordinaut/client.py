"""A client of Ordinaut: its paths, its documents, and what it expects of answers."""

from typing import Any
from uuid import UUID

import httpx

from accsd.builder.resolver import Resolver
from accsd.db import Database
from tests.support.cluster import Connection
from tests.support.factory import node
from tests.support.gateway import Gateway

WEATHER: dict[str, Any] = {
    "params": {"city": "Chisinau"},
    "pipeline": [
        {"id": "get_weather", "uses": "service:weather", "with": {"location": "${params.city}"}, "save_as": "weather"},
        {
            "id": "send_alert",
            "uses": "service:telegram",
            "if": "steps.weather.temperature > 25",
            "with": {"message": "It's hot today: ${steps.weather.temperature}°C"},
        },
    ],
}
ECHO: dict[str, Any] = {"pipeline": [{"id": "a", "uses": "debug.echo", "with": {"n": 1}}]}


def task(**fields: Any) -> dict[str, Any]:
    """The body of a task of the guide of Ordinaut."""
    return {
        "title": "Weather alert",
        "description": "Tells when it is hot.",
        "schedule_kind": "cron",
        "schedule_expr": "0 9 * * 1-5",
        "timezone": "Europe/Chisinau",
        "payload": WEATHER,
    } | fields


class Client:
    def __init__(self, gateway: Gateway, token: str | None) -> None:
        self.gateway = gateway
        self.token = token

    async def ask(self, method: str, path: str, body: Any = None, **headers: str) -> httpx.Response:
        if self.token is not None:
            headers = {"Authorization": f"Bearer {self.token}", **headers}
        return await self.gateway.client.request(method, path, json=body, headers=headers)

    async def get(self, path: str, status: int = 200) -> Any:
        return said(await self.ask("GET", path), status)

    async def post(self, path: str, body: Any = None, status: int = 200, *, key: str | None = None) -> Any:
        headers = {} if key is None else {"Idempotency-Key": key}
        return said(await self.ask("POST", path, body, **headers), status)

    async def put(self, path: str, body: Any, status: int = 200) -> Any:
        return said(await self.ask("PUT", path, body), status)

    async def create(self, status: int = 201, **fields: Any) -> dict[str, Any]:
        return await self.post("/tasks", task(**fields), status)


def said(answer: httpx.Response, status: int) -> Any:
    assert answer.status_code == status, f"{answer.status_code} {answer.text}"
    found = answer.json()
    if status >= 400:
        assert answer.headers["content-type"] == "application/problem+json"
        assert {"type", "title", "status", "detail", "instance", "code"} <= found.keys()
    return found


async def finish(conn: Connection, service: str, **results: Any) -> UUID:
    """A machine does the task of this service that waits: its job."""
    machine = f"n-{service}"
    await node(conn, machine, None, **{service: 1})
    (claimed,) = await conn.fetch(
        "SELECT * FROM accs.claim_tasks($1, $2, $2, 1, interval '60 s', true)", service, machine
    )
    await conn.execute(
        "SELECT * FROM accs.finish_tasks(ARRAY[$1::uuid], ARRAY[$2::int], $3, ARRAY['done'],"
        " p_results => ARRAY[$4::jsonb])",
        claimed["task_id"],
        claimed["attempt_id"],
        machine,
        results,
    )
    return claimed["job_id"]


async def resolve(db: Database) -> None:
    """What the role `resolver` does, until nothing is left."""
    while (await Resolver(db).run_once()).did:
        pass
