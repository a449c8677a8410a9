"""A gateway over real HTTP, on one PostgreSQL: its SQL is tested on both elsewhere."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.cluster import server as server
from tests.support.gateway import Gateway, serving


@pytest.fixture
async def gateway(db_url: str, tmp_path: Path) -> AsyncIterator[Gateway]:
    async with serving(db_url, folder=tmp_path / "objects", gateway={"shares": True}) as running:
        yield running
