"""Puts the steps of a workflow in an order in which they can run, and refuses those that have none.

SQL makes the same checks when a workflow is written. They are here too so that `WorkflowDef` can say what
is wrong before there is a database, and in the same words. A job may have 100,000 steps: everything is
linear, nothing recurses.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from accsd.errors import WorkflowInvalid

# A step as far as its place in the graph is concerned: its key, and the keys that it depends on.
Step = tuple[str, Sequence[str]]

_LONGEST_PATH_SHOWN = 12


@dataclass(frozen=True)
class Plan:
    """A graph that was found to be sound."""

    order: tuple[str, ...]
    """Every key once, after all that it depends on; among equals in the order of the workflow."""
    dependants: Mapping[str, tuple[str, ...]]
    """For each key, the keys of the steps that depend on it, in the order of the workflow."""


def plan(steps: Iterable[Step], workflow: str | None = None) -> Plan:
    """The order of the steps, or WorkflowInvalid naming the workflow and the step that is wrong."""
    try:
        return _plan(list(steps))
    except WorkflowInvalid as refusal:
        if workflow is None:
            raise
        raise WorkflowInvalid(f'workflow "{workflow}": {refusal.message}', step=refusal.step) from None


def _plan(steps: list[Step]) -> Plan:
    if not steps:
        raise WorkflowInvalid("there are no steps; a workflow needs at least one")
    dependencies = _by_key(steps)
    for key, wanted in steps:
        _check_dependencies(key, wanted, dependencies)
    dependants = _dependants(steps)
    order = _order(dependencies, dependants)
    if len(order) < len(steps):
        raise _cycle_refusal(dependencies, set(order))
    return Plan(order=tuple(order), dependants={key: tuple(waiting) for key, waiting in dependants.items()})


def _by_key(steps: list[Step]) -> dict[str, Sequence[str]]:
    dependencies: dict[str, Sequence[str]] = {}
    for key, wanted in steps:
        if key in dependencies:
            raise WorkflowInvalid(f'two steps have the key "{key}"', step=key)
        dependencies[key] = wanted
    return dependencies


def _check_dependencies(key: str, wanted: Sequence[str], known: Mapping[str, object]) -> None:
    seen: set[str] = set()
    for dependency in wanted:
        if dependency == key:
            raise WorkflowInvalid(f'step "{key}" depends on itself', step=key)
        if dependency not in known:
            raise WorkflowInvalid(f'step "{key}" depends on "{dependency}", which does not exist', step=key)
        if dependency in seen:
            raise WorkflowInvalid(f'step "{key}" depends on "{dependency}" twice', step=key)
        seen.add(dependency)


def _dependants(steps: list[Step]) -> dict[str, list[str]]:
    dependants: dict[str, list[str]] = {key: [] for key, _ in steps}
    for key, wanted in steps:
        for dependency in wanted:
            dependants[dependency].append(key)
    return dependants


def _order(dependencies: Mapping[str, Sequence[str]], dependants: Mapping[str, Sequence[str]]) -> list[str]:
    """Kahn's algorithm. Steps on a cycle, or behind one, are missing from the answer."""
    remaining = {key: len(wanted) for key, wanted in dependencies.items()}
    runnable = deque(key for key, count in remaining.items() if count == 0)
    order: list[str] = []
    while runnable:
        key = runnable.popleft()
        order.append(key)
        for waiting in dependants[key]:
            remaining[waiting] -= 1
            if remaining[waiting] == 0:
                runnable.append(waiting)
    return order


def _cycle_refusal(dependencies: Mapping[str, Sequence[str]], ordered: set[str]) -> WorkflowInvalid:
    cycle = _find_cycle(dependencies, ordered)
    return WorkflowInvalid(f"steps depend on each other in a circle: {_path([*cycle, cycle[0]])}", step=cycle[0])


def _find_cycle(dependencies: Mapping[str, Sequence[str]], ordered: set[str]) -> list[str]:
    """A step that could not be ordered waits for another such step: following those must come back."""
    key = next(key for key in dependencies if key not in ordered)
    position: dict[str, int] = {}
    while key not in position:
        position[key] = len(position)
        key = next(dependency for dependency in dependencies[key] if dependency not in ordered)
    cycle = list(position)[position[key] :]
    # The same graph must give the same message: begin with the step that the workflow names first.
    on_cycle = set(cycle)
    start = cycle.index(next(key for key in dependencies if key in on_cycle))
    return cycle[start:] + cycle[:start]


def _path(keys: list[str]) -> str:
    """`a → b → a`, where → reads "depends on"; the middle of a very long one is left out."""
    if len(keys) > _LONGEST_PATH_SHOWN:
        left_out = len(keys) - _LONGEST_PATH_SHOWN
        half = _LONGEST_PATH_SHOWN // 2
        keys = [*keys[:half], f"({left_out} more)", *keys[-half:]]
    return " → ".join(keys)
