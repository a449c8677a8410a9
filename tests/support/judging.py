"""The judge's door for tests: a gateway with accounts and problems, callers that submit, and a judge that says what it
is told to (the real one is examples/judge)."""

import io
import zipfile
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from accsd.gateway.judge.accounts import hashed
from tests.support.cluster import Connection
from tests.support.factory import finish, node, started
from tests.support.gateway import Gateway, serving

PASSWORD = "correct horse"
HASH = hashed(PASSWORD)
UNHURRIED = {"per_address": 1_000_000, "per_user": 1_000_000}
SUM = {"1.in": "1 2\n", "1.out": "3\n", "2.in": "20 22\n", "2.out": "42\n"}
ACCEPTED = {
    "schema_version": 1, "verdict": "OK", "status": "Accepted", "time_ms": 12, "mem_kb": 2048, "time_used": 12,
    "memory_used": 2048, "exit_signal": 0, "exit_code": 0, "sandbox_error": "", "cases": 2,
}  # fmt: skip


def zipped(files: Mapping[str, str | bytes]) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return made.getvalue()


@asynccontextmanager
async def judging(db_url: str, folder: Path, **settings: Any) -> AsyncGenerator["Door"]:
    """A gateway with the door open; `settings` are those of the door."""
    given = {"accounts": {"ada": HASH, "root": HASH}, "admins": ["root"], **UNHURRIED, **settings}
    async with serving(db_url, folder=folder, gateway={"judge": given}) as gateway:
        yield Door(gateway)


class Door:
    """What a client of the judge does."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self.client = gateway.client

    async def ask(
        self, method: str, path: str, *, by: str | None = "submit", token: str | None = None, **given: Any
    ) -> httpx.Response:
        """`by` is the scope of a token, whose actor has the same name."""
        headers = dict(given.pop("headers", {}))
        credential = token or (None if by is None else await self.gateway.token(by))
        if credential is not None:
            headers["Authorization"] = f"Bearer {credential}"
        return await self.client.request(method, path, headers=headers, **given)

    async def submit(
        self, problem: int, code: str = "int main() {}", language: Any = 1, **given: Any
    ) -> httpx.Response:
        """`given`: further members of the body, or of the request (by, token, headers)."""
        request = {name: given.pop(name) for name in ("by", "token", "headers") if name in given}
        body = {"code": code, "language": language, "problem_id": problem, **given}
        return await self.ask("POST", "/api/v1/submit", json=body, **request)

    async def submitted(self, problem: int, code: str = "int main() {}", **given: Any) -> str:
        answer = await self.submit(problem, code, **given)
        assert answer.status_code == 200, answer.text
        return answer.json()["job_id"]

    async def status(self, job_id: str, **given: Any) -> dict[str, Any]:
        answer = await self.ask("GET", f"/api/v1/status/{job_id}", **given)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def upload(self, data: bytes, *, name: str = "tests.zip", by: str = "admin", **fields: Any) -> httpx.Response:
        form = {"title": "A + B", **{key: str(value) for key, value in fields.items()}}
        return await self.ask("POST", "/api/v1/problems", by=by, data=form, files={"file": (name, data)})

    async def problem(self, files: Mapping[str, str | bytes] | None = None, **fields: Any) -> int:
        answer = await self.upload(zipped(SUM if files is None else files), **fields)
        assert answer.status_code == 200, answer.text
        return answer.json()["id"]


async def judged(conn: Connection, n: int = 1, results: Mapping[str, Any] | None = None) -> None:
    """A judge that takes so many submissions and says so of each."""
    await node(conn, judge=100)
    claimed = await started(conn, n, "judge")
    assert len(claimed) == n
    answers = await finish(conn, *claimed, results=[dict(ACCEPTED if results is None else results)] * n)
    assert [row["answer"] for row in answers] == ["accepted"] * n
