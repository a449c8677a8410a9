"""Schedules under anything that can happen to them, in any order: every due time has one row, every firing one job.

    ACC_TEST_EXAMPLES=2000 .venv/bin/pytest tests/db/test_schedule_machine.py -k pg18

An example repeats exactly: the clock stands still but for `advance`. The plan is plain arithmetic (tests/support), so
that the test knows each nominal time by itself.
"""

import os
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.support.checker import check
from tests.support.cluster import Connection, TestServer
from tests.support.factory import cancel, fail, finish, node, pass_time, started
from tests.support.schedules import call, ledger, replan, row, schedule, settle
from tests.support.world import World, world_on

pytestmark = pytest.mark.every_postgresql

EVERY = 60
LONGER = os.environ.get("ACC_TEST_EXAMPLES")

policies = st.fixed_dictionaries(
    {
        "missed": st.sampled_from(["skip", "one", "all"]),
        "overlap": st.sampled_from(["allow", "skip", "queue", "queue_all", "cancel"]),
        "catch_up_max": st.sampled_from([1, 3, 100]),
    }
)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("advance"), st.sampled_from([20, 60, 60, 60, 130, 700])),
        st.tuples(st.just("settle"), st.sampled_from([1, 200])),
        st.tuples(st.just("plan"), st.none()),
        st.tuples(st.just("pause"), st.none()),
        st.tuples(st.just("resume"), st.sampled_from(["none", "one", "all"])),
        st.tuples(st.just("snooze"), st.sampled_from([30, 90, 200])),
        st.tuples(st.just("unsnooze"), st.none()),
        st.tuples(st.just("skip"), st.integers(0, 3)),
        st.tuples(st.just("run_now"), st.booleans()),
        st.tuples(st.just("hold"), st.booleans()),
        st.tuples(st.just("edit"), st.sampled_from(["priority", "missed"])),
        st.tuples(st.just("finish"), st.integers(1, 3)),
        st.tuples(st.just("fail"), st.none()),
        st.tuples(st.just("cancel"), st.none()),
    ),
    min_size=6,
    max_size=30,
)


class Driver:
    """Calls the verbs, and knows the nominal times that the schedule names."""

    def __init__(self, conn: Connection, which: UUID, first: datetime) -> None:
        self.conn = conn
        self.which = which
        self.first = first

    async def do(self, what: str, how: Any) -> None:
        conn, name = self.conn, str(self.which)
        match what:
            case "advance":
                await pass_time(conn, how)
            case "settle":
                await settle(conn, how)
            case "plan":
                await replan(conn)
            case "pause":
                await call(conn, "pause_schedule", name)
            case "resume":
                await call(conn, "resume_schedule", name, how)
            case "snooze":
                await call(conn, "snooze", name, timedelta(seconds=how))
            case "unsnooze":
                await call(conn, "unsnooze", name)
            case "skip":
                nominals = await conn.fetchval("SELECT nominals FROM accs.plan_of WHERE schedule_id = $1", self.which)
                if nominals and len(nominals) > how:
                    await call(conn, "skip_occurrence", name, nominals[how])
            case "run_now":
                await call(conn, "run_now", name, None, None, how)
            case "hold":
                await conn.fetchval("SELECT accs.hold_schedules('held', 'test', $1)", not how)
            case "edit":
                value = "priority = priority + 1" if how == "priority" else "missed = 'one'"
                await conn.execute(f"UPDATE schedules SET {value} WHERE id = $1", self.which)
            case "finish":
                await conn.fetch("SELECT * FROM accs.instantiate_due_jobs()")
                if claimed := await started(conn, how):
                    await finish(conn, *claimed)
            case "fail":
                if claimed := await started(conn, 1):
                    await fail(conn, *claimed, permanent=True)
            case _:
                open_jobs = await conn.fetch("SELECT id FROM jobs WHERE status IN ('queued', 'running') LIMIT 1")
                for each in open_jobs:
                    await cancel(conn, each["id"])

    async def come_to_rest(self) -> None:
        await self.conn.fetchval("SELECT accs.hold_schedules(NULL, NULL, true)")
        for _ in range(60):
            await replan(self.conn)
            if not await settle(self.conn) and not await self._is_behind():
                return
        raise AssertionError("there is always more to settle")

    async def _is_behind(self) -> bool:
        return await self.conn.fetchval(
            "SELECT EXISTS (SELECT FROM accs.agenda WHERE due_at <= accs.clock() AND what <> 'probe')"
        )

    async def look(self) -> None:
        """LG1: each nominal time whose due time has passed has its row, and no row is of another one."""
        conn = self.conn
        now: datetime = await conn.fetchval("SELECT accs.clock()")
        paused = (await row(conn, self.which))["state"] == "paused"
        patience = timedelta(minutes=1) if paused else timedelta(0)  # PA1: settled in batches
        rows = [each for each in await ledger(conn, self.which) if each["cause_id"] == 0]
        covered: list[datetime] = []
        for each in rows:
            covered += self._between(each["nominal"], each["until_nominal"] or each["nominal"])
        assert len(covered) == len(set(covered)), "a nominal time has two rows"
        due = self._between(self.first, (now - patience).astimezone(UTC).replace(tzinfo=None))
        assert set(due) - set(covered) == set(), "a due time has no row"
        ahead = {each["nominal"] for each in rows if each["outcome"] == "snoozed"}
        late = set(covered) - set(self._between(self.first, now.astimezone(UTC).replace(tzinfo=None)))
        assert late <= ahead, "a row is of a time that is not due"

    def _between(self, first: datetime, last: datetime) -> list[datetime]:
        found, at = list[datetime](), first
        while at <= last:
            found.append(at)
            at += timedelta(seconds=EVERY)
        return found


async def tell(conn: Connection, policies: dict[str, Any], steps: list[tuple[str, Any]]) -> None:
    """One story, in a transaction that is rolled back."""
    transaction = conn.transaction()
    await transaction.start()
    try:
        await node(conn, render=10)
        which = await schedule(conn, EVERY, **policies)
        first: datetime = await conn.fetchval("SELECT nominals[1] FROM accs.plan_of WHERE schedule_id = $1", which)
        driver = Driver(conn, which, first)
        for what, how in steps:
            await driver.do(what, how)
            await check(conn)
        await driver.do("advance", 130)
        await driver.come_to_rest()
        await driver.look()
        await check(conn)
    finally:
        await transaction.rollback()


def drive(world: World, examples: int, *, always_the_same: bool, shrink: bool = True) -> None:
    @settings(
        max_examples=examples,
        deadline=None,
        derandomize=always_the_same,
        database=None,
        phases=[Phase.generate, Phase.shrink] if shrink else [Phase.generate],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(policies=policies, steps=steps)
    def story(policies: dict[str, Any], steps: list[tuple[str, Any]]) -> None:
        world.runner.run(tell(world.conn, policies, steps))

    story()


@pytest.mark.timeout(0 if LONGER else 300)
def test_every_due_time_has_one_row_whatever_happens(server: TestServer):
    with world_on(server) as world:
        drive(world, int(LONGER or 40), always_the_same=LONGER is None)
