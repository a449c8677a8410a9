"""A claim and a finish cost what they return, however full the tables are.

The database of these tests holds 1,000,000 finished tasks, 200,000 future ones (100,000 retries that wait for their
backoff, 100,000 scheduled jobs), 50,000 claimable ones that stand before all others and need a label, and 20,000 that a
concurrency key holds. It is filled once for each server, past the triggers, so all is checked in one test; every check
rolls back what it did.
"""

import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import pytest

from tests.support.cluster import Connection, TestServer, open_connection
from tests.support.factory import claim, finish, node, start, started, step, submit_to, workflow

FILL = """
SET session_replication_role = replica;
SELECT setval('accs.order_seq', 10000000);
-- what has ended is not updated again; half the pages to write
ALTER TABLE job_tasks SET (fillfactor = 100);

INSERT INTO jobs (id, workflow_id, status, progress, order_seq, task_count, task_progress, started_at,
                  finished_at, created_at, updated_at)
SELECT ('018f0000-0000-7000-8000-' || lpad(to_hex(i), 12, '0'))::uuid, w.id, 'done', 1, i, 10, 10, now(), now(),
       now(), now()
  FROM generate_series(1, 100000) i, (SELECT id FROM workflows WHERE name = 'plain') w;
INSERT INTO job_tasks (id, job_id, task_key, service_name, status, progress, attempt_id, outcome, outcome_attempt_id,
                       step_no, lane, claimed_by, results, created_at, updated_at)
SELECT ('018f0000-0000-7000-9000-' || lpad(to_hex(i * 10 + k), 12, '0'))::uuid,
       ('018f0000-0000-7000-8000-' || lpad(to_hex(i), 12, '0'))::uuid,
       's' || k, 'render', 'done', 1, 1, 'done', 1, k, l.id, 'owner', '{}', now(), now()
  FROM generate_series(1, 100000) i, generate_series(0, 9) k,
       (SELECT id FROM accs.lanes WHERE requires = '{}' AND node IS NULL) l;
ALTER TABLE job_tasks SET (fillfactor = 38);

-- Running jobs whose tasks wait: for a backoff, for a node with a GPU, for a key.
INSERT INTO jobs (id, workflow_id, status, order_seq, task_count, open_tasks, started_at, created_at, updated_at)
SELECT ('018f0001-0000-7000-8000-' || lpad(to_hex(i), 12, '0'))::uuid, w.id, 'running', 200000 + i, 10, 10, now(),
       now(), now()
  FROM generate_series(1, 17000) i, (SELECT id FROM workflows WHERE name = 'plain') w;
INSERT INTO job_tasks (id, job_id, task_key, service_name, step_no, lane, next_attempt_at, concurrency_key,
                       requires, created_at, updated_at)
SELECT ('018f0001-0000-7000-9000-' || lpad(to_hex(n), 12, '0'))::uuid,
       ('018f0001-0000-7000-8000-' || lpad(to_hex(n / 10 + 1), 12, '0'))::uuid, 's' || n % 10, 'render', n % 10,
       CASE WHEN n >= 120000 THEN gpu.id ELSE plain.id END, CASE WHEN n < 100000 THEN now() + interval '1 day' END,
       CASE WHEN n BETWEEN 100000 AND 119999 THEN 'k' END, CASE WHEN n >= 120000 THEN gpu.requires ELSE '{}' END,
       now(), now()
  FROM generate_series(0, 169999) n, (SELECT id FROM accs.lanes WHERE requires = '{}' AND node IS NULL) plain,
       (SELECT * FROM accs.lanes WHERE requires ? 'gpu') gpu;
INSERT INTO accs.concurrency_keys (key) VALUES ('k');
INSERT INTO accs.waiting (task_id, lane, rank, order_seq, created_at, hold, due_at, key)
SELECT t.id, t.lane, 0, j.order_seq, t.created_at,
       CASE WHEN t.next_attempt_at IS NOT NULL THEN 'backoff' WHEN t.concurrency_key IS NOT NULL THEN 'key' END,
       t.next_attempt_at, t.concurrency_key
  FROM job_tasks t JOIN jobs j ON j.id = t.job_id WHERE t.status = 'queued';

INSERT INTO jobs (id, workflow_id, order_seq, scheduled_at, created_at, updated_at)
SELECT ('018f0002-0000-7000-8000-' || lpad(to_hex(i), 12, '0'))::uuid, w.id, 300000 + i,
       now() + interval '1 day', now(), now()
  FROM generate_series(1, 100000) i, (SELECT id FROM workflows WHERE name = 'plain') w;
INSERT INTO accs.pending_jobs (job_id, due_at) SELECT id, scheduled_at FROM jobs WHERE status = 'queued';

RESET session_replication_role;
ANALYZE jobs, job_tasks, accs.waiting, accs.pending_jobs;
"""


@asynccontextmanager
async def full_database(server: TestServer) -> AsyncGenerator[Connection]:
    async with server.cloned() as url:
        conn = await open_connection(url)
        await fill(conn)
        yield conn
        await conn.close()


async def fill(conn: Connection) -> None:
    await workflow(conn, step("a"), step("b", after="a"), name="plain")
    await workflow(conn, step("a", requires={"gpu": True}), name="gpu")
    await workflow(conn, step("a", requires={"zone": "eu"}), name="zone")
    await workflow(conn, step("a", node="n2"), name="bound")
    await conn.execute(FILL)
    await node(conn)
    await node(conn, "n2", {"zone": "eu"})
    await node(conn, "n3", render=1000)
    shapes = {row["name"]: row["id"] for row in await conn.fetch("SELECT name, id FROM workflows")}
    for _ in range(100):
        for name in ("plain", "plain", "zone", "bound"):
            await submit_to(conn, shapes[name])


@asynccontextmanager
async def undone(conn: Connection) -> AsyncGenerator[None]:
    transaction = conn.transaction()
    await transaction.start()
    yield
    await transaction.rollback()


class Touched(NamedTuple):
    """What a piece of work has read: of a table the rows by sequential scan, of an index the entries; and blocks."""

    rows: int
    blocks: int


async def counters(conn: Connection) -> dict[str, Touched]:
    """Of this transaction so far, by relation."""
    rows = await conn.fetch(
        "SELECT c.oid::regclass::text AS name, pg_stat_get_xact_tuples_returned(c.oid) AS rows,"
        " pg_stat_get_xact_blocks_fetched(c.oid) AS blocks"
        " FROM pg_class c WHERE c.relkind IN ('r', 'i')"
        " AND c.relnamespace IN ('public'::regnamespace, 'accs'::regnamespace)"
    )
    return {row["name"]: Touched(row["rows"], row["blocks"]) for row in rows}


class Meter:
    """`async with Meter(conn) as meter: …`, then `meter["job_tasks"].blocks`."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn
        self._spent: dict[str, Touched] = {}

    async def __aenter__(self) -> "Meter":
        self._before = await counters(self._conn)
        return self

    async def __aexit__(self, *_: object) -> None:
        after = await counters(self._conn)
        self._spent = {
            name: Touched(*(b - a for a, b in zip(self._before[name], after[name], strict=True))) for name in after
        }

    def __getitem__(self, name: str) -> Touched:
        return self._spent[name]

    def assert_cheap(self, n: int) -> None:
        """Nothing that grows is read but by index, and that for each row only a few times."""
        for table in ("jobs", "job_tasks", "accs.waiting", "accs.pending_jobs"):
            assert self[table].rows == 0, f"{table}: {self[table].rows} rows by sequential scan"
        for name, spent in self._spent.items():
            if name not in ("accs.lanes", "accs.transitions"):
                assert spent.rows <= 8 * n + 20, f"{name}: {spent.rows} rows or entries for {n}"
            assert spent.blocks <= 40 * n + 150, f"{name}: {spent.blocks} blocks for {n}"


async def a_claim_touches_as_many_rows_as_it_returns(full: Connection, n: int) -> None:
    for where, lanes in (("n1", 1), ("n2", 3), ("n3", 1)):  # n3 has a capacity to count
        async with undone(full):
            async with Meter(full) as meter:
                claimed = await claim(full, n, on=where)
            assert len(claimed) == n
            meter.assert_cheap(n)
            assert meter["accs.waiting_claim"].rows <= (2 * lanes if lanes > 1 else 1) * n + 3
            assert meter["accs.waiting_due"].rows == 0


async def a_claim_that_finds_nothing_touches_nothing(full: Connection, n: int) -> None:
    await workflow(full, step("a", "idle"))
    async with Meter(full) as meter:
        assert await claim(full, n, "idle") == []
    meter.assert_cheap(0)


async def a_start_and_a_finish_touch_as_many_rows_as_they_move(full: Connection, n: int) -> None:
    claimed = await claim(full, n)
    async with Meter(full) as meter:
        await start(full, *claimed)
    meter.assert_cheap(n)
    async with Meter(full) as meter:
        answers = await finish(full, *claimed)
    assert [row["answer"] for row in answers] == ["accepted"] * n
    meter.assert_cheap(n)


async def an_attempt_that_does_not_succeed_touches_few_rows_too(full: Connection, n: int) -> None:
    for end in ("retried", "failed for good", "released", "taken back"):
        async with undone(full):
            claimed = await started(full, n)
            fence = ([row["task_id"] for row in claimed], [row["attempt_id"] for row in claimed])
            async with Meter(full) as meter:
                if end == "released":
                    rows = await full.fetch("SELECT * FROM accs.release_tasks($1, $2, 'owner-1')", *fence)
                elif end == "taken back":
                    rows = await full.fetch("SELECT * FROM accs.reclaim_tasks($1, '-1 hour')", n)
                else:
                    rows = await full.fetch(
                        "SELECT * FROM accs.finish_tasks($1, $2, 'owner-1', $3, p_permanent => $4)",
                        *fence,
                        ["error"] * n,
                        [end == "failed for good"] * n,
                    )
            assert [row["answer"] for row in rows] == ["accepted"] * n
            meter.assert_cheap(
                4 * n
            )  # each task is looked at by several statements, and what was undone left dead rows


async def a_heartbeat_and_a_report_touch_as_many_rows_as_they_name(full: Connection, n: int) -> None:
    claimed = await started(full, n)
    fence = ([row["task_id"] for row in claimed], [row["attempt_id"] for row in claimed])
    async with Meter(full) as meter:
        await full.fetch("SELECT * FROM accs.heartbeat('n1', 'owner-1', $1, $2, '1 min')", *fence)
        await full.fetch("SELECT * FROM accs.report_progress($1, $2, 'owner-1', $3)", *fence, [0.5] * n)
    meter.assert_cheap(2 * n)


async def the_builder_does_not_look_at_jobs_that_are_not_due(full: Connection, n: int) -> None:
    async with Meter(full) as meter:
        assert await full.fetch("SELECT * FROM accs.instantiate_due_jobs($1)", n) == []
    meter.assert_cheap(0)


async def an_outlook_goes_to_the_heads_of_its_lanes_and_no_further(full: Connection, n: int) -> None:
    services = ["render", *(f"idle-{i}" for i in range(n))]
    for where, lanes in (("n1", 1), ("n2", 3), ("n3", 1)):
        await full.fetch("SELECT * FROM accs.agent_outlook($1, $2)", where, services)  # past what the others left dead
        async with Meter(full) as meter:
            rows = await full.fetch("SELECT * FROM accs.agent_outlook($1, $2)", where, services)
        ahead = {row["service"]: row for row in rows}
        assert ahead["render"]["claimable"]
        assert ahead["render"]["next_due"] is not None
        meter.assert_cheap(0 if n == 1 else n)
        assert meter["job_tasks"].blocks == meter["jobs"].blocks == 0, "only narrow tables"
        assert meter["accs.waiting_claim"].rows <= lanes
        assert meter["accs.waiting_due"].rows <= 2 * lanes
    async with Meter(full) as meter:
        row = await full.fetchrow("SELECT * FROM accs.builder_outlook()")
    assert row is not None
    assert row["next_job"] is not None
    meter.assert_cheap(0)


async def an_attempt_says_and_reads_by_index_too(full: Connection, n: int) -> None:
    claimed = await started(full, n)
    fence = ([row["task_id"] for row in claimed], [row["attempt_id"] for row in claimed])
    nothing = [None] * n
    async with Meter(full) as meter:
        rows = await full.fetch(
            "SELECT * FROM accs.append_task_events('owner-1', $1, $2, $3, $3, $3, $4)", *fence, nothing, nothing
        )
    assert [row["accepted"] for row in rows] == [1] * n
    meter.assert_cheap(n)
    assert meter["job_tasks"].blocks == 0
    async with Meter(full) as meter:
        await full.fetch("SELECT * FROM accs.task_inputs($1, $2, 'owner-1')", fence[0][0], fence[1][0])
    meter.assert_cheap(1)


async def the_plan_of_the_claim_is_a_walk_along_its_index(full: Connection, n: int) -> None:
    settings = await full.fetchval("SELECT proconfig FROM pg_proc WHERE oid = 'accs.claim_tasks'::regproc")
    for setting in settings:
        name, _, value = setting.partition("=")
        await full.execute("SELECT set_config($1, $2, true)", name, value)
    await full.execute(f"PREPARE hot_{n} (int[], int) AS {await hot_statement(full)}")
    lane = await full.fetchval(
        "SELECT id FROM accs.lanes WHERE service = 'render' AND requires = '{}' AND node IS NULL"
    )
    (explained,) = await full.fetchval(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE hot_{n} ('{{{lane}}}', {n})")
    every = list(nodes(explained["Plan"]))
    walk = next(plan for plan in every if plan.get("Index Name") == "waiting_claim")
    assert walk["Node Type"] == "Index Scan"
    assert walk["Actual Rows"] == n
    assert walk.get("Rows Removed by Filter", 0) == 0
    assert walk["Shared Hit Blocks"] + walk["Shared Read Blocks"] < 4 * n + 20
    assert not [plan for plan in every if "Seq Scan" in plan["Node Type"]]
    limited = next(plan for plan in every if plan["Node Type"] == "Limit")
    assert not [plan for plan in nodes(limited) if "Sort" in plan["Node Type"]]


async def hot_statement(conn: Connection) -> str:
    """The statement of accs.claim_tasks that takes rows of one lane, as it stands in the database."""
    source = await conn.fetchval("SELECT prosrc FROM pg_proc WHERE oid = 'accs.claim_tasks'::regproc")
    found = re.search(r"= 1 THEN\s+(WITH taken AS .*?);", source, re.DOTALL)
    assert found
    return found[1].replace("INTO v_batch, v_keys, v_held", "").replace("v_lanes", "$1").replace("v_asked", "$2")


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", []):
        yield from nodes(child)


@pytest.mark.every_postgresql
@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_the_verbs_cost_what_they_return_however_full_the_tables_are(server: TestServer):
    checks: list[Callable[[Connection, int], Awaitable[None]]] = [
        a_claim_touches_as_many_rows_as_it_returns,
        a_claim_that_finds_nothing_touches_nothing,
        a_start_and_a_finish_touch_as_many_rows_as_they_move,
        an_attempt_that_does_not_succeed_touches_few_rows_too,
        a_heartbeat_and_a_report_touch_as_many_rows_as_they_name,
        the_builder_does_not_look_at_jobs_that_are_not_due,
        an_outlook_goes_to_the_heads_of_its_lanes_and_no_further,
        an_attempt_says_and_reads_by_index_too,
        the_plan_of_the_claim_is_a_walk_along_its_index,
    ]
    async with full_database(server) as full:
        for check in checks:
            for n in (1, 10, 100):
                async with undone(full):
                    await check(full, n)


@pytest.mark.every_postgresql
async def test_plans_that_were_made_on_empty_tables_are_good_for_a_backlog(conn: Connection):
    """An agent warms its connection up when it starts; on a new fleet that is before anything was analyzed."""
    await node(conn)
    await submit_to(conn, await workflow(conn, step("a")))
    shape = await workflow(conn, step("root"), *(step(f"leaf{i}", after="root") for i in range(3000)))
    async with undone(conn):
        await a_heartbeat_and_a_report_touch_as_many_rows_as_they_name(conn, 1)
    await an_attempt_that_does_not_succeed_touches_few_rows_too(conn, 1)
    await finish(conn, *await started(conn))
    await submit_to(conn, shape)
    await finish(conn, *await started(conn))
    for n in (1, 10, 100):
        async with undone(conn):
            async with Meter(conn) as meter:
                claimed = await claim(conn, n)
            assert len(claimed) == n
            meter.assert_cheap(n)
            async with Meter(conn) as meter:
                await start(conn, *claimed)
            meter.assert_cheap(n)
            async with Meter(conn) as meter:
                await finish(conn, *claimed)
            meter.assert_cheap(n)
        async with undone(conn):
            await a_heartbeat_and_a_report_touch_as_many_rows_as_they_name(conn, n)
        await an_attempt_that_does_not_succeed_touches_few_rows_too(conn, n)


@pytest.mark.every_postgresql
async def test_every_update_of_a_task_and_its_job_stays_on_its_page(conn: Connection):
    """Or each of them writes into all indexes, too: it is what the fill factors of schema.sql are for."""
    name = "render-node-03"  # as long as names are: it stands in the row twice
    await node(conn, name)
    shape = await workflow(conn, step("render"))
    await conn.fetch("SELECT FROM accs.submit_jobs($1)", [shape] * 2000)
    for _ in range(4):
        claimed = await conn.fetch("SELECT * FROM accs.claim_tasks('render', $1, $1, 500, '1 min', true)", name)
        await finish(conn, *claimed, owner=name)

    await conn.execute("SELECT pg_stat_force_next_flush()")
    for table, updates in (("jobs", 2000), ("job_tasks", 4000)):
        row = await conn.fetchrow("SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = $1", table)
        assert row is not None
        assert row["n_tup_upd"] == updates
        assert row["n_tup_hot_upd"] >= 0.99 * updates


@pytest.mark.every_postgresql
async def test_a_session_that_began_on_empty_tables_claims_by_several_lanes_as_cheaply(conn: Connection):
    await node(conn, labels={"zone": "eu"})
    flow = await workflow(conn, step("a"))
    await workflow(conn, step("a", requires={"zone": "eu"}), name="bound")
    await submit_to(conn, flow)
    assert len(await claim(conn, 5)) == 1  # planned here
    await conn.execute("SELECT accs.submit_jobs(array_fill($1::uuid, ARRAY[5000]))", flow)
    async with undone(conn), Meter(conn) as meter:
        assert len(await claim(conn, 2)) == 2
    indexes = [meter["accs.waiting_claim"], meter["accs.waiting_pkey"]]
    assert sum(index.rows for index in indexes) < 20
    assert sum(index.blocks for index in indexes) < 40
