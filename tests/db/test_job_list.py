"""Lists of jobs: pages that neither skip nor repeat, searches that say how far they went, plans that read no table."""

import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from accsd.db import Database
from accsd.db.lists import cursor_key
from accsd.db.views import job_list
from accsd.db.views.job_list import (
    Count,
    JobFilter,
    JobPage,
    ListPosition,
    PageBudget,
    count_jobs,
    list_jobs,
    matching_jobs,
)
from accsd.errors import QueryTooSlow
from accsd.gateway.paging import Cursors
from tests.support.cluster import Connection
from tests.support.factory import OWNER, chain, done, node, started, step, submit_to, workflow
from tests.support.library import opened
from tests.support.many import Explained, as_if_large, finished

pytestmark = pytest.mark.every_postgresql

FREE = PageBudget(rows=10**9, seconds=None)


@pytest.fixture
async def db(db_url: str) -> AsyncIterator[Database]:
    async with opened(db_url) as db:
        yield db


async def pages(db: Database, asked: JobFilter, *, limit: int = 2, **how: Any) -> list[JobPage]:
    found = [await list_jobs(db, asked, limit=limit, **how)]
    while found[-1].next is not None:
        found.append(await list_jobs(db, asked, limit=limit, after=found[-1].next, **how))
    return found


def ids(found: Sequence[JobPage]) -> list[UUID]:
    return [row.id for page in found for row in page.rows]


async def test_pages_follow_each_other_in_both_directions(db: Database, conn: Connection):
    media = await workflow(conn, name="media")
    jobs = [await submit_to(conn, media) for _ in range(5)]
    newest = await pages(db, JobFilter())
    assert ids(newest) == jobs[::-1]
    assert [len(page.rows) for page in newest] == [2, 2, 1]
    assert ids(await pages(db, JobFilter(), oldest_first=True)) == jobs
    assert [page.scan.complete for page in newest] == [True, True, True]
    assert [page.scan.looked_at for page in newest] == [2, 2, 1]
    assert (newest[-1].next, newest[-1].scan.back_to) == (None, None)
    exact = await list_jobs(db, JobFilter(), limit=5)
    assert (exact.next, exact.scan.back_to) == (None, None), "nothing is left, and it knows"


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
async def test_whatever_is_submitted_meanwhile_nothing_is_skipped_or_repeated(
    data: st.DataObject, db: Database, conn: Connection, monkeypatch: pytest.MonkeyPatch
):
    """Jobs of one number, numbers that commit in another order, budgets and slices of a few rows: all at once."""
    await conn.execute("SET session_replication_role = replica")
    await conn.execute("DELETE FROM jobs; DELETE FROM accs.pending_jobs; SET session_replication_role = origin")
    media = await conn.fetchval("SELECT id FROM workflows WHERE name = 'm'") or await workflow(conn, name="m")

    scattered = (UUID(int=n * 0x9E3779B97F4A7C15F39CC0605CEDC835 % 2**128) for n in itertools.count(1))

    async def insert(order_seq: int, by: str) -> None:
        await conn.execute(
            "INSERT INTO jobs (id, workflow_id, order_seq, created_by) VALUES ($1, $2, $3, $4)",
            next(scattered),
            media,
            order_seq,
            by,
        )

    numbers = st.integers(1, 12)
    whose = st.sampled_from(["anna", "ben"])
    for number in data.draw(st.lists(numbers, max_size=14)):
        await insert(number, data.draw(whose))
    asked = JobFilter(by=data.draw(st.none() | st.just("anna")))
    oldest_first = data.draw(st.booleans())
    direction = "" if oldest_first else "DESC"
    there = await conn.fetch(
        f"SELECT id FROM jobs WHERE $1::text IS NULL OR created_by = $1 ORDER BY order_seq {direction}, id {direction}",
        asked.by,
    )
    seen: list[UUID] = []
    after: ListPosition | None = None
    budget = PageBudget(rows=data.draw(st.integers(1, 12)), seconds=None)
    monkeypatch.setattr(job_list, "_SLICE", data.draw(st.integers(1, 5)))
    assert await count_jobs(db, asked) == Count(len(there), is_exact=True)
    assert set((await matching_jobs(db, asked, limit=99)).ids) == {row["id"] for row in there}
    while True:
        page = await list_jobs(
            db, asked, after=after, limit=data.draw(st.integers(1, 4)), oldest_first=oldest_first, budget=budget
        )
        seen += [row.id for row in page.rows]
        if (after := page.next) is None:
            break
        for number in data.draw(st.lists(numbers, max_size=2)):
            await insert(number, "anna")
    assert len(seen) == len(set(seen)), "none is repeated"
    before = [row["id"] for row in there]
    assert [job for job in seen if job in set(before)] == before, "none is skipped, and the order is kept"


async def test_a_search_ends_with_its_budget_and_says_how_far_it_went(db: Database, conn: Connection):
    await finished(conn, 1, name="broken", status="error")
    await finished(conn, 30)
    (row,) = await conn.fetch("SELECT created_at FROM jobs ORDER BY order_seq DESC OFFSET 9 LIMIT 1")
    broken = JobFilter(statuses=("error",))
    page = await list_jobs(db, broken, budget=PageBudget(rows=10, seconds=None))
    assert (page.rows, page.scan.complete, page.scan.looked_at) == ([], False, 10)
    assert page.scan.back_to == row["created_at"], "every job since then was looked at"
    found = await pages(db, broken, budget=PageBudget(rows=10, seconds=None))
    assert [len(page.rows) for page in found] == [0, 0, 0, 1], "and the search goes on from there"
    assert found[-1].scan.complete
    hurried = await list_jobs(db, broken, budget=PageBudget(rows=10**6, seconds=0.0))
    assert hurried.scan.complete, "one slice is all of them"
    assert await count_jobs(db, JobFilter(), budget=PageBudget(rows=10, seconds=None)) == Count(10, is_exact=False)
    assert await count_jobs(db, JobFilter(statuses=("done",))) == Count(30, is_exact=True)
    matches = await matching_jobs(db, broken, limit=5)
    assert (len(matches.ids), matches.next, matches.scan.looked_at) == (1, None, 31)


async def test_jobs_in_motion_are_found_whatever_their_age(
    db: Database, conn: Connection, monkeypatch: pytest.MonkeyPatch
):
    await node(conn)
    media = await workflow(conn, *chain("a", "b"), name="media")
    live, waiting = await submit_to(conn, media), await submit_to(conn, media)
    pending = await conn.fetchval(
        "INSERT INTO jobs (workflow_id, scheduled_at) VALUES ($1, 'infinity') RETURNING id", media
    )
    await started(conn)
    await finished(conn, 20)
    few = PageBudget(rows=1, seconds=None)
    running = await list_jobs(db, JobFilter(statuses=("running",)), budget=few)
    assert [row.id for row in running.rows] == [waiting, live]
    assert (running.scan.complete, running.next) == (True, None)
    both = JobFilter(statuses=("queued", "running"))
    assert ids(await pages(db, both, limit=1, budget=few)) == [pending, waiting, live]
    assert ids(await pages(db, both, limit=1, oldest_first=True)) == [live, waiting, pending]
    assert await count_jobs(db, both) == Count(3, is_exact=True)
    # with too many of them the walk finds them
    monkeypatch.setattr(job_list, "_FEW_IN_MOTION", "SELECT false")
    assert ids(await pages(db, both, limit=1, budget=FREE)) == [pending, waiting, live]
    assert (await list_jobs(db, both, budget=few)).scan.complete is False


async def test_a_time_is_found_by_the_ids(db: Database, conn: Connection):
    await finished(conn, 1000, every="1 h")
    now: datetime = await conn.fetchval("SELECT accs.clock()")
    day = JobFilter(since=now - timedelta(days=20), until=now - timedelta(days=19))
    expected = await conn.fetchval("SELECT count(*) FROM jobs WHERE created_at BETWEEN $1 AND $2", day.since, day.until)
    for oldest_first in (False, True):
        page = await list_jobs(db, day, oldest_first=oldest_first, limit=500)
        assert len(page.rows) == expected == 24
        assert page.scan.complete
        assert page.scan.looked_at <= 24 + 2 * 101 + 2, "a day, and some on either side"
    # Jobs whose ids say nothing, or something else, are found all the same.
    media = await conn.fetchval("SELECT id FROM workflows")
    strange = [uuid4(), UUID("01000000-0000-7000-8000-000000000000"), UUID("0fffffff-0000-7000-8000-000000000000")]
    for job in strange:
        await conn.execute("INSERT INTO jobs (id, workflow_id) VALUES ($1, $2)", job, media)
    found = await list_jobs(db, JobFilter(since=now - timedelta(minutes=30)), limit=500)
    assert {row.id for row in found.rows} >= set(strange)


async def test_a_filter_asks_for_what_a_job_has(db: Database, conn: Connection):
    await node(conn)
    media = await workflow(conn, step("cut"), name="media-cut")
    other = await workflow(conn, step("a", "audio"), name="other")
    job = await conn.fetchval(
        """INSERT INTO jobs (workflow_id, options, idempotency_key, created_by, trace_id)
           VALUES ($1, '{"shot": "010", "q": {"crf": 20, "x": 1}}', 'order-1', 'anna', 'T-99') RETURNING id""",
        media,
    )
    await conn.fetch("SELECT * FROM accs.instantiate_due_jobs()")
    await done(conn)
    await submit_to(conn, other)
    hits = [
        JobFilter(workflow="media-cut"),
        JobFilter(service="render"),
        JobFilter(node=OWNER),
        JobFilter(by="anna"),
        JobFilter(key="order-1"),
        JobFilter(options={"q": {"crf": 20}}),
        JobFilter(words=("MEDIA", "t-99")),
        JobFilter(words=("order-1",)),
        JobFilter(within=("x", "media-*")),
        JobFilter(statuses=("done",), took_under=timedelta(hours=1)),
    ]
    for asked in hits:
        for oldest_first in (False, True):
            page = await list_jobs(db, asked, oldest_first=oldest_first)
            assert [row.id for row in page.rows] == [job], asked
    misses = [
        JobFilter(workflow="none"),
        JobFilter(service="audio", by="anna"),
        JobFilter(key="order-2"),
        JobFilter(options={"q": {"crf": "20"}}),
        JobFilter(words=("media", "nowhere")),
        JobFilter(within=()),
        JobFilter(took_over=timedelta(hours=1)),
        JobFilter(key="order-1", up_to=0),
    ]
    for asked in misses:
        page = await list_jobs(db, asked)
        assert (page.rows, page.next, page.scan.complete) == ([], None, True), asked


async def test_a_cursor_holds_the_position_of_the_next_page(db: Database, conn: Connection):
    media = await workflow(conn, name="media")
    jobs = [await submit_to(conn, media) for _ in range(3)]
    first = await list_jobs(db, JobFilter(), limit=2)
    assert first.next is not None
    cursor = (await Cursors.of(db)).seal([first.next.order_seq, str(first.next.id)], {"order": "newest"})
    # another gateway of the same installation opens it
    order_seq, job = (await Cursors.of(db)).open(cursor, {"order": "newest"})
    second = await list_jobs(db, JobFilter(), after=ListPosition(int(order_seq), UUID(str(job))))
    assert [row.id for row in second.rows] == [jobs[0]]
    assert len(await cursor_key(db)) == 32


async def test_a_list_that_takes_too_long_is_given_up(db: Database, connect: Callable[[], Awaitable[Connection]]):
    holder = await connect()
    async with holder.transaction():
        await holder.execute("LOCK TABLE jobs")
        with pytest.raises(QueryTooSlow, match="the list took longer than"):
            await list_jobs(db, JobFilter(), budget=PageBudget(statement=0.2))
    assert (await list_jobs(db, JobFilter())).rows == []


async def test_a_list_reads_no_table_from_end_to_end(db: Database, conn: Connection):
    """With statistics as of a million jobs, by plans for these values and for any."""
    await finished(conn, 500)
    await node(conn)
    media = await conn.fetchval("SELECT id FROM workflows")
    for _ in range(20):
        await submit_to(conn, media)
    await as_if_large(conn)
    never = JobFilter(statuses=("error",), words=("x",), node="n1", workflow="old", since=datetime.now().astimezone())
    for asked in (JobFilter(), never, JobFilter(statuses=("running",)), JobFilter(key="k")):
        for oldest_first in (False, True):
            for mode in ("force_custom_plan", "force_generic_plan"):
                plans = await planned(conn, asked, oldest_first, mode)
                for table in ("jobs", "job_tasks", "task_events"):
                    assert f"Seq Scan on {table}" not in plans, (asked, mode, plans)


async def planned(conn: Connection, asked: JobFilter, oldest_first: bool, mode: str) -> str:
    """The plans of every statement that a list sends."""
    await conn.execute(f"SET plan_cache_mode = {mode}")
    spy = Explained.over(conn)
    await list_jobs(spy, asked, limit=1, oldest_first=oldest_first)
    await count_jobs(spy, asked)
    await conn.execute("RESET plan_cache_mode")
    return "\n".join(spy.plans)
