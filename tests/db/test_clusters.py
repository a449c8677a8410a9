"""The ground that the database tests stand on."""

import asyncpg
import pytest

from tests.conftest import Connect
from tests.support.cluster import Connection, TestServer

pytestmark = pytest.mark.every_postgresql


async def test_every_test_gets_a_database_of_its_own(server: TestServer) -> None:
    async with server.cloned() as one, server.cloned() as two:
        assert one != two


async def test_a_cloned_database_is_gone_afterwards(server: TestServer) -> None:
    async with server.cloned() as url:
        pass
    with pytest.raises(asyncpg.InvalidCatalogNameError):
        await asyncpg.connect(url)


async def test_a_leaked_connection_fails_the_test_that_leaked_it(server: TestServer) -> None:
    leaked: list[Connection] = []
    with pytest.raises(AssertionError, match="leaked connections"):
        async with server.cloned() as url:
            leaked.append(await asyncpg.connect(url))
    leaked[0].terminate()


async def test_a_connection_speaks_json_as_python_values(conn: Connection) -> None:
    assert await conn.fetchval("SELECT $1::jsonb || '{\"b\": [1, null]}'", {"a": "ä"}) == {
        "a": "ä",
        "b": [1, None],
    }


async def test_connections_of_one_test_share_its_database(connect: Connect) -> None:
    first, second = await connect(), await connect()
    assert await first.fetchval("SELECT current_database()") == await second.fetchval("SELECT current_database()")
    assert await first.fetchval("SELECT pg_backend_pid()") != await second.fetchval("SELECT pg_backend_pid()")
