"""The role `health` of a builder: that it is there, and what of schedules is amiss, in /health and `accsd top`."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from accsd.builder.health import HealthCheck
from accsd.builder.planner import Planner
from accsd.builder.scheduler import Scheduler
from accsd.daemon.presence import Presence
from accsd.db import Database
from accsd.db.views.health import builders, scheduler_health
from accsd.health import Health, Status
from accsd.metrics import Metrics
from accsd.supervisor import Pass, RoleObserver
from tests.support.cli import Cli
from tests.support.cluster import Connection
from tests.support.factory import pass_time
from tests.support.library import opened
from tests.support.schedules import schedule


@pytest.fixture
async def db(db_url: str) -> AsyncIterator[Database]:
    async with opened(db_url) as opening:
        yield opening


@pytest.fixture
def cli(db_url: str, tmp_path: Path) -> Cli:
    return Cli(db_url, tmp_path)


class Control:
    """A builder's health with the roles that concern schedules, whose passes a test makes."""

    def __init__(self, db: Database) -> None:
        self.health = Health("n1", ready=True)
        self.metrics = Metrics()
        self.scheduler = Scheduler(db, node="n1", metrics=self.metrics)
        self.planner = Planner(db, node="n1")
        self._check = HealthCheck(db, health=self.health, metrics=self.metrics)
        self._presence = Presence(db, self.health, ["builder"])
        db.observe(RoleObserver(self.health, self.metrics).asked)

    async def look(self) -> dict[str, Any]:
        """What /health shows after a pass of the role, in a daemon that has said that it is there."""
        assert (await self._presence.run_once()).next_due is not None
        assert (await self._check.run_once()).next_due is not None
        return orjson.loads(self.health.report().to_json())

    def passed(self, role: str, done: Pass) -> None:
        self.health.role_passed(role, done.did, obstacle=done.obstacle)


async def test_a_builder_is_seen_and_counts_what_the_database_counts(db: Database, conn: Connection):
    control = Control(db)
    assert control.health.report().scheduler is None
    shown = await control.look()
    assert shown["status"] == Status.OK
    assert shown["scheduler"] == {
        "pending": 0,
        "running": 0,
        "failed": 0,
        "stuck_running": 0,
        "poller_running": True,
        "overdue": 0,
        "overdue_seconds": None,
        "unplanned": 0,
        "unplanned_seconds": None,
        "broken": 0,
        "hold": None,
    }
    assert shown["scheduler_at"]
    assert [each.name for each in await builders(db)] == ["n1"]


async def test_due_times_that_nobody_settles_or_plans_make_the_status_degraded(db: Database, conn: Connection):
    """SQ5: a fault that health shows."""
    control = Control(db)
    await schedule(conn, 60)
    await pass_time(conn, 60)
    await schedule(conn, 60, plan=False)
    await pass_time(conn, 90)
    shown = await control.look()
    assert shown["status"] == Status.DEGRADED
    assert shown["reasons"] == [
        "1 due time of a schedule is not settled, the first for 1m30s",
        "1 schedule waits for a plan, the first for 1m30s",
    ]
    metrics = control.metrics.render().decode()
    assert 'accsd_schedules{state="overdue"} 1.0' in metrics
    assert 'accsd_schedules{state="unplanned"} 1.0' in metrics
    for _ in range(3):
        await control.planner.run_once()
        while (await control.scheduler.run_once()).more:
            pass
    assert (await control.look())["reasons"] == []


async def test_old_zone_rules_and_a_leap_of_the_clock_are_seen_from_every_machine(
    db: Database, conn: Connection, cli: Cli
):
    """TZ5, CL2: each is an obstacle of a role in one process; the builder's row tells the others."""
    control = Control(db)
    await schedule(conn, 60, plan=False, timezone="Europe/Berlin", name="nightly")
    await control.planner.run_once()
    await conn.execute("UPDATE accs.zones SET version = '9999a', digest = 'newer'")
    await conn.execute("UPDATE schedules SET schedule_expr = '90s'")
    control.planner = Planner(db, node="n1")
    await control.planner.run_once()
    control.passed("planner", await control.planner.run_once())
    await control.scheduler.run_once()
    await pass_time(conn, 3600)
    control.passed("scheduler", await control.scheduler.run_once())
    reasons = " ".join((await control.look())["reasons"])
    assert "planner takes no work: newer time zone rules than these are in use for Europe/Berlin" in reasons
    assert "scheduler takes no work: the database's clock has leapt" in reasons
    (await cli("top", "--once")).ends(
        0,
        "n1: planner takes no work: newer time zone rules",
        "n1: scheduler takes no work: the database's clock has leapt",
    )
    assert "newer time zone rules" in (await cli("doctor")).out


async def test_a_hold_is_said_once_whichever_roles_it_keeps_from_their_work(db: Database, conn: Connection, cli: Cli):
    """PA4."""
    control = Control(db)
    await schedule(conn, 60)
    await conn.execute("SELECT accs.hold_schedules('a fire', 'ops')")
    await pass_time(conn, 300)
    control.passed("scheduler", await control.scheduler.run_once())
    shown = await control.look()
    assert shown["reasons"] == ["scheduler takes no work: all schedules are held: a fire, by ops"]
    assert shown["scheduler"]["hold"] == "a fire, by ops"
    top = (await cli("top", "--once")).ends(0, "all schedules are held: a fire, by ops")
    assert top.out.count("a fire") == 1
    assert "all schedules are held: a fire, by ops" in (await cli("doctor")).out


async def test_a_broken_schedule_is_counted_and_named_and_does_not_degrade_the_builder(
    db: Database, conn: Connection, cli: Cli
):
    """HE1: it is the mistake of its owner, and the others go on."""
    control = Control(db)
    await schedule(conn, 60, plan=False, name="nightly", timezone="Europe/Berln")
    await control.planner.run_once()
    shown = await control.look()
    assert (shown["status"], shown["reasons"]) == (Status.OK, [])
    assert (await scheduler_health(db)).broken == 1
    assert 'accsd_schedules{state="broken"} 1.0' in control.metrics.render().decode()
    (await cli("top", "--once")).ends(0, "schedule nightly is broken:", "Europe/Berlin")
    found = (await cli("top", "--once", "-o", "json")).ends(0).json
    assert (found["scheduler"]["broken"], found["broken"][0]["name"]) == (1, "nightly")
    assert "1 broken: nothing of them fires" in (await cli("doctor")).out


async def test_where_no_builder_runs_top_says_so(db: Database, conn: Connection, cli: Cli):
    (await cli("top", "--once")).ends(0, "no builder is running: start one")
    await Control(db).look()
    assert "no builder" not in (await cli("top", "--once")).ends(0).out
    await pass_time(conn, 90)
    (await cli("top", "--once")).ends(0, "no builder is running, the last one was seen 1m30s ago")
