"""Secrets on a node (PL5): filled in before a task is handed over, by an agent and in pull mode, kept nowhere; and
results that are checked where the attempt ends (TL4)."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from accsd.builder.resolver import Resolver
from accsd.db import Database, Submission, apply_workflow, submit_job
from accsd.db.tools import put_tool
from accsd.model import WorkflowDef
from accsd.model.tool import ToolDef
from accsd.sdk import Service
from accsd.settings import Settings
from tests.daemon.test_tools_role import everything_kept
from tests.support.attempts import shop
from tests.support.checker import check
from tests.support.cluster import Connection
from tests.support.eventually import eventually
from tests.support.factory import SERVICE, job, node, task
from tests.support.library import opened
from tests.support.tasks import PREAMBLE

_CANARY = "canary-81b7e3aa42"
# Says its secret in a line, in the data of a line and in its result, and keeps it outside, where the test can see it.
_TELLTALE = (
    PREAMBLE
    + """
open(params["seen"], "w").write(json.dumps(params["deep"]))
print("the token is", params["deep"][0]["token"], flush=True)
say(type="log", message="again", data={"token": params["deep"][0]["token"]})
say(type="result", results={"token": params["deep"][0]["token"]})
"""
)


@pytest.fixture
async def db(db_url: str) -> AsyncIterator[Database]:
    async with opened(db_url) as database:
        yield database


@pytest.fixture
def secrets(tmp_path: Path) -> dict[str, Any]:
    (tmp_path / "token").write_text(f"{_CANARY}\n")
    return {"api": {"file": str(tmp_path / "token")}}


async def started(db: Database, given: dict[str, Any], **fields: Any) -> UUID:
    steps = [{"key": "a", "service": SERVICE, "with": given, "backoff": [0], **fields}]
    which = await apply_workflow(db, WorkflowDef.model_validate({"name": "w", "steps": steps}))
    made = await submit_job(db, Submission(which))
    await Resolver(db).run_once()
    return made


async def test_an_agent_fills_a_secret_in_and_it_is_kept_nowhere(
    db: Database, conn: Connection, tmp_path: Path, secrets: dict[str, Any], capfd: pytest.CaptureFixture[str]
):
    await node(conn)
    made = await started(db, {"deep": [{"token": "${secret('api')}"}], "seen": str(tmp_path / "seen")})
    async with shop(db, tmp_path, secrets=secrets) as here:
        await here.begin(here.serving(_TELLTALE))
        await here.idle()

    assert json.loads((tmp_path / "seen").read_text()) == [{"token": _CANARY}]
    assert (await job(conn, made))["status"] == "done"
    assert (await task(conn, made))["results"] == {"token": "***"}
    everything = await everything_kept(conn)
    assert "the token is ***" in everything
    objects = b"".join(file.read_bytes() for file in (tmp_path / "objects").rglob("*") if file.is_file())
    assert b"the token is ***" in objects
    assert _CANARY not in everything
    assert _CANARY.encode() not in objects
    assert _CANARY not in "".join(capfd.readouterr())
    assert not list((tmp_path / "attempts").iterdir())
    await check(conn)


async def test_an_agent_that_lacks_a_secret_gives_the_task_back(db: Database, conn: Connection, tmp_path: Path):
    await node(conn)
    made = await started(db, {"deep": [{"token": "${secret('api')}"}], "seen": str(tmp_path / "seen")})
    async with shop(db, tmp_path) as here:
        await here.begin(here.serving(_TELLTALE))
        await here.idle()

    found = await task(conn, made)
    assert (found["status"], found["attempt"], found["lost"]) == ("queued", 0, 1)
    history = await conn.fetchval("SELECT string_agg(t::text, '') FROM task_events t")
    assert "secret_missing" in history
    assert "the node has no secret" in history
    assert not (tmp_path / "seen").exists()


async def test_pull_mode_fills_a_secret_in_and_checks_the_result(
    db_url: str, db: Database, conn: Connection, tmp_path: Path, secrets: dict[str, Any]
):
    takes = {"properties": {"token": {"type": "string"}}}
    tool = {"name": "x.echo", "service": SERVICE, "input_schema": takes, "output_schema": {"required": ["n"]}}
    await put_tool(db, ToolDef.model_validate(tool))
    made = await started(db, {"token": "${secret('api')}"}, uses="x.echo")
    seen: list[dict[str, Any]] = []
    service = Service(SERVICE)

    @service.task
    async def echo(task: Any) -> dict[str, Any]:
        seen.append({**task.params})
        return {"token": task.params["token"]} | ({"n": 1} if len(seen) > 1 else {})

    _ = echo
    known = {"database": {"url": db_url}, "node": {"state_dir": str(tmp_path / "state")}, "secrets": secrets}
    serving = asyncio.create_task(service.serve(settings=Settings.model_validate(known)))

    async def is_done() -> bool:
        return (await job(conn, made))["status"] == "done"

    await eventually(is_done)
    serving.cancel()
    await asyncio.wait([serving])
    assert seen == [{"token": _CANARY}] * 2
    found = await task(conn, made)
    assert (found["results"], found["attempt"]) == ({"n": 1, "token": "***"}, 1)
    history = await conn.fetchval("SELECT string_agg(t::text, '') FROM task_events t")
    assert "x.echo@1: results.n is missing" in history
    assert _CANARY not in await everything_kept(conn)


async def test_an_agent_checks_the_result_and_a_wrong_one_spends_an_attempt(
    db: Database, conn: Connection, tmp_path: Path
):
    tool = {"name": "x.echo", "service": SERVICE, "output_schema": {"properties": {"n": {"type": "integer"}}}}
    await put_tool(db, ToolDef.model_validate(tool))
    await node(conn)
    made = await started(db, {}, uses="x.echo", max_attempts=1)
    async with shop(db, tmp_path) as here:
        await here.begin(here.serving(PREAMBLE + "say(type='result', results={'n': 'many'})"))
        await here.idle()

    found = await task(conn, made)
    assert (found["status"], found["error_code"], found["attempt"]) == ("error", "output_invalid", 1)
    assert found["error_message"] == "x.echo@1: results.n must be a whole number"
