"""Conditions of a real daemon: planned, measured, judged and fired; killed between the measurement and the record."""

import signal
from pathlib import Path

from tests.support import daemon
from tests.support.checker import check
from tests.support.cluster import Connection
from tests.support.eventually import eventually
from tests.support.fleet import is_done
from tests.support.schedules import schedule, told
from tests.support.tasks import NOTE, toml_service

# No table: the tests' cluster may have the role accs_probe, which may read none of theirs.
HOW = {"source": {"sql": "SELECT extract(epoch FROM now())::bigint"}, "every": "5s", "above": 5, "fire_initially": True}


async def test_a_prober_is_killed_and_the_next_one_goes_on(tmp_path: Path, db_url: str, conn: Connection):
    """CO1, CO8 and section 13: one sample is lost, none is doubled, and the crossing starts one job."""
    which = await schedule(
        conn,
        plan=False,
        schedule_kind="condition",
        schedule_expr="time",
        condition=HOW,
        options={"note": str(tmp_path / "notes")},
    )
    config = toml_service("render", NOTE)
    with daemon.running(tmp_path, db_url, config=config, environ={"ACC_FAILPOINTS": "probe.ran:kill"}) as accsd:
        assert accsd.process.wait(timeout=30) == -signal.SIGKILL, accsd.tail()
    assert await told(conn, which) == []
    with daemon.running(tmp_path, db_url, config=config) as accsd:

        async def job():
            return await conn.fetchval("SELECT id FROM jobs WHERE schedule_id = $1", which)

        await is_done(conn, await eventually(job, within=30))

        async def two_samples() -> bool:
            return await conn.fetchval("SELECT count(*) FROM accs.condition_samples WHERE verdict = 'judged'") >= 2

        await eventually(two_samples, within=30)
        assert accsd.stop() == 0
    assert await told(conn, which) == [("fired", "condition")]
    await check(conn)
