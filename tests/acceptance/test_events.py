"""Events with real daemons: an evaluator that is killed loses nothing and doubles nothing."""

from pathlib import Path

import pytest

from tests.support import daemon
from tests.support.checker import check
from tests.support.cluster import Connection
from tests.support.eventually import eventually
from tests.support.schedules import jobs_of, ledger
from tests.support.topics import emit, subscription


async def are_settled(conn: Connection, which: object, n: int) -> bool:
    rows = await conn.fetchval("SELECT count(*) FROM firings WHERE schedule_id = $1", which)
    return rows == n and await conn.fetchval("SELECT count(*) FROM accs.inbox") == 0


@pytest.mark.parametrize("point", ["events.evaluated", "events.settled"])
async def test_an_evaluator_is_killed_and_the_next_one_goes_on(
    tmp_path: Path, db_url: str, conn: Connection, point: str
):
    """EV5, EV6; 13: event evaluated, event settled."""
    which = await subscription(conn, "a", filter="event.payload.n % 2 == 0", options={"n": "${event.payload.n}"})
    with daemon.running(
        tmp_path, db_url, role="builder", environ={"ACC_FAILPOINTS": f"{point}:kill"}, ready=False
    ) as broken:
        for n in range(10):
            await emit(conn, "a", {"n": n})
        await eventually(lambda: broken.process.poll() is not None, within=20)
    with (
        daemon.running(tmp_path / "1", db_url, role="builder", node="b1"),
        daemon.running(tmp_path / "2", db_url, role="builder", node="b2"),
    ):
        for n in range(10, 40):
            await emit(conn, "a", {"n": n})
        await eventually(lambda: are_settled(conn, which, 20), within=20)
    assert [job["options"]["n"] for job in await jobs_of(conn, which)] == list(range(0, 40, 2))
    assert len({row["cause_id"] for row in await ledger(conn, which)}) == 20
    assert await conn.fetchval("SELECT filtered FROM accs.event_tallies") == 20
    await check(conn)
