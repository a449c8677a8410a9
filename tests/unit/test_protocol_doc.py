"""docs/protocol.md is true: its examples run, and it explains every error code."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from accsd.model.outcome import MEANINGS, DatabaseCode, ErrorCode
from accsd.runners.base import Ending, Stream
from accsd.work.protocol import (
    ArtifactAnnounced,
    Expected,
    Failure,
    LogLine,
    Message,
    ProgressLine,
    Success,
    TaskAnswer,
    Verdict,
    envelope,
    environment,
    parse_line,
    verdict_of,
)
from accsd.work.protocol.framing import LineSplitter
from accsd.work.protocol.wire import trace_of

DOC = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text()
JOB, TASK = UUID(int=1), UUID(int=2)


def example(language: str) -> str:
    (code,) = re.findall(rf"^```{language}\n(.*?)^```", DOC, re.MULTILINE | re.DOTALL)
    return code


def run(argv: list[str], folder: Path, params: dict[str, Any], *, on_stdin: bool) -> tuple[list[Message], Verdict]:
    """What an agent does, with a plain process."""
    trace = trace_of(None, JOB)
    ids: dict[str, Any] = {"job_id": JOB, "job_task_id": TASK, "attempt_id": 7}
    given = envelope(
        **ids,
        task_key="render",
        service="renderer",
        params=params,
        options={},
        inputs={},
        trace_id=trace.trace_id,
        workdir=str(folder),
    )
    (folder / "task.json").write_bytes(given)
    variables = environment(
        **ids,
        trace_id=trace.trace_id,
        traceparent=trace.traceparent(),
        task_file=None if on_stdin else str(folder / "task.json"),
        workdir=str(folder),
    )
    ended = subprocess.run(
        argv,
        input=given,
        env={"PATH": os.environ["PATH"], **variables},
        stdout=subprocess.PIPE,
        timeout=20,
        check=False,
    )
    messages = [parse_line(line, Stream.STDOUT, Expected(JOB, 7)) for line in LineSplitter().feed(ended.stdout)]
    answer = TaskAnswer()
    for message in messages:
        answer.note(message)
    for announced in answer.artifacts:
        assert (folder / announced).is_file()
    return messages, verdict_of(Ending(ended.returncode), answer.result, violation=answer.violation)


def test_the_shell_example_runs(tmp_path: Path) -> None:
    messages, verdict = run(["sh", "-c", example("sh")], tmp_path, {}, on_stdin=False)
    assert isinstance(messages[0], LogLine)
    assert messages[0].message == f"attempt 7 of job {JOB} begins"
    assert messages[1:3] == [ProgressLine(0.5, "counted"), ArtifactAnnounced("size.txt", content_type="text/plain")]
    assert verdict == Success({"bytes": (tmp_path / "task.json").stat().st_size})


@pytest.mark.parametrize("on_stdin", [True, False])
def test_the_python_example_runs(tmp_path: Path, on_stdin: bool) -> None:
    messages, verdict = run([sys.executable, "-c", example("python")], tmp_path, {"frames": 3}, on_stdin=on_stdin)
    assert [message.progress for message in messages if isinstance(message, ProgressLine)] == [1 / 3, 2 / 3, 1]
    assert verdict == Success({"frames": 3})


def test_the_python_example_fails_for_good_on_wrong_input(tmp_path: Path) -> None:
    _, verdict = run([sys.executable, "-c", example("python")], tmp_path, {}, on_stdin=True)
    assert isinstance(verdict, Failure)
    assert verdict.permanent


def test_every_error_code_is_explained() -> None:
    rows = re.findall(r"^\| `([a-z_]+)` \| [^|]+ \| [^|]+ \| (\w+) \|$", DOC, re.MULTILINE)
    assert rows == [(code.value, MEANINGS[code].fault) for code in (*ErrorCode, *DatabaseCode)]
    machine = [code for code in ErrorCode if code.is_infrastructure]
    assert machine == list(ErrorCode)[-7:]


def test_the_messages_shown_are_what_they_are_said_to_be() -> None:
    shown = re.findall(r'^\| `(\{"type": .*?\})` \|', DOC, re.MULTILINE)
    kinds = [
        type(parse_line(line, Stream.STDOUT, Expected(JOB, 7))).__name__
        for line in LineSplitter().feed("".join(f"{each}\n" for each in shown).encode())
    ]
    assert kinds == ["ProgressLine", "LogLine", "ArtifactAnnounced", "Heartbeat", "Result"]
