"""Requests made up from the description of the API: no answer is a 5xx, and each one is as the description says.

A few for each operation here; `make soak` makes thousands.
"""

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import response_schema_conformance

from accsd.db import Database
from accsd.db.access import create_token
from accsd.gateway.app import openapi
from accsd.model.access import Scope
from accsd.settings import DatabaseSettings
from tests.support import daemon
from tests.support.cluster import Connection
from tests.support.factory import fail, finish, node, started, step, submit

# streams have no end; what a stream of lines looks like is no matter of a schema (test_live.py, test_contents.py)
ELSEWHERE = ("stream", "jobs.stream", "tasks.search_log", "tasks.raw_log", "artifacts.content")
CHECKS = [not_a_server_error, response_schema_conformance]
CONFIG = """
[gateway]
listen = "{listen}"
shares = true
limits = {{ reads_per_second = 100000, writes_per_second = 100000, logins_per_minute = 100000 }}
"""


async def seeded(conn: Connection) -> dict[str, str]:
    """A database with some of everything; values that parameters of paths may have."""
    await node(conn)
    await conn.execute("INSERT INTO workflows (name, steps) VALUES ('media', $1)", [step("a", max_attempts=1)])
    job = await conn.fetchval("SELECT accs.submit('media', '{\"n\": 1}')")
    (task,) = await started(conn)
    await finish(conn, task)
    await submit(conn, step("b", max_attempts=1))
    (broken,) = await started(conn)
    await fail(conn, broken)
    await conn.execute(
        """INSERT INTO schedules (name, schedule_kind, schedule_expr, timezone, workflow)
           VALUES ('nightly', 'cron', '0 2 * * *', 'UTC', 'media')"""
    )
    await conn.execute("SELECT accs.emit_event('shop.order', '{\"n\": 1}')")
    return {
        "job_id": str(job), "task_id": str(task["task_id"]), "attempt_id": "1", "name": "media", "version": "1",
        "key": "youtube", "artifact_id": "1", "token_id": "aaaaaaaa", "code": "bug",
    }  # fmt: skip


def hammer(url: str, token: str, known: dict[str, str], examples: int, document: dict[str, Any] | None = None) -> int:
    """`document`: the description of a door; the native API's without one."""
    sent = 0
    wrong: list[str] = []
    description = schemathesis.openapi.from_dict(document or openapi())
    for found in description.get_all_operations():
        operation: Any = cast("Any", found).ok()
        if operation.definition.raw["operationId"] in ELSEWHERE:
            continue
        for mode in (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE):
            try:
                sent += _sent(operation, mode, url, token, known, examples)
            except Exception as error:  # noqa: BLE001 - all of them are told together
                wrong.append(f"{operation.method.upper()} {operation.path}: {type(error).__name__} {str(error)[:1500]}")
    assert not wrong, "\n\n".join(wrong)
    return sent


def _sent(operation: Any, mode: Any, url: str, token: str, known: dict[str, str], examples: int) -> int:
    sent = 0

    @settings(
        max_examples=examples, deadline=None, database=None, phases=[Phase.generate],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
    )  # fmt: skip
    @given(case=operation.as_strategy(generation_mode=mode), is_real=st.booleans())
    def ask(case: Any, is_real: bool) -> None:
        nonlocal sent
        if is_real and case.path_parameters:
            case.path_parameters = {name: known.get(name, value) for name, value in case.path_parameters.items()}
        answer = case.call(base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=60)
        case.validate_response(answer, checks=CHECKS)
        sent += 1

    with suppress(Unsatisfiable):  # nothing wrong can be said to an operation without input
        ask()
    return sent


async def hammered(folder: Path, db_url: str, conn: Connection, examples: int) -> int:
    known = await seeded(conn)
    db = await Database.open(DatabaseSettings.model_validate({"url": db_url, "pool_size": 1}))
    token = (await create_token(db, "tests", [Scope.ADMIN])).token
    await db.close()
    listen = f"127.0.0.1:{daemon.free_port()}"
    with daemon.running(folder, db_url, role="gateway", config=CONFIG.format(listen=listen)) as gateway:
        await asyncio.to_thread(gateway.wait_for, "listening", component="gateway")
        sent = await asyncio.to_thread(hammer, f"http://{listen}", token, known, examples)
        assert not gateway.log("request_failed"), gateway.log("request_failed")[0]
    return sent


async def test_no_request_leads_to_a_bug_and_every_answer_is_as_described(
    tmp_path: Path, db_url: str, conn: Connection
):
    assert await hammered(tmp_path, db_url, conn, examples=2) > 150


@pytest.mark.soak
@pytest.mark.timeout(3600)
async def test_thousands_of_requests_lead_to_no_bug(tmp_path: Path, db_url: str, conn: Connection):
    assert await hammered(tmp_path, db_url, conn, examples=40) > 5_000
