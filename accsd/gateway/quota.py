"""How often a schedule of an assistant may run (AG4), by whichever door the assistant comes."""

from datetime import datetime, timedelta
from itertools import pairwise
from typing import Final

from accsd.db import Database
from accsd.db.access import actors_named
from accsd.gateway.problems import HttpProblem
from accsd.model.access import Caller
from accsd.planning.recurrence import Rule, next_occurrences

_LOOKED_AT: Final = 1000  # occurrences


async def least_interval(db: Database, caller: Caller, default: timedelta) -> timedelta:
    """What the actor's own limits say, or the default."""
    actor = (await actors_named(db, [caller.actor])).get(caller.actor)
    said = None if actor is None else actor.limits.get("least_interval_sec")
    return default if said is None else timedelta(seconds=said)


def require_interval(rule: Rule, now: datetime, least: timedelta, *, setting: str) -> None:
    """HttpProblem if two runs are nearer to each other than an assistant may have them."""
    shortest = shortest_interval(rule, now, below=least)
    if shortest is not None:
        raise HttpProblem(
            "quota",
            f"it would run more often than every {least.total_seconds():g} s, which is the least for an assistant",
            hint=f"a person can make it, or change {setting}",
        )


def shortest_interval(rule: Rule, now: datetime, *, below: timedelta) -> timedelta | None:
    """The first time between two runs that is shorter than this; None: there is none as far as one looks."""
    found, _ = next_occurrences(rule, now, _LOOKED_AT)
    for early, late in pairwise(each for each in found if each.fires):
        if timedelta(0) < late.due_at - early.due_at < below:
            return late.due_at - early.due_at
    return None
