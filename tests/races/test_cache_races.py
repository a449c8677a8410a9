"""A step that would be done with the result of another job, while something happens to that job or to its own: it has
the whole result with its files, or it runs; nobody deadlocks."""

from typing import Any
from uuid import UUID

import pytest

from tests.support.checker import check
from tests.support.cluster import Connection
from tests.support.factory import (
    OWNER,
    Row,
    cancel,
    done,
    finish,
    node,
    pass_time,
    started,
    step,
    submit_to,
    task,
    tasks,
    workflow,
)
from tests.support.race import Race
from tests.support.resolving import resolve, retry, verdict_on

pytestmark = pytest.mark.every_postgresql

HOUR = 3600.0


async def look_up(conn: Connection, job_id: UUID) -> Row:
    return await resolve(conn, job_id, "probe", cache_for=HOUR)


async def known(conn: Connection, *, with_file: bool = False) -> tuple[UUID, UUID]:
    """A workflow, and a job of it that has a result."""
    await node(conn)
    which = await workflow(conn, step("probe", cache=HOUR))
    source = await submit_to(conn, which)
    await look_up(conn, source)
    (probing,) = await started(conn)
    if with_file:
        await conn.fetch(
            "SELECT * FROM accs.record_artifact($1, $2, $3, 'output', 'b', $4)",
            probing["task_id"],
            probing["attempt_id"],
            OWNER,
            f"outputs/{source}/probe/1/a.png",
        )
    await finish(conn, probing, results=[{"size": 7}])
    return which, source


async def prune(conn: Connection) -> None:
    await conn.fetch("SELECT * FROM accs.delete_finished_jobs('30 s')")


async def doomed(conn: Connection) -> list[Any]:
    return await conn.fetch("SELECT * FROM accs.doomed_objects")


async def test_two_jobs_with_the_same_input_that_begin_at_once_both_run(conn: Connection, race: Race):
    await node(conn)
    which = await workflow(conn, step("probe", cache=HOUR))
    first, second = await submit_to(conn, which), await submit_to(conn, which)
    a, b = await race.session(), await race.session()
    async with a.transaction():
        assert (await look_up(a, first))["db_status"] == "queued"
        assert (await look_up(b, second))["db_status"] == "queued"  # and does not wait
    assert len(await done(conn, 2)) == 2
    await check(conn)


async def test_of_two_resolvers_that_find_the_same_result_the_second_repeats_it(conn: Connection, race: Race):
    which, _ = await known(conn)
    made = await submit_to(conn, which)
    first, second = await race.second_waits(lambda a: look_up(a, made), lambda b: look_up(b, made))
    assert (first["answer"], second["answer"]) == ("accepted", "repeated")
    assert len(await conn.fetch("SELECT FROM task_events WHERE job_id = $1 AND type = 'cache'", made)) == 1
    await check(conn)


async def test_a_cancel_that_waits_for_a_hit_finds_the_job_done_and_the_other_way_round(conn: Connection, race: Race):
    which, _ = await known(conn)
    made, other = await submit_to(conn, which), await submit_to(conn, which)
    _, cancelled = await race.second_waits(lambda a: look_up(a, made), lambda b: cancel(b, made))
    assert cancelled[0]["reason"] == "already_finished"
    _, looked = await race.second_waits(lambda a: cancel(a, other), lambda b: look_up(b, other))
    assert (looked["answer"], looked["reason"]) == ("refused", "not_in_expected_state")
    assert await tasks(conn, other) == {"probe": "cancelled"}
    await check(conn)


async def test_a_result_is_used_while_its_job_is_retried_if_it_has_no_files(conn: Connection, race: Race):
    which, source = await known(conn)
    made = await submit_to(conn, which)
    a = await race.session()
    async with a.transaction():
        await retry(a, source, "probe")
        assert (await look_up(conn, made))["db_status"] == "done"
    assert (await task(conn, made, "probe"))["results"] == {"size": 7}
    assert (await look_up(conn, await submit_to(conn, which)))["db_status"] == "queued"


async def test_a_step_does_not_wait_for_a_job_that_is_retried_and_has_files(conn: Connection, race: Race):
    which, source = await known(conn, with_file=True)
    made = await submit_to(conn, which)
    a = await race.session()
    async with a.transaction():
        await retry(a, source, "probe")
        assert (await look_up(conn, made))["db_status"] == "queued"
    assert (
        await conn.fetchval("SELECT data ->> 'reason' FROM task_events WHERE type = 'cache' ORDER BY id DESC") == "busy"
    )
    await check(conn)


async def test_a_retry_that_waits_for_a_borrower_leaves_it_the_file(conn: Connection, race: Race):
    which, source = await known(conn, with_file=True)
    made = await submit_to(conn, which)
    looked, _ = await race.second_waits(lambda a: look_up(a, made), lambda b: retry(b, source, "probe"))
    assert looked["db_status"] == "done"
    await look_up(conn, source)
    await done(conn)  # without the file: the row of the old one goes
    assert await conn.fetchval("SELECT count(*) FROM accs.borrowed_files WHERE job_id = $1", made) == 1
    assert await doomed(conn) == []
    await check(conn)


async def test_a_job_whose_files_are_being_borrowed_is_not_removed(conn: Connection, race: Race):
    which, source = await known(conn, with_file=True)
    await pass_time(conn, 60)
    made = await submit_to(conn, which)
    a = await race.session()
    async with a.transaction():
        assert (await look_up(a, made))["db_status"] == "done"
        await prune(conn)
        assert await conn.fetchval("SELECT count(*) FROM jobs WHERE id = $1", source) == 1
    await prune(conn)
    assert await conn.fetchval("SELECT count(*) FROM jobs WHERE id = $1", source) == 0
    assert await doomed(conn) == []
    await check(conn)


async def test_what_is_being_removed_is_not_borrowed(conn: Connection, race: Race):
    which, source = await known(conn, with_file=True)
    await pass_time(conn, 60)
    made = await submit_to(conn, which)
    a = await race.session()
    async with a.transaction():
        await prune(a)
        assert (await look_up(conn, made))["db_status"] == "queued"
    assert [row["key"] for row in await doomed(conn)] == [f"outputs/{source}/probe/1/a.png"]
    await check(conn)


async def test_a_resolver_of_many_jobs_and_one_that_locks_their_sources_do_not_deadlock(conn: Connection, race: Race):
    """Each holds a job that the other one wants: a source is never waited for."""
    which, source = await known(conn, with_file=True)
    made = await submit_to(conn, which)
    a, b = await race.session(), await race.session()
    holding = a.transaction()
    await holding.start()
    await a.execute("SELECT FROM jobs WHERE id = $1 FOR NO KEY UPDATE", source)
    said = [await verdict_on(conn, made, "probe", "run", cache_for=HOUR)]
    (answer,) = await b.fetch("SELECT * FROM accs.resolve_tasks($1)", said)
    assert answer["db_status"] == "queued"
    await holding.rollback()
    await check(conn)
