"""The library as its users hold it: a Database on a URL, closed at the end; URLs for other ways and other users."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit, urlunsplit
from uuid import UUID, uuid4

import asyncpg
import pytest

from accsd.db import Database, apply_workflow, upsert_heartbeat
from accsd.model import WorkflowDef, WorkflowStep
from accsd.settings import DatabaseSettings
from tests.support.cluster import TestServer, assert_no_connection_left


def settings_of(url: str, **values: Any) -> DatabaseSettings:
    return DatabaseSettings.model_validate({"url": url, **values})


@asynccontextmanager
async def opened(url: str, **values: Any) -> AsyncGenerator[Database]:
    """Values are settings of [database]: pool_size=1, statement_timeout_sec=0.5 …"""
    db = await Database.open(settings_of(url, **values))
    try:
        yield db
    finally:
        await db.close()


async def prepared(db: Database) -> UUID:
    """A node and a workflow of one step, which is returned."""
    await upsert_heartbeat(db, "n1")
    return await apply_workflow(db, WorkflowDef(name="w", steps=[WorkflowStep(key="a", service="render")]))


def name_in(url: str) -> str:
    return urlsplit(url).path.strip("/")


def tcp_url(server: TestServer, url: str) -> str:
    """The same database by TCP, which has cables that can be cut."""
    if server.launched is not None:
        return server.launched.tcp_url_of(name_in(url))
    if not urlsplit(url).hostname:
        pytest.skip("the server of ACC_TEST_DB_URL is not reached by TCP")
    return url


def url_as(server: TestServer, url: str, role: str) -> str:
    """The same database for another role. Only servers of our own trust one without a password."""
    if server.launched is None:
        pytest.skip("only a server of our own lets any role in by its socket")
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=f"{role}@"))


@asynccontextmanager
async def empty_database(server: TestServer) -> AsyncGenerator[str]:
    """A database without anything in it, as createdb makes one."""
    name = f"e_{uuid4().hex[:16]}"
    admin = await asyncpg.connect(server.url_of("postgres"))
    try:
        await admin.execute(f"CREATE DATABASE {name}")
        try:
            yield server.url_of(name)
            await assert_no_connection_left(admin, name)
        finally:
            await admin.execute(f"DROP DATABASE {name} WITH (FORCE)")
    finally:
        await admin.close()
