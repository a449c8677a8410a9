"""`accsd mcp`: the same tools over standard input and output, by the real client and a process of its own."""

import os
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from accsd.cli.session import operator
from accsd.db import Database
from accsd.db.access import create_token, revoke_token
from accsd.model.access import CreatedToken, Scope
from tests.support.assistants import Action, over_stdio
from tests.support.cli import Cli
from tests.support.cluster import ROOT, Connection
from tests.support.library import opened

NIGHTLY: dict[str, Any] = {"name": "nightly", "workflow": "backup", "cron": "30 2 * * *"}


@pytest.fixture
def environment(db_url: str, tmp_path: Path) -> dict[str, str]:
    return {"ACC_DB_URL": db_url, "ACC_STORAGE_URL": f"file://{tmp_path}/objects"}


@pytest.fixture
async def db(db_url: str) -> AsyncIterator[Database]:
    async with opened(db_url) as opening:
        yield opening


async def a_token(db: Database, scope: Scope = Scope.SUBMIT) -> CreatedToken:
    return await create_token(db, "helper", [scope], kind="assistant")


async def test_without_a_token_it_reads_in_the_name_of_whoever_started_it(
    environment: dict[str, str], conn: Connection, workflow: str
):
    async with over_stdio(environment) as assistant:
        assert "create_schedule" not in await assistant.tools()
        assert (await assistant.call("list_workflows"))["items"][0]["untrusted"]["name"] == "backup"
        refused = await assistant.error("submit", workflow="backup")
        assert refused["scope"] == "submit"
        assert "--scope gives it more" in refused["detail"]
    async with over_stdio(environment, "--scope", "submit", mode="legacy") as assistant:
        await assistant.do("create_schedule", **NIGHTLY)
    assert await conn.fetchval("SELECT created_by FROM schedules") == operator()


async def test_it_acts_in_the_name_of_its_token_and_stops_when_that_is_revoked(
    environment: dict[str, str], db: Database, conn: Connection, workflow: str
):
    token = await a_token(db)
    async with over_stdio(environment | {"ACC_TOKEN": token.token}) as assistant:
        preview = await assistant.call("create_schedule", **NIGHTLY)
        await assistant.call("create_schedule", **NIGHTLY, confirm=preview["confirm"])
        assert await conn.fetchval("SELECT created_by FROM schedules") == "helper"
        preview = await assistant.call("end_schedule", schedule="nightly")
        await revoke_token(db, token.id)
        refused = await assistant.error("end_schedule", schedule="nightly", confirm=preview["confirm"])
        assert refused["code"] == "not_permitted"
    assert await conn.fetchval("SELECT state FROM schedules") == "active"


async def test_a_person_is_asked_by_the_handshake_of_before_2026(
    environment: dict[str, str], db: Database, conn: Connection, workflow: str, tmp_path: Path
):
    """MC3: elicitation as a request of the server's, while the call waits."""
    file = tmp_path / "token"
    file.write_text((await a_token(db)).token + "\n")
    answers: Iterator[Action] = iter(("decline", "cancel", "accept"))
    async with over_stdio(
        environment, "--token-file", str(file), mode="legacy", answer=lambda: next(answers)
    ) as assistant:
        said = [(await assistant.call("create_schedule", **NIGHTLY))["status"] for _ in range(3)]
        assert said == ["cancelled", "cancelled", "done"]
        assert len(assistant.asked) == 3
    assert await conn.fetchval("SELECT count(*) FROM schedules") == 1


async def test_a_token_that_lets_nobody_in_is_found_out_at_once(db_url: str):
    cli = Cli(db_url, ACC_TOKEN="accs_aaaaaaaa_" + "A" * 43)
    (await cli("mcp")).ends(2, "the token lets nobody in", "--kind assistant")
    (await cli("mcp", "--scope", "operate")).ends(2, "a token has its scopes")


async def test_the_example_of_the_docs_works_as_it_is_written(
    environment: dict[str, str], db: Database, conn: Connection, workflow: str
):
    """docs/doors/mcp.md: makes a schedule, says what it will do, undoes it."""
    token = await a_token(db)
    tried = await anyio.run_process(
        [sys.executable, str(ROOT / "examples" / "assistant" / "try.py"), workflow],
        env=os.environ | environment | {"ACC_TOKEN": token.token},
    )
    said = tried.stdout.decode()
    assert "it means: At 02:30 on Monday" in said
    assert "undo_made: Ended: 1 schedule that helper has made; cancelled: 0 open jobs." in said
    assert await conn.fetchval("SELECT state FROM schedules") == "ended"
