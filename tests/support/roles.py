"""Database roles for the tests: installed, connected as, and refused. By the socket of a server of our own."""

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from accsd.db import (
    Database,
    install,
)
from accsd.errors import ConfigError, VerbRefused
from tests.support.cluster import Connection, TestServer
from tests.support.library import opened, url_as

TABLES = ("workflows", "jobs", "job_tasks", "task_events", "task_artifacts", "nodes", "dead_letters", "outbox_events")

As = Callable[[str], Awaitable[Database]]


@pytest.fixture
async def roles(server: TestServer, conn: Connection) -> None:
    if server.launched is None:
        pytest.skip("roles belong to the whole cluster, and the one of ACC_TEST_DB_URL is not ours")
    await install(conn, with_roles=True)


@pytest.fixture
async def connect_as(server: TestServer, db_url: str) -> AsyncIterator[As]:
    """await connect_as("accs_agent")"""
    opening: list[Database] = []

    async def connect(role: str) -> Database:
        manager = opened(url_as(server, db_url, role))
        managers.append(manager)
        opening.append(await manager.__aenter__())
        return opening[-1]

    managers = []
    yield connect
    for manager in managers:
        await manager.__aexit__(None, None, None)


async def refused(db: Database, sql: str) -> None:
    with pytest.raises((ConfigError, VerbRefused)) as caught:
        await db.fetch(sql)
    state = getattr(caught.value.__cause__, "sqlstate", None)
    assert state == "42501", f"{sql}: {caught.value}"


async def refused_tables(db: Database, *, but_reading: bool) -> None:
    """No direct access to any table, but for reading where that is allowed."""
    for table in TABLES:
        await refused(db, f"DELETE FROM {table}")
        await refused(db, f"TRUNCATE {table}")
        await refused(db, f"INSERT INTO {table} DEFAULT VALUES")
        if but_reading:
            await db.fetch(f"SELECT * FROM {table} LIMIT 1")
        else:
            await refused(db, f"SELECT FROM {table}")
    for table in ("waiting", "live", "pauses", "transitions"):
        await refused(db, f"DELETE FROM accs.{table}")
    for change in (
        "job_tasks SET status = 'done'",
        "jobs SET status = 'done'",
        "task_events SET message = ''",
        "nodes SET awake_state = 'sleep'",
        "accs.schema_versions SET version = 7",
    ):
        await refused(db, f"UPDATE {change}")
    await refused(db, "CREATE TABLE public.mine ()")
    await refused(db, "CREATE FUNCTION accs.clock2() RETURNS int LANGUAGE sql AS 'SELECT 1'")


async def callable_by(role: str, conn: Connection) -> set[str]:
    rows = await conn.fetch(
        "SELECT DISTINCT proname FROM pg_proc WHERE pronamespace = 'accs'::regnamespace"
        " AND has_function_privilege($1, oid, 'EXECUTE')",
        role,
    )
    return {row["proname"] for row in rows}
