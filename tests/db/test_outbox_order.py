"""A job with very many outgoing events: a claim costs what it takes, the order holds, and nobody is forgotten."""

import re
from uuid import UUID, uuid4

from tests.support.cluster import Connection
from tests.support.factory import Row

CLAIM = "SELECT * FROM accs.claim_outbox('studio', $1, '30 s', $2, $3)"

READ = """SELECT sum(pg_stat_get_xact_tuples_returned(oid))::int FROM pg_class
           WHERE oid = 'outbox_events'::regclass OR relkind = 'i' AND relname LIKE 'outbox_events%'"""


async def events(conn: Connection, count: int, *, of: UUID | None = None) -> UUID:
    """Events that wait, of one job."""
    job = of or uuid4()
    await conn.execute(
        "INSERT INTO outbox_events (target, event, job_id, payload)"
        " SELECT 'studio', 'e' || i, $1, '{}' FROM generate_series(1, $2::int) i",
        job,
        count,
    )
    return job


async def target(conn: Connection) -> None:
    await conn.execute("SELECT accs.register_outbox_target('studio', 'https://x', '{job.done}')")


async def claim(conn: Connection, *, jobs: int = 4, each: int = 25) -> tuple[UUID, list[Row]]:
    mine = uuid4()
    return mine, await conn.fetch(CLAIM, mine, jobs, each)


async def settle(conn: Connection, claimed: tuple[UUID, list[Row]], outcome: str = "delivered") -> None:
    mine, rows = claimed
    await conn.fetch(
        "SELECT * FROM accs.settle_outbox('studio', $1, $2, $3, $4, $5, 1000, '1 s', '1 s')",
        mine,
        [row["id"] for row in rows],
        [outcome] * len(rows),
        [None] * len(rows),
        [None] * len(rows),
    )


async def touched(conn: Connection, query: str) -> tuple[int, int]:
    """Blocks, and rows or index entries, that it reads, with all that it calls; whatever it changes is undone."""
    transaction = conn.transaction()
    await transaction.start()
    before = await conn.fetchval(READ)
    (plan,) = await conn.fetchval(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {query}")
    rows = await conn.fetchval(READ) - before
    await transaction.rollback()
    return plan["Plan"]["Shared Hit Blocks"] + plan["Plan"]["Shared Read Blocks"], rows


async def test_a_claim_costs_what_it_takes_however_many_events_of_a_job_wait(conn: Connection):
    await target(conn)
    job = await events(conn, 500)
    asked = re.sub(r"\$\d", "%s", CLAIM) % (f"'{uuid4()}'", 4, 25)
    blocks, rows = await touched(conn, asked)
    assert rows < 1000, "it looks at 100, and takes 25"
    await events(conn, 20_000, of=job)
    for _ in range(2):
        many_blocks, many_rows = await touched(conn, asked)
        assert many_blocks < 1.5 * blocks
        assert many_rows < 1000
        await settle(conn, await claim(conn))
    assert (await touched(conn, "SELECT accs.outbox_outlook('studio')"))[1] < 1000


async def test_events_of_another_job_are_found_behind_thousands_that_have_to_wait(conn: Connection):
    await target(conn)
    long = await events(conn, 1000)
    other = await events(conn, 1)
    under_way = await claim(conn, jobs=1)
    assert {row["job_id"] for row in under_way[1]} == {long}
    found: list[Row] = []
    for _ in range(1000 // 100 + 1):
        found = found or (await claim(conn))[1]
    assert [row["job_id"] for row in found] == [other]
    assert await conn.fetchval("SELECT accs.outbox_outlook('studio') > '25 s'"), "nothing is to be done until then"


async def test_a_long_row_of_events_goes_out_in_order_whatever_becomes_of_some(conn: Connection):
    await target(conn)
    job = await events(conn, 300)
    sent: list[int] = []
    outcomes = iter(["failed", "delivered", "dead", "returned"] * 100)
    while (claimed := await claim(conn, jobs=2, each=20))[1]:
        assert (await claim(conn, jobs=2, each=20))[1] == [], "one claim at a time"
        outcome = next(outcomes)
        await settle(conn, claimed, outcome)
        sent += [row["id"] for row in claimed[1]] if outcome in ("delivered", "dead") else []
        if outcome == "dead" and len(sent) == 200:
            await events(conn, 50, of=job)
    rows = await conn.fetch("SELECT id FROM outbox_events ORDER BY id")
    assert sent == [row["id"] for row in rows]
    assert len(sent) == 350


async def test_one_whose_predecessor_has_vanished_is_sent_all_the_same(conn: Connection):
    await target(conn)
    await events(conn, 50)
    await claim(conn, jobs=1, each=1)
    await claim(conn)  # sends the others out of sight
    await conn.execute("DELETE FROM outbox_events WHERE event IN ('e1', 'e2')")
    assert (await claim(conn))[1] == []
    await conn.fetchval("SELECT accs.prune_outbox('7 d', '90 d')")
    assert [row["event"] for row in (await claim(conn, each=2))[1]] == ["e3", "e4"]


async def test_who_is_registered_again_gets_what_still_waits(conn: Connection):
    await target(conn)
    await events(conn, 50)
    await claim(conn, jobs=1, each=1)
    await claim(conn)
    await conn.execute("SELECT accs.forget_outbox_target('studio')")
    await conn.execute("DELETE FROM outbox_events WHERE event = 'e1'")  # as prune_outbox does
    await target(conn)
    assert [row["event"] for row in (await claim(conn, each=2))[1]] == ["e2", "e3"]
