"""What a run, or a schedule of runs, asks of the fleet: how many runs a day, and which machines have to wake (MC3)."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, cast

from accsd.db import Database
from accsd.db.views.jobs import clock
from accsd.db.wake import wake_nodes
from accsd.explain.fleet_time import forecast_of
from accsd.gateway.mcp.desk import Desk
from accsd.planning.cover import Demand
from accsd.planning.recurrence import Rule, next_occurrences
from accsd.planning.wake import WakePolicy
from accsd.values.names import TOOL_SERVICE

_LOOKED_AT: Final = 1000  # occurrences
_DAYS: Final = 28


async def cost_of_run(desk: Desk, db: Database, steps: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """As the planner would see these steps of a workflow now, if they were all that there is to do."""
    wake = desk.settings.wake
    policy = WakePolicy(boot=wake.boot, rounds=wake.rounds, rest=wake.rest, longest_rest=wake.longest_rest)
    fleet = await wake_nodes(db, silent=desk.settings.lease)
    demand = demand_of(steps)
    ahead = forecast_of(demand, fleet, await clock(db), lease=desk.settings.lease, policy=policy, at_once=wake.at_once)
    waking = sorted({each["node"] for each in ahead["wakes"]})
    unserved = sorted({each["service"] for each in ahead["unmet"]})
    return {
        "steps": len(steps),
        "machines_to_wake": len(waking),
        "services_without_a_machine": len(unserved),
        **desk.marked(
            services=sorted({each.service for each in demand}),
            machines_to_wake=waking,
            services_without_a_machine=unserved,
        ),
    }


def demand_of(steps: Sequence[Mapping[str, Any]]) -> list[Demand]:
    """One task for each kind of machine that the steps want; what the control host does itself wants none."""
    kinds: dict[tuple[str, str], Mapping[str, Any]] = {}
    for step in steps:
        service, requires = step.get("service"), cast("Mapping[str, Any]", step.get("requires") or {})
        if service not in (None, TOOL_SERVICE):
            kinds[service, repr(sorted(requires.items()))] = requires
    return [Demand(service, 1, None, requires) for (service, _), requires in kinds.items()]


def runs_per_day(rule: Rule, now: datetime) -> float:
    """On average, over the next four weeks or the next thousand runs."""
    found, _ = next_occurrences(rule, now, _LOOKED_AT)
    runs = [each.due_at for each in found if each.fires]
    begins, ends = now, now + timedelta(days=_DAYS)
    if len(found) == _LOOKED_AT and found[-1].due_at < ends:
        begins, ends = found[0].due_at, found[-1].due_at
    count = sum(begins < each <= ends for each in runs)
    return round(count / max((ends - begins) / timedelta(days=1), 1 / 86400), 3)
