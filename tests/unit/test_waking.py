"""Which nodes are woken (A13, tick 2): the plan is a pure function, so it is asked about many small fleets."""

from datetime import timedelta
from itertools import combinations
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accsd.planning.cover import Demand, Matching, NodeState, WakeCalls
from accsd.planning.wake import WakePlan, WakePolicy, WhyNot, lead, needed_for, plan
from accsd.values.labels import has_labels

LEASE = timedelta(seconds=120)
POLICY = WakePolicy()
JOB = UUID(int=1)


def wants(tasks: int = 1, service: str = "render", **given: Any) -> Demand:
    return Demand(service, tasks, given.pop("job_id", JOB), **given)


def asleep(name: str, labels: dict[str, Any] | None = None, calls: WakeCalls | None = None, **slots: int) -> NodeState:
    return NodeState(name, labels or {}, slots or {"render": 1}, says_asleep=True, methods=("wol",), calls=calls)


def called(seconds: float, ok: bool | None = True, count: int = 1) -> WakeCalls:
    return WakeCalls(count, timedelta(seconds=seconds), ok)


def awake(name: str, labels: dict[str, Any] | None = None, live: int = 0, **slots: int) -> NodeState:
    seen = timedelta(seconds=5)
    return NodeState(name, labels or {}, slots or {"render": 1}, {"render": live}, unseen_for=seen)


def planned(demand: list[Demand], *nodes: NodeState, at_once: int | None = None) -> WakePlan:
    return plan(demand, nodes, lease=LEASE, policy=POLICY, at_once=at_once)


def woken(demand: list[Demand], *nodes: NodeState) -> list[str]:
    return [choice.node for choice in planned(demand, *nodes).wake]


# Who is woken


def test_a_sleeping_node_that_serves_what_waits_is_woken_because_of_it():
    demand = wants(job_id=UUID(int=7))

    assert [(choice.node, choice.because) for choice in planned([demand], asleep("a")).wake] == [("a", demand)]


def test_nobody_is_woken_while_those_who_are_awake_have_room():
    assert woken([wants(2)], awake("on", render=3, live=1), asleep("off")) == []
    assert woken([wants(3)], awake("on", render=3, live=1), asleep("off")) == ["off"]


def test_a_task_moves_to_another_awake_node_rather_than_that_a_machine_is_woken():
    gpu, plain = awake("gpu", {"gpu": True}), awake("plain")

    assert woken([wants(), wants(requires={"gpu": True})], gpu, plain, asleep("big", {"gpu": True}, render=9)) == []


def test_a_sleeping_node_takes_over_what_frees_the_awake_one_for_the_choosy_task():
    gpu = awake("gpu", {"gpu": True})
    choosy = wants(requires={"gpu": True}, due_in=timedelta(minutes=1))  # the other one is placed first

    assert planned([wants(), choosy], gpu, asleep("plain")).unmet == ()
    assert woken([wants(), choosy], gpu, asleep("plain")) == ["plain"]


def test_labels_names_and_services_decide_who_could_serve():
    nodes = [asleep("eu", {"zone": "eu"}), asleep("us", {"zone": "us"}), asleep("audio", audio=1)]

    assert woken([wants(requires={"zone": "us"})], *nodes) == ["us"]
    assert woken([wants(node="eu")], *nodes) == ["eu"]
    assert woken([wants(service="audio")], *nodes) == ["audio"]
    assert woken([wants(requires={"zone": "mars"})], *nodes) == []


def test_one_large_node_is_woken_rather_than_three_small_ones():
    nodes = [asleep("a"), asleep("b"), asleep("c"), asleep("z", render=3)]

    assert woken([wants(3)], *nodes) == ["z"]
    assert sorted(woken([wants(4)], *nodes)) == ["a", "z"]


def test_fewest_is_meant_exactly_where_the_largest_first_would_take_one_more():
    """The classic trap of covering: the largest node overlaps both halves, and two small ones complete it."""
    demand = [wants(service=name) for name in "abcdef"]
    greedy = [asleep("big", b=1, c=1, d=1, e=1), asleep("a1", a=1), asleep("a2", f=1)]
    left, right = asleep("left", a=1, b=1, c=1), asleep("right", d=1, e=1, f=1)

    assert woken(demand, *greedy, left, right) == ["left", "right"]
    assert sorted(woken(demand, *greedy)) == ["a1", "a2", "big"]


def test_a_node_that_went_silent_is_as_good_as_asleep_and_a_fresh_one_is_not():
    def silent(seconds: int) -> NodeState:
        return NodeState("n", slots={"render": 1}, unseen_for=timedelta(seconds=seconds), methods=("wol",))

    assert woken([wants()], silent(121)) == ["n"]
    assert woken([wants()], silent(119)) == []
    assert woken([wants()], NodeState("new", slots={"render": 1}, methods=("wol",))) == ["new"]


def test_a_node_that_says_it_sleeps_does_so_however_recently_it_was_seen():
    node = NodeState("n", slots={"render": 1}, says_asleep=True, unseen_for=timedelta(seconds=1), methods=("wol",))

    assert woken([wants()], node) == ["n"]


# Who is not, and why


@pytest.mark.parametrize(
    ("node", "why"),
    [
        (awake("n"), WhyNot.AWAKE),
        (NodeState("n", slots={"render": 1}, says_asleep=True), WhyNot.NO_METHOD),
        (NodeState("n", slots={"render": 1}, methods=("wol",), is_drained=True), WhyNot.DRAINED),
        (asleep("n", audio=1), WhyNot.NO_MATCH),
        (asleep("n", render=0), WhyNot.NO_MATCH),
        (asleep("n", calls=called(119)), WhyNot.COMING),
        (asleep("n", calls=called(119, ok=None)), WhyNot.COMING),
        (asleep("n", calls=called(119, ok=False)), WhyNot.PAUSING),
        (asleep("n", calls=called(200, count=3)), WhyNot.FAILED),
    ],
)
def test_each_node_that_is_left_alone_has_its_reason(node: NodeState, why: WhyNot):
    assert planned([wants(2)], node).reasons == {"n": why}
    assert planned([wants(2)], node).wake == ()


def test_a_node_that_nobody_needs_stays_asleep_with_that_reason():
    assert planned([wants()], asleep("a"), asleep("b")).reasons == {"b": WhyNot.NOT_NEEDED}


def test_a_drained_node_serves_nothing_even_if_it_is_awake():
    drained = NodeState("on", slots={"render": 9}, unseen_for=timedelta(0), is_drained=True)

    assert woken([wants()], drained, asleep("off")) == ["off"]


def test_a_node_that_was_woken_a_moment_ago_is_waited_for_instead_of_waking_another():
    coming = asleep("a", calls=called(30))

    assert woken([wants()], coming, asleep("b")) == []
    assert woken([wants(2)], coming, asleep("b")) == ["b"]


def test_after_a_call_in_vain_another_node_is_woken():
    assert woken([wants()], asleep("a", calls=called(30, ok=False)), asleep("b")) == ["b"]


def test_a_node_is_called_again_after_its_pause_and_behind_those_not_called_yet():
    late = asleep("a", calls=called(120))

    assert woken([wants()], late) == ["a"]
    assert woken([wants()], late, asleep("b")) == ["b"]


def test_the_plan_says_what_nobody_can_serve_and_when_a_node_may_be_tried_again():
    choosy = wants(3, requires={"gpu": True})
    made = planned([choosy], asleep("n", {"gpu": True}, called(90, ok=False)))

    assert made.unmet == ((choosy, 3),)
    assert made.again_in == timedelta(seconds=30)


def test_a_label_true_does_not_match_the_number_one():
    assert has_labels({"gpu": True, "cores": 8}, {"gpu": True, "cores": 8.0})
    assert not has_labels({"gpu": 1}, {"gpu": True})
    assert not has_labels({"gpu": False}, {"gpu": 0})
    assert not has_labels({}, {"gpu": False})


# When


def test_a_node_is_called_so_early_that_it_is_ready_in_time():
    def slow(seconds: int) -> NodeState:
        return NodeState(
            "n", slots={"render": 1}, says_asleep=True, methods=("wol",), latency=timedelta(seconds=seconds)
        )

    soon = wants(due_in=timedelta(seconds=120))

    assert planned([soon], slow(60)).reasons == {"n": WhyNot.NOT_YET}
    assert planned([soon], slow(60)).again_in == timedelta(seconds=120) - lead(timedelta(seconds=60))
    assert woken([soon], slow(100)) == ["n"]
    its = lead(timedelta(seconds=60))
    assert woken([wants(due_in=its)], slow(60)) == ["n"]
    assert woken([wants(due_in=its + timedelta(seconds=1))], slow(60)) == []


def test_where_few_may_start_at_once_the_first_ones_start_so_early_that_the_last_is_in_time():
    its = lead(None)
    nodes = [asleep(name) for name in "abc"]
    demand = [wants(3, due_in=3 * its - timedelta(seconds=1))]

    assert [choice.node for choice in planned(demand, *nodes, at_once=1).wake] == ["a"]
    assert planned(demand, *nodes, at_once=2).wake == ()
    assert planned(demand, *nodes).again_in == 2 * its - timedelta(seconds=1)


def test_of_those_that_cannot_all_start_the_one_goes_first_that_can_be_in_time_still():
    due = wants(requires={"gpu": True}, due_in=timedelta(seconds=60))
    made = planned(
        [wants(requires={"ssd": True}), due], asleep("a", {"ssd": True}), asleep("b", {"gpu": True}), at_once=1
    )

    assert [choice.node for choice in made.wake] == ["b"]
    assert made.reasons == {"a": WhyNot.STAGGERED}


def test_nodes_that_start_for_what_nobody_wants_any_more_count_as_starting():
    other = asleep("x", calls=called(5), audio=1)

    staggered = planned([wants()], other, asleep("a"), at_once=1)

    assert staggered.reasons["a"] is WhyNot.STAGGERED
    assert staggered.again_in == timedelta(seconds=115)
    assert [choice.node for choice in planned([wants()], other, asleep("a"), at_once=2).wake] == ["a"]


def test_the_next_method_is_used_after_a_call_that_did_not_get_through():
    node = NodeState("n", slots={"render": 1}, says_asleep=True, methods=("wol", "script"), calls=called(1, ok=False))

    assert [choice.method for choice in planned([wants()], node).wake] == ["script"]


def test_a_node_that_fell_asleep_just_now_is_called_only_if_there_is_no_other():
    def gone(name: str, seconds: int) -> NodeState:
        return NodeState(
            name, slots={"render": 1}, says_asleep=True, unseen_for=timedelta(seconds=seconds), methods=("wol",)
        )

    assert woken([wants()], gone("a", 3), gone("b", 300)) == ["b"]
    assert woken([wants()], gone("a", 3)) == ["a"]


# Any fleet

SERVICES: tuple[str, ...] = ("render", "audio")
labels = st.dictionaries(st.sampled_from(["gpu", "ssd"]), st.just(True), max_size=2)
ages = st.integers(0, 300).map(lambda seconds: timedelta(seconds=seconds))
calls = st.none() | st.builds(WakeCalls, st.integers(1, 9), ages, st.none() | st.booleans())
methods = st.sampled_from([(), ("wol",), ("wol", "script")])
per_service: st.SearchStrategy[dict[str, int]] = st.dictionaries(st.sampled_from(SERVICES), st.integers(0, 3))


@st.composite
def fleets(draw: st.DrawFn) -> list[NodeState]:
    names = draw(st.lists(st.sampled_from("abcdef"), unique=True, max_size=6))
    return [
        NodeState(
            name,
            draw(labels),
            draw(per_service),
            draw(per_service),
            says_asleep=draw(st.booleans()),
            unseen_for=draw(st.none() | ages),
            methods=draw(methods),
            latency=draw(st.none() | ages),
            is_drained=draw(st.sampled_from([False, False, True])),
            calls=draw(calls),
        )
        for name in names
    ]


demands = st.lists(
    st.builds(
        Demand,
        st.sampled_from(SERVICES),
        st.integers(1, 4),
        st.just(JOB),
        labels,
        st.none() | st.sampled_from("abc"),
        ages,
    ),
    max_size=5,
)


def most_served(demand: list[Demand], nodes: list[NodeState]) -> int:
    """By Hall's theorem, which knows no paths: the tasks of any groups are bounded by the slots that fit them."""
    served = 0
    for service in SERVICES:
        groups = [d for d in demand if d.service == service]
        total = sum(d.tasks for d in groups)
        lacking = 0
        for size in range(1, len(groups) + 1):
            for some in combinations(groups, size):
                room = sum(n.free(service) for n in nodes if any(n.could_serve(d) for d in some))
                lacking = max(lacking, sum(d.tasks for d in some) - room)
        served += total - lacking
    return served


@settings(max_examples=150, deadline=None)
@given(demands, fleets())
def test_all_that_can_be_served_is_served_by_as_few_nodes_as_possible(demand: list[Demand], fleet: list[NodeState]):
    made = planned(demand, *fleet)
    standing = dict(made.reasons)
    ready = [n for n in fleet if standing.get(n.name) in (WhyNot.AWAKE, WhyNot.COMING)]
    chosen = [n for n in fleet if standing.get(n.name, WhyNot.NOT_YET) is WhyNot.NOT_YET]
    wakeable = chosen + [n for n in fleet if standing.get(n.name) is WhyNot.NOT_NEEDED]
    best = most_served(demand, [*ready, *wakeable])

    assert most_served(demand, [*ready, *chosen]) == best
    assert sum(d.tasks for d in demand) - sum(tasks for _, tasks in made.unmet) == best
    for fewer in combinations(wakeable, max(0, len(chosen) - 1)):
        assert not chosen or most_served(demand, [*ready, *fewer]) < best


@settings(max_examples=150, deadline=None)
@given(demands, fleets())
def test_only_nodes_that_sleep_can_be_woken_and_were_not_just_tried_are_woken(
    demand: list[Demand], fleet: list[NodeState]
):
    by_name = {node.name: node for node in fleet}
    made = planned(demand, *fleet)

    assert sorted([choice.node for choice in made.wake] + list(made.reasons)) == sorted(by_name)
    for choice in made.wake:
        node = by_name[choice.node]
        assert choice.method in node.methods
        assert not node.is_drained
        assert not node.is_awake(LEASE)
        assert node.calls is None or node.calls.ok is False or node.calls.ago >= POLICY.patience(node.latency)
        assert choice.because in demand
        assert node.could_serve(choice.because)


@settings(max_examples=100, deadline=None)
@given(demands, fleets(), st.randoms())
def test_the_plan_does_not_depend_on_the_order_of_rows(demand: list[Demand], fleet: list[NodeState], random: Any):
    made = planned(demand, *fleet)
    random.shuffle(demand)
    random.shuffle(fleet)

    again = planned(demand, *fleet)

    assert again.wake == made.wake
    assert again.reasons == made.reasons


due_later = st.builds(Demand, st.just("render"), st.integers(1, 4), st.just(JOB), due_in=ages)


@settings(max_examples=80, deadline=None)
@given(st.lists(due_later, max_size=4), fleets())
def test_a_node_is_called_when_its_work_is_due_within_its_lead_time_and_not_before(
    demand: list[Demand], fleet: list[NodeState]
):
    made = planned(demand, *fleet)
    leads = {node.name: lead(node.latency, POLICY) for node in fleet}

    for choice in made.wake:
        assert choice.because.due_in <= leads[choice.node]
    not_yet = [name for name, why in made.reasons.items() if why is WhyNot.NOT_YET]
    for name in not_yet:
        assert made.again_in is not None
        assert made.again_in <= max(d.due_in for d in demand) - leads[name]
        assert any(d.due_in > leads[name] for d in demand)


@settings(max_examples=80, deadline=None)
@given(demands, fleets(), st.integers(1, 3))
def test_never_more_nodes_are_starting_than_may_at_once(demand: list[Demand], fleet: list[NodeState], at_once: int):
    made = planned(demand, *fleet, at_once=at_once)
    starting = [name for name, why in made.reasons.items() if why is WhyNot.COMING]
    staggered = [name for name, why in made.reasons.items() if why is WhyNot.STAGGERED]

    assert not made.wake or len(made.wake) + len(starting) <= at_once
    assert not staggered or made.again_in is not None or made.wake


@settings(max_examples=80, deadline=None)
@given(demands, fleets())
def test_a_node_is_needed_exactly_if_less_could_be_served_without_it(demand: list[Demand], fleet: list[NodeState]):
    awake_ones = [n for n in fleet if n.is_awake(LEASE) and not n.is_drained]
    for node in awake_ones:
        others = [n for n in awake_ones if n is not node]
        needed = needed_for(node.name, demand, fleet, lease=LEASE)
        assert (needed is not None) == (most_served(demand, awake_ones) > most_served(demand, others))
        assert needed is None or (needed in demand and node.could_serve(needed))


@st.composite
def offers(draw: st.DrawFn) -> tuple[list[int], list[tuple[int, tuple[int, ...]]]]:
    tasks = draw(st.lists(st.integers(1, 3), min_size=1, max_size=4))
    fits = st.sets(st.sampled_from(range(len(tasks)))).map(lambda groups: tuple(sorted(groups)))
    return tasks, draw(st.lists(st.tuples(st.integers(0, 3), fits), max_size=5))


@settings(max_examples=200, deadline=None)
@given(offers())
def test_a_matching_is_a_maximum_after_each_node_and_foretells_what_a_node_would_gain(
    given: tuple[list[int], list[tuple[int, tuple[int, ...]]]],
):
    tasks, nodes = given
    matching = Matching(tasks)
    served = 0
    for number, (slots, fits) in enumerate(nodes):
        foretold = matching.gain(slots, fits)
        gained = matching.copy().add(str(number), slots, fits)
        assert matching.add(str(number), slots, fits) == gained
        assert gained <= foretold
        assert (gained == 0) == (foretold == 0)
        served += gained
        assert served == sum(tasks) - lacking(tasks, nodes[: number + 1])
        assert sum(tasks) - sum(matching.unmet) == served


def lacking(tasks: list[int], nodes: list[tuple[int, tuple[int, ...]]]) -> int:
    groups = [some for size in range(len(tasks) + 1) for some in combinations(range(len(tasks)), size)]
    return max(
        sum(tasks[group] for group in some) - sum(slots for slots, fits in nodes if set(fits) & set(some))
        for some in groups
    )


def test_a_large_fleet_is_planned_in_a_moment():
    nodes = [asleep(f"n{i:03}", {"gpu": i % 2 == 0, "zone": "eu" if i % 3 else "us"}, render=2) for i in range(300)]
    demand = [wants(50), wants(50, requires={"gpu": True}), wants(20, requires={"zone": "us"})]

    assert len(woken(demand, *nodes)) == 60
