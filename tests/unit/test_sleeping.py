"""When a node may sleep, and who lets others claim first."""

from dataclasses import replace
from datetime import timedelta
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from accsd.planning.cover import Demand, NodeState
from accsd.planning.sleep import IdleTime, SleepRules, looks_ahead, reason_to_stay, stays_for, yields_for
from accsd.planning.wake import left_for

RULES = SleepRules(idle=timedelta(minutes=5), awake=timedelta(minutes=2), boots=0.5)

spans = st.integers(0, 900).map(lambda seconds: timedelta(seconds=seconds))
rests = st.builds(IdleTime, st.none() | spans, spans, st.none() | spans)
rules = st.builds(SleepRules, spans, spans, st.floats(0, 3))


def node(idle: float | None, awake: float = 3600, latency: float | None = None) -> IdleTime:
    return IdleTime(
        None if idle is None else timedelta(seconds=idle),
        timedelta(seconds=awake),
        None if latency is None else timedelta(seconds=latency),
    )


def test_a_node_at_work_stays_until_something_changes():
    stay = reason_to_stay(node(None), RULES)

    assert stay is not None
    assert stay.because == "it is at work"
    assert stay.again_in is None


def test_an_idle_node_sleeps_after_its_time_and_not_before():
    stay = reason_to_stay(node(299), RULES)

    assert stay is not None
    assert stay.again_in == timedelta(seconds=1)
    assert reason_to_stay(node(300), RULES) is None


def test_a_node_that_boots_quickly_sleeps_sooner_and_never_later_than_its_time():
    assert stays_for(node(0, latency=60), RULES) == timedelta(seconds=30)
    assert stays_for(node(0, latency=6000), RULES) == RULES.idle
    assert reason_to_stay(node(30, latency=60), RULES) is None


def test_a_node_that_was_woken_just_now_stays_however_idle_it_is():
    stay = reason_to_stay(node(119, awake=119, latency=10), RULES)

    assert stay is not None
    assert stay.because == "it started, or came back, only a short while ago"
    assert stay.again_in == timedelta(seconds=1)


def test_work_is_worth_waiting_for_if_sleep_until_then_would_be_shorter_than_a_boot_is_worth():
    assert looks_ahead(node(0, latency=60), RULES, timedelta(seconds=80)) == timedelta(seconds=110)


@given(rests, rules)
def test_after_the_time_that_it_was_told_to_stay_a_node_may_sleep_and_not_sooner(rest: IdleTime, its: SleepRules):
    stay = reason_to_stay(rest, its)
    if stay is None:
        assert rest.idle_for is not None
        assert rest.idle_for >= stays_for(rest, its)
        assert rest.awake_for >= its.awake
    elif stay.again_in is not None:
        assert rest.idle_for is not None
        assert stay.again_in > timedelta(0)
        longest = max(its.awake - rest.awake_for, stays_for(rest, its) - rest.idle_for)
        later = IdleTime(rest.idle_for + longest, rest.awake_for + longest, rest.latency)
        assert stay.again_in <= longest
        assert reason_to_stay(later, its) is None


@given(rests, rests, rules)
def test_work_goes_to_nodes_at_work_then_to_the_one_that_has_rested_least(a: IdleTime, b: IdleTime, its: SleepRules):
    first, second = yields_for(a, its), yields_for(b, its)

    assert timedelta(0) <= first <= timedelta(milliseconds=100)
    if a.idle_for is None:
        assert first == timedelta(0)
        assert b.idle_for is None or first < second
    elif b.idle_for is not None and a.idle_for <= b.idle_for:
        assert first <= second


def test_what_is_left_for_a_node_is_what_it_could_claim_at_this_moment():
    its = NodeState("n1", {"gpu": True}, slots={"render": 2, "audio": 1}, live={"audio": 1, "render": 1})
    waits = Demand("render", 1, UUID(int=1), {"gpu": True})
    later, elsewhere = replace(waits, due_in=timedelta(seconds=1)), replace(waits, requires={"zone": "eu"})
    full, unknown = replace(waits, service="audio"), replace(waits, service="video")
    assert left_for("n1", [later, elsewhere, full, unknown, replace(waits, node="n2")], [its]) is None
    assert left_for("n1", [later, waits], [its]) == waits
    assert left_for("n1", [waits], [replace(its, is_drained=True)]) is None
