"""The health of the installation: counts that anybody may see, and for people which builder and which schedule."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from accsd.db.pool import Database
from accsd.health import SchedulerHealth


async def scheduler_health(db: Database) -> SchedulerHealth:
    """Cheap enough to be asked all the time."""
    row = await db.fetchrow("SELECT * FROM accs.scheduler_health()", repeatable=True)
    assert row is not None, "scheduler_health always answers"
    found = dict(row)
    overdue_for, unplanned_for = found.pop("overdue_for"), found.pop("unplanned_for")
    return SchedulerHealth(**found, overdue_seconds=_seconds(overdue_for), unplanned_seconds=_seconds(unplanned_for))


def _seconds(span: timedelta | None) -> float | None:
    return None if span is None else round(span.total_seconds(), 3)


@dataclass(frozen=True, slots=True)
class BuilderView:
    """A builder that was seen within the last day; `obstacles` are sentences by role."""

    name: str
    unseen_for: timedelta
    obstacles: dict[str, str]


async def builders(db: Database) -> list[BuilderView]:
    """The last seen first."""
    rows = await db.fetch(
        """SELECT name, greatest(accs.clock() - last_seen, '0') AS unseen_for, problems AS obstacles FROM accs.daemons
            WHERE 'builder' = ANY (roles) ORDER BY last_seen DESC, name LIMIT 100""",
        repeatable=True,
    )
    return [
        BuilderView(row["name"], row["unseen_for"], {k: v for k, v in row["obstacles"].items() if not _is_agents(k)})
        for row in rows
    ]


def _is_agents(role: str) -> bool:
    """What keeps a node from a service is told of the node."""
    return role.startswith("agent:")


@dataclass(frozen=True, slots=True)
class DaemonView:
    """A process of accsd that was seen within the last day. `problems` are sentences by role."""

    name: str
    roles: list[str]
    version: str | None
    since: datetime | None
    last_seen: datetime
    unseen_for: timedelta
    hearing: str | None
    problems: dict[str, str]


async def daemons(db: Database) -> list[DaemonView]:
    """By name; of one machine the builder first."""
    rows = await db.fetch(
        """SELECT name, roles, version, since, last_seen, greatest(accs.clock() - last_seen, '0') AS unseen_for,
                  hearing, problems
             FROM accs.daemons ORDER BY name, NOT 'builder' = ANY (roles), roles LIMIT 1000""",
        repeatable=True,
    )
    return [DaemonView(**row) for row in rows]


@dataclass(frozen=True, slots=True)
class BrokenSchedule:
    name: str
    problem: str | None


async def broken_schedules(db: Database, *, limit: int) -> list[BrokenSchedule]:
    """Those that broke last first, of the first thousand."""
    rows = await db.fetch(
        """SELECT s.name, s.state_reason AS problem
             FROM (SELECT * FROM public.schedules WHERE state = 'broken' LIMIT 1000) s
            ORDER BY s.state_since DESC, s.name LIMIT $1""",
        limit,
        repeatable=True,
    )
    return [BrokenSchedule(**row) for row in rows]
