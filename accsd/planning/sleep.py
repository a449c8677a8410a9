"""When a node may sleep, and how work gathers on few nodes so that the others can.

A node decides for itself, by what it knows of its own work; whether others could do without it is `wake.needed_for`.
"""

from dataclasses import dataclass
from datetime import timedelta
from math import isinf
from typing import Final

# Nobody notices that a task on a machine that may sleep starts so much later; another machine's claim takes less.
_LONGEST_YIELD: Final = timedelta(milliseconds=100)


@dataclass(frozen=True, slots=True)
class SleepRules:
    """A node sleeps after `idle` without work, or sooner: after `boots` times what waking it takes (inf: never sooner).
    It does not sleep before it was awake for `awake`, so that it cannot flap faster than that."""

    idle: timedelta = timedelta(minutes=5)
    awake: timedelta = timedelta(minutes=2)
    boots: float = 0.75


@dataclass(frozen=True, slots=True)
class IdleTime:
    """What a node knows of itself. idle_for is None while it holds a lease; latency is what its waking took so far."""

    idle_for: timedelta | None
    awake_for: timedelta
    latency: timedelta | None = None


@dataclass(frozen=True, slots=True)
class Stay:
    """Why it stays awake, and when to think again (None: when something has changed)."""

    because: str
    again_in: timedelta | None = None


def reason_to_stay(node: IdleTime, rules: SleepRules) -> Stay | None:
    """Why the node stays awake; None if, as far as it knows by itself, it may sleep."""
    if node.idle_for is None:
        return Stay("it is at work")
    if (left := rules.awake - node.awake_for) > timedelta(0):
        return Stay("it started, or came back, only a short while ago", left)
    if (left := stays_for(node, rules) - node.idle_for) > timedelta(0):
        return Stay("it was at work a short while ago", left)
    return None


def stays_for(node: IdleTime, rules: SleepRules) -> timedelta:
    """How long an idle node waits for work. Being awake for nothing costs about as much as booting for as long. So a
    node that waits for the time of a boot and then sleeps loses at most twice what the best decision costs."""
    if node.latency is None or isinf(rules.boots):
        return rules.idle
    return min(rules.idle, rules.boots * node.latency)


def looks_ahead(node: IdleTime, rules: SleepRules, lead: timedelta) -> timedelta:
    """Work that is due within this time is a reason to stay, if no other node could do it: the node would be called
    again, `lead` before the work is due, after less sleep than is worth the boot."""
    return lead + stays_for(node, rules)


def yields_for(node: IdleTime, rules: SleepRules) -> timedelta:
    """How long a node lets others claim first. A busy node takes more before an idle one is disturbed, and the node
    that has been idle for the longest comes last."""
    if node.idle_for is None:
        return timedelta(0)
    rested = min(1.0, node.idle_for / rules.idle) if rules.idle else 1.0
    return _LONGEST_YIELD * (0.25 + 0.75 * rested)
