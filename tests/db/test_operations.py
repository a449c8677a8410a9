"""One action on many: every item is answered once, whoever dies in the middle, and nothing newer is touched."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest

from accsd import failpoints
from accsd.db import Database
from accsd.db.answers import Verdict
from accsd.db.operations import Operation, operation, operations, stop_operation
from accsd.db.views.dead_letters import LetterFilter, Signature, letter_groups, list_letters
from accsd.errors import DatabaseUnavailable, InvalidValue, NotFound, VerbRefused
from accsd.gateway import operations as gateway
from accsd.gateway.operations import OperationsWorker, begin, preview, read_wanted
from tests.support.checker import check
from tests.support.cluster import Connection
from tests.support.eventually import eventually
from tests.support.factory import fail, node, started, step, submit_to, workflow
from tests.support.library import opened
from tests.support.race import Race

BY = "anna"
LEASE = timedelta(minutes=1)


@pytest.fixture
async def db(db_url: str) -> AsyncIterator[Database]:
    async with opened(db_url) as db:
        yield db


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    failpoints.arm(None)


async def submitted(conn: Connection, count: int, name: str = "media") -> list[UUID]:
    media = await conn.fetchval("SELECT id FROM workflows WHERE name = $1", name) or await workflow(conn, name=name)
    rows = await conn.fetch("SELECT job_id FROM accs.submit_jobs($1)", [media] * count)
    return [row["job_id"] for row in rows]


async def begun(db: Database, **body: Any) -> Operation:
    return await begin(db, db, await read_wanted(db, body), by=BY)


async def run_out(conn: Connection) -> None:
    """The leases of all operations are over."""
    await conn.execute("UPDATE accs.operations SET lease_until = accs.clock() WHERE lease_until > accs.clock()")


async def finished(db: Database, worker: OperationsWorker, id: UUID) -> Operation:  # noqa: A002
    while (now := await operation(db, id)).state == "running":
        assert (await worker.run_once()).more, "somebody has to go on"
    return now


async def cancels(conn: Connection) -> dict[UUID, int]:
    """How often each job was cancelled, as the history has it."""
    rows = await conn.fetch(
        """SELECT job_id, count(*) AS n FROM task_events WHERE job_task_id IS NULL AND data ->> 'to' = 'cancelled'
            GROUP BY job_id"""
    )
    return {row["job_id"]: row["n"] for row in rows}


async def test_few_items_are_done_at_once(db: Database, conn: Connection):
    jobs = await submitted(conn, 3)
    await conn.fetch("SELECT * FROM accs.cancel_jobs($1)", jobs[:1])
    nobody = uuid4()
    ended = await begun(
        db, action="cancel", target={"ids": [str(job) for job in [*jobs, jobs[2], nobody]]}, reason="by mistake"
    )
    assert (ended.state, ended.accepted, ended.repeated, ended.refused) == ("done", 2, 1, 1)
    assert ended.reasons == {"not_found": 1}
    assert ended.refusals == [{"id": str(nobody), "reason": "not_found"}]
    assert (ended.by, ended.reason, ended.expected) == (BY, "by mistake", 4)
    assert ended.document()["answers"] == {"accepted": 2, "repeated": 1, "refused": 1}
    assert (
        await conn.fetchval("SELECT source FROM task_events WHERE job_id = $1 ORDER BY id DESC LIMIT 1", jobs[1]) == BY
    )
    await check(conn)


async def test_each_action_calls_its_verb(db: Database, conn: Connection):
    await node(conn)
    media = await workflow(conn, step("a", max_attempts=1), name="media")
    (job,) = await submitted(conn, 1)
    ids = {"ids": [str(job)]}
    assert (await begun(db, action="set_priority", target=ids, priority=7)).accepted == 1
    assert await conn.fetchval("SELECT priority FROM jobs") == 7
    await fail(conn, *await started(conn))
    assert (await begun(db, action="redrive", target={"filter": {"service": "render"}})).accepted == 1
    await fail(conn, *await started(conn))
    assert (await begun(db, action="retry", target={"filter": {"q": "status:error workflow:media"}})).accepted == 1
    await fail(conn, *await started(conn))
    wrong_step = await begun(db, action="retry", target=ids, from_step="nowhere")
    assert wrong_step.reasons == {"step_not_found": 1}
    assert (await begun(db, action="dismiss", target={"filter": {}})).accepted == 1
    assert (
        await conn.fetchval("SELECT count(*) FROM dead_letters WHERE dismissed_at IS NULL AND redriven_at IS NULL") == 0
    )
    assert [one.action for one in await operations(db, limit=2)] == ["dismiss", "retry"]
    assert await conn.fetchval("SELECT count(*) FROM jobs WHERE workflow_id = $1", media) == 1
    await check(conn)


async def test_what_the_preview_showed_is_what_happens(db: Database, conn: Connection):
    await submitted(conn, 25)
    await submitted(conn, 2, "other")
    body: dict[str, Any] = {"action": "cancel", "target": {"filter": {"q": "workflow:media status:running"}}}
    shown = await preview(db, await read_wanted(db, body))
    assert (shown.count.number, shown.count.is_exact, len(shown.examples)) == (25, True, 20)
    await submitted(conn, 3)
    ended = await begun(db, action="cancel", target=shown.document()["target"])
    assert (ended.state, ended.accepted, ended.refused) == ("done", 25, 0)
    assert await conn.fetchval("SELECT count(*) FROM jobs WHERE status = 'running'") == 5, "newer ones are untouched"


async def test_an_operation_of_thousands_survives_whoever_dies_in_it(
    db: Database, conn: Connection, race: Race, db_url: str
):
    """Cut off in the middle of a chunk, killed before one, killed after one, overtaken: each job is cancelled once."""
    jobs = await submitted(conn, 5000)
    await submitted(conn, 10, "other")
    begun_with = await begun(db, action="cancel", target={"filter": {"workflow": "media"}})
    assert (begun_with.state, begun_with.owner, begun_with.accepted) == ("running", None, 0)
    newer = await submitted(conn, 10)

    # In the middle of a chunk: the verb waits for a job that somebody else holds, and the connection is cut.
    holder = await race.session()
    async with opened(db_url, pool_size=1, statement_timeout_sec=20) as doomed, holder.transaction():
        await holder.execute("SELECT FROM jobs WHERE id = $1 FOR UPDATE", jobs[-100])
        killed = asyncio.create_task(OperationsWorker(doomed, doomed).run_once())
        await eventually(lambda: waits_for(conn, holder), what="the chunk's wait for the held job")
        killed.cancel()
        doomed.cut()
        with pytest.raises((asyncio.CancelledError, DatabaseUnavailable)):
            await killed
        # The server notices, too, before the job is free: or it would go on, and the chunk would be done and counted.
        await conn.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE $1 = ANY (pg_blocking_pids(pid))",
            holder.get_server_pid(),
        )
        await eventually(lambda: waits_for(conn, holder, False), what="the end of its session")
    assert (await operation(db, begun_with.id)).chunks == 0
    assert await cancels(conn) == {}, "nothing of the chunk is done"

    # Before a chunk, and after one.
    for point, chunks in (("operation.read", 0), ("operation.advanced", 1)):
        await run_out(conn)
        failpoints.arm(f"{point}:raise")
        with pytest.raises(failpoints.Injected):
            await OperationsWorker(db, db).run_once()
        assert (await operation(db, begun_with.id)).chunks == chunks
    # Nobody takes it from an owner that has its lease.
    other = OperationsWorker(db, db)
    assert (await other.run_once()).did is None
    # An owner that was away for too long is overtaken: what it does then is refused.
    await run_out(conn)
    slow = OperationsWorker(db, db)
    taken = await gateway.take_operation(db, "slow", LEASE)
    assert taken is not None
    await run_out(conn)
    assert (await other.run_once()).more
    late = await gateway.advance_operation(
        db,
        taken,
        owner="slow",
        ids=[str(newer[0])],
        position=[1],
        looked_at=1,
        is_last=True,
        lease=LEASE,
    )
    assert (late.verdict, late.reason) == (Verdict.REFUSED, "lease_lost")
    assert (await slow.run_once()).did is None

    ended = await finished(db, other, begun_with.id)
    assert (ended.state, ended.accepted, ended.repeated, ended.refused) == ("done", 5000, 0, 0)
    assert await cancels(conn) == dict.fromkeys(jobs, 1), "each was cancelled once, and no other"
    assert await conn.fetchval("SELECT count(*) FROM jobs WHERE status = 'running'") == 20
    await check(conn)


async def waits_for(conn: Connection, holder: Connection, expected: bool = True) -> bool:
    """Whether somebody waits for a lock of this session."""
    return expected is await conn.fetchval(
        "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE $1 = ANY (pg_blocking_pids(pid)))", holder.get_server_pid()
    )


async def test_a_chunk_that_was_done_is_repeated_to_whoever_asks_again(db: Database, conn: Connection):
    await submitted(conn, 501)
    made = await begun(db, action="cancel", target={"filter": {"workflow": "media"}})
    taken = await gateway.take_operation(db, "me", LEASE)
    assert taken is not None
    chunk = await gateway.read_chunk(db, taken.action, gateway.filter_of(taken), None, taken.position)
    for expected in (Verdict.ACCEPTED, Verdict.REPEATED):
        said = await gateway.advance_operation(
            db,
            taken,
            owner="me",
            ids=chunk.ids,
            position=chunk.position,
            looked_at=1,
            is_last=False,
            lease=LEASE,
        )
        assert said.verdict is expected
    assert (await operation(db, made.id)).accepted == 500


async def test_an_operation_can_be_stopped(db: Database, conn: Connection):
    await submitted(conn, 600)
    made = await begun(db, action="cancel", target={"filter": {"workflow": "media"}})
    worker = OperationsWorker(db, db)
    await worker.run_once()
    assert (await stop_operation(db, made.id, by="ben")).verdict is Verdict.ACCEPTED
    assert (await stop_operation(db, made.id, by="ben")).verdict is Verdict.REPEATED
    assert (await worker.run_once()).did is None
    stopped = await operation(db, made.id)
    assert (stopped.state, stopped.accepted, stopped.ended_by) == ("stopped", 500, "ben")
    assert (await stop_operation(db, uuid4(), by="ben")).reason == "not_found"


async def test_an_operation_that_fails_each_time_is_given_up_and_stops_no_other(
    db: Database, conn: Connection, monkeypatch: pytest.MonkeyPatch
):
    await submitted(conn, 501)
    broken = await begun(db, action="cancel", target={"filter": {"workflow": "media"}})
    await conn.execute("""UPDATE accs.operations SET filter = '{"colour": "red"}'""")
    sound = await begun(db, action="set_priority", priority=1, target={"filter": {"workflow": "media"}})
    worker = OperationsWorker(db, db)
    assert "failed" in str((await worker.run_once()).did)
    assert (await finished(db, worker, sound.id)).accepted == 501
    for _ in range(4):
        await run_out(conn)
        await worker.run_once()
    given_up = await operation(db, broken.id)
    assert (given_up.state, given_up.failures) == ("failed", 5)
    assert given_up.error == 'a filter of jobs has no "colour"'


async def test_operations_take_turns_and_a_chunk_that_takes_too_long_is_tried_smaller(
    db: Database, conn: Connection, monkeypatch: pytest.MonkeyPatch
):
    await submitted(conn, 700)
    body: dict[str, Any] = {"action": "set_priority", "target": {"filter": {"workflow": "media"}}}
    both = [await begun(db, **body, priority=number) for number in (1, 2)]
    assert [one.expected for one in both] == [700, 700]
    worker = OperationsWorker(db, db)
    for _ in both:
        await worker.run_once()
    assert [(await operation(db, one.id)).chunks for one in both] == [1, 1]

    really = gateway.advance_operation
    sizes: list[int] = []

    async def slow(*args: Any, ids: list[str], **given: Any) -> Any:
        sizes.append(len(ids))
        if len(ids) > 100:
            raise DatabaseUnavailable("it took too long")
        return await really(*args, ids=ids, **given)

    monkeypatch.setattr(gateway, "advance_operation", slow)
    for _ in range(2):
        with pytest.raises(DatabaseUnavailable):
            await worker.run_once()
    await worker.run_once()
    assert sizes == [200, 125, 31]
    assert (await operation(db, both[0].id)).state == "running"


async def test_the_same_key_is_the_same_operation(db: Database, conn: Connection):
    jobs = await submitted(conn, 2)
    one = await read_wanted(db, {"action": "cancel", "target": {"ids": [str(jobs[0])]}})
    first, again = [await begin(db, db, one, by=BY, key="http/anna/1") for _ in range(2)]
    assert (again.id, again.accepted, again.repeated) == (first.id, 1, 0)
    other = await read_wanted(db, {"action": "cancel", "target": {"ids": [str(jobs[1])]}})
    with pytest.raises(VerbRefused, match="idempotency_mismatch"):
        await begin(db, db, other, by=BY, key="http/anna/1")


NO_OPERATIONS: list[tuple[dict[str, Any], str]] = [
    ({"action": "explode", "target": {"ids": ["x"]}}, '"explode" is no action'),
    ({"action": "cancel"}, "target is missing"),
    ({"action": "cancel", "target": {"ids": []}}, "ids is a list of 1 to"),
    ({"action": "cancel", "target": {"ids": ["x"]}}, '"x" is no id of a job'),
    ({"action": "redrive", "target": {"ids": [str(uuid4())]}}, "is no id of a dead letter"),
    ({"action": "cancel", "target": {"filter": {"colour": 1}}}, 'has no "colour"'),
    ({"action": "cancel", "target": {"filter": {"within": []}}}, 'has no "within"'),
    (
        {"action": "cancel", "target": {"filter": {}, "until_id": 1}},
        "target has ids, or filter and until_order_seq",
    ),
    ({"action": "cancel", "target": {"filter": {"q": "status:x"}}}, "is no state of a job"),
    ({"action": "cancel", "target": {"filter": {"q": "node:a", "node": "b"}}}, "say something else of node"),
    ({"action": "set_priority", "target": {"filter": {}}}, "priority is a whole number"),
    ({"action": "set_priority", "target": {"filter": {}}, "priority": True}, "priority is a whole number"),
    ({"action": "cancel", "target": {"filter": {}}, "priority": 1}, "takes no priority"),
    ({"action": "retry", "target": {"filter": {}}, "from_step": 1}, "from_step is the key"),
    ({"action": "cancel", "target": {"filter": {}}, "reason": 1}, "reason is a text"),
    ({"action": "cancel", "target": {"filter": {}}, "filter": 1}, 'an operation has no "filter"'),
]


async def test_what_is_no_operation_is_refused(db: Database):
    for body, said in NO_OPERATIONS:
        with pytest.raises(InvalidValue, match=said):
            await read_wanted(db, body)


async def test_who_is_limited_to_some_workflows_acts_on_no_others(db: Database, conn: Connection):
    (mine,) = await submitted(conn, 1, "shop-a")
    (other,) = await submitted(conn, 1, "media")
    with pytest.raises(NotFound, match=f"there is no job {other}"):
        await read_wanted(db, {"action": "cancel", "target": {"ids": [str(mine), str(other)]}}, within=["shop-*"])
    wanted = await read_wanted(db, {"action": "cancel", "target": {"filter": {}}}, within=["shop-*"])
    assert (await begin(db, db, wanted, by=BY)).accepted == 1
    assert await conn.fetchval("SELECT status FROM jobs WHERE id = $1", other) == "running"


async def test_the_verb_refuses_what_is_no_operation(conn: Connection):
    for statement in (
        "SELECT accs.start_operation('cancel', NULL, ARRAY['x'], '{}', 'me')",
        "SELECT accs.start_operation('explode', '{}', NULL, '{}', 'me')",
        "SELECT accs.start_operation('cancel', '{}', ARRAY[gen_random_uuid()::text], '{}', 'me')",
        "SELECT accs.start_operation('set_priority', '{}', NULL, '{}', 'me')",
    ):
        with pytest.raises(asyncpg.PostgresError):
            await conn.execute(statement)


# Dead letters


async def test_dead_letters_are_listed_by_pages_and_counted_by_what_they_have_in_common(db: Database, conn: Connection):
    await node(conn)
    media = await workflow(conn, step("a", max_attempts=1), name="media")
    messages = [
        "frame 17 of /in/4.mov is broken",
        "frame 3 of /in/99.mov is broken",
        "no licence",
        "no licence\nat 12:00",
    ]
    for message in messages:
        await submit_to(conn, media)
        await fail(conn, *await started(conn), message=message)
    first = await list_letters(db, LetterFilter(), limit=3)
    assert [row.error_message for row in first.rows] == messages[:0:-1]
    assert first.next is not None
    second = await list_letters(db, LetterFilter(), limit=3, after=first.next)
    assert ([row.error_message for row in second.rows], second.next, second.scan.complete) == (messages[:1], None, True)

    grouped = await letter_groups(db, LetterFilter())
    broken = Signature("render", "a", "boom", "frame # of # is broken")
    assert {group.signature: group.count for group in grouped.groups} == {
        broken: 2,
        Signature("render", "a", "boom", "no licence"): 2,
    }
    assert (grouped.complete, grouped.looked_at) == (True, 4)
    found = await list_letters(db, LetterFilter(group=broken))
    assert [row.error_message for row in found.rows] == messages[1::-1]

    written = LetterFilter(group=broken, service="render", up_to=7, within=("m*",))
    assert LetterFilter.from_document(written.document()) == written
    ended = await begun(db, action="dismiss", target={"filter": {"group": broken.document()}})
    assert ended.accepted == 2
    assert len((await list_letters(db, LetterFilter())).rows) == 2
    assert len((await list_letters(db, LetterFilter(settled=True))).rows) == 4
    for asked in (
        LetterFilter(service="x"),
        LetterFilter(workflow="x"),
        LetterFilter(step="x"),
        LetterFilter(within=()),
    ):
        assert (await list_letters(db, asked)).rows == []
