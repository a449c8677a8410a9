"""Control hosts that die while they do what steps ask of them: the task is taken back and done again, an event is
emitted and a job submitted once, and who is called can tell a repeated call by its key."""

import signal
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from accsd.db import Submission, apply_workflow, submit_job
from accsd.db.tools import put_tool
from accsd.model import WorkflowDef
from accsd.model.tool import ToolDef
from tests.support import daemon
from tests.support.checker import check
from tests.support.cluster import Connection
from tests.support.daemon import Daemon
from tests.support.eventually import eventually
from tests.support.factory import moves, pass_time, task
from tests.support.fleet import all_are
from tests.support.http_servers import answering, http_answer
from tests.support.library import opened


@contextmanager
def control(folder: Path, url: str, config: str = "", **environ: str) -> Generator[Daemon]:
    with daemon.running(folder, url, role="builder", node="control", config=config, environ=environ, ready=False) as it:
        yield it


async def submitted(db_url: str, uses: str, given: dict[str, Any]) -> UUID:
    async with opened(db_url) as db:
        call = {"name": "chat.send", "kind": "http", "request": {"target": "api"}}
        await put_tool(db, ToolDef.model_validate(call))
        quiet = {"key": "x", "uses": "accs.transform"}
        await apply_workflow(db, WorkflowDef.model_validate({"name": "below", "steps": [quiet]}))
        step = {"key": "a", "uses": uses, "with": given}
        workflow = await apply_workflow(db, WorkflowDef.model_validate({"name": "w", "steps": [step]}))
        return await submit_job(db, Submission(workflow))


async def taken_back_and_done(conn: Connection, job: UUID) -> None:
    """By the next control host, which is there already; the history shows both attempts."""
    await pass_time(conn, 600)  # the lease of the dead one is over
    await all_are(conn, [job], "done", within=30)
    found = await task(conn, job)
    assert (found["attempt_id"], found["attempt"]) == (2, 0), "a lost control host spends no attempt"
    assert [move for move in await moves(conn, found["id"]) if move[1] == "queued"], "it was taken back"
    assert await conn.fetch("SELECT * FROM accs.damage") == []
    await check(conn)


@pytest.mark.parametrize(
    ("uses", "given", "effects"),
    [
        ("accs.emit_event", {"topic": "shop.order"}, "SELECT count(*) FROM events WHERE topic = 'shop.order'"),
        ("accs.submit", {"workflow": "below"}, "SELECT count(*) FROM jobs WHERE trigger ->> 'kind' = 'job'"),
    ],
)
async def test_a_control_host_that_dies_after_what_it_did_and_before_it_said_so(
    tmp_path: Path, db_url: str, conn: Connection, uses: str, given: dict[str, Any], effects: str
):
    job = await submitted(db_url, uses, given)
    with control(tmp_path, db_url, ACC_FAILPOINTS="tool.done:kill") as dying:
        assert dying.process.wait(timeout=40) == -signal.SIGKILL, dying.tail()
    assert await conn.fetchval(effects) == 1
    with control(tmp_path, db_url):
        await taken_back_and_done(conn, job)
    assert await conn.fetchval(effects) == 1, "once, whatever the attempt"


async def test_a_control_host_that_dies_in_the_middle_of_a_call(tmp_path: Path, db_url: str, conn: Connection):
    job = await submitted(db_url, "chat.send", {})
    async with answering(None) as receiver:
        target = f'[tools.targets.api]\nurl = "http://127.0.0.1:{receiver.port}"\nallow_private = true\n'
        with control(tmp_path, db_url, target) as dying:
            await eventually(lambda: receiver.requests, within=30)
            dying.kill()
        receiver.answer = http_answer(body='{"id": 7}')
        with control(tmp_path, db_url, target):
            await taken_back_and_done(conn, job)
    assert (await task(conn, job))["results"] == {"id": 7}
    first, second = (request.splitlines() for request in receiver.requests)
    key = next(line for line in first if line.startswith("Idempotency-Key: "))
    assert key in second, "the receiver can tell that it is the same call"
