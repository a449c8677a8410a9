"""Steps with cache: done with the result of an earlier task that had the same input, or run and remembered. The tests
say what a resolver would have found."""

from datetime import timedelta
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from tests.conftest import Connect
from tests.support.checker import check
from tests.support.cluster import Connection
from tests.support.factory import (
    OWNER,
    Row,
    cancel,
    claim,
    done,
    fail,
    finish,
    job,
    moves,
    node,
    pass_time,
    started,
    step,
    submit,
    submit_to,
    task,
    tasks,
    workflow,
)
from tests.support.resolving import ACCEPTED, fan_out, resolve, retry, to_resolve

HOUR = 3600.0
ONE = {"with": {"n": 1}, "now": "2026-11-18T09:00:00Z"}
FILE = "0" * 64
FETCH = "fetcher"


async def flow(conn: Connection, **fields: Any) -> UUID:
    """fetch → probe, of which probe is cached"""
    await node(conn)
    probe = step("probe", after="fetch", **{"cache": HOUR, "with": {"n": "${steps.fetch.n}"}, **fields})
    return await workflow(conn, step("fetch", FETCH), probe)


async def fetched(conn: Connection, which: UUID, results: dict[str, Any] | None = None, **given: Any) -> UUID:
    """A job of it whose first step is done."""
    made = await submit_to(conn, which, **given)
    await finish(conn, *await started(conn, 1, FETCH), results=[results or {"n": 1}])
    return made


async def looked_up(
    conn: Connection, job_id: UUID, given: dict[str, Any] = ONE, *, cache_for: float = HOUR, salt: str | None = None
) -> str:
    """What became of the step: queued, or done from the cache."""
    answer = await resolve(conn, job_id, "probe", given=given, cache_for=cache_for, salt=salt)
    assert answer["answer"] == ACCEPTED
    return answer["db_status"]


async def remembered(conn: Connection, which: UUID, **given: Any) -> UUID:
    """A job whose probe ran, with the result {"size": 7}."""
    made = await fetched(conn, which, **given)
    assert await looked_up(conn, made) == "queued"
    await finish(conn, *await started(conn), results=[{"size": 7}])
    return made


async def said(conn: Connection, job_id: UUID, key: str = "probe") -> list[Row]:
    which = (await task(conn, job_id, key))["id"]
    return await conn.fetch("SELECT * FROM task_events WHERE job_task_id = $1 AND type = 'cache' ORDER BY id", which)


async def reason(conn: Connection, job_id: UUID, key: str = "probe") -> str:
    return (await said(conn, job_id, key))[-1]["data"]["reason"]


async def rows(conn: Connection) -> int:
    return await conn.fetchval("SELECT count(*) FROM accs.cached_results")


# A result is used again


async def test_a_step_with_cache_waits_for_the_resolver_and_others_do_not(conn: Connection):
    made = await submit(conn, step("a", cache=HOUR), step("b"))
    assert await to_resolve(conn) == ["a"]
    assert (await task(conn, made, "b"))["resolve"] is None


async def test_the_same_input_is_done_at_once_with_the_earlier_result(conn: Connection):
    which = await flow(conn)
    source = await remembered(conn, which)
    again = await fetched(conn, which)
    assert await looked_up(conn, again, {**ONE, "now": "2027-01-01T00:00:00Z"}) == "done"
    hit, from_where = await task(conn, again, "probe"), await task(conn, source, "probe")
    assert hit["results"] == {"size": 7}
    assert (await job(conn, again))["status"] == "done"
    assert await claim(conn) == []
    assert await moves(conn, hit["id"]) == [("queued", "starting"), ("starting", "running"), ("running", "done")]
    (told,) = await said(conn, again)
    assert told["message"] == f"done with the result of probe of job {source}"
    assert told["data"]["hit"] is True
    assert told["data"]["task_id"] == str(from_where["id"])
    assert hit["given"]["cached"]["job_id"] == str(source)
    await check(conn)


async def test_what_depends_on_a_cached_step_goes_on_with_its_result(conn: Connection):
    await node(conn)
    which = await workflow(conn, step("probe", cache=HOUR), step("last", after="probe"))
    for expected in ("queued", "done"):
        made = await submit_to(conn, which)
        assert await looked_up(conn, made) == expected
        if expected == "queued":
            await finish(conn, *await started(conn), results=[{"size": 7}])
        (last,) = await done(conn)
        assert last["given"]["inputs"] == {"probe": {"size": 7}}
    await check(conn)


async def test_a_cached_task_is_no_source_so_that_no_result_is_older_than_it_seems(conn: Connection):
    which = await flow(conn)
    await remembered(conn, which)
    await pass_time(conn, HOUR * 0.7)
    assert await looked_up(conn, await fetched(conn, which)) == "done"
    await pass_time(conn, HOUR * 0.7)
    late = await fetched(conn, which)
    assert await looked_up(conn, late) == "queued"
    assert await reason(conn, late) == "no_result"
    await check(conn)


async def test_a_new_version_of_a_workflow_keeps_what_is_known(conn: Connection):
    await node(conn)
    first = await workflow(conn, step("probe", cache=HOUR), name="media")
    made = await submit_to(conn, first)
    await looked_up(conn, made)
    await done(conn)
    second = await workflow(conn, step("probe", cache=HOUR, timeout=5), name="media", version=2)
    assert await looked_up(conn, await submit_to(conn, second)) == "done"
    other = await workflow(conn, step("probe", cache=HOUR), name="other")
    assert await looked_up(conn, await submit_to(conn, other)) == "queued"


# What is another input


@pytest.mark.parametrize(
    ("given", "options", "results", "salt"),
    [
        ({"with": {"n": 2}}, None, None, None),
        ({**ONE, "secrets": [{"at": ["key"], "name": "other"}]}, None, None, None),
        (ONE, {"quality": 5}, None, None),
        (ONE, None, {"n": 1, "more": True}, None),
        (ONE, None, None, "v2"),
    ],
    ids=["with", "secrets", "options", "inputs", "salt"],
)
async def test_another_input_has_another_result(
    conn: Connection, given: Any, options: Any, results: Any, salt: str | None
):
    which = await flow(conn)
    await remembered(conn, which)
    other = await fetched(conn, which, results, options=options)
    assert await looked_up(conn, other, given, salt=salt) == "queued"
    assert await reason(conn, other) == "no_result"
    await finish(conn, *await started(conn), results=[{"size": 9}])
    same = await fetched(conn, which, results, options=options)
    assert await looked_up(conn, same, given, salt=salt) == "done"
    assert (await task(conn, same, "probe"))["results"] == {"size": 9}
    await check(conn)


async def output(conn: Connection, claimed: Row, name: str, checksum: str | None) -> None:
    key = f"outputs/{claimed['job_id']}/{claimed['task_key']}/{claimed['attempt_id']}/{name}"
    (answer,) = await conn.fetch(
        "SELECT * FROM accs.record_artifact($1, $2, $3, 'output', 'b', $4, 1, NULL, $5)",
        claimed["task_id"],
        claimed["attempt_id"],
        OWNER,
        key,
        checksum,
    )
    assert answer["answer"] == ACCEPTED


@pytest.mark.parametrize(
    ("name", "checksum", "expected"),
    [
        ("a.wav", FILE, "done"),
        ("b.wav", FILE, "no_result"),
        ("a.wav", "1" * 64, "no_result"),
        ("a.wav", None, "unknown_input"),
    ],
)
async def test_the_files_of_earlier_steps_are_input_by_name_and_checksum(
    conn: Connection, name: str, checksum: str | None, expected: str
):
    which = await flow(conn)
    for file, digest in (("a.wav", FILE), (name, checksum)):
        made = await submit_to(conn, which)
        (fetching,) = await started(conn, 1, FETCH)
        await output(conn, fetching, file, digest)
        await finish(conn, fetching, results=[{"n": 1}])
        status = await looked_up(conn, made)
        if status == "queued":
            await done(conn)
    assert (status if status == "done" else await reason(conn, made)) == expected


# Files of a result


async def filed(conn: Connection, which: UUID) -> UUID:
    """A job whose probe has left a file."""
    made = await submit_to(conn, which)
    assert await looked_up(conn, made) == "queued"
    (probing,) = await started(conn)
    await output(conn, probing, "frames/1.png", FILE)
    await finish(conn, probing, results=[{"size": 7}])
    return made


async def with_files(conn: Connection) -> UUID:
    """probe → last"""
    await node(conn)
    return await workflow(conn, step("probe", cache=HOUR), step("last", "other", after="probe", cache=HOUR))


async def inputs_of_last(conn: Connection, job_id: UUID) -> list[tuple[str, str]]:
    await resolve(conn, job_id, "last", given=ONE)
    (last,) = await started(conn, 1, "other")
    assert last["job_id"] == job_id
    rows = await conn.fetch("SELECT * FROM accs.task_inputs($1, $2, $3)", last["task_id"], last["attempt_id"], OWNER)
    await finish(conn, last)
    return [(row["task_key"], row["key"]) for row in rows]


async def doomed(conn: Connection) -> list[str]:
    return [row["key"] for row in await conn.fetch("SELECT key FROM accs.doomed_objects ORDER BY key")]


async def prune(conn: Connection) -> None:
    """Removes the jobs that have ended."""
    await pass_time(conn, 60)
    await conn.fetch("SELECT * FROM accs.delete_finished_jobs('30 s')")


async def test_a_step_that_is_done_with_a_result_has_its_files_too(conn: Connection):
    which = await with_files(conn)
    source = await filed(conn, which)
    key = f"outputs/{source}/probe/1/frames/1.png"
    assert await inputs_of_last(conn, source) == [("probe", key)]
    again = await submit_to(conn, which)
    assert await looked_up(conn, again) == "done"
    assert (await said(conn, again))[0]["data"]["files"] == 1
    assert await inputs_of_last(conn, again) == [("probe", key)]
    assert (await conn.fetchval("SELECT name FROM accs.borrowed_files")) == "frames/1.png"
    await check(conn)


async def test_a_file_that_is_borrowed_is_the_same_input_as_the_file_itself(conn: Connection):
    which = await with_files(conn)
    source = await filed(conn, which)
    assert (await resolve(conn, source, "last", given=ONE, cache_for=HOUR))["db_status"] == "queued"
    await done(conn, 1, "other")
    again = await submit_to(conn, which)
    await looked_up(conn, again)
    assert (await resolve(conn, again, "last", given=ONE, cache_for=HOUR))["db_status"] == "done"
    await check(conn)


async def test_an_object_stays_while_a_job_has_borrowed_it_and_goes_with_the_last_one(
    conn: Connection, connect: Connect
):
    which = await with_files(conn)
    source = await filed(conn, which)
    await inputs_of_last(conn, source)
    await pass_time(conn, 60)
    first, second = await submit_to(conn, which), await submit_to(conn, which)
    for made in (first, second):
        assert await looked_up(conn, made) == "done"
    await prune(conn)  # the borrowers still run
    assert await conn.fetchval("SELECT count(*) FROM jobs") == 2
    assert await doomed(conn) == []
    for made in (first, second):
        await inputs_of_last(conn, made)
    held = await connect()
    async with held.transaction():
        await held.execute("SELECT FROM jobs WHERE id = $1 FOR UPDATE", second)
        await prune(conn)
    assert await conn.fetchval("SELECT count(*) FROM jobs") == 1
    assert await doomed(conn) == []
    await prune(conn)
    assert await doomed(conn) == [f"outputs/{source}/probe/1/frames/1.png"]
    assert await conn.fetchval("SELECT count(*) FROM accs.borrowed_files") == 0


async def test_jobs_that_go_together_take_their_object_with_them(conn: Connection):
    which = await with_files(conn)
    source = await filed(conn, which)
    await inputs_of_last(conn, source)
    again = await submit_to(conn, which)
    await looked_up(conn, again)
    await inputs_of_last(conn, again)
    await prune(conn)
    assert await doomed(conn) == [f"outputs/{source}/probe/1/frames/1.png"]


async def test_a_borrower_that_is_retried_gives_the_file_back_and_its_owner_keeps_it(conn: Connection):
    which = await with_files(conn)
    source = await filed(conn, which)
    await inputs_of_last(conn, source)
    again = await submit_to(conn, which)
    await looked_up(conn, again)
    await inputs_of_last(conn, again)
    await retry(conn, again, "probe")
    assert await conn.fetchval("SELECT count(*) FROM accs.borrowed_files") == 0
    assert await doomed(conn) == []
    await looked_up(conn, again)
    await done(conn)
    assert await inputs_of_last(conn, again) == []
    await check(conn)


async def test_a_borrower_keeps_the_file_when_its_owner_is_run_again(conn: Connection):
    which = await with_files(conn)
    source = await filed(conn, which)
    await inputs_of_last(conn, source)
    again = await submit_to(conn, which)
    await looked_up(conn, again)
    await retry(conn, source, "probe")
    await looked_up(conn, source)
    await done(conn)  # without the file
    await resolve(conn, source, "last", "done")
    assert await inputs_of_last(conn, again) == [("probe", f"outputs/{source}/probe/1/frames/1.png")]
    await prune(conn)
    assert await doomed(conn) == [f"outputs/{source}/probe/1/frames/1.png"]


# What is no result, or none any more


async def test_a_result_that_is_too_old_is_not_used(conn: Connection):
    which = await flow(conn)
    await remembered(conn, which)
    await pass_time(conn, HOUR + 1)
    assert await looked_up(conn, await fetched(conn, which)) == "queued"


async def test_what_runs_failed_or_was_cancelled_is_no_result(conn: Connection):
    which = await flow(conn, max_attempts=1)
    running, failing, cancelled = [await fetched(conn, which) for _ in range(3)]
    for made in (running, failing, cancelled):  # none waits for another: the same input runs at once
        assert await looked_up(conn, made) == "queued"
    first, second, _ = await started(conn, 3)
    await fail(conn, second)
    await cancel(conn, cancelled)
    assert await looked_up(conn, await fetched(conn, which)) == "queued"
    await finish(conn, first, results=[{"size": 3}])
    after = await fetched(conn, which)
    assert await looked_up(conn, after) == "done"
    assert (await task(conn, after, "probe"))["results"] == {"size": 3}
    await check(conn)


async def test_a_step_that_is_retried_runs_and_its_new_result_counts(conn: Connection):
    which = await flow(conn)
    made = await remembered(conn, which)
    await retry(conn, made, "probe")
    assert await looked_up(conn, made) == "queued"
    assert await reason(conn, made) == "retried"
    assert await looked_up(conn, await fetched(conn, which)) == "queued"  # the old result is gone
    retried, _ = await started(conn, 2)
    await finish(conn, retried, results=[{"size": 8}])
    after = await fetched(conn, which)
    assert await looked_up(conn, after) == "done"
    assert (await task(conn, after, "probe"))["results"] == {"size": 8}
    await check(conn)


async def test_a_cached_step_that_is_retried_runs(conn: Connection):
    which = await flow(conn)
    await remembered(conn, which)
    again = await fetched(conn, which)
    assert await looked_up(conn, again) == "done"
    await retry(conn, again, "fetch")
    await finish(conn, *await started(conn, 1, FETCH), results=[{"n": 1}])
    assert await looked_up(conn, again) == "queued"
    row = await task(conn, again, "probe")
    assert row["given"] == {**ONE}
    assert row["results"] is None
    await done(conn)
    assert (await job(conn, again))["status"] == "done"
    await check(conn)


async def test_a_step_that_has_never_begun_may_be_cached_after_a_retry(conn: Connection):
    which = await flow(conn)
    await remembered(conn, which)
    made = await submit_to(conn, which)
    await fail(conn, *await started(conn, 1, FETCH), permanent=True)
    await retry(conn, made)
    await finish(conn, *await started(conn, 1, FETCH), results=[{"n": 1}])
    assert await looked_up(conn, made) == "done"
    await check(conn)


# Whoever does not want it


async def test_a_job_without_cache_runs_and_is_remembered(conn: Connection):
    which = await flow(conn)
    source = await remembered(conn, which)
    made = await fetched(conn, which, no_cache=True)
    assert await looked_up(conn, made) == "queued"
    assert await reason(conn, made) == "no_cache"
    await finish(conn, *await started(conn), results=[{"size": 8}])
    after = await fetched(conn, which)
    assert await looked_up(conn, after) == "done"
    assert (await task(conn, after, "probe"))["results"] == {"size": 8}
    assert (await job(conn, source))["no_cache"] is None
    by_name = await conn.fetchval("SELECT name FROM workflows WHERE id = $1", which)
    asked = await conn.fetchval("SELECT accs.submit($1, p_no_cache => true)", by_name)
    assert (await job(conn, asked))["no_cache"] is True


async def test_results_are_forgotten_by_workflow_and_step(conn: Connection):
    await node(conn)
    which = await workflow(conn, step("probe", cache=HOUR), name="media")
    made = await submit_to(conn, which)
    await looked_up(conn, made)
    await done(conn)
    running = await submit_to(conn, which, no_cache=True)
    await looked_up(conn, running)
    assert await conn.fetchval("SELECT accs.forget_results('media', 'other')") == 0
    assert await conn.fetchval("SELECT accs.forget_results('other')") == 0
    assert await conn.fetchval("SELECT accs.forget_results('media', 'probe')") == 2
    await done(conn)
    assert await looked_up(conn, await submit_to(conn, which)) == "queued"
    assert await conn.fetchval("SELECT accs.forget_results('media')") == 1


# Each item by itself


async def test_each_item_of_a_step_is_looked_up_by_itself(conn: Connection):
    await node(conn)
    which = await workflow(conn, step("each", for_each="${params.x}", cache=HOUR), step("join", after="each"))
    first = await submit_to(conn, which)
    await fan_out(conn, first, "each", "a", "b", cache_for=HOUR)
    for claimed in await started(conn, 2):
        await finish(conn, claimed, results=[{"was": claimed["params"]["item"]}])
    await resolve(conn, first, "join", "done")

    second = await submit_to(conn, which)
    await fan_out(conn, second, "each", "c", "b", "a", None, parallel=1, cache_for=HOUR)
    assert await tasks(conn, second) == {
        "each": "done",
        "join": "queued",
        "each[0]": "queued",
        "each[1]": "done",
        "each[2]": "done",
        "each[3]": "skipped",
    }
    assert (await task(conn, second, "each[1]"))["results"] == {"was": "b"}
    assert await reason(conn, second, "each[0]") == "no_result"
    assert await to_resolve(conn) == []
    await check(conn)
    await done(conn)
    assert await to_resolve(conn) == ["join"]
    await resolve(conn, second, "join", "done")

    third = await submit_to(conn, which)
    await fan_out(conn, third, "each", "c", cache_for=HOUR)
    assert await to_resolve(conn) == ["join"]
    await resolve(conn, third, "join", "done")
    assert (await job(conn, third))["status"] == "done"
    await check(conn)


async def test_a_cached_item_that_is_retried_runs_with_what_it_had(conn: Connection):
    await node(conn)
    which = await workflow(conn, step("each", for_each="${params.x}", cache=HOUR))
    first, second = await submit_to(conn, which), await submit_to(conn, which)
    await fan_out(conn, first, "each", "a", cache_for=HOUR)
    await done(conn)
    await fan_out(conn, second, "each", "a", cache_for=HOUR)
    assert (await job(conn, second))["status"] == "done"
    await retry(conn, second, "each[0]")
    assert await to_resolve(conn) == []
    (claimed,) = await done(conn)
    assert claimed["params"] == {"item": "a"}
    assert "cached" not in claimed["given"]
    await retry(conn, second, "each")
    await fan_out(conn, second, "each", "a", "z", cache_for=HOUR)
    assert await tasks(conn, second) == {"each": "done", "each[0]": "queued", "each[1]": "queued"}
    await check(conn)


# Rows come and go


async def expire(conn: Connection) -> int:
    return await conn.fetchval("SELECT removed FROM accs.expire_results()")


async def test_rows_go_when_they_are_too_old_or_will_have_no_result(conn: Connection):
    which = await flow(conn, max_attempts=1)
    await remembered(conn, which)
    failing, running = await fetched(conn, which, no_cache=True), await fetched(conn, which, no_cache=True)
    for made in (failing, running):
        await looked_up(conn, made)
    first, second = await started(conn, 2, lease=timedelta(hours=12))
    await fail(conn, first)
    assert (await expire(conn), await rows(conn)) == (0, 3)
    await pass_time(conn, HOUR + 1)
    assert (await expire(conn), await rows(conn)) == (2, 1)  # what runs may still have one
    await finish(conn, second)
    assert await looked_up(conn, await fetched(conn, which)) == "done"
    await pass_time(conn, HOUR / 2)
    assert (await expire(conn), await rows(conn)) == (0, 1)
    await pass_time(conn, HOUR)
    assert (await expire(conn), await rows(conn)) == (1, 0)


async def test_rows_go_with_their_jobs(conn: Connection):
    which = await flow(conn)
    await remembered(conn, which)
    await pass_time(conn, 60)
    await conn.fetch("SELECT * FROM accs.delete_finished_jobs('30 s')")
    assert await rows(conn) == 0
    assert await looked_up(conn, await fetched(conn, which)) == "queued"


async def test_a_row_without_its_task_is_damage_that_the_upkeep_removes(conn: Connection):
    await conn.execute(
        "INSERT INTO accs.cached_results VALUES (gen_random_uuid(), 0, 'x', accs.clock(), '1 h', accs.clock())"
    )
    assert [row["what"] for row in await conn.fetch("SELECT * FROM accs.damage")] == ["cache_row"]
    assert await expire(conn) == 1
    await check(conn)


# What is refused


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"cache": 0}, "at least 1 second and at most 365 days"),
        ({"cache": 31536001}, "at least 1 second and at most 365 days"),
        ({"cache": {"for": 0.5}}, "at least 1 second and at most 365 days"),
        ({"cache": {}}, "cache must be a number of seconds"),
        ({"cache": {"for": 60, "key": "x"}}, "cache must be a number of seconds"),
        ({"cache": {"for": 60, "salt": 1}}, "cache must be a number of seconds"),
        ({"cache": True}, "cache must be a number of seconds"),
        ({"cache": 60, "delay": 5}, "cache and delay exclude each other"),
    ],
)
async def test_a_cache_that_makes_no_sense_is_refused(conn: Connection, fields: dict[str, Any], problem: str):
    with pytest.raises(asyncpg.PostgresError, match=problem):
        await workflow(conn, step("a", **fields))


async def test_a_verdict_with_a_cache_out_of_bounds_is_refused(conn: Connection):
    made = await fetched(conn, await flow(conn))
    with pytest.raises(asyncpg.InvalidParameterValueError, match="1 second to 365 days"):
        await looked_up(conn, made, cache_for=0)
