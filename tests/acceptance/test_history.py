"""History leaves the database by a real builder, whatever it dies of on the way."""

from pathlib import Path

from accsd.db.history import archives
from tests.support import daemon
from tests.support.cluster import Connection
from tests.support.eventually import eventually, eventually_sync
from tests.support.library import opened
from tests.support.months import eventful_job, month, next_month, partitions

POINTS = ("archive.put", "archive.recorded", "archive.verified")


async def test_a_builder_that_is_killed_at_each_step_archives_every_event_once(
    conn: Connection, db_url: str, tmp_path: Path
):
    config = f'[storage]\nurl = "file://{tmp_path}/objects"\n[retention]\nevents = "80d"\n'
    await eventful_job(conn)
    name = await month(conn)
    rows = await conn.fetchval(f"SELECT count(*) FROM {name}")
    await next_month(conn, 4)
    for point in POINTS:
        broken = {"ACC_FAILPOINTS": f"{point}:kill"}
        with daemon.running(tmp_path, db_url, role="builder", config=config, environ=broken, ready=False) as killed:
            eventually_sync(lambda killed=killed: killed.process.poll() is not None, within=30, what=point)
        assert await conn.fetchval(f"SELECT count(*) FROM {name}") == rows
    with daemon.running(tmp_path, db_url, role="builder", config=config) as whole:
        whole.wait_for("archived", partition=name)

        async def gone() -> bool:
            return name not in await partitions(conn)

        await eventually(gone)
        assert whole.stop() == 0
    async with opened(db_url) as db:
        assert [(one.rows, one.superseded_at) for one in await archives(db, partition=name)] == [(rows, None)]
    assert len(list((tmp_path / "objects" / "history" / name).iterdir())) == 2


async def test_a_builder_without_a_store_of_all_does_not_start_with_a_retention(db_url: str, tmp_path: Path):
    config = '[retention]\nevents = "80d"\n'
    with daemon.running(tmp_path, db_url, role="builder", config=config, ready=False) as refused:
        eventually_sync(lambda: refused.process.poll() is not None, within=30)
        assert refused.process.returncode == 2
        assert "no storage is configured" in refused.tail()
