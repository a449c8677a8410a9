"""Users of the joblib door: what their clients send, and what the tests ask of the answers.

ada = await users.user("ada")
worker = await ada.register("Rotate", room="lab")
task = await ada.submit("lab:modifiers:Rotate", room="lab")
"""

from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.support.gateway import Gateway

PREFIX = "/v1/joblib"


@dataclass(slots=True)
class User:
    gateway: Gateway
    token: str
    name: str

    async def ask(self, method: str, path: str, **given: Any) -> httpx.Response:
        where = path if path.startswith(("/v1/", "/api/")) else f"{PREFIX}{path}"
        headers = {"Authorization": f"Bearer {self.token}", **given.pop("headers", {})}
        return await self.gateway.client.request(method, where, headers=headers, **given)

    async def get(self, path: str, **given: Any) -> httpx.Response:
        return await self.ask("GET", path, **given)

    async def post(self, path: str, body: Any = None, **given: Any) -> httpx.Response:
        return await self.ask("POST", path, **({} if body is None else {"json": body}), **given)

    async def put(self, path: str, body: Any, **given: Any) -> httpx.Response:
        return await self.ask("PUT", path, json=body, **given)

    async def patch(self, path: str, body: Any = None, **given: Any) -> httpx.Response:
        return await self.ask("PATCH", path, **({} if body is None else {"json": body}), **given)

    async def delete(self, path: str, **given: Any) -> httpx.Response:
        return await self.ask("DELETE", path, **given)

    # What nearly every test does

    async def worker(self) -> str:
        made = await self.post("/workers")
        assert made.status_code == 201, made.text
        return made.json()["id"]

    async def register(self, name: str, *, room: str = "lab", worker: str | None = None, **more: Any) -> str:
        """The worker that serves it."""
        body = {"category": "modifiers", "name": name, "schema_": {}, **more}
        if worker is not None:
            body["worker_id"] = worker
        made = await self.put(f"/rooms/{room}/jobs", body)
        assert made.status_code in (200, 201), made.text
        return made.json()["worker_id"]

    async def submit(self, job: str, *, room: str = "lab", payload: Any = None, **given: Any) -> str:
        body = {} if payload is None else {"payload": payload}
        made = await self.post(f"/rooms/{room}/tasks/{job}", body, **given)
        assert made.status_code == 202, made.text
        return made.json()["id"]

    async def claim(self, worker: str, **given: Any) -> dict[str, Any] | None:
        answer = await self.post("/tasks/claim", {"worker_id": worker}, **given)
        assert answer.status_code == 200, answer.text
        return answer.json()["task"]

    async def say(self, task: str, status: str, **more: Any) -> httpx.Response:
        return await self.patch(f"/tasks/{task}", {"status": status, **more})

    async def task(self, task: str) -> dict[str, Any]:
        answer = await self.get(f"/tasks/{task}")
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def status(self, task: str) -> str:
        return (await self.task(task))["status"]


@dataclass(slots=True)
class Users:
    gateway: Gateway
    _known: dict[str, User] = field(default_factory=dict)

    async def user(self, name: str, *, scope: str = "submit", **named: Any) -> User:
        if name not in self._known or named:
            token = await self.gateway.token(scope, **({"actor": name} | named))
            self._known[name] = User(self.gateway, token, name)
        return self._known[name]


def problem(answer: httpx.Response, kind: str, status: int) -> dict[str, Any]:
    """The problem that an answer is, or the test fails (JB-2)."""
    said = answer.json()
    assert (answer.status_code, said.get("type")) == (status, f"/v1/problems/{kind}"), answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert said["status"] == status
    assert said["title"]
    assert said["detail"]
    assert "instance" not in said
    return said


def refused_input(answer: httpx.Response) -> list[dict[str, Any]]:
    """FastAPI's own body of a 422 (JB-3)."""
    assert answer.status_code == 422, answer.text
    assert answer.headers["content-type"] == "application/json"
    found = answer.json()["detail"]
    assert all({"loc", "msg", "type"} <= each.keys() for each in found), found
    return found
