"""Where the time of a job went: hand-made stories, in seconds from one moment on."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from hypothesis import given
from hypothesis import strategies as st

from accsd.explain.segments import (
    Attempt,
    Facts,
    JobStory,
    Kind,
    PauseSpan,
    PowerSpan,
    Segment,
    Span,
    Story,
    Subject,
    SubjectType,
    critical_path,
    job_bar,
    segments,
    sums,
)

BEGIN = datetime(2026, 11, 18, 14, 0, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return BEGIN + timedelta(seconds=seconds)


def attempt(claimed: float, started: float | None = None, ended: float | None = None, **given: Any) -> Attempt:
    again = given.pop("again", None)
    outcome = given.pop("outcome", "done" if ended is not None else None)
    return Attempt(
        given.pop("node", "n1"),
        at(claimed),
        None if started is None else at(started),
        None if ended is None else at(ended),
        outcome,
        None if again is None else at(again),
    )


def story(
    name: str, /, *attempts: Attempt, after: Sequence[Story] = (), ended: float | None = None, **given: Any
) -> Story:
    """A task that was made at 0; it has ended when its last attempt has, unless `ended` says otherwise."""
    last = attempts[-1] if attempts else None
    its_end = at(ended) if ended is not None else last.ended_at if last and last.outcome == "done" else None
    return Story(
        uuid5(NAMESPACE_URL, name),
        name,
        given.pop("service", "render"),
        at(given.pop("opened", 0)),
        tuple(task.id for task in after),
        attempts,
        its_end,
        frozenset(given.pop("fits", ("n1",))),
        **given,
    )


def power(*states: tuple[float, str], until: float = 1000) -> list[PowerSpan]:
    """From when on the machine was in which state."""
    ends = [since for since, _ in states[1:]] + [until]
    return [PowerSpan(at(since), at(end), state) for (since, state), end in zip(states, ends, strict=True)]


THERE = {"n1": power((0, "ready"))}


def facts(now: float = 1000, **given: Any) -> Facts:
    power: Any = given.pop("power", THERE)
    return Facts(at(now), "clip", power, **given)


Told = list[tuple[str, float, float, str | None]]


def told(pieces: Sequence[Segment]) -> Told:
    return [
        (
            piece.kind.value,
            (piece.since - BEGIN).total_seconds(),
            (piece.until - BEGIN).total_seconds(),
            None if piece.subject is None else f"{piece.subject.type}:{piece.subject.name}",
        )
        for piece in pieces
    ]


def cut(task: Story, known: Facts | None = None, *others: Story) -> Told:
    return told(segments(task, {each.id: each for each in (task, *others)}, known or facts()))


def spent(pieces: Told) -> list[tuple[str, float]]:
    return [(kind, until - since) for kind, since, until, _ in pieces]


# A task


def test_a_task_that_runs_at_once_was_starting_and_running():
    assert cut(story("a", attempt(0, 2, 60))) == [("starting", 0, 2, "node:n1"), ("running", 2, 60, "node:n1")]


def test_a_wait_for_a_dependency_names_the_one_that_ended_last():
    first, second = story("first", attempt(0, 0, 10)), story("second", attempt(0, 0, 40))
    task = story("a", attempt(40, 40, 50), after=[first, second])
    assert cut(task, None, first, second)[0] == ("dependency", 0, 40, "task:second")


def test_a_wait_while_a_machine_is_there_is_capacity_and_without_one_the_lack_of_it():
    known = facts(power={"n1": power((0, "unknown"), (30, "ready"))})
    assert cut(story("a", attempt(50, 50, 60)), known)[:2] == [
        ("no_node", 0, 30, "service:render"),
        ("capacity", 30, 50, "service:render"),
    ]


def test_the_machine_that_took_it_slept_was_called_and_started():
    known = facts(power={"n1": power((0, "asleep"), (10, "waking"), (15, "booting"), (55, "ready"))})
    assert cut(story("a", attempt(56, 58, 100)), known) == [
        ("asleep", 0, 10, "node:n1"),
        ("wake", 10, 15, "node:n1"),
        ("boot", 15, 55, "node:n1"),
        ("capacity", 55, 56, "service:render"),
        ("starting", 56, 58, "node:n1"),
        ("running", 58, 100, "node:n1"),
    ]


def test_where_nobody_took_it_yet_a_sleeping_machine_matters_only_while_no_other_is_there():
    asleep, there = power((0, "asleep")), power((0, "unknown"), (20, "ready"), (70, "unknown"))
    known = facts(100, power={"n1": asleep, "n2": there})
    assert cut(story("a", fits=("n1", "n2")), known) == [
        ("asleep", 0, 20, "node:n1"),
        ("capacity", 20, 70, "service:render"),
        ("asleep", 70, 100, "node:n1"),
    ]


def test_a_pause_counts_before_all_else_and_names_what_was_paused():
    pauses = [
        PauseSpan(at(10), at(30), Subject(SubjectType.SERVICE, "render")),
        PauseSpan(at(25), at(40), Subject(SubjectType.WORKFLOW, "clip")),
        PauseSpan(at(0), at(90), Subject(SubjectType.SERVICE, "audio")),
        PauseSpan(at(45), at(50), Subject(SubjectType.NODE, "n1")),
    ]
    known = facts(pauses=pauses, power={"n1": power((0, "asleep"), (35, "ready"))})
    assert cut(story("a", attempt(60, 60, 61)), known)[:-1] == [
        ("asleep", 0, 10, "node:n1"),
        ("paused", 10, 30, "service:render"),
        ("paused", 30, 40, "workflow:clip"),
        ("capacity", 40, 45, "service:render"),
        ("paused", 45, 50, "node:n1"),
        ("capacity", 50, 60, "service:render"),
    ]


def test_a_key_was_in_the_way_while_as_many_held_it_as_may():
    holders = {"youtube": [Span(at(-10), at(20)), Span(at(5), at(30)), Span(at(40), at(50))]}
    task = story("a", attempt(60, 60, 61), key="youtube")
    two = facts(holders=holders, limits={"youtube": 2})
    assert cut(task, two)[:-1] == [
        ("capacity", 0, 5, "service:render"),
        ("key", 5, 20, "key:youtube"),
        ("capacity", 20, 60, "service:render"),
    ]
    one = facts(holders=holders, limits={"youtube": 1})
    assert [piece for piece in cut(task, one) if piece[0] == "key"] == [
        ("key", 0, 30, "key:youtube"),
        ("key", 40, 50, "key:youtube"),
    ]
    assert spent(cut(replace(task, key=None), one))[0] == ("capacity", 60), "another task does not wait for it"


def test_a_failed_attempt_is_followed_by_its_backoff_and_what_comes_after_it_is_a_wait():
    task = story("a", attempt(0, 1, 10, outcome="error", again=25), attempt(30, 31, 50))
    assert spent(cut(task)) == [
        ("starting", 1),
        ("running", 9),
        ("backoff", 15),
        ("capacity", 5),
        ("starting", 1),
        ("running", 19),
    ]


def test_an_attempt_whose_owner_was_lost_is_lost_from_the_claim_on():
    task = story("a", attempt(0, 1, 90, outcome="lost"), attempt(90, 90, 95, node="n2"))
    assert cut(task, facts(power=THERE | {"n2": power((0, "ready"))})) == [
        ("lost", 0, 90, "node:n1"),
        ("running", 90, 95, "node:n2"),
    ]


def test_an_attempt_that_was_given_back_has_run_and_the_next_follows():
    assert spent(cut(story("a", attempt(0, 1, 5, outcome="released"), attempt(8, 8, 9)))) == [
        ("starting", 1),
        ("running", 4),
        ("capacity", 3),
        ("running", 1),
    ]


def test_a_step_that_begins_later_is_delayed_as_long_as_it_says():
    first = story("first", attempt(0, 0, 10))
    task = story("a", attempt(75, 75, 80), after=[first], delay=timedelta(minutes=1))
    assert spent(cut(task, None, first)) == [("dependency", 10), ("delay", 60), ("capacity", 5), ("running", 5)]


def test_what_waits_now_says_what_holds_it():
    assert spent(cut(story("a", hold="resolve"), facts(40))) == [("resolve", 40)]
    assert spent(cut(story("a", hold="backoff"), facts(40))) == [("delay", 40)]
    tried = story("a", attempt(0, 0, 5, outcome="error", again=100), hold="backoff")
    assert spent(cut(tried, facts(40))) == [("running", 5), ("backoff", 35)]
    assert spent(cut(tried, facts(130))) == [("running", 5), ("backoff", 125)], "nobody has looked yet"


def test_what_is_under_way_grows_with_the_time():
    task = story("a", attempt(0, 5))
    assert [spent(cut(task, facts(now)))[-1] for now in (3, 10, 20)] == [
        ("starting", 3),
        ("running", 5),
        ("running", 15),
    ]


def test_a_task_that_was_skipped_or_cancelled_before_a_claim_waited_until_then():
    assert spent(cut(story("a", ended=7))) == [("capacity", 7)]


# A job


def job(ended: float | None, *, due: float | None = None, began: float | None = 0, opened: float = 0) -> JobStory:
    return JobStory(
        "clip",
        at(opened),
        None if due is None else at(due),
        None if began is None else at(began),
        None if ended is None else at(ended),
    )


def test_a_jobs_bar_is_the_chain_that_decided_its_end():
    top = story("top", attempt(0, 0, 10))
    quick = story("quick", attempt(10, 10, 15), after=[top])
    slow = story("slow", attempt(12, 12, 60), after=[top])
    bottom = story("bottom", attempt(61, 61, 70), after=[quick, slow])
    tasks = [top, quick, slow, bottom]
    assert [task.task_key for task in critical_path(job(70), tasks, facts())] == ["top", "slow", "bottom"]
    bar = job_bar(job(70), tasks, facts())
    assert [(piece.task_key, piece.kind.value, piece.length.total_seconds()) for piece in bar] == [
        ("top", "running", 10),
        ("slow", "capacity", 2),
        ("slow", "running", 48),
        ("bottom", "capacity", 1),
        ("bottom", "running", 9),
    ]


def test_the_sum_is_over_all_tasks_and_counts_no_wait_for_each_other():
    top = story("top", attempt(0, 0, 10))
    left, right = (story(key, attempt(10, 10, 30), after=[top]) for key in ("left", "right"))
    stories = {task.id: task for task in (top, left, right)}
    assert sums(stories.values(), stories, facts()) == {Kind.RUNNING: timedelta(seconds=50)}


def test_a_job_for_later_is_delayed_and_then_waits_for_its_tasks_to_be_made():
    task = story("a", attempt(112, 112, 120), opened=110)
    assert spent(told(job_bar(job(120, due=100, began=110), [task], facts()))) == [
        ("delay", 100),
        ("queued", 10),
        ("capacity", 2),
        ("running", 8),
    ]
    assert spent(told(job_bar(job(None, due=100, began=None), [], facts(60)))) == [("delay", 60)]
    assert spent(told(job_bar(job(None, began=None), [], facts(60)))) == [("queued", 60)]


def test_a_job_under_way_follows_the_step_with_the_most_below_it():
    top = story("top", attempt(0, 0, 10))
    side = story("side", attempt(10, 10), after=[top])
    main = story("main", attempt(15, 15), after=[top])
    later = story("later", after=[main])
    tasks = [top, side, main, later]
    assert [task.task_key for task in critical_path(job(None), tasks, facts(30))] == ["top", "main"]
    assert spent(told(job_bar(job(None), tasks, facts(30)))) == [("running", 10), ("capacity", 5), ("running", 15)]
    assert spent(told(job_bar(job(None), tasks, facts(90))))[-1] == ("running", 75), "it grows"


def test_a_second_run_begins_when_it_was_asked_for_and_leaves_out_what_was_kept():
    kept = story("kept", attempt(0, 0, 10))
    again = story("again", attempt(503, 503, 510), after=[kept], opened=500)
    bar = job_bar(job(510, opened=500, began=500), [kept, again], facts())
    assert [(piece.task_key, piece.kind.value) for piece in bar] == [("again", "capacity"), ("again", "running")]


def test_a_join_follows_the_item_that_ended_last():
    step = story("encode", attempt(5, 5, 5))
    items = [story(f"encode[{i}]", attempt(5, 5, 10 + i), after=[step]) for i in range(3)]
    join = story("join", attempt(12, 12, 20), after=[step, *items])
    path = critical_path(job(20), [step, *items, join], facts())
    assert [task.task_key for task in path] == ["encode", "encode[2]", "join"]


moments = st.lists(st.integers(0, 200), min_size=0, max_size=12)


@given(moments, moments, moments, st.integers(0, 150), st.integers(0, 100), st.sampled_from([None, "n1"]))
def test_the_pieces_cover_the_time_without_a_gap_or_an_overlap(
    states: list[int], pauses: list[int], held: list[int], claimed: int, ran: int, node: str | None
):
    """Whatever went on at the same time."""
    names = ("asleep", "waking", "booting", "ready", "unknown", "failed")
    changes = sorted(set(states))
    known = facts(
        300,
        power={"n1": power(*((since, names[i * 5 % 6]) for i, since in enumerate(changes))) if changes else []},
        pauses=[
            PauseSpan(at(a), at(a + b), Subject(SubjectType.SERVICE, "render"))
            for a, b in zip(pauses[::2], pauses[1::2], strict=False)
        ],
        holders={"k": [Span(at(a), at(a + b)) for a, b in zip(held[::2], held[1::2], strict=False)]},
    )
    attempts = [] if node is None else [attempt(claimed, claimed + ran / 2, claimed + ran)]
    task = story("a", *attempts, key="k")
    pieces = segments(task, {task.id: task}, known)
    ends = 300 if node is None else claimed + ran
    marks = [0.0, *(mark for _, since, until, _ in told(pieces) for mark in (since, until)), float(ends)]
    assert marks == sorted(marks)
    assert sum(until - since for _, since, until, _ in told(pieces)) == ends
