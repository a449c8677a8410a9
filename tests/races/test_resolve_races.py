"""Verbs of a resolver that meet others on one job, brought together by a lock that is held: a step is resolved once or
not at all, a fan-out leaves all of its tasks or none, and every join counts right."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any
from uuid import UUID

import pytest

from tests.support.checker import check
from tests.support.cluster import Connection
from tests.support.factory import Row, cancel, claim, done, fail, finish, job, node, started, step, submit, task, tasks
from tests.support.race import Race
from tests.support.race import retry as retry_all
from tests.support.resolving import fan, fan_out, fanned, resolve, retry, to_resolve, verdict_on

ACCEPTED = ("accepted", None)
REPEATED = ("repeated", None)
NOT_THERE = ("refused", "not_in_expected_state")

Says = Callable[[Connection, UUID], Coroutine[Any, Any, Row]]


def answer(row: Row) -> tuple[str, str | None]:
    return row["answer"], row["reason"]


async def ready_to_fan(conn: Connection, *steps: dict[str, Any], **fields: Any) -> UUID:
    await node(conn)
    made = await submit(conn, *fan(**fields), *steps)
    await done(conn)
    assert "each" in await to_resolve(conn)
    return made


async def fan_out_three(conn: Connection, job_id: UUID) -> Row:
    return await fan_out(conn, job_id, "each", *"abc", parallel=2)


async def run_it(conn: Connection, job_id: UUID) -> Row:
    return await resolve(conn, job_id, "each")


async def skip_it(conn: Connection, job_id: UUID) -> Row:
    return await resolve(conn, job_id, "each", "skip", reason="condition_false")


async def fail_it(conn: Connection, job_id: UUID) -> Row:
    return await resolve(conn, job_id, "each", "error", reason="template_error", message="no")


said_by = pytest.mark.parametrize("says", [fan_out_three, run_it, skip_it, fail_it])


async def items_of(conn: Connection, job_id: UUID) -> dict[str, str]:
    return {key: status for key, status in (await tasks(conn, job_id)).items() if "[" in key}


# A cancel


@said_by
async def test_a_cancel_that_waits_for_a_resolver_cancels_what_came_of_it(conn: Connection, race: Race, says: Says):
    made = await ready_to_fan(conn)
    said, cancelling = await race.second_waits(lambda a: says(a, made), lambda b: cancel(b, made))
    assert answer(said) == ACCEPTED
    over = says is fail_it
    assert answer(cancelling[0]) == (("refused", "already_finished") if over else ACCEPTED)
    assert (await job(conn, made))["status"] == ("error" if over else "cancelled")
    assert set((await items_of(conn, made)).values()) <= {"cancelled"}
    assert await claim(conn, 10) == []
    await check(conn)


@said_by
async def test_a_resolver_that_waits_for_a_cancel_changes_nothing(conn: Connection, race: Race, says: Says):
    made = await ready_to_fan(conn)
    _, said = await race.second_waits(lambda a: cancel(a, made), lambda b: says(b, made))
    assert answer(said) == NOT_THERE
    assert await tasks(conn, made) == {"split": "done", "each": "cancelled", "join": "cancelled"}
    await check(conn)


async def test_a_fan_out_that_is_rolled_back_leaves_no_task(conn: Connection, race: Race):
    made = await ready_to_fan(conn)
    a, b = await race.session(), await race.session()
    fanning = a.transaction()
    await fanning.start()
    await fan_out_three(a, made)
    waiting = await race.blocked(b, fan_out(b, made, "each", "x"), by=a)
    await fanning.rollback()
    assert answer(await waiting) == ACCEPTED
    assert await items_of(conn, made) == {"each[0]": "queued"}
    await check(conn)


# Two resolvers


@said_by
async def test_of_two_resolvers_that_say_the_same_the_second_repeats_it(conn: Connection, race: Race, says: Says):
    made = await ready_to_fan(conn)
    first, second = await race.second_waits(lambda a: says(a, made), lambda b: says(b, made))
    assert (answer(first), answer(second)) == (ACCEPTED, REPEATED)
    assert len(await items_of(conn, made)) == (3 if says is fan_out_three else 0)
    await check(conn)


@pytest.mark.parametrize(("first", "second"), [(run_it, skip_it), (skip_it, fan_out_three), (fan_out_three, fail_it)])
async def test_of_two_resolvers_that_differ_the_first_one_counts(
    conn: Connection, race: Race, first: Says, second: Says
):
    """As when the workflow was rewritten between the two."""
    made = await ready_to_fan(conn)
    said, unheard = await race.second_waits(lambda a: first(a, made), lambda b: second(b, made))
    assert (answer(said), answer(unheard)) == (ACCEPTED, REPEATED)
    expected = "queued" if first is run_it else "skipped" if first is skip_it else "done"
    assert (await task(conn, made, "each"))["status"] == expected
    assert len(await items_of(conn, made)) == (3 if first is fan_out_three else 0)
    await check(conn)


# A retry


@said_by
async def test_what_a_resolver_found_before_a_retry_is_refused_after_it(conn: Connection, race: Race, says: Says):
    made = await ready_to_fan(conn, max_attempts=1)
    await run_it(conn, made)
    await fail(conn, *await started(conn))
    _, said = await race.second_waits(lambda a: retry_all(a, made), lambda b: says(b, made))
    assert answer(said) == ("refused", "stale_generation")
    assert await to_resolve(conn) == ["each"]
    await check(conn)


async def test_a_retry_from_a_mapped_step_that_waits_for_its_last_task_runs_all_of_them_again(
    conn: Connection, race: Race
):
    made = await fanned(conn, "a", "b")
    await done(conn, 2)
    await resolve(conn, made, "join")
    (joined,) = await started(conn)
    finished, retried = await race.second_waits(lambda a: finish(a, joined), lambda b: retry(b, made, "each"))
    assert (answer(finished[0]), answer(retried)) == (ACCEPTED, ACCEPTED)
    assert await to_resolve(conn) == ["each"]
    await check(conn)


# The last task of one step, and the fan-out of another


async def beside(conn: Connection) -> tuple[UUID, Row]:
    """One step is multiplied and its last task runs; another one, which the same join waits for, waits to be."""
    await node(conn)
    lists = (step("left", for_each="${params.x}"), step("right", for_each="${params.x}"))
    made = await submit(conn, *lists, step("join", after=["left", "right"]))
    await fan_out(conn, made, "left", "a")
    (last,) = await started(conn)
    return made, last


async def test_the_last_task_of_a_step_ends_while_another_step_is_multiplied(conn: Connection, race: Race):
    made, last = await beside(conn)
    _, finished = await race.second_waits(lambda a: fan_out(a, made, "right", "b", "c"), lambda b: finish(b, last))
    assert answer(finished[0]) == ACCEPTED
    assert (await task(conn, made, "join"))["remaining"] == 2
    await check(conn)
    await done(conn, 2)
    assert await to_resolve(conn) == ["join"]


async def test_a_step_is_multiplied_while_the_last_task_of_another_ends(conn: Connection, race: Race):
    made, last = await beside(conn)
    _, said = await race.second_waits(lambda a: finish(a, last), lambda b: fan_out(b, made, "right", "b", "c"))
    assert answer(said) == ACCEPTED
    assert (await task(conn, made, "join"))["remaining"] == 2
    await check(conn)


async def test_two_tasks_that_end_at_once_free_the_join_once(conn: Connection, race: Race):
    made = await fanned(conn, "a", "b")
    x, y = await started(conn, 2)
    await race.second_waits(lambda a: finish(a, x), lambda b: finish(b, y))
    assert await to_resolve(conn) == ["join"]
    await check(conn)
    assert (await job(conn, made))["open_tasks"] == 1


async def test_two_tasks_that_fail_at_once_are_tolerated_as_far_as_it_goes(conn: Connection, race: Race):
    made = await fanned(conn, *"abc", tolerate=1, fields={"max_attempts": 1})
    x, y, z = await started(conn, 3)
    await race.second_waits(lambda a: fail(a, x), lambda b: fail(b, y))
    assert [(await task(conn, made, f"each[{n}]"))["tolerated"] for n in (0, 1)] == [True, None]
    await finish(conn, z)
    assert (await job(conn, made))["status"] == "error"
    await check(conn)


# Pauses


async def name_of(conn: Connection) -> str:
    return await conn.fetchval("SELECT name FROM workflows")


async def pause(conn: Connection, name: str) -> str:
    return await conn.fetchval("SELECT accs.pause('workflow', $1)", name)


async def resume(conn: Connection, name: str) -> str:
    return await conn.fetchval("SELECT accs.resume('workflow', $1)", name)


@said_by
async def test_a_resolver_that_waits_for_a_pause_is_refused(conn: Connection, race: Race, says: Says):
    made = await ready_to_fan(conn)
    name = await name_of(conn)
    _, said = await race.second_waits(lambda a: pause(a, name), lambda b: says(b, made))
    assert answer(said) == NOT_THERE
    await check(conn)
    await resume(conn, name)
    assert answer(await says(conn, made)) == ACCEPTED
    await check(conn)


@pytest.mark.parametrize("says", [fan_out_three, run_it])
async def test_a_pause_that_misses_what_is_being_resolved_holds_it_at_its_claim(
    conn: Connection, race: Race, says: Says
):
    made = await ready_to_fan(conn)
    a = await race.session()
    async with a.transaction():
        await says(a, made)
        await pause(conn, await name_of(conn))
    assert await claim(conn, 10) == []
    await conn.fetchval("SELECT accs.recheck_holds()")
    await check(conn)
    await resume(conn, await name_of(conn))
    await conn.fetchval("SELECT accs.recheck_holds()")
    assert len(await claim(conn, 10)) == (2 if says is fan_out_three else 1)
    await check(conn)


async def test_a_resolver_that_comes_during_a_resume_is_refused_and_comes_again(conn: Connection, race: Race):
    made = await ready_to_fan(conn)
    name = await name_of(conn)
    await pause(conn, name)
    a = await race.session()
    async with a.transaction():
        await resume(a, name)
        assert answer(await run_it(conn, made)) == NOT_THERE
    assert await to_resolve(conn) == ["each"]
    assert answer(await run_it(conn, made)) == ACCEPTED
    await check(conn)


async def test_a_resume_waits_for_what_is_resolved_under_its_pause(conn: Connection, race: Race):
    """The pause had missed it, because somebody had its row locked."""
    made = await ready_to_fan(conn)
    name = await name_of(conn)
    a = await race.session()
    async with a.transaction():
        await a.execute("SELECT FROM accs.waiting FOR UPDATE")
        await pause(conn, name)
    said, _ = await race.second_waits(lambda a: run_it(a, made), lambda b: resume(b, name))
    assert answer(said) == ACCEPTED
    assert len(await claim(conn)) == 1
    await check(conn)


# Keys


async def test_a_claim_and_a_fan_out_that_share_keys_wait_for_one_another_and_end(conn: Connection, race: Race):
    """The claim holds one key and the fan-out needs both: whoever is second waits, and nobody for ever."""
    await node(conn)
    others = [await submit(conn, step("x", concurrency_key=key, concurrency_limit=3)) for key in ("a", "b")]
    lists = step("each", for_each="${params.x}", concurrency_key="b", concurrency_limit=3)
    made = await submit(conn, lists, step("other", after="each", concurrency_key="a"))
    holder, fanning, claiming = await race.session(), await race.session(), await race.session()
    async with holder.transaction():
        await holder.execute("SELECT FROM accs.concurrency_keys WHERE key = 'b' FOR NO KEY UPDATE")
        said = await race.blocked(fanning, fan_out(fanning, made, "each", *"xyz"), by=holder)
        taking = asyncio.ensure_future(claim(claiming, 10))
        await race.ends_or_waits(taking, claiming)
    assert answer(await said) == ACCEPTED
    took = await taking
    took += await claim(conn, 10)
    assert {row["job_id"] for row in took} <= {*others, made}
    assert await conn.fetchval("SELECT count(*) FROM accs.live WHERE key = 'b'") <= 3
    await conn.fetchval("SELECT accs.recheck_holds()")
    await check(conn)


async def test_fan_outs_of_two_jobs_with_limits_do_not_wait_for_one_another(conn: Connection, race: Race):
    first, second = await ready_to_fan(conn), await ready_to_fan(conn)
    a = await race.session()
    async with a.transaction():
        assert answer(await fan_out_three(a, first)) == ACCEPTED
        assert answer(await fan_out_three(conn, second)) == ACCEPTED
    assert len(await claim(conn, 10)) == 4
    await check(conn)


async def test_two_fan_outs_in_one_transaction_and_one_of_them_beside_it(conn: Connection, race: Race):
    first, second = await ready_to_fan(conn), await ready_to_fan(conn)
    a, b = await race.session(), await race.session()
    async with a.transaction():
        await fan_out_three(a, first)
        waiting = await race.blocked(b, fan_out_three(b, first), by=a)
        assert answer(await fan_out_three(a, second)) == ACCEPTED
    assert answer(await waiting) == REPEATED
    assert [len(await items_of(conn, made)) for made in (first, second)] == [3, 3]
    assert await conn.fetchval("SELECT count(*) FROM accs.concurrency_keys WHERE key LIKE 'map/%'") == 2
    await check(conn)


async def test_verdicts_on_two_jobs_in_another_order_do_not_deadlock(conn: Connection, race: Race):
    jobs = [await ready_to_fan(conn, concurrency_key="k") for _ in range(2)]
    batch = [await verdict_on(conn, made, "each", "run") for made in jobs]
    a, b = await race.session(), await race.session()
    async with conn.transaction():
        await conn.execute("SELECT FROM jobs WHERE id = $1 FOR NO KEY UPDATE", max(jobs))
        one = await race.blocked(a, a.fetch("SELECT * FROM accs.resolve_tasks($1)", batch), by=conn)
        two = asyncio.ensure_future(b.fetch("SELECT * FROM accs.resolve_tasks($1)", batch[::-1]))
        await race.until_blocked(b)
    said = [answer(row) for row in [*await one, *await two]]
    assert sorted(said) == [ACCEPTED, ACCEPTED, REPEATED, REPEATED]
    await check(conn)
