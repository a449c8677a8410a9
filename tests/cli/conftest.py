"""The commands, against one PostgreSQL."""

from collections.abc import AsyncIterator
from uuid import UUID

import pytest

from accsd.db.pool import Database
from tests.support.cli import Cli
from tests.support.cluster import Connection
from tests.support.cluster import server as server
from tests.support.factory import workflow
from tests.support.library import opened


@pytest.fixture
def cli(db_url: str) -> Cli:
    return Cli(db_url)


@pytest.fixture
async def db(db_url: str) -> AsyncIterator[Database]:
    async with opened(db_url) as opening:
        yield opening


@pytest.fixture
async def backup(conn: Connection) -> UUID:
    return await workflow(conn, name="backup")
