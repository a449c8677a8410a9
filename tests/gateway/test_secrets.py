"""Canaries: what looks secret is in no answer, no stream, no line of the log and no metric."""

import asyncio
from pathlib import Path
from typing import Any

import orjson
import pytest

from accsd.gateway.access import all_routes
from accsd.gateway.app import make_routes
from accsd.model.state import ArtifactKind
from tests.gateway.test_access import filled
from tests.support.cluster import Connection
from tests.support.factory import finish, node, started, submit
from tests.support.gateway import PLENTY, Gateway, serving
from tests.support.stored import log, stored

CANARY = "canary-7f3a"
SECRET: dict[str, Any] = {
    "api_token": f"{CANARY}-1",
    "nested": {"Password": f"{CANARY}-2", "plain": "seen"},
    "list": [{"client_secret": f"{CANARY}-3"}],
}


async def planted(gateway: Gateway, conn: Connection) -> str:
    """A job with secrets in options, params and results; a schedule, a workflow, a backfill and an event with some."""
    await node(conn)
    steps = [{"key": "a", "service": "s", "default_params": SECRET}]
    assert (await gateway.ask("PUT", "/workflows/w", json={"steps": steps}, scope="admin")).status_code == 201
    made = await gateway.post("/jobs", {"workflow": "w", "options": SECRET}, scope="admin")
    schedule = {"name": "sched", "workflow": "w", "every": "1h", "options": SECRET}
    assert (await gateway.post("/schedules", schedule, scope="admin")).status_code == 201
    assert (await gateway.post("/events", {"topic": "a.b", "payload": SECRET}, scope="admin")).status_code == 202
    return made.json()["id"]


async def streamed(gateway: Gateway, accept: str, path: str, got: bytearray, begun: asyncio.Event) -> None:
    headers = {"Authorization": f"Bearer {await gateway.token('admin')}", "Accept": accept}
    async with gateway.client.stream("GET", f"/api/v1{path}", headers=headers) as answer:
        async for part in answer.aiter_bytes():
            got += part
            begun.set()
            if b"canary-event" in got:
                return


async def test_secrets_are_in_no_answer_no_stream_no_log_and_no_metric(
    db_url: str, conn: Connection, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("ACC_CANARY", f"{CANARY}-env")
    secret = tmp_path / "secret"
    secret.write_text(f"{CANARY}-hook\n")
    hook = {"scheme": "github", "topic": "repo.push", "secret_file": str(secret)}
    settings: dict[str, Any] = {"limits": PLENTY | {"streams_each": 20}, "hooks": {"repo": hook}}
    async with serving(db_url, folder=tmp_path / "objects", gateway=settings) as gateway:
        job = await planted(gateway, conn)
        (task,) = await started(conn, service="s")
        streams: list[bytearray] = []
        readers: list[asyncio.Task[None]] = []
        begun: list[asyncio.Event] = []
        for accept in ("text/event-stream", "application/x-ndjson"):
            for path in (f"/jobs/{job}/stream", f"/stream?topics=job:{job}"):
                streams.append(bytearray())
                begun.append(asyncio.Event())
                readers.append(asyncio.create_task(streamed(gateway, accept, path, streams[-1], begun[-1])))
        for each in begun:
            await asyncio.wait_for(each.wait(), 20)
        await finish(conn, task, results=[SECRET])
        await conn.execute(
            """INSERT INTO task_events (job_id, job_task_id, source, level, type, message, data)
               VALUES ($1, $2, 'agent', 'info', 'note', 'canary-event', $3)""",
            job,
            task["task_id"],
            SECRET,
        )
        await asyncio.wait_for(asyncio.gather(*readers), 30)
        said: dict[str, str] = {"stream": b"".join(streams).decode()}
        for route in all_routes(make_routes()):
            path: str = route.path  # type: ignore[attr-defined]
            if "GET" not in route.methods or path.endswith("/stream"):  # type: ignore[attr-defined]
                continue
            for name in ("w", "sched", "nothing"):
                url = filled(path.replace("{task_id}", str(task["task_id"])).replace("{name}", name), job)  # type: ignore[arg-type]
                headers = {"Authorization": f"Bearer {await gateway.token('admin')}"}
                said[url] = (await gateway.client.get(url, headers=headers)).text
        for body in ({}, {"options": {"x": 1}}):
            path = "/schedules/sched?dry_run=true"
            said[f"PATCH {body}"] = (await gateway.ask("PATCH", path, json=body, scope="submit")).text
            said[f"admin {body}"] = (await gateway.ask("PATCH", path, json=body, scope="admin")).text
        same = {"workflow": "w", "options": SECRET}
        said["dry submit"] = (await gateway.post("/jobs?dry_run=true", same, scope="admin")).text
        said["rerun"] = (await gateway.post(f"/jobs/{job}/rerun?dry_run=true", {"options": SECRET}, scope="admin")).text
        said["operation"] = (
            await gateway.post(
                "/operations", {"action": "retry", "target": {"filter": {}}, "dry_run": True}, scope="admin"
            )
        ).text
        said["forged"] = (await gateway.client.post("/hooks/repo", content=b"{}")).text
        said["metrics"] = gateway.context.metrics.render().decode()
    said["log"] = "".join(capsys.readouterr())
    assert "accsd_" in said["metrics"]
    assert "seen" in said["stream"], "the event itself is told"
    assert "***" in said["stream"]
    for where, text in said.items():
        assert CANARY not in text, where


async def test_an_admin_who_asks_is_shown_what_is_masked_and_that_is_in_the_audit(gateway: Gateway, conn: Connection):
    job = await planted(gateway, conn)
    (task,) = await started(conn, service="s")
    await finish(conn, task, results=[SECRET])
    for path in (f"/jobs/{job}", f"/tasks/{task['task_id']}"):
        refused = await gateway.get(f"{path}?reveal=1", scope="operate")
        assert (refused.status_code, refused.json()["scope"]) == (403, "admin")
        assert CANARY not in refused.text
        assert CANARY not in (await gateway.get(path, scope="admin")).text
        assert CANARY in (await gateway.get(f"{path}?reveal=1", scope="admin")).text
    rows = await conn.fetch("SELECT actor, via, kind, target FROM accs.audit WHERE action LIKE '%reveal%' ORDER BY id")
    assert [tuple(row) for row in rows] == [
        ("admin", "http", "job", str(job)),
        ("admin", "http", "task", str(task["task_id"])),
    ]
    assert CANARY not in (await gateway.get("/audit", scope="admin")).text


async def test_what_is_masked_in_a_log_is_masked_wherever_its_lines_are_told(gateway: Gateway, conn: Connection):
    await node(conn)
    await submit(conn)
    (task,) = await started(conn)
    path = f"/tasks/{task['task_id']}/attempts/1/log"
    part = 0
    await conn.execute(
        """INSERT INTO task_events (job_id, job_task_id, attempt_id, source, level, type, message, data)
           VALUES ($1, $2, 1, 'worker', 'info', 'log', 'hello', $3)""",
        task["job_id"],
        task["task_id"],
        SECRET,
    )
    for sealed in (False, True):
        if sealed:
            line = orjson.loads(log("hello")) | {"data": SECRET}
            part = await stored(gateway, task, ArtifactKind.LOG, "000001.jsonl", orjson.dumps(line) + b"\n", "")
            await finish(conn, task)
        for asked in ("", "/search?q=hello", "/raw?format=jsonl", "/raw?format=jsonl&q=hello"):
            shown = (await gateway.get(f"{path}{asked}", scope="admin")).text
            assert "hello" in shown, asked
            assert "***" in shown, asked
            assert "seen" in shown, asked
            assert CANARY not in shown, (asked, sealed)
    refused = await gateway.get(f"/artifacts/{part}/content", scope="operate")
    assert (refused.status_code, refused.json()["scope"]) == (403, "admin")
    assert CANARY in (await gateway.get(f"/artifacts/{part}/content", scope="admin")).text
    assert await conn.fetchval("SELECT kind || target FROM accs.audit WHERE action ~ 'reveal'") == f"artifact{part}"
