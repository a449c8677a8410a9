"""The steps of a large job as a graph of what differs: what the page computes itself where it has all tasks
(web/app/graph/fold.js), by the same rules.

Steps are alike if they have the same service, come after the same steps and before the same steps; shards of equal
chains are alike, too. The tasks of a step that was multiplied belong to it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

from accsd.db.views.jobs import TaskSketch

_LEAST: Final = 4  # fewer are shown one by one
_ROUNDS: Final = 6
# A letter for each state of a task: a node's states are one text.
LETTERS: Final = {
    "q": "queued", "s": "starting", "r": "running", "d": "done", "e": "error", "b": "backoff", "c": "cancelled",
    "k": "skipped",
}  # fmt: skip
_LETTER_OF: Final = {state: letter for letter, state in LETTERS.items()}


@dataclass(slots=True)
class _Unit:
    """A step, with all tasks that it became: the step first."""

    key: str
    service: str
    depends_on: Sequence[str]
    states: list[str] = field(default_factory=list[str])
    before: list[int] = field(default_factory=list[int])
    after: list[int] = field(default_factory=list[int])


def folded(sketches: Sequence[TaskSketch]) -> dict[str, Any]:
    """`nodes`, each with its `units` (a step and how many items it became), the `states` of their tasks in that order,
    and the places of the nodes before it."""
    units = _units(sketches)
    groups = _alike(units)
    node_of = {unit: node for node, group in enumerate(groups) for unit in group}
    nodes = [
        {
            "service": units[group[0]].service,
            "units": [[units[n].key, len(units[n].states) - 1] for n in group],
            "states": "".join(state for n in group for state in units[n].states),
            "parents": sorted({node_of[above] for n in group for above in units[n].before} - {node}),
        }
        for node, group in enumerate(groups)
    ]
    return {"tasks": len(sketches), "letters": LETTERS, "nodes": nodes}


def _units(sketches: Sequence[TaskSketch]) -> list[_Unit]:
    units: list[_Unit] = []
    numbers: dict[str, int] = {}
    by_id: dict[UUID, int] = {}
    for each in sketches:
        if each.parent is None:
            by_id[each.id] = numbers[each.key] = len(units)
            units.append(_Unit(each.key, each.service, each.depends_on))
    for each in sketches:
        units[by_id[each.parent or each.id]].states.append(_LETTER_OF.get(each.state, "q"))
    for n, unit in enumerate(units):
        unit.before = [numbers[key] for key in dict.fromkeys(unit.depends_on) if key in numbers]
        for above in unit.before:
            units[above].after.append(n)
    return units


def _alike(units: Sequence[_Unit]) -> list[list[int]]:
    """Numbers of units that are alike. Those that are few tell their neighbours apart in the next round."""
    befores, afters = [unit.before for unit in units], [unit.after for unit in units]
    order = _in_order(befores, afters)
    base = [f"s{unit.service}" for unit in units]
    groups: list[list[int]] = []
    for _ in range(_ROUNDS):
        up, down = _spread(order, befores, base), _spread(order[::-1], afters, base)
        gathered: dict[tuple[int, int], list[int]] = {}
        for n in range(len(units)):
            gathered.setdefault((up[n], down[n]), []).append(n)
        groups = list(gathered.values())
        few = {n for group in groups if len(group) < _LEAST for n in group}
        following = [f"#{n}" if n in few else said for n, said in enumerate(base)]
        if following == base:
            break
        base = following
    apart = [part for group in groups for part in ([group] if len(group) >= _LEAST else [[n] for n in group])]
    return sorted(apart)


def _spread(order: Iterable[int], near: Sequence[Sequence[int]], base: Sequence[str]) -> list[int]:
    """A number for each: equal where the own base and the set of numbers of the neighbours are equal."""
    numbers: dict[tuple[str, frozenset[int]], int] = {}
    found = [0] * len(base)
    for n in order:
        said = (base[n], frozenset(found[each] for each in near[n]))
        found[n] = numbers.setdefault(said, len(numbers))
    return found


def _in_order(before: Sequence[Sequence[int]], after: Sequence[Sequence[int]]) -> list[int]:
    missing = [len(each) for each in before]
    order = [n for n, count in enumerate(missing) if not count]
    for n in order:  # which grows
        for below in after[n]:
            missing[below] -= 1
            if not missing[below]:
                order.append(below)
    return order
