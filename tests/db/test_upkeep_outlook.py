"""builder_outlook: what is due, and in how long the next job or the end of a lease comes."""

from datetime import timedelta

from tests.support.cluster import Connection
from tests.support.factory import (
    claim,
    clock,
    node,
    pass_time,
    step,
    submit,
    submit_to,
    workflow,
)


def about(found: timedelta | None, seconds: float) -> bool:
    """A little less may be left by now."""
    return found is not None and timedelta(seconds=seconds - 5) < found <= timedelta(seconds=seconds)


async def builder(conn: Connection) -> tuple[bool, timedelta | None, timedelta | None]:
    row = await conn.fetchrow("SELECT * FROM accs.builder_outlook()")
    assert row is not None
    return row["due"], row["next_job"], row["next_lease"]


async def test_an_empty_database_has_nothing_ahead(conn: Connection):
    assert await builder(conn) == (False, None, None)


async def test_the_next_job_is_foretold_and_then_due(conn: Connection):
    flow = await workflow(conn)
    for minutes in (10, 5):
        await submit_to(conn, flow, scheduled_at=await clock(conn) + timedelta(minutes=minutes))
    due, next_job, _ = await builder(conn)
    assert not due
    assert about(next_job, 300)
    await pass_time(conn, 301)
    assert await builder(conn) == (True, timedelta(0), None)
    await conn.execute("SELECT accs.instantiate_due_jobs()")
    assert about((await builder(conn))[1], 299)


async def test_a_job_parked_for_ever_is_never_due(conn: Connection):
    await conn.execute("INSERT INTO jobs (workflow_id, scheduled_at) VALUES ($1, 'infinity')", await workflow(conn))
    assert await builder(conn) == (False, None, None)


async def test_the_next_end_of_a_lease_is_foretold(conn: Connection):
    await node(conn)
    await submit(conn, step("a"), step("b"))
    await claim(conn, lease=timedelta(seconds=60))
    await claim(conn, lease=timedelta(seconds=20))
    assert about((await builder(conn))[2], 20)
    await pass_time(conn, 100)
    assert (await builder(conn))[2] == timedelta(0)
