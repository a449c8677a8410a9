"""The role `statistics` of a builder: it counts until nothing is left, and says nothing while it does."""

from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from accsd.builder.statistics import Statistics
from accsd.db import Database
from accsd.db.statistics import outcomes, step_stats
from tests.support.cluster import Connection
from tests.support.factory import clock, done, node, pass_time, step, submit_to, workflow
from tests.support.library import opened


@pytest.fixture
async def db(db_url: str) -> AsyncIterator[Database]:
    async with opened(db_url) as opening:
        yield opening


async def test_what_has_happened_is_counted_and_what_is_old_put_together(db: Database, conn: Connection):
    began = await clock(conn)
    await node(conn, render=3)
    which = await workflow(conn, step("a"), name="clip")
    for _ in range(3):
        await submit_to(conn, which)
    await done(conn, 3)
    role = Statistics(db)
    passed = await role.run_once()
    assert (passed.did, passed.more) == (None, False)
    assert passed.next_due is not None
    [minute] = await outcomes(db, began.replace(second=0, microsecond=0), await clock(conn))
    assert (minute.service, minute.done, minute.error) == ("render", 3, 0)
    assert (await step_stats(db, "clip"))["a"].n == 3
    await pass_time(conn, 500 * 86400)
    role = Statistics(db, forgets_in=timedelta(0))
    assert (await role.run_once()).did == "2 old figures put together or forgotten"
    assert (await role.run_once()).did is None, "an hour later again"
    assert await outcomes(db, began.replace(second=0, microsecond=0), await clock(conn)) == []
