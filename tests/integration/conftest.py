"""What several roles and sessions on one database need."""

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.conftest import Connect
from tests.support import objectstore
from tests.support.objectstore import S3Server
from tests.support.racing import Race


@pytest.fixture
async def race(connect: Connect) -> AsyncIterator[Race]:
    started = Race(connect, await connect())
    yield started
    await started.end()


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    try:
        with objectstore.running() as server:
            yield server
    except objectstore.NoServer as reason:
        pytest.skip(str(reason))
