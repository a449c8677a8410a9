"""Graphs of steps as text."""

import random
from collections.abc import Sequence

import pytest

from accsd.cli.graph import GraphLine, Step, aligned, draw, in_order


def steps(written: str) -> list[Step]:
    """`a b:a c:a,b` is three steps, with what each depends on."""
    pairs = [word.partition(":") for word in written.split()]
    return [(key, wanted.split(",") if wanted else []) for key, _, wanted in pairs]


def drawn(written: str) -> str:
    return "\n".join(f"{line.lanes} {line.key or ''} {line.note}".rstrip() for line in draw(steps(written)))


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("a b:a c:b", ["● a", "● b", "● c"]),
        ("top left:top right:top end:left,right", ["● top", "├─╮", "● │ left", "│ ● right", "├─╯", "● end"]),
        ("a b:a c:a d:a", ["● a", "├─┬─╮", "● │ │ b", "  ● │ c", "    ● d"]),
        ("a b:a c:a,b", ["● a", "├─╮", "● │ b", "╰─┤", "  ● c"]),
        ("a b c:a,b", ["● a", "│ ● b", "├─╯", "● c"]),
    ],
    ids=["chain", "diamond", "fan", "shortcut", "two roots"],
)
def test_a_small_graph_is_drawn(written: str, expected: list[str]):
    assert drawn(written).splitlines() == expected


def test_steps_that_have_nothing_to_do_with_each_other_do_not_look_like_a_chain():
    assert drawn("a b c").splitlines() == ["● a", "", "● b", "", "● c"]


def test_a_line_that_is_only_crossed_is_no_junction():
    lines = drawn("a b c d:a e:b f:c g:d,f h:e").splitlines()
    assert "├─│─╯" in lines


def test_a_step_is_drawn_after_all_that_it_depends_on_and_else_in_the_order_of_the_workflow():
    assert in_order(steps("late:a a b:a")) == ["a", "late", "b"]


def test_a_wide_graph_is_a_list_that_names_what_comes_before():
    wide = " ".join(["r", *(f"s{n}:r" for n in range(12)), "end:" + ",".join(f"s{n}" for n in range(12))])
    lines = drawn(wide).splitlines()
    assert lines[0] == "● r"
    assert lines[1] == "  ● s0 after: r"
    assert lines[-1] == "    ● end after: s0, s1, s2, s3 and 8 more"


def test_a_hundred_thousand_steps_are_listed_within_seconds():
    long = [("s0", []), *((f"s{n}", [f"s{n - 1}"]) for n in range(1, 100_000))]
    assert len(draw(long)) == 100_000


def test_columns_stand_beside_the_drawing():
    chain = steps("fetch render:fetch")
    table = aligned(draw(chain), {"fetch": ["web", "1"], "render": ["gpu", "3"]}, ("step", "service", "tries"))
    assert table == ["STEP      SERVICE  TRIES", "● fetch   web      1", "● render  gpu      3"]


def test_every_edge_of_any_graph_can_be_followed_on_the_drawing():
    for seed in range(500):
        graph = _graph(random.Random(seed))
        lines = draw(graph, most_lanes=100)
        assert [line.key for line in lines if line.key] == [key for key, _ in graph]
        assert _edges(lines) == {(above, key) for key, wanted in graph for above in wanted}, seed


def _graph(chance: random.Random) -> list[Step]:
    keys = [f"k{n}" for n in range(chance.randint(1, 9))]
    return [(key, chance.sample(keys[:n], chance.randint(0, min(n, 3)))) for n, key in enumerate(keys)]


def _edges(lines: Sequence[GraphLine]) -> set[tuple[str, str]]:
    """Reads a drawing like a person: from each step down along the lines, to the steps that one comes to."""
    leads: dict[int, set[str]] = {}  # column → the steps from which a line comes down there
    edges: set[tuple[str, str]] = set()
    newest = 0
    for line in lines:
        if line.key is None:
            leads = _below(line.lanes, leads, newest)
        else:
            edges |= {(above, line.key) for above in leads.pop(line.mark_at, set())}
            leads = {place: above for place, above in leads.items() if line.lanes[place : place + 1] == "│"}
            newest = line.mark_at
            leads[newest] = {line.key}
    return edges


def _below(lanes: str, leads: dict[int, set[str]], newest: int) -> dict[int, set[str]]:
    """Down through a row of connections, which are those of the step right above it."""
    below = {place: set(leads.get(place, ())) for place, char in enumerate(lanes) if char in "│├┤┼┬╮╭"}
    for place, char in enumerate(lanes):
        if char in "├┤┼┬╮╭":
            below[place] |= leads[newest]
    return below
