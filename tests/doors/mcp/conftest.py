"""A gateway with the door for assistants, over real HTTP, on one PostgreSQL."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.cluster import Connection
from tests.support.cluster import server as server
from tests.support.gateway import Gateway, serving


@pytest.fixture
async def gateway(db_url: str, tmp_path: Path) -> AsyncIterator[Gateway]:
    async with serving(db_url, folder=tmp_path / "objects", gateway={"mcp": {}}) as running:
        yield running


@pytest.fixture
async def workflow(conn: Connection) -> str:
    await conn.execute(
        'INSERT INTO workflows (name, steps) VALUES (\'backup\', \'[{"key": "dump", "service": "dumper"},'
        ' {"key": "ship", "service": "shipper", "depends_on": ["dump"]}]\')'
    )
    return "backup"
