"""The rules see what they are there for: stories that a sound fleet does not tell."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from tests.chaos import verdict
from tests.chaos.effects import Execution
from tests.chaos.fleet import Span
from tests.chaos.verdict import End, Story

TASK = "t"


def execution(
    attempt: int = 1, *, begin: float = 10, last: float = 11, node: str = "n1", ended: bool = True
) -> Execution:
    """Both clocks are the same here."""
    return Execution(TASK, attempt, f"nonce {attempt}", node, "work", begin, begin, last, ended)


def in_docker() -> Execution:
    return replace(execution(ended=False), service="box")


def story(*executions: Execution, absences: tuple[Span, ...] = (), **known: Any) -> Story:
    """Sound, unless `known` says otherwise: n1 had each attempt, the last one is done, those before were lost."""
    agent = SimpleNamespace(absences=list(absences), outages=[])
    keys = [each.key for each in executions]
    sound: dict[str, Any] = {
        "owners": {each.key: "n1" for each in executions},
        "leases": dict.fromkeys(keys, 1000.0),
        "ends": {key: End(100, "queued", "lost", "worker_lost") for key in keys[:-1]}
        | {key: End(200, "done", None, None) for key in keys[-1:]},
        "done": {key: f"nonce {key[1]}" for key in keys[-1:]},
    }
    fleet: Any = SimpleNamespace(member=lambda name: agent, killed={(TASK, 7)})
    return Story(fleet, SimpleNamespace(strange=[]), list(executions), **{**sound, **known})  # pyright: ignore[reportArgumentType]


PURE = (
    verdict.each_attempt_once,
    verdict.each_has_its_claim,
    verdict.none_begins_late,
    verdict.none_overlaps,
    verdict.done_was_done,
    verdict.ends_are_recorded,
    verdict.none_fails_unharmed,
)
LOST = End(9, "queued", "lost", "worker_lost")
FAILED = End(12, "queued", "error", "exit_1")


@pytest.mark.parametrize(
    ("told", "broken"),
    [
        (story(execution(), execution(2, begin=20, last=21)), None),
        (story(execution(), execution(begin=20)), verdict.each_attempt_once),
        (story(execution(node="n2")), verdict.each_has_its_claim),
        (story(execution(), leases={(TASK, 1): 9.9}), verdict.none_begins_late),
        (story(execution(), ends={(TASK, 1): LOST}), verdict.none_begins_late),
        (story(in_docker(), leases={(TASK, 1): 9.9}, done={}), verdict.none_begins_late),
        (story(in_docker(), leases={(TASK, 1): 9.9}, absences=(Span(2, 9.9),), done={}), None),
        (story(execution(last=21), execution(2, begin=20, last=22)), verdict.none_overlaps),
        (story(execution(last=21), execution(2, begin=20, last=22), absences=(Span(14, 18),)), None),
        (story(execution(ended=False)), verdict.done_was_done),
        (story(execution(), done={(TASK, 1): "of another"}), verdict.done_was_done),
        (story(execution(), ends={}), verdict.ends_are_recorded),
        (story(execution(), ends={(TASK, 1): FAILED}), verdict.none_fails_unharmed),
        (story(execution(7), ends={(TASK, 7): FAILED}), None),
        (story(execution(), ends={(TASK, 1): FAILED}, doomed={TASK}), None),
    ],
)
async def test_a_broken_promise_is_seen_by_its_rule_and_a_sound_story_by_none(told: Story, broken: object):
    assert [rule for rule in PURE if await rule(told)] == ([broken] if broken is not None else [])
