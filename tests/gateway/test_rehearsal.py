"""What more jobs would do to the fleet: the present queue, machines as they are, keys, and what nobody can know."""

import asyncio
import threading
import tracemalloc
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import anyio
import pytest

from accsd.errors import QueryTooSlow
from accsd.gateway.routes import fleet as routes
from accsd.gateway.routes.fleet import in_time
from accsd.simulation.present import rehearse_present
from tests.support.cluster import Connection
from tests.support.factory import node, started, step, submit_to, workflow
from tests.support.gateway import Gateway

WATTS = {"asleep": 5, "booting": 100, "idle": 50, "busy": 200}


async def fleet(conn: Connection) -> None:
    """A machine that is awake and never asleep, and one that sleeps and takes 40 s to come. Each has one slot."""
    await node(conn, "desk", render=1)
    await node(conn, "farm", render=1)
    await conn.execute("UPDATE nodes SET awake_state = 'sleep', wake_method = 'wol' WHERE name = 'farm'")
    await conn.execute(
        "UPDATE accs.power SET state = 'asleep', latency = '40 s', watts = $1 WHERE node = 'farm'", WATTS
    )


async def usual(conn: Connection, name: str, key: str, *seconds: float) -> None:
    await conn.execute(
        "INSERT INTO accs.step_stats (workflow, task_key, n, runs, waits, updated_at)"
        " VALUES ($1, $2, cardinality($3::real[]), $3, $3, accs.clock())",
        name,
        key,
        seconds,
    )


async def rehearse(gateway: Gateway, expected: int = 200, **asked: Any) -> dict[str, Any]:
    answered = await gateway.post("/fleet/rehearsal", {"workflow": "w", **asked}, scope="read")
    assert answered.status_code == expected, answered.text
    return answered.json()


def seconds(shown: dict[str, Any], moment: str | None) -> float:
    assert moment is not None
    return (datetime.fromisoformat(moment) - datetime.fromisoformat(shown["as_of"])).total_seconds()


async def test_jobs_that_are_not_submitted_wake_a_machine_end_and_cost_something(gateway: Gateway, conn: Connection):
    await fleet(conn)
    await workflow(conn, step("a", "render"), step("b", "render", after="a"), name="w")
    await usual(conn, "w", "a", 100, 100, 100, 300)
    await usual(conn, "w", "b", 50)
    shown = await rehearse(gateway, count=2)
    assert [seconds(shown, each["ends_at"]) for each in shown["jobs"]] == [150, 190], "one on each machine"
    assert [(each["node"], seconds(shown, each["ready_at"]), each["also_without"]) for each in shown["wakes"]] == [
        ("farm", 40, False)
    ]
    assert seconds(shown, shown["ends_at"]) == 190 < seconds(shown, shown["slow_ends_at"])
    farm = next(each for each in shown["nodes"] if each["node"] == "farm")
    assert (farm["tasks"], farm["wakes"], shown["without_watts"]) == (2, 1, ["desk"])
    assert shown["kwh"] == farm["kwh"] > 150 * 195 / 3.6e6, "what it draws while it is at work, and more"
    assert await conn.fetchval("SELECT count(*) FROM jobs") == 0


async def test_what_is_in_motion_goes_first_keeps_its_keys_and_is_told_by_how_much_it_is_later(
    gateway: Gateway, conn: Connection
):
    await node(conn, "desk", render=2)
    await workflow(conn, step("a", "render", concurrency_key="channel"), name="w")
    await usual(conn, "w", "a", 100)
    running, waiting = [await submit_to(conn, (await conn.fetchval("SELECT id FROM workflows"))) for _ in range(2)]
    await started(conn, 1, "render", on="desk")
    shown = await rehearse(gateway, count=1)
    assert shown["in_motion"] == 2
    assert 298 < seconds(shown, shown["ends_at"]) <= 300, "one after the other: the key lets one run at a time"
    assert shown["delayed"] == {"count": 0, "jobs": []}
    urgent = await rehearse(gateway, count=1, priority=5)
    assert 198 < seconds(urgent, urgent["ends_at"]) <= 200
    assert [each["job_id"] for each in urgent["delayed"]["jobs"]] == [str(waiting)] != [str(running)]
    assert urgent["delayed"]["jobs"][0]["by_seconds"] == 100


async def test_what_nobody_can_know_is_asked_for_or_said(gateway: Gateway, conn: Connection):
    await fleet(conn)
    await workflow(conn, step("a", "render"), step("b", "elsewhere", after="a"), name="w")
    refused = await rehearse(gateway, 422)
    assert [each["pointer"] for each in refused["errors"]] == ["/body/durations/a", "/body/durations/b"]
    await rehearse(gateway, 422, durations={"a": 5, "b": 5, "c": 5})
    await conn.execute("SELECT accs.pause('node', 'desk', 'dusty', 'anna')")
    await conn.execute("SELECT accs.pause('service', 'render', 'updates', 'anna')")
    shown = await rehearse(gateway, durations={"a": 5, "b": 5})
    assert shown["unmet"] == [{"service": "elsewhere", "requires": {}, "node": None, "tasks": 1}]
    assert (shown["ends_at"], seconds(shown, shown["starts_at"])) == (None, 40)
    assert shown["left_out"] == [{"node": "desk", "because": "it is drained"}]
    assert shown["paused"] == [{"kind": "service", "name": "render"}]
    other = await workflow(conn, step("x", "render"), name="new")
    await submit_to(conn, other)
    assert (await rehearse(gateway, durations={"a": 5, "b": 5}))["assumed"] == [
        "step x of new takes 600 s: how long it takes is not known yet"
    ]
    assert (await rehearse(gateway, 404, workflow="nobody"))["code"] == "not_found"


async def test_too_many_tasks_are_refused_before_any_is_made(gateway: Gateway, conn: Connection):
    await fleet(conn)
    await workflow(conn, *(step(f"s{n}", "render") for n in range(200)), name="w")
    tracemalloc.start()
    try:
        refused = await rehearse(gateway, 422, count=1000, durations={f"s{n}": 1 for n in range(200)})
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert refused["detail"] == "more than 5000 tasks are too many to rehearse"
    assert most < 20_000_000, "200,000 tasks are 100 MB"


async def test_a_rehearsal_ends_when_its_time_is_over_or_the_gateway_stops():
    ended = threading.Event()

    def endless(tell: Callable[[float], None]) -> dict[str, Any]:
        try:
            while True:
                tell(0.0)
        finally:
            ended.set()

    with pytest.raises(QueryTooSlow):
        await in_time(endless, timedelta(milliseconds=10))
    ended.clear()
    with anyio.move_on_after(0.05):
        await in_time(endless)
    assert await anyio.to_thread.run_sync(ended.wait, 5), "its thread would hold up the process"


async def test_the_time_of_a_rehearsal_is_also_looked_at_while_its_tasks_are_made(
    gateway: Gateway, conn: Connection, monkeypatch: pytest.MonkeyPatch
):
    await fleet(conn)
    await workflow(conn, step("a", "render"), name="w")
    monkeypatch.setattr(in_time, "__defaults__", (timedelta(seconds=-1),))
    assert (await rehearse(gateway, 503, durations={"a": 1}))["code"] == "query_too_slow"


async def test_one_caller_has_one_rehearsal_under_way_and_others_wait_for_their_turn(
    gateway: Gateway, conn: Connection, monkeypatch: pytest.MonkeyPatch
):
    begun, may_end = threading.Semaphore(0), threading.Event()

    def held(*given: Any) -> dict[str, Any]:
        begun.release()
        assert may_end.wait(20)
        return rehearse_present(*given)

    await fleet(conn)
    await workflow(conn, step("a", "render"), name="w")
    monkeypatch.setattr(routes, "rehearse_present", held)
    body = {"workflow": "w", "durations": {"a": 1}}
    await gateway.token("read")
    first = asyncio.create_task(gateway.post("/fleet/rehearsal", body, scope="read"))
    assert await anyio.to_thread.run_sync(lambda: begun.acquire(timeout=20))
    refused = await gateway.post("/fleet/rehearsal", body, scope="read")
    assert (refused.status_code, refused.json()["code"]) == (429, "rate_limited")
    assert refused.headers["retry-after"] == "1"
    other = asyncio.create_task(gateway.post("/fleet/rehearsal", body, scope="submit"))
    assert not await anyio.to_thread.run_sync(lambda: begun.acquire(timeout=0.2)), "one after the other"
    monkeypatch.setattr(routes, "_LONGEST_REHEARSAL", timedelta(seconds=0.1))
    tired = await gateway.post("/fleet/rehearsal", body, scope="operate")
    assert (tired.status_code, tired.json()["code"]) == (503, "query_too_slow")
    may_end.set()
    assert [each.status_code for each in await asyncio.gather(first, other)] == [200, 200]
    assert (await gateway.post("/fleet/rehearsal", body, scope="read")).status_code == 200


async def test_what_takes_months_or_lies_centuries_ahead_is_rehearsed_or_refused(gateway: Gateway, conn: Connection):
    await fleet(conn)
    await workflow(conn, step("a", "render"), name="w")
    long = await rehearse(gateway, count=7, durations={"a": 3_000_000})
    assert seconds(long, long["ends_at"]) == 4 * 3_000_000, "four on one machine, the last one after 104 days"
    await workflow(conn, step("a", "render"), name="ages")
    await usual(conn, "ages", "a", 1e12)
    over = await rehearse(gateway, 422, workflow="ages")
    assert over["detail"] == "the jobs would end after the year 9999"
    for due_at in ("9999-12-31T23:59:59Z", "9999-12-31T23:59:59-12:00"):
        far = await rehearse(gateway, 422, durations={"a": 1}, due_at=due_at)
        assert far["detail"] == "due_at lies at most 3660 days ahead in a rehearsal"
