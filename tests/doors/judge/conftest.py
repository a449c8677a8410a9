"""The judge's door over real HTTP, on one PostgreSQL."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.cluster import server as server
from tests.support.judging import Door, judging


@pytest.fixture
async def door(db_url: str, tmp_path: Path) -> AsyncIterator[Door]:
    async with judging(db_url, tmp_path / "objects") as opened:
        yield opened
