"""The words of the tables and the moves between them, against SPEC "The transitions, complete"."""

import re
from enum import StrEnum

import pytest

from accsd.model import (
    JOB_TRANSITIONS,
    TASK_TRANSITIONS,
    ArtifactKind,
    AwakeState,
    JobStatus,
    Level,
    Status,
    TaskStatus,
    WakeMethod,
)

# SPEC's prose, one line for each of its sentences.
TASK_MOVES = """
queued → starting
starting → running
running → done, error
starting, running → queued
starting → error
queued → skipped
queued, starting, running → cancelled
error, skipped, cancelled, done → queued
"""
JOB_MOVES = """
queued → running
running → done, error, cancelled
queued → error
queued → cancelled
done, error, cancelled → running
"""


def moves(prose: str) -> set[tuple[str, str]]:
    lines = [re.split(r"\s*→\s*", line) for line in prose.strip().splitlines()]
    return {(a, b) for before, after in lines for a in before.split(", ") for b in after.split(", ")}


def test_the_tasks_transitions_are_the_complete_list():
    assert {(str(a), str(b)) for a, b in TASK_TRANSITIONS} == moves(TASK_MOVES)


def test_the_jobs_transitions_are_the_complete_list():
    assert {(str(a), str(b)) for a, b in JOB_TRANSITIONS} == moves(JOB_MOVES)


@pytest.mark.parametrize(
    ("enum", "words"),
    [
        (TaskStatus, "queued starting running done error skipped cancelled"),
        (JobStatus, "queued running done error cancelled"),
        (Level, "debug info warn error"),
        (ArtifactKind, "input output log"),
        (AwakeState, "unknown awake sleep"),
        (WakeMethod, "wol provider script"),
    ],
)
def test_the_labels_are_the_literal_words(enum: type[StrEnum], words: str):
    assert [str(label) for label in enum] == words.split()


def test_a_terminal_task_is_left_only_for_the_queue_and_a_terminal_job_only_for_running():
    assert {b for a, b in TASK_TRANSITIONS if a.is_terminal} == {TaskStatus.QUEUED}
    assert {b for a, b in JOB_TRANSITIONS if a.is_terminal} == {JobStatus.RUNNING}


def test_only_done_and_skipped_satisfy_the_steps_behind_them():
    assert [str(s) for s in TaskStatus if s.satisfies_dependants] == ["done", "skipped"]
    assert [str(s) for s in TaskStatus if s.is_leased] == ["starting", "running"]


def test_status_is_either_of_the_two():
    assert isinstance(TaskStatus.SKIPPED, Status)
    assert isinstance(JobStatus.DONE, Status)
