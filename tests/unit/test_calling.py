"""Calling a node that is to be awake: which method is next, how long it is waited for, when it is left alone."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accsd.planning.cover import WakeCalls
from accsd.planning.wake import NextCall, WakePolicy, WakeState, turn

POLICY = WakePolicy(boot=timedelta(seconds=100), rounds=3, rest=timedelta(minutes=15), longest_rest=timedelta(hours=1))
METHODS = ("wol", "provider", "script")

ages = st.integers(0, 20_000).map(lambda seconds: timedelta(seconds=seconds))
latencies = st.none() | st.integers(0, 600).map(lambda seconds: timedelta(seconds=seconds))
methods = st.lists(st.sampled_from(METHODS), min_size=1, max_size=3, unique=True)
results = st.none() | st.booleans()


def after(count: int, seconds: float = 0, ok: bool | None = True, names: tuple[str, ...] = METHODS) -> NextCall:
    return turn(names, WakeCalls(count, timedelta(seconds=seconds), ok), POLICY)


def pauses(names: tuple[str, ...], rounds: int) -> list[timedelta]:
    """After each of so many rounds of calls that did not get through."""
    return [after(len(names) * number, ok=False, names=names).wait for number in range(1, rounds + 1)]


def test_a_node_that_was_not_called_is_called_by_its_best_method():
    assert turn(METHODS, None, POLICY) == NextCall(WakeState.CALL, "wol")


def test_a_call_that_got_through_is_given_its_time():
    assert after(1, 40) == NextCall(WakeState.COMING, wait=timedelta(seconds=60))
    assert after(1, 40, ok=None).state is WakeState.COMING
    assert after(1, 100) == NextCall(WakeState.CALL, "provider")


def test_a_node_whose_time_is_known_is_given_twice_that_and_a_little():
    called = WakeCalls(1, timedelta(seconds=100), ok=True)

    assert turn(METHODS, called, POLICY, timedelta(seconds=60)).wait == timedelta(seconds=50)
    assert turn(METHODS, called, POLICY, timedelta(seconds=20)).state is WakeState.CALL


def test_a_call_that_did_not_get_through_is_followed_by_the_next_method_at_once():
    assert [after(count, ok=False).method for count in (1, 2)] == ["provider", "script"]
    assert after(3, ok=False).state is WakeState.PAUSING


def test_pauses_double_and_the_node_has_failed_only_after_the_rounds():
    assert [after(number, ok=False, names=("wol",)).state for number in (1, 2, 3, 4)] == [
        WakeState.PAUSING,
        WakeState.PAUSING,
        WakeState.FAILED,
        WakeState.FAILED,
    ]
    assert [pause.total_seconds() for pause in pauses(("wol",), 6)] == [100, 200, 900, 1800, 3600, 3600]


@pytest.mark.parametrize("count", [9, 12, 300, 30_000])
def test_a_node_that_failed_is_asked_again_by_itself_and_round_after_round(count: int):
    assert after(count, ok=False).state is WakeState.FAILED
    assert after(count, POLICY.longest_rest.total_seconds(), ok=False) == NextCall(WakeState.CALL, "wol")
    assert after(count + 1, ok=False) == NextCall(WakeState.CALL, "provider")


@given(methods, st.integers(1, 40), ages, results, latencies)
def test_what_is_next_is_a_call_by_one_of_the_methods_or_a_wait(
    names: list[str], count: int, ago: timedelta, ok: bool | None, latency: timedelta | None
):
    its = turn(names, WakeCalls(count, ago, ok), POLICY, latency)

    if its.state is WakeState.CALL:
        assert its.method == names[count % len(names)]
        assert its.wait == timedelta(0)
    else:
        assert its.method is None
        assert its.wait > timedelta(0)
        assert (its.state is WakeState.FAILED) <= (count >= POLICY.rounds * len(names))


@given(methods, st.integers(1, 40), ages, results, latencies)
def test_after_the_wait_there_is_a_call_and_never_later(
    names: list[str], count: int, ago: timedelta, ok: bool | None, latency: timedelta | None
):
    its = turn(names, WakeCalls(count, ago, ok), POLICY, latency)
    later = turn(names, WakeCalls(count, ago + its.wait, ok), POLICY, latency)

    # after a call in vain comes the pause of its round, which began with the call
    last = turn(names, WakeCalls(count, ago + its.wait + later.wait, ok), POLICY, latency)
    assert last.state is WakeState.CALL


@given(methods, latencies, st.lists(results, min_size=12, max_size=12))
def test_every_method_has_its_turn_and_pauses_never_shrink(
    names: list[str], latency: timedelta | None, answers: list[bool | None]
):
    """A node that never comes, called whenever it is its turn."""
    used: list[str] = []
    rests: list[timedelta] = []
    calls: WakeCalls | None = None
    for ok in answers:
        its = turn(names, calls, POLICY, latency)
        while its.state is not WakeState.CALL:
            assert calls is not None
            if its.state is not WakeState.COMING:
                rests.append(its.wait + calls.ago)
            calls = WakeCalls(calls.count, calls.ago + its.wait, calls.ok)
            its = turn(names, calls, POLICY, latency)
        assert its.method is not None
        used.append(its.method)
        calls = WakeCalls(len(used), timedelta(0), ok)

    assert used == [names[number % len(names)] for number in range(len(used))]
    if latency is None or POLICY.patience(latency) * 2 ** (POLICY.rounds - 2) <= POLICY.rest:
        assert rests == sorted(rests)
