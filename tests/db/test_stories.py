"""The explain bar from a real history: what the database knows of a job's time, bounded."""

from collections.abc import AsyncIterator
from datetime import timedelta
from uuid import UUID, uuid4

import pytest

from accsd.db import Database
from accsd.explain.bar import Explanation, explain_job
from accsd.explain.fleet_time import read_forecast, read_timeline
from accsd.planning.wake import WakePolicy
from tests.support.cluster import Connection
from tests.support.factory import (
    claim,
    clock,
    done,
    fail,
    finish,
    node,
    pass_time,
    start,
    started,
    step,
    stop_clock,
    submit,
    submit_to,
    workflow,
)
from tests.support.library import opened
from tests.support.schedules import schedule

pytestmark = pytest.mark.every_postgresql

LONG = timedelta(hours=2)


@pytest.fixture
async def db(db_url: str, conn: Connection) -> AsyncIterator[Database]:
    await stop_clock(conn)
    async with opened(db_url) as opening:
        yield opening


def spent(found: Explanation) -> list[tuple[str, int, str | None]]:
    """What took a second or more."""
    return [
        (piece.kind.value, round(piece.length.total_seconds()), None if piece.subject is None else piece.subject.name)
        for piece in found.bar
        if piece.length >= timedelta(seconds=0.5)
    ]


async def sleeps(conn: Connection, name: str = "n1") -> None:
    await conn.execute("SELECT accs.node_leaves($1, 'sleep')", name)


async def beat(conn: Connection, name: str = "n1") -> None:
    await conn.execute("SELECT FROM accs.heartbeat($1, $1, '{}', '{}', '1 min')", name)


async def wakes(conn: Connection, name: str = "n1", *, call: float, boot: float) -> None:
    after = await conn.fetchval("SELECT try_id FROM accs.power WHERE node = $1", name)
    seen = await conn.fetchval("SELECT last_seen FROM nodes WHERE name = $1", name)
    this = uuid4()
    await conn.execute("SELECT accs.claim_wake($1, $2, 'wol', $3, $4)", name, this, after, seen)
    await pass_time(conn, call)
    await conn.execute("SELECT accs.record_wake($1, $2, true, NULL, 'called', '{}')", name, this)
    await pass_time(conn, boot)
    await beat(conn, name)


async def test_a_job_that_a_sleeping_machine_did(conn: Connection, db: Database):
    await node(conn, render=1)
    await sleeps(conn)
    await pass_time(conn, 60)
    job = await submit(conn, step("a"), step("b", after="a"))
    await pass_time(conn, 10)
    await wakes(conn, call=5, boot=40)
    (task,) = await claim(conn, lease=LONG)
    await pass_time(conn, 3)
    await start(conn, task)
    await pass_time(conn, 100)
    await finish(conn, task)
    await pass_time(conn, 7)
    (task,) = await started(conn, lease=LONG)
    await pass_time(conn, 20)
    await beat(conn)
    expected = [
        ("asleep", 10, "n1"),
        ("wake", 5, "n1"),
        ("boot", 40, "n1"),
        ("starting", 3, "n1"),
        ("running", 100, "n1"),
        ("capacity", 7, "render"),
        ("running", 20, "n1"),
    ]
    found = await explain_job(db, job)
    assert spent(found) == expected
    assert found.path == ["a", "b"]
    await pass_time(conn, 30)
    assert spent(await explain_job(db, job))[-1] == ("running", 50, "n1"), "it grows"
    await finish(conn, task)
    await pass_time(conn, 500)
    found = await explain_job(db, job)
    assert spent(found)[-1] == ("running", 50, "n1"), "it has ended"
    assert found.complete
    document = found.document()
    assert document["segments"][0]["kind"] == "asleep"
    assert document["segments"][0]["subject"] == {"type": "node", "name": "n1"}
    assert {each["kind"]: round(each["seconds"]) for each in document["sum"]}["running"] == 150


async def test_retries_lost_owners_and_a_second_run(conn: Connection, db: Database):
    await node(conn, render=1)
    job = await submit(conn, step("a", max_attempts=2, backoff=[30]))
    (task,) = await started(conn, lease=timedelta(seconds=60))
    await pass_time(conn, 70)
    await conn.fetch("SELECT * FROM accs.reclaim_tasks()")
    (task,) = await started(conn, lease=LONG)
    await pass_time(conn, 5)
    await fail(conn, task)
    await pass_time(conn, 33)
    (task,) = await started(conn, lease=LONG)
    await pass_time(conn, 4)
    await fail(conn, task)
    assert spent(await explain_job(db, job)) == [
        ("lost", 70, "n1"),
        ("running", 5, "n1"),
        ("backoff", 30, None),
        ("capacity", 3, "render"),
        ("running", 4, "n1"),
    ]
    await pass_time(conn, 1000)
    await conn.execute("SELECT * FROM accs.retry_jobs($1)", [job])
    await pass_time(conn, 2)
    await beat(conn)
    await done(conn)
    assert spent(await explain_job(db, job)) == [("capacity", 2, "render")], "the second run alone"


async def test_a_key_that_another_job_held(conn: Connection, db: Database):
    await node(conn, render=5)
    which = await workflow(conn, step("a", concurrency_key="youtube"))
    first, second, third = [await submit_to(conn, which) for _ in range(3)]
    (holder,) = await started(conn, lease=LONG)
    await pass_time(conn, 50)
    assert spent(await explain_job(db, second)) == [("key", 50, "youtube")]
    await finish(conn, holder)
    await pass_time(conn, 8)
    (holder,) = await started(conn, lease=LONG)
    await pass_time(conn, 10)
    await finish(conn, holder)
    assert spent(await explain_job(db, second)) == [
        ("key", 50, "youtube"),
        ("capacity", 8, "render"),
        ("running", 10, "n1"),
    ]
    assert spent(await explain_job(db, third)) == [
        ("key", 50, "youtube"),
        ("capacity", 8, "render"),
        ("key", 10, "youtube"),
    ]
    assert spent(await explain_job(db, first)) == [("running", 50, "n1")]


async def test_a_pause_is_known_while_it_lasts_and_afterwards_by_the_audit(conn: Connection, db: Database):
    await conn.execute(
        """CREATE TABLE IF NOT EXISTS accs.audit (id bigint GENERATED ALWAYS AS IDENTITY, ts timestamptz, actor text,
             via text, action text, kind text, target text, reason text, answer text, detail jsonb, request_id text)"""
    )
    noted = await conn.fetchval("SELECT prosrc LIKE '%audited%' FROM pg_proc WHERE proname = 'pause'")
    audit = """INSERT INTO accs.audit (ts, actor, via, action, kind, target, answer)
               SELECT accs.clock(), 'anna', 'cli', $1, 'service', 'render', 'accepted' WHERE NOT $2"""
    await node(conn, render=1)
    job = await submit(conn, step("a"))
    await pass_time(conn, 5)
    await conn.execute("SELECT accs.pause('service', 'render')")
    await conn.execute(audit, "pause", noted)
    await pass_time(conn, 20)
    assert spent(await explain_job(db, job)) == [("capacity", 5, "render"), ("paused", 20, "render")]
    await conn.execute("SELECT accs.resume('service', 'render')")
    await conn.execute(audit, "resume", noted)
    await pass_time(conn, 6)
    assert spent(await explain_job(db, job)) == [
        ("capacity", 5, "render"),
        ("paused", 20, "render"),
        ("capacity", 6, "render"),
    ]


async def test_a_job_for_later_and_one_that_no_machine_can_do(conn: Connection, db: Database):
    which = await workflow(conn, step("a"))
    later = await submit_to(conn, which, scheduled_at=await clock(conn) + timedelta(hours=1))
    nobody = await submit_to(conn, which)
    await pass_time(conn, 600)
    assert spent(await explain_job(db, later)) == [("delay", 600, None)]
    assert spent(await explain_job(db, nobody)) == [("no_node", 600, "render")]


async def test_an_end_is_expected_where_the_step_is_known(conn: Connection, db: Database):
    await node(conn, render=1)
    which = await workflow(conn, step("a"), name="clip")
    for _ in range(5):
        await submit_to(conn, which)
        (task,) = await started(conn, lease=LONG)
        await pass_time(conn, 100)
        await finish(conn, task)
    await conn.execute("SELECT accs.count_events()")
    running, waiting = await submit_to(conn, which), await submit_to(conn, which)
    await started(conn, lease=LONG)
    await pass_time(conn, 30)
    await beat(conn)
    assert await left(conn, db, running) == 70
    assert await left(conn, db, waiting) == 100, "none waits before it"
    assert (await explain_job(db, running)).document()["eta"]["usual_seconds"] == pytest.approx(100, abs=1)


async def left(conn: Connection, db: Database, job: UUID) -> int:
    eta = (await explain_job(db, job)).eta
    assert eta is not None
    assert eta.expected_end is not None
    return round((eta.expected_end - await clock(conn)).total_seconds())


# The fleet


async def test_lanes_energy_and_the_time_that_nobody_knows(conn: Connection, db: Database):
    await conn.execute(
        "SELECT FROM accs.register_node('n1', '{}', '{\"render\": 1}', p_watts => $1)",
        {"asleep": 4, "booting": 120, "idle": 80, "busy": 300},
    )
    await node(conn, "run/x", {"accs.kind": "run"}, render=1)
    began = await clock(conn)
    await conn.execute("SELECT accs.count_events()")
    await submit(conn, step("a"))
    await pass_time(conn, 60)
    (task,) = await started(conn, lease=LONG)
    await beat(conn)
    await conn.execute("SELECT accs.count_events()")
    await pass_time(conn, 600)
    await finish(conn, task)
    await beat(conn)
    await conn.execute("SELECT accs.count_events()")
    await sleeps(conn)
    await pass_time(conn, 3600)
    found = await read_timeline(db, began, await clock(conn), silent=timedelta(minutes=2))
    [lane] = found.lanes
    assert [(piece.state, round(piece.seconds)) for piece in lane.intervals if piece.seconds > 1] == [
        ("idle", 60),
        ("busy", 600),
        ("asleep", 3600),
    ]
    assert found.complete


async def test_what_is_ahead_is_what_the_planner_would_do(conn: Connection, db: Database):
    await conn.execute("SELECT FROM accs.register_node('n1', '{}', '{\"render\": 1}', 'wol', '52:54:00:00:00:01')")
    await conn.execute("UPDATE accs.power SET latency = '100 s'")
    await sleeps(conn)
    which = await workflow(conn, step("a"), name="nightly")
    due = await clock(conn) + timedelta(hours=3)
    job = await submit_to(conn, which, scheduled_at=due)
    await schedule(conn, 7200, name="every-two-hours")
    found = await read_forecast(
        db, timedelta(hours=12), lease=timedelta(minutes=1), policy=WakePolicy(boot=timedelta(minutes=2))
    )
    assert "every-two-hours" in {each["schedule"] for each in found["firings"]}
    [wake] = found["wakes"]
    assert wake["node"] == "n1"
    assert wake["service"] == "render"
    assert wake["at"] < wake["expected_at"] <= wake["due_at"]
    assert wake["job_id"] in (job, None)
