"""What is carried out and undone, and what is committed only if it came out as in its rehearsal."""

from collections.abc import AsyncIterator

import pytest

from accsd.db import Database
from accsd.db.rehearsal import as_rehearsed, rehearsed
from accsd.errors import AccsdError
from tests.support.cluster import Connection
from tests.support.library import opened


@pytest.fixture
async def db(db_url: str) -> AsyncIterator[Database]:
    async with opened(db_url) as opening:
        yield opening


async def put(db: Database) -> int:
    """Puts one actor; returns how many there are then."""
    await db.fetch("SELECT accs.put_actor('a' || (SELECT count(*) FROM accs.actors))")
    return await db.fetchval("SELECT count(*)::int FROM accs.actors")


async def test_the_deed_is_committed_if_it_is_as_in_its_rehearsal_and_undone_if_not(db: Database, conn: Connection):
    said = await rehearsed(db, put)
    assert await conn.fetchval("SELECT count(*) FROM accs.actors") == said - 1
    assert await as_rehearsed(db.acting("mcp", "r1"), put, lambda found: found == said) == (said, True)
    assert await conn.fetchval("SELECT via || request_id FROM accs.audit WHERE action = 'put_actor'") == "mcpr1"

    assert await as_rehearsed(db, put, lambda found: found == said) == (said + 1, False)
    assert await conn.fetchval("SELECT count(*) FROM accs.actors") == said


async def test_a_deed_that_fails_is_undone_and_its_connection_is_well(db: Database, conn: Connection):
    async def fails(within: Database) -> int:
        await put(within)
        return await within.fetchval("SELECT accs.put_actor('', 'no such kind')")

    before = await conn.fetchval("SELECT count(*) FROM accs.actors")
    with pytest.raises(AccsdError):
        await as_rehearsed(db, fails, lambda _: True)
    assert await conn.fetchval("SELECT count(*) FROM accs.actors") == before
    assert (await as_rehearsed(db, put, lambda _: True))[1]
