"""Bugs planted in what settles due times: the stories that would see them do."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest

from tests.conftest import Connect
from tests.db.test_schedule_machine import drive
from tests.support.checker import check
from tests.support.cluster import SERVER_NAMES, Clusters, Connection
from tests.support.factory import pass_time
from tests.support.planted import Bug, Change
from tests.support.schedules import call, jobs_of, ledger, outlook, row, schedule, settle
from tests.support.world import world_on

Story = Callable[[Connection, Connection], Awaitable[None]]

NO_SKIP_LOCKED = Bug("schedulers wait for each other", (Change("settle_due", "SKIP LOCKED", ""),))
BY_INSTANT = Bug(
    "what has its row is fired again where its instant has moved",
    (
        Change("settle", "f.nominal = d.nominal", "f.due_at = d.due_at"),
        Change("start_runs", "d.cause_id) END", "d.due_at) END"),
        Change("record_firings", "o.nominal, o.fold, o.cause_id", "o.nominal, o.fold, nextval('accs.cause_seq')"),
    ),
)
NOT_ADVANCED = Bug("the agenda is not moved on", (Change("settle", "a.key = '' AND n.ends IS NULL", "a.key = 'x'"),))
NO_ROOM = Bug(
    "a run key holds nothing back",
    (Change("start_runs", "WHEN p.place <= p.room THEN 'open'", "WHEN true THEN 'open'"),),
)
FORGOTTEN = Bug(
    "what is due while a schedule is paused is forgotten",
    (Change("due_occasions", "FROM counted c WHERE c.starts", "FROM counted c WHERE c.state = 'active' AND c.starts"),),
)


async def two_schedulers_at_once(conn: Connection, other: Connection) -> None:
    await schedule(conn, 60)
    await pass_time(conn, 60)
    async with conn.transaction():
        await settle(conn)
        try:
            await asyncio.wait_for(settle(other), 2)
        except TimeoutError:
            raise AssertionError("the second scheduler waits for the first") from None


async def an_instant_moves(conn: Connection, _other: Connection) -> None:
    which = await schedule(conn, 60, overlap="allow")
    await pass_time(conn, 60)
    await settle(conn)
    (fired,) = await ledger(conn, which)
    found = await row(conn, which)
    moved = {
        "id": str(which),
        "revision": 1,
        "after": found["settled_until"],
        "nominals": [fired["nominal"].isoformat()],
        "folds": [0],
        "dues": [found["settled_until"] + timedelta(seconds=30)],
        "zone_version": "2026b",
        "zone_digest": "e",
        "exhausted": "end_at",
    }
    await call(conn, "plan_schedules", [moved])
    await pass_time(conn, 31)
    await settle(conn)
    assert len(await jobs_of(conn, which)) == 1


async def a_minute_passes_twice(conn: Connection, _other: Connection) -> None:
    which = await schedule(conn, 60, overlap="allow")
    for _ in range(2):
        await pass_time(conn, 60)
        await settle(conn)
    assert len(await ledger(conn, which)) == 2
    assert (await outlook(conn))["next_due"] > timedelta(0)


async def a_run_is_still_open(conn: Connection, _other: Connection) -> None:
    await schedule(conn, 60)
    for _ in range(2):
        await pass_time(conn, 60)
        await settle(conn)
    await check(conn)


async def a_pause_of_five_minutes(conn: Connection, _other: Connection) -> None:
    which = await schedule(conn, 60)
    await call(conn, "pause_schedule", str(which))
    await pass_time(conn, 330)
    await call(conn, "resume_schedule", str(which))
    assert len(await ledger(conn, which)) == 5


STORIES: list[tuple[Bug, Story]] = [
    (NO_SKIP_LOCKED, two_schedulers_at_once),
    (BY_INSTANT, an_instant_moves),
    (NOT_ADVANCED, a_minute_passes_twice),
    (NO_ROOM, a_run_is_still_open),
    (FORGOTTEN, a_pause_of_five_minutes),
]
named = pytest.mark.parametrize(("bug", "story"), STORIES, ids=[bug.name for bug, _ in STORIES])


@named
async def test_the_story_that_shows_a_bug_ends_well_without_it(bug: Bug, story: Story, connect: Connect) -> None:
    await story(await connect(), await connect())


@named
async def test_a_planted_bug_is_shown_by_its_story(bug: Bug, story: Story, connect: Connect) -> None:
    conn = await connect()
    await bug.plant(conn)
    with pytest.raises(AssertionError):
        await story(conn, await connect())


@pytest.mark.parametrize("bug", [NOT_ADVANCED, NO_ROOM, FORGOTTEN], ids=lambda bug: bug.name)
def test_a_planted_bug_is_found_by_the_machine(bug: Bug, clusters: Clusters) -> None:
    """On one version: what is planted does not depend on it."""
    with world_on(clusters.get(SERVER_NAMES[0]), bug.plant) as world, pytest.raises(AssertionError):
        drive(world, 60, always_the_same=True, shrink=False)
