"""When a job will end, as far as that can be said honestly."""

from datetime import UTC, datetime, timedelta
from uuid import NAMESPACE_URL, uuid5

import pytest

from accsd.db.statistics import StepStats
from accsd.explain.eta import Queue, eta_words, expected_start, job_eta
from accsd.explain.segments import Attempt, Story

NOW = datetime(2026, 11, 18, 14, 0, tzinfo=UTC)
STEADY = StepStats(n=20, p50=60, p95=90, wait_p50=1)
FREE = Queue(slots=1)


def after(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def task(key: str, *depends: Story, ran: float | None = None, is_done: bool = False) -> Story:
    attempts = () if ran is None else (Attempt("n1", after(-ran), after(-ran), NOW if is_done else None),)
    ended = NOW if is_done else None
    return Story(
        uuid5(NAMESPACE_URL, key), key, "render", after(-500), tuple(each.id for each in depends), attempts, ended
    )


# The start


@pytest.mark.parametrize(
    ("queue", "starts"),
    [
        (Queue(slots=1), 0),
        (Queue(due_at=NOW + timedelta(seconds=30), slots=1), 30),
        (Queue(wake_left=timedelta(seconds=41), slots=1), 41),
        (Queue(wake_left=timedelta(seconds=-9), slots=1), 0),
        (Queue(ahead=4, slots=2), 120),
        (Queue(due_at=NOW + timedelta(seconds=30), wake_left=timedelta(seconds=200), ahead=4, slots=2), 200),
    ],
    ids=["at once", "when it is due", "when its machine is there", "it is late", "after four others", "the longest"],
)
def test_what_waits_begins_after_the_longest_of_what_stands_before_it(queue: Queue, starts: float):
    assert expected_start(NOW, queue, STEADY) == after(starts)


def test_a_start_is_not_guessed():
    assert expected_start(NOW, Queue(ahead=3, slots=1), None) is None, "nobody knows how long those take"
    assert expected_start(NOW, Queue(ahead=3, slots=1), StepStats(4, 60, 90, 1)) is None
    assert expected_start(NOW, Queue(), STEADY) is None, "no machine is there or comes"


# The end


def test_a_job_ends_when_its_longest_chain_has():
    first = task("first", ran=20)
    short, long = task("short", first), task("long", first)
    last = task("last", short, long)
    usual = {"first": STEADY, "short": STEADY, "long": StepStats(9, 300, 400, 0), "last": STEADY}
    eta = job_eta(NOW, [first, short, long, last], usual, {})
    assert eta.expected_end == after(40 + 300 + 60)
    assert eta.usually == (timedelta(seconds=420), timedelta(seconds=580))
    assert eta.n == 9, "the fewest on that chain"
    assert eta_words(eta, NOW) == f"≈ {after(400).astimezone():%H:%M} (usually 7m)"


def test_what_has_ended_is_the_past_and_what_waits_begins_when_it_can():
    done = task("first", ran=60, is_done=True)
    waits = task("second", done)
    eta = job_eta(NOW, [done, waits], {"first": STEADY, "second": STEADY}, {waits.id: Queue(ahead=2, slots=1)})
    assert (eta.expected_start, eta.expected_end) == (after(120), after(180))


@pytest.mark.parametrize(
    "usual", [StepStats(4, 60, 90, 0), StepStats(50, 60, 240, 0)], ids=["seen four times", "it varies by four"]
)
def test_without_enough_runs_or_with_too_much_between_them_only_the_range_is_said(usual: StepStats):
    eta = job_eta(NOW, [task("a", ran=10)], {"a": usual}, {})
    assert eta.expected_end is None
    words = eta_words(eta, NOW)
    assert words is not None
    assert words.startswith("usually 1m to ")


def test_what_was_never_seen_is_not_guessed():
    eta = job_eta(NOW, [task("a", ran=10), task("b")], {"a": STEADY}, {})
    assert (eta.expected_end, eta.usually, eta_words(eta, NOW)) == (None, None, None)


@pytest.mark.parametrize("ran", [59.0, 61.0, 89.0, 5000.0])
def test_the_end_is_never_in_the_past(ran: float):
    eta = job_eta(NOW, [task("a", ran=ran)], {"a": STEADY}, {})
    assert eta.expected_end == after(max(0.0, 60 - ran))
    assert eta.is_overdue == (ran > 90)
    assert ("longer than usual already" in str(eta_words(eta, NOW))) == (ran > 90)


def test_what_is_held_by_a_pause_or_a_key_has_no_end():
    held = task("a")
    eta = job_eta(NOW, [held], {"a": STEADY}, {})
    assert (eta.expected_start, eta.expected_end) == (None, None)
    assert eta_words(eta, NOW) == "usually 1m to 1m30s"
    assert job_eta(NOW, [held], {"a": STEADY}, {held.id: FREE}).expected_end == after(60)


def test_the_tasks_of_a_step_that_was_multiplied_take_as_long_as_the_step():
    items = [task(f"encode[{i}]", ran=10) for i in range(3)]
    assert job_eta(NOW, items, {"encode": STEADY}, {}).expected_end == after(50)
