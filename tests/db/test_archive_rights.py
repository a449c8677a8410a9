"""History is archived and removed with the rights of accs_archive, and nobody else can: not even the control host."""

from contextlib import nullcontext
from pathlib import Path

import asyncpg
import pytest

from accsd.builder.archive import Archiver
from accsd.db import make_months
from accsd.db.history import archives, delete_finished_jobs, lines_here
from accsd.db.months import MONTHLY, TASK_EVENTS
from accsd.errors import ConfigError
from accsd.history.clocks import Clocks
from accsd.metrics import Metrics
from accsd.settings import RetentionSettings
from tests.support.cluster import Connection, TestServer
from tests.support.library import opened, url_as
from tests.support.months import eventful_job, month, next_month, partitions, store_in
from tests.support.roles import roles as roles

pytestmark = [pytest.mark.usefixtures("roles"), pytest.mark.every_postgresql]


async def test_the_control_host_archives_months_that_were_made_after_the_grants(
    server: TestServer, db_url: str, conn: Connection, tmp_path: Path
):
    await conn.execute("GRANT SELECT ON accs.test_clock TO accs_archive")
    await next_month(conn, 6)  # its partition was not there when the roles were made
    job = await eventful_job(conn)
    name = await month(conn)
    await next_month(conn, 3)
    async with opened(url_as(server, db_url, "accs_archive")) as db:
        await make_months(db)
        assert len(await lines_here(db, TASK_EVENTS, str(job))) > 10
        ages = {"events": "60d", "ledger": "60d", "topics": "60d", "jobs": "30d"}
        kept = RetentionSettings.model_validate(ages)
        archiver = Archiver(lambda: nullcontext(db), store_in(tmp_path), kept, metrics=Metrics(), clocks=Clocks())
        assert (await archiver.run_once()).obstacle is None
        assert {one.table for one in await archives(db)} == set(MONTHLY)
        assert [one.rows > 10 for one in await archives(db, partition=name)] == [True]
    assert name not in await partitions(conn)


@pytest.mark.parametrize("role", ["accs_scheduler", "accs_agent", "accs_api", "accs_gateway", "accs_reader"])
async def test_nobody_else_removes_history(server: TestServer, db_url: str, role: str):
    async with opened(url_as(server, db_url, role)) as db:
        for call in ("drop_archived(1)", "check_archive(1, 1, 1, '')", "forget_objects('accs', '{}')"):
            with pytest.raises(ConfigError, match="permission denied"):
                await db.fetch(f"SELECT accs.{call}")
        with pytest.raises(ConfigError, match="permission denied"):
            await delete_finished_jobs(db, age=None, workflows={})


async def test_a_builder_without_the_right_says_which_setting_gives_it(
    server: TestServer, db_url: str, conn: Connection, tmp_path: Path
):
    await conn.execute("GRANT SELECT ON accs.test_clock TO accs_scheduler")
    await next_month(conn, 6)
    async with opened(url_as(server, db_url, "accs_scheduler")) as db:
        kept = RetentionSettings.model_validate({"events": "60d", "jobs": "30d"})
        archiver = Archiver(lambda: nullcontext(db), store_in(tmp_path), kept, metrics=Metrics(), clocks=Clocks())
        obstacle = (await archiver.run_once()).obstacle or ""
    assert "permission denied" in obstacle
    assert "retention.database_url" in obstacle


async def test_only_a_month_of_events_is_dropped(server: TestServer, db_url: str, conn: Connection):
    """Whatever is recorded as its archive: a table whose name only looks like one is no partition."""
    await conn.execute("CREATE TABLE victim_tab_x2020_01 (id int); CREATE TABLE task_events_2020_01 (id int)")
    for name in (
        "firings_default",
        "victim_tab_x2020_01",
        "task_events_2020_01",
        "task_events_default",
        "task_events_2020_13",
        "jobs",
    ):
        with pytest.raises(asyncpg.InvalidParameterValueError, match="no month of a table that is archived"):
            await conn.execute("SELECT accs.record_archive($1, 0, 0, 0, 'x', 'b', 'k', 0, 'y', NULL, NULL, '')", name)
