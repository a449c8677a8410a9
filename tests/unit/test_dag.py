"""The order of a workflow's steps, and the graphs that have none."""

import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accsd.errors import WorkflowInvalid
from accsd.planning.dag import Step, plan


def test_steps_come_after_what_they_depend_on_and_otherwise_as_written():
    steps: list[Step] = [("upload", ["render"]), ("audio", []), ("video", []), ("render", ["audio", "video"])]

    planned = plan(steps)

    assert planned.order == ("audio", "video", "render", "upload")
    assert planned.dependants == {
        "upload": (),
        "audio": ("render",),
        "video": ("render",),
        "render": ("upload",),
    }


@pytest.mark.parametrize(
    ("steps", "sentence", "step"),
    [
        ([], "there are no steps", None),
        ([("a", []), ("a", [])], 'two steps have the key "a"', "a"),
        ([("a", []), ("b", ["x"])], 'step "b" depends on "x", which does not exist', "b"),
        ([("a", ["a"])], 'step "a" depends on itself', "a"),
        ([("a", []), ("b", ["a", "a"])], 'step "b" depends on "a" twice', "b"),
        ([("a", ["b"]), ("b", ["a"])], "a → b → a", "a"),
        ([("z", ["a"]), ("a", ["b"]), ("b", ["c"]), ("c", ["a"])], "circle: a → b → c → a", "a"),
    ],
)
def test_an_unsound_graph_is_refused_by_the_names_of_its_steps(steps: list[Step], sentence: str, step: str | None):
    with pytest.raises(WorkflowInvalid) as refusal:
        plan(steps)

    assert sentence in str(refusal.value)
    assert refusal.value.step == step


def test_the_message_names_the_workflow_where_it_has_a_name():
    with pytest.raises(WorkflowInvalid, match=r'^workflow "media": step "b" depends on "x", which does not exist$'):
        plan([("b", ["x"])], workflow="media")


@pytest.mark.parametrize("shape", ["chain", "reversed chain", "fan"])
def test_a_hundred_thousand_steps_are_ordered_in_linear_time(shape: str):
    count = 100_000
    chain: list[Step] = [(f"s{n}", [f"s{n - 1}"] if n else []) for n in range(count)]
    fan: list[Step] = [("s0", []), *((f"s{n}", ["s0"]) for n in range(1, count))]
    steps = {"chain": chain, "reversed chain": chain[::-1], "fan": fan}[shape]

    started = time.process_time()  # the time of a busy machine is not ours
    planned = plan(steps)

    assert len(planned.order) == count
    assert planned.order[0] == "s0"
    assert time.process_time() - started < 10


def test_a_cycle_of_a_hundred_thousand_steps_is_found_and_its_message_stays_short():
    count = 100_000
    steps: list[Step] = [(f"s{n}", [f"s{(n + 1) % count}"]) for n in range(count)]

    with pytest.raises(WorkflowInvalid) as refusal:
        plan(steps)

    assert len(str(refusal.value)) < 300
    assert "s0 → s1 → " in str(refusal.value)


@st.composite
def sound_graphs(draw: st.DrawFn) -> list[Step]:
    """Each step depends on some of those before it; then the list is shuffled."""
    count = draw(st.integers(1, 12))
    earlier = [draw(st.sets(st.integers(0, n - 1), max_size=4)) if n else set[int]() for n in range(count)]
    steps: list[Step] = [(f"s{n}", [f"s{m}" for m in sorted(before)]) for n, before in enumerate(earlier)]
    return draw(st.permutations(steps))


@given(sound_graphs())
def test_any_sound_graph_is_ordered_with_every_dependency_first(steps: list[Step]):
    order = plan(steps).order

    assert sorted(order) == sorted(key for key, _ in steps)
    for key, wanted in steps:
        assert all(order.index(dependency) < order.index(key) for dependency in wanted)


@given(sound_graphs())
def test_dependants_are_the_dependencies_turned_around(steps: list[Step]):
    dependants = plan(steps).dependants

    assert {(a, b) for a, waiting in dependants.items() for b in waiting} == {
        (dependency, key) for key, wanted in steps for dependency in wanted
    }


@given(st.lists(st.sets(st.integers(0, 7)), min_size=1, max_size=8))
def test_a_refused_cycle_is_a_real_one(edges: list[set[int]]):
    graph = {f"s{n}": [f"s{m}" for m in sorted(to) if m != n and m < len(edges)] for n, to in enumerate(edges)}
    try:
        plan(list(graph.items()))
    except WorkflowInvalid as refusal:
        path = str(refusal).partition(": ")[2].split(" → ")
        assert path[0] == path[-1]
        assert all(after in graph[before] for before, after in pairwise(path))
