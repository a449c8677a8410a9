"""The task protocol: what a task is given, and what its lines mean."""

import json
from typing import Any
from uuid import UUID

import orjson
import pytest

from accsd.model.state import ArtifactKind, Level
from accsd.runners.base import Stream
from accsd.work.protocol import (
    MAX_ARTIFACTS,
    ArtifactAnnounced,
    Expected,
    Heartbeat,
    JudgeLine,
    JudgeVerdict,
    LogLine,
    Message,
    ProgressLine,
    ProtocolViolation,
    Result,
    ResultTooLarge,
    TaskAnswer,
    envelope,
    environment,
    parse_line,
)
from accsd.work.protocol.framing import LineSplitter

JOB = UUID("0190a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b")
TASK = UUID("0190a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5c")
EXPECTED = Expected(JOB, 7)
JUDGED = {"schema_version": 1, "job_id": str(JOB), "attempt_id": 7, "verdict": "OK", "time_ms": 12, "mem_kb": 2048}


def heard(written: bytes | dict[str, Any], stream: Stream = Stream.STDOUT) -> Message:
    data = written if isinstance(written, bytes) else json.dumps(written).encode()
    (line,) = LineSplitter().feed(data + b"\n")
    return parse_line(line, stream, EXPECTED)


def problem(written: dict[str, Any]) -> str:
    message = heard(written)
    assert isinstance(message, LogLine)
    assert message.level is Level.WARN
    assert message.message == json.dumps(written)
    assert message.problem
    return message.problem


def test_the_envelope_is_one_line_of_json() -> None:
    written = envelope(
        job_id=JOB,
        job_task_id=TASK,
        attempt_id=7,
        task_key="render",
        service="renderer",
        params={"text": "two\nlines"},
        options={},
        inputs={"cut": {"frames": 240}},
        artifacts=[{"path": "in/a.wav"}],
        workdir="/work",
        trace_id=JOB.hex,
        attempt=1,
        max_attempts=3,
    )
    assert written.count(b"\n") == 1
    assert written.endswith(b"\n")
    read = orjson.loads(written)
    assert (read["schema_version"], read["job_id"], read["job_task_id"]) == (1, str(JOB), str(TASK))
    assert (read["attempt_id"], read["attempt"], read["max_attempts"]) == (7, 1, 3)
    assert read["params"] == {"text": "two\nlines"}
    assert read["inputs"] == {"cut": {"frames": 240}}
    assert read["artifacts"] == [{"path": "in/a.wav"}]
    assert (read["task_key"], read["service"], read["workdir"], read["trace_id"], read["options"]) == (
        "render",
        "renderer",
        "/work",
        JOB.hex,
        {},
    )


def test_the_environment_names_the_ids_and_the_paths() -> None:
    ids: dict[str, Any] = {
        "job_id": JOB,
        "job_task_id": TASK,
        "attempt_id": 7,
        "trace_id": JOB.hex,
        "traceparent": "00-…",
    }
    variables = environment(**ids, task_file="/task.json", workdir="/work")
    assert variables == {
        "ACC_JOB_ID": str(JOB),
        "ACC_JOB_TASK_ID": str(TASK),
        "ACC_ATTEMPT_ID": "7",
        "ACC_TRACE_ID": JOB.hex,
        "TRACEPARENT": "00-…",
        "ACC_TASK_FILE": "/task.json",
        "ACC_WORKDIR": "/work",
    }
    without_paths = environment(**ids, task_file=None, workdir=None)
    assert variables.keys() - without_paths.keys() == {"ACC_TASK_FILE", "ACC_WORKDIR"}


def test_the_five_messages_of_the_protocol() -> None:
    assert heard({"type": "progress", "progress": 0.5, "message": "frame 120"}) == ProgressLine(0.5, "frame 120")
    assert heard({"type": "log", "level": "error", "message": "oh", "data": {"n": 1}}) == LogLine(
        Level.ERROR, "oh", {"n": 1}
    )
    assert heard({"type": "artifact", "kind": "log", "path": "a b/ü.wav", "content_type": "audio/wav"}) == (
        ArtifactAnnounced("a b/ü.wav", ArtifactKind.LOG, "audio/wav")
    )
    assert heard({"type": "heartbeat"}) == Heartbeat()
    assert heard({"type": "result", "results": {"duration": 12.4}}) == Result({"duration": 12.4})


def test_what_may_be_left_out() -> None:
    assert heard({"type": "progress", "progress": 1}) == ProgressLine(1.0)
    assert heard({"type": "log", "message": "oh"}) == LogLine(Level.INFO, "oh")
    assert heard({"type": "log", "level": "WARNING", "message": "oh"}) == LogLine(Level.WARN, "oh")
    assert heard({"type": "artifact", "path": "x"}) == ArtifactAnnounced("x")
    assert heard({"type": "artifact", "path": "x", "required": False}) == ArtifactAnnounced("x", required=False)
    assert heard({"type": "result"}) == heard({"type": "result", "results": None}) == Result({})
    assert heard(b' \t{"type": "heartbeat"}\r') == Heartbeat()


@pytest.mark.parametrize(
    "line", [b"", b"hello", b"[1]", b'"type"', b"{", b"{'type': 'result'}", b'{"a": 1}', b'{"type": "other", "x": 1}']
)
def test_anything_else_is_a_log_line(line: bytes) -> None:
    assert heard(line) == LogLine(Level.INFO, line.decode())


def test_stderr_is_never_read_as_protocol() -> None:
    line = b'{"type": "result", "results": {}}'
    assert heard(line, Stream.STDERR) == LogLine(Level.WARN, line.decode())


@pytest.mark.parametrize("value", ["abc", "0.5", None, True, [], 50, -1, 1.1, float("nan"), float("inf"), 10**400])
def test_a_progress_that_is_no_fraction_is_a_problem_and_no_progress(value: Any) -> None:
    assert "progress" in problem({"type": "progress", "progress": value})


def test_rounding_errors_of_a_progress_are_forgiven() -> None:
    assert heard({"type": "progress", "progress": 1.0000000002}) == ProgressLine(1.0)
    assert heard({"type": "progress", "progress": -1e-9}) == ProgressLine(0.0)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"path": ""},
        {"path": 7},
        {"path": "a\x00b"},
        {"path": "\ud800"},
        {"path": "x" * 1025},
        {"path": "x", "kind": "secret"},
        {"path": "x", "kind": []},
        {"path": "x", "content_type": 1},
        {"path": "x", "content_type": "y" * 256},
        {"path": "x", "required": "no"},
    ],
)
def test_an_artifact_that_cannot_be_meant_is_a_problem(fields: dict[str, Any]) -> None:
    problem({"type": "artifact", **fields})


@pytest.mark.parametrize("fields", [{}, {"message": 7}, {"message": "x", "level": 3}])
def test_a_log_message_without_text_is_a_problem(fields: dict[str, Any]) -> None:
    problem({"type": "log", **fields})


@pytest.mark.parametrize("results", [[], "text", 7, True])
def test_results_that_are_no_object_end_the_attempt(results: Any) -> None:
    assert isinstance(heard({"type": "result", "results": results}), ProtocolViolation)


@pytest.mark.parametrize(
    "ids", [{"job_id": str(JOB)}, {"job_id": str(JOB).upper(), "attempt_id": 7}, {"attempt_id": "7"}]
)
def test_a_result_may_name_its_attempt(ids: dict[str, Any]) -> None:
    assert heard({"type": "result", "results": {"x": 1}, **ids}) == Result({"x": 1})
    assert heard({**JUDGED, **ids}) == heard(JUDGED)


@pytest.mark.parametrize(
    "ids", [{"job_id": str(TASK)}, {"job_id": None}, {"attempt_id": 6}, {"attempt_id": True}, {"attempt_id": [7]}]
)
def test_a_result_of_somebody_else_ends_the_attempt(ids: dict[str, Any]) -> None:
    for line in ({"type": "result", "results": {}, **ids}, {**JUDGED, **ids}):
        message = heard(line)
        assert isinstance(message, ProtocolViolation)
        assert next(iter(ids)) in message.reason


def test_a_judge_line_is_a_result_with_all_its_fields() -> None:
    line = {**JUDGED, "verdict": "TLE", "exit_signal": 9, "sandbox_error": "", "status": "Finished"}
    assert heard(line) == Result(
        {"verdict": "TLE", "time_ms": 12, "mem_kb": 2048, "exit_signal": 9, "sandbox_error": "", "status": "Finished"},
        JudgeLine(JudgeVerdict.TLE, 12, 2048, 9, None),
    )


def test_a_result_line_may_carry_a_verdict() -> None:
    assert heard({"type": "result", "verdict": "SE", "sandbox_error": "no cgroup", "results": {"x": 1}}) == Result(
        {"verdict": "SE", "sandbox_error": "no cgroup", "x": 1},
        JudgeLine(JudgeVerdict.SE, sandbox_error="no cgroup"),
    )


@pytest.mark.parametrize(
    "fields",
    [
        {"schema_version": 2},
        {"schema_version": "1"},
        {"schema_version": True},
        {"verdict": "AC"},
        {"verdict": []},
        {"time_ms": "12"},
        {"time_ms": -1},
        {"mem_kb": 1e400},
        {"exit_signal": 10**400},
        {"sandbox_error": {}},
    ],
)
def test_a_judge_line_that_d10_excludes_ends_the_attempt(fields: dict[str, Any]) -> None:
    assert isinstance(heard({**JUDGED, **fields}), ProtocolViolation)


@pytest.mark.parametrize("missing", ["job_id", "attempt_id"])
def test_a_judge_line_must_name_its_attempt(missing: str) -> None:
    line = {name: value for name, value in JUDGED.items() if name != missing}
    assert heard(line) == ProtocolViolation(f"the line has no {missing}")


def test_the_answer_keeps_the_last_result_and_the_last_announcement_of_each_path() -> None:
    answer = TaskAnswer()
    for message in (Result({"n": 1}), ArtifactAnnounced("a"), ResultTooLarge(9), ArtifactAnnounced("b")):
        answer.note(message)
    answer.note(ArtifactAnnounced("a", required=False))
    assert answer.result == ResultTooLarge(9)
    assert list(answer.artifacts.values()) == [ArtifactAnnounced("a", required=False), ArtifactAnnounced("b")]
    answer.note(Result({"n": 2}))
    assert answer.result == Result({"n": 2})


def test_the_answer_keeps_the_first_violation() -> None:
    answer = TaskAnswer()
    for reason in ("first", "second"):
        answer.note(ProtocolViolation(reason))
    assert answer.violation == ProtocolViolation("first")


def test_too_many_artifacts_are_a_violation() -> None:
    answer = TaskAnswer()
    for number in range(MAX_ARTIFACTS):
        answer.note(ArtifactAnnounced(f"{number}"))
    answer.note(ArtifactAnnounced("0"))
    assert answer.violation is None
    answer.note(ArtifactAnnounced("one more"))
    assert answer.violation
    assert len(answer.artifacts) == MAX_ARTIFACTS


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [heard(JUDGED), ArtifactAnnounced("a", ArtifactKind.LOG, "text/plain", required=False)],
        [ResultTooLarge(300_000), ProtocolViolation("why")],
    ],
)
def test_an_answer_survives_being_saved(messages: list[Message]) -> None:
    answer = TaskAnswer()
    for message in messages:
        answer.note(message)
    assert TaskAnswer.from_json(orjson.loads(orjson.dumps(answer.as_json()))) == answer
