"""A claim and a finish cost what they return, however full the tables are.

The database of these tests holds 1,000,000 finished tasks, 200,000 future ones (100,000 retries that wait for their
backoff, 100,000 scheduled jobs), 50,000 claimable ones that stand before all others and need a label, and 20,000 that a
concurrency key holds. It is filled once for each server, past the triggers, and every test rolls back what it did.
"""

import re
from collections.abc import AsyncIterator, Iterator
from typing import Any, NamedTuple
from uuid import uuid4

import asyncpg
import pytest

from tests.support.cluster import Connection, TestServer, open_connection, run_in_thread
from tests.support.factory import claim, finish, node, start, started, step, submit_to, workflow

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

FILL = """
SET session_replication_role = replica;
SELECT setval('accs.order_seq', 10000000);

INSERT INTO jobs (id, workflow_id, status, progress, order_seq, task_count, task_progress, started_at, finished_at)
SELECT ('018f0000-0000-7000-8000-' || lpad(to_hex(i), 12, '0'))::uuid, w.id, 'done', 1, i, 10, 10, now(), now()
  FROM generate_series(1, 100000) i, (SELECT id FROM workflows WHERE name = 'plain') w;
INSERT INTO job_tasks (id, job_id, task_key, service_name, status, progress, attempt_id, outcome, outcome_attempt_id,
                       step_no, lane, claimed_by, results)
SELECT ('018f0000-0000-7000-9000-' || lpad(to_hex(i * 10 + k), 12, '0'))::uuid,
       ('018f0000-0000-7000-8000-' || lpad(to_hex(i), 12, '0'))::uuid,
       's' || k, 'render', 'done', 1, 1, 'done', 1, k, l.id, 'owner', '{}'
  FROM generate_series(1, 100000) i, generate_series(0, 9) k, (SELECT id FROM accs.lanes WHERE requires = '{}' AND node IS NULL) l;

-- Running jobs whose tasks wait: for a backoff, for a node with a GPU, for a key.
INSERT INTO jobs (id, workflow_id, status, order_seq, task_count, open_tasks, started_at)
SELECT ('018f0001-0000-7000-8000-' || lpad(to_hex(i), 12, '0'))::uuid, w.id, 'running', 200000 + i, 10, 10, now()
  FROM generate_series(1, 17000) i, (SELECT id FROM workflows WHERE name = 'plain') w;
INSERT INTO job_tasks (id, job_id, task_key, service_name, step_no, lane, next_attempt_at, concurrency_key, requires)
SELECT ('018f0001-0000-7000-9000-' || lpad(to_hex(n), 12, '0'))::uuid,
       ('018f0001-0000-7000-8000-' || lpad(to_hex(n / 10 + 1), 12, '0'))::uuid, 's' || n % 10, 'render', n % 10,
       CASE WHEN n >= 120000 THEN gpu.id ELSE plain.id END, CASE WHEN n < 100000 THEN now() + interval '1 day' END,
       CASE WHEN n BETWEEN 100000 AND 119999 THEN 'k' END, CASE WHEN n >= 120000 THEN gpu.requires ELSE '{}' END
  FROM generate_series(0, 169999) n, (SELECT id FROM accs.lanes WHERE requires = '{}' AND node IS NULL) plain,
       (SELECT * FROM accs.lanes WHERE requires ? 'gpu') gpu;
INSERT INTO accs.concurrency_keys (key) VALUES ('k');
INSERT INTO accs.waiting (task_id, lane, rank, order_seq, created_at, hold, due_at, key)
SELECT t.id, t.lane, 0, j.order_seq, t.created_at,
       CASE WHEN t.next_attempt_at IS NOT NULL THEN 'backoff' WHEN t.concurrency_key IS NOT NULL THEN 'key' END,
       t.next_attempt_at, t.concurrency_key
  FROM job_tasks t JOIN jobs j ON j.id = t.job_id WHERE t.status = 'queued';

INSERT INTO jobs (id, workflow_id, order_seq, scheduled_at)
SELECT ('018f0002-0000-7000-8000-' || lpad(to_hex(i), 12, '0'))::uuid, w.id, 300000 + i, now() + interval '1 day'
  FROM generate_series(1, 100000) i, (SELECT id FROM workflows WHERE name = 'plain') w;
INSERT INTO accs.pending_jobs (job_id, due_at) SELECT id, scheduled_at FROM jobs WHERE status = 'queued';

RESET session_replication_role;
ANALYZE jobs, job_tasks, accs.waiting, accs.pending_jobs;
"""


@pytest.fixture(scope="module")
def full_url(server: TestServer) -> Iterator[str]:
    database = f"full_{uuid4().hex[:12]}"
    run_in_thread(make(server, database))
    yield server.url_of(database)
    run_in_thread(administer(server, f"DROP DATABASE {database} WITH (FORCE)"))


async def administer(server: TestServer, statement: str) -> None:
    admin = await asyncpg.connect(server.url_of("postgres"))
    await admin.execute(statement)
    await admin.close()


async def make(server: TestServer, database: str) -> None:
    await administer(server, f"CREATE DATABASE {database} TEMPLATE {server.template}")
    conn = await open_connection(server.url_of(database))
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
    await conn.close()


@pytest.fixture
async def full(full_url: str) -> AsyncIterator[Connection]:
    """A connection inside a transaction that is undone."""
    conn = await open_connection(full_url)
    await conn.execute("BEGIN")
    yield conn
    await conn.execute("ROLLBACK")
    await conn.close()


class Touched(NamedTuple):
    """What a piece of work has read of one table or index."""

    by_scan: int
    by_index: int
    blocks: int


async def counters(conn: Connection) -> dict[str, Touched]:
    """Of this transaction so far, by relation. For an index `by_scan` counts the entries that it gave."""
    rows = await conn.fetch(
        "SELECT c.oid::regclass::text AS name, pg_stat_get_xact_tuples_returned(c.oid) AS scanned,"
        " pg_stat_get_xact_tuples_fetched(c.oid) AS fetched, pg_stat_get_xact_blocks_fetched(c.oid) AS blocks"
        " FROM pg_class c WHERE c.relkind IN ('r', 'i') AND c.relnamespace IN ('public'::regnamespace, 'accs'::regnamespace)"
    )
    return {row["name"]: Touched(row["scanned"], row["fetched"], row["blocks"]) for row in rows}


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
            spent = self[table]
            assert spent.by_scan == 0, f"{table}: {spent.by_scan} rows by sequential scan"
            assert spent.by_index <= 6 * n + 10, f"{table}: {spent.by_index} rows fetched for {n}"
            assert spent.blocks <= 20 * n + 50, f"{table}: {spent.blocks} blocks for {n}"
        for name, spent in self._spent.items():
            assert spent.blocks <= 40 * n + 150, f"{name}: {spent.blocks} blocks for {n}"
            if name not in ("accs.lanes", "accs.transitions"):
                assert spent.by_scan <= 8 * n + 20, f"{name}: {spent.by_scan} rows or entries for {n}"


SIZES = [1, 10, 100]


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("where", ["n1", "n2", "n3"], ids=["one lane", "three lanes", "with a capacity"])
async def test_a_claim_touches_as_many_rows_as_it_returns(full: Connection, n: int, where: str):
    async with Meter(full) as meter:
        claimed = await claim(full, n, on=where)
    assert len(claimed) == n
    meter.assert_cheap(n)
    assert meter["accs.waiting_claim"].by_scan <= (6 if where == "n2" else 1) * n + 3
    assert meter["accs.waiting_due"].by_scan == 0


async def test_a_claim_that_finds_nothing_touches_nothing(full: Connection):
    await workflow(full, step("a", "idle"))
    async with Meter(full) as meter:
        assert await claim(full, 100, "idle") == []
    meter.assert_cheap(0)


@pytest.mark.parametrize("n", SIZES)
async def test_a_start_and_a_finish_touch_as_many_rows_as_they_move(full: Connection, n: int):
    claimed = await claim(full, n)
    async with Meter(full) as meter:
        await start(full, *claimed)
    meter.assert_cheap(n)
    async with Meter(full) as meter:
        answers = await finish(full, *claimed)
    assert [row["answer"] for row in answers] == ["accepted"] * n
    meter.assert_cheap(n)


async def test_a_failure_that_is_retried_touches_few_rows(full: Connection):
    claimed = await started(full, 10)
    async with Meter(full) as meter:
        await full.fetch(
            "SELECT * FROM accs.finish_tasks($1, $2, 'owner-1', $3)",
            [row["task_id"] for row in claimed],
            [row["attempt_id"] for row in claimed],
            ["error"] * 10,
        )
    meter.assert_cheap(10)


async def test_a_heartbeat_and_a_report_touch_as_many_rows_as_they_name(full: Connection):
    claimed = await started(full, 10)
    fence = ([row["task_id"] for row in claimed], [row["attempt_id"] for row in claimed])
    async with Meter(full) as meter:
        await full.fetch("SELECT * FROM accs.heartbeat('n1', 'owner-1', $1, $2, '1 min')", *fence)
        await full.fetch("SELECT * FROM accs.report_progress($1, $2, 'owner-1', $3)", *fence, [0.5] * 10)
    meter.assert_cheap(20)


async def test_the_builder_does_not_look_at_jobs_that_are_not_due(full: Connection):
    async with Meter(full) as meter:
        assert await full.fetch("SELECT * FROM accs.instantiate_due_jobs()") == []
    meter.assert_cheap(0)


async def hot_statement(conn: Connection) -> str:
    """The statement of accs.take that takes rows of one lane, as it stands in the database."""
    source = await conn.fetchval("SELECT prosrc FROM pg_proc WHERE oid = 'accs.take'::regproc")
    found = re.search(r"RETURN QUERY\s+(WITH taken AS .*?);", source, re.DOTALL)
    assert found
    return found[1].replace("p_lanes", "$1").replace("p_limit", "$2")


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", []):
        yield from nodes(child)


async def test_the_plan_of_the_claim_is_a_walk_along_its_index(full: Connection):
    settings = await full.fetchval("SELECT proconfig FROM pg_proc WHERE oid = 'accs.claim_tasks'::regproc")
    for setting in settings:
        name, _, value = setting.partition("=")
        await full.execute("SELECT set_config($1, $2, true)", name, value)
    await full.execute(f"PREPARE hot (int[], int) AS {await hot_statement(full)}")
    lane = await full.fetchval("SELECT id FROM accs.lanes WHERE requires = '{}' AND node IS NULL")
    (explained,) = await full.fetchval(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE hot('{{{lane}}}', 10)")

    every = list(nodes(explained["Plan"]))
    walk = next(plan for plan in every if plan.get("Index Name") == "waiting_claim")
    assert walk["Node Type"] == "Index Scan"
    assert walk["Actual Rows"] == 10
    assert "Rows Removed by Filter" not in walk
    assert walk["Shared Hit Blocks"] + walk["Shared Read Blocks"] < 40
    assert not [plan for plan in every if "Seq Scan" in plan["Node Type"]]
    limited = next(plan for plan in every if plan["Node Type"] == "Limit")
    assert not [plan for plan in nodes(limited) if "Sort" in plan["Node Type"]]
