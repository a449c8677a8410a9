"""Cleanup: takes back what was not kept, whatever becomes of its other chores."""

from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from accsd.builder.cleanup import Cleanup
from accsd.db import Database
from accsd.metrics import Metrics
from tests.support.checker import check
from tests.support.cluster import Connection
from tests.support.factory import node, pass_time, started, step, submit
from tests.support.library import opened

LEASE = timedelta(seconds=60)


@pytest.fixture
async def db(db_url: str) -> AsyncIterator[Database]:
    async with opened(db_url) as opening:
        yield opening


def cleanup_of(db: Database, metrics: Metrics | None = None) -> Cleanup:
    return Cleanup(db, lease=LEASE, grace=timedelta(seconds=1), metrics=metrics or Metrics())


async def lost(conn: Connection, count: int) -> None:
    """Tasks whose owner has not kept them."""
    await node(conn)
    await submit(conn, *(step(f"s{i}") for i in range(count)))
    await started(conn, count)
    await pass_time(conn, 120)


async def test_what_was_not_kept_is_taken_back_in_batches(db: Database, conn: Connection):
    await lost(conn, 150)
    metrics = Metrics()
    done = await cleanup_of(db, metrics).run_once()
    assert done.did is not None
    assert done.did.startswith("150 tasks taken back")
    assert 'accsd_reclaims_total{decision="claimed"} 150.0' in metrics.render().decode()
    await check(conn)


async def test_it_sleeps_to_the_end_of_the_next_lease(db: Database, conn: Connection):
    await node(conn)
    await submit(conn, step("a"))
    await started(conn, lease=timedelta(seconds=20))
    due = (await cleanup_of(db).run_once()).next_due
    assert due is not None
    assert timedelta(seconds=15) < due <= timedelta(seconds=21)


async def test_a_chore_that_fails_keeps_nothing_from_being_taken_back(db: Database, conn: Connection):
    """One that fails for good would make the role crash at each start, and reclaim would come once in a minute."""
    await conn.execute("DROP FUNCTION accs.make_months")
    await lost(conn, 1)
    cleanup = cleanup_of(db)
    done = await cleanup.run_once()
    assert done.did is not None
    assert "1 tasks taken back" in done.did
    await started(conn)
    await pass_time(conn, 120)
    again = await cleanup.run_once()
    assert again.did == "1 tasks taken back from owners that did not keep them", "the chore is not tried at each pass"
