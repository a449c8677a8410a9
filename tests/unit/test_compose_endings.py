"""What the engine's facts about an end mean."""

from dataclasses import replace
from datetime import UTC, datetime
from uuid import UUID

import pytest

from accsd.model.fence import Fence
from accsd.model.outcome import ErrorCode
from accsd.runners.compose.docker import Container, moment
from accsd.runners.compose.ending import of_container, of_exec
from accsd.runners.compose.processes import ContainerProcess, View, _read_list

ENDED = Container(
    id="c1", name="accsd-x", labels={}, status="exited", health=None, pid=0, exit_code=0, oom_killed=False, error="",
    started_at=datetime(2026, 1, 1, tzinfo=UTC), user="",
)  # fmt: skip
OURS = Fence(UUID(int=1), 1)
THEIRS = Fence(UUID(int=2), 1)


@pytest.mark.parametrize(
    ("code", "oom", "stopped", "away", "cause"),
    [
        (0, False, False, False, None),
        (0, True, False, True, None),  # a child was killed for its memory, and the task coped
        (3, False, False, True, None),
        (137, False, False, False, ErrorCode.KILLED),
        (143, False, False, False, ErrorCode.KILLED),
        (137, True, False, True, ErrorCode.OOM),
        (137, False, False, True, ErrorCode.WORKER_LOST),
        (143, False, False, True, ErrorCode.WORKER_LOST),
        (255, False, False, True, ErrorCode.WORKER_LOST),
        (255, False, False, False, None),
        (137, False, True, False, None),
    ],
)
def test_the_end_of_a_container(code: int, oom: bool, stopped: bool, away: bool, cause: ErrorCode | None) -> None:
    container = replace(ENDED, exit_code=code, oom_killed=oom)
    ending = of_container(container, was_stopped=stopped, engine_was_away=away)
    assert (ending.exit_code, ending.cause) == (code, cause)


def test_a_container_that_never_began_failed_to_start() -> None:
    container = replace(ENDED, status="created", exit_code=127, started_at=None, error="not found")
    ending = of_container(container, was_stopped=False, engine_was_away=False)
    assert (ending.cause, ending.detail) == (ErrorCode.START_FAILED, "not found")


NOT_FOUND = b'OCI runtime exec failed: exec failed: unable to start container process: exec: "x": not found'


@pytest.mark.parametrize(
    ("code", "head", "oom", "cause"),
    [
        (0, b"", True, None),
        (126, NOT_FOUND, False, ErrorCode.START_FAILED),
        (127, NOT_FOUND, False, ErrorCode.START_FAILED),
        (127, b"sh: x: not found", False, None),
        (1, NOT_FOUND, False, None),
        (137, b"", True, ErrorCode.OOM),
        (137, b"", False, ErrorCode.KILLED),
        (143, b"", True, ErrorCode.KILLED),
    ],
)
def test_the_end_of_a_command(code: int, head: bytes, oom: bool, cause: ErrorCode | None) -> None:
    assert of_exec(code, head, saw_oom=oom).cause is cause


def test_the_engine_writes_the_year_one_for_never() -> None:
    assert moment("0001-01-01T00:00:00Z") is None
    assert moment("2026-11-16T08:25:46.322908224Z") == datetime(2026, 11, 16, 8, 25, 46, 322908, tzinfo=UTC)


def test_an_attempts_processes_are_its_marked_ones_their_descendants_and_their_sessions() -> None:
    service, command, child = (
        ContainerProcess(1, 0, 1, None),
        ContainerProcess(10, 0, 10, OURS),
        ContainerProcess(11, 10, 10, None),
    )
    daemon, its_child = ContainerProcess(12, 1, 12, OURS), ContainerProcess(13, 12, 13, None)
    orphan_without_marks = ContainerProcess(14, 1, 10, None)
    others = [
        ContainerProcess(20, 0, 20, THEIRS),
        ContainerProcess(21, 20, 20, None),
        ContainerProcess(2, 1, 1, None),
        ContainerProcess(30, 0, 30, None),
    ]
    ours = [command, child, daemon, its_child, orphan_without_marks]
    view = View([service, *ours, *others], from_host=True)
    assert {process.pid for process in view.of(OURS)} == {process.pid for process in ours}
    assert view.still_works(OURS)
    assert not View([service, daemon, *others], from_host=True).still_works(OURS)
    assert view.fences() == {OURS, THEIRS}


def test_a_mark_cannot_pose_as_a_process() -> None:
    marks = f"ACCSD_NODE=n\nACC_JOB_TASK_ID={OURS.task_id}\nACC_ATTEMPT_ID=process 1 0 1 S\n"
    text = f"process 1 0 1 S\nprocess 9 1 9 S\n{marks}"
    assert [(process.pid, process.fence) for process in _read_list(text, "n")] == [(1, None), (9, None)]
    good = text.replace("=process 1 0 1 S", "=1")
    assert [process.fence for process in _read_list(good, "n")] == [None, OURS]
    assert [process.fence for process in _read_list(good, "m")] == [None, None]
