"""What several roles and sessions on one database need."""

from collections.abc import AsyncIterator

import pytest

from tests.conftest import Connect
from tests.support.racing import Race


@pytest.fixture
async def race(connect: Connect) -> AsyncIterator[Race]:
    started = Race(connect, await connect())
    yield started
    await started.end()
