"""The author's side of the protocol: what a function is given, what becomes of what it returns or raises."""

import ast
import asyncio
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from pydantic import BaseModel, ConfigDict, Field

from accsd.runners.base import Stream
from accsd.sdk import Cancelled, Permanent, Service, Task, Temporary, wire
from accsd.work import protocol
from accsd.work.protocol.framing import OutputLine
from tests.support.eventually import eventually_sync

ROOT = Path(__file__).parents[2]
WIRE = ROOT / "accsd" / "sdk" / "wire.py"


class Params(BaseModel):
    model_config = ConfigDict(extra="forbid")

    lufs: float = -16
    frames: int = Field(default=1, ge=1)


@dataclass
class Attempt:
    """What one attempt said, and its exit code."""

    code: int
    said: list[dict[str, Any]]

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [message for message in self.said if message["type"] == kind]

    @property
    def results(self) -> dict[str, Any]:
        return self.of("result")[-1]["results"]

    @property
    def errors(self) -> list[str]:
        return [message["message"] for message in self.of("log") if message["level"] == "error"]


def attempt(function: Callable[[Any], Any], **envelope: Any) -> Attempt:
    """A function as the only one of a service, called with an envelope."""
    service = Service("audio-norm")
    service.task(function)
    said: list[dict[str, Any]] = []
    code = service.perform(Task(envelope, said.append))
    for message in said:
        understood = protocol.parse_line(
            OutputLine(json.dumps(message).encode()), Stream.STDOUT, protocol.Expected(UUID(int=1), 1)
        )
        assert getattr(understood, "problem", None) is None, "the daemon understands each message"
    return Attempt(code, said)


def test_params_are_a_model_and_the_answer_is_what_the_function_returns():
    def normalize(task: Task[Params]) -> dict[str, Any]:
        return {"lufs": task.params.lufs, "frames": task.params.frames}

    ended = attempt(normalize, params={"lufs": -14})
    assert (ended.code, ended.results) == (0, {"lufs": -14, "frames": 1})


def test_wrong_params_are_permanent_with_a_line_for_each_field():
    def normalize(task: Task[Params]) -> None:
        pytest.fail("it must not be called")

    ended = attempt(normalize, params={"lufs": "loud", "frames": 0, "lfus": 1})
    assert ended.code == 65
    assert ended.errors == [
        "params.lufs must be a number",
        "params.frames must be greater than or equal to 1",
        'params has an unknown field "lfus" (did you mean "lufs"?)',
    ]


def test_params_are_read_as_json_even_by_a_strict_model():
    class Strict(BaseModel):
        model_config = ConfigDict(strict=True)
        day: date

    def plan(task: Task[Strict]) -> dict[str, Any]:
        return {"year": task.params.day.year}

    assert attempt(plan, params={"day": "2027-01-31"}).results == {"year": 2027}


def test_without_a_type_params_are_the_given_object():
    assert attempt(lambda task: task.params, params={"a": [1]}).results == {"a": [1]}


def test_a_model_may_be_returned():
    assert attempt(lambda task: Params(frames=3)).results == {"lufs": -16.0, "frames": 3}


def test_options_and_results_of_earlier_steps_are_there():
    def render(task: Task[Any]) -> dict[str, Any]:
        return {"title": task.options["title"], "seconds": task.upstream["ingest"]["seconds"]}

    ended = attempt(render, options={"title": "x"}, inputs={"ingest": {"seconds": 7}})
    assert ended.results == {"title": "x", "seconds": 7}


def test_inputs_are_found_by_step_and_name(tmp_path: Path):
    laid = [("ingest", "a.wav"), ("ingest", "b.wav"), (None, "take.wav")]
    artifacts = [{"task_key": step, "name": name, "path": f"inputs/{step or '_job'}/{name}"} for step, name in laid]

    def show(task: Task[Any]) -> dict[str, Any]:
        assert task.input() == tmp_path / "inputs/_job/take.wav"
        assert task.input("ingest", "b.wav") == tmp_path / "inputs/ingest/b.wav"
        return {"names": list(task.files("ingest")), "any": str(task.input("ingest"))}

    ended = attempt(show, artifacts=artifacts, workdir=str(tmp_path))
    assert (ended.code, ended.errors) == (65, ["no input  of ingest; there are: a.wav, b.wav"])


def test_a_file_is_announced_by_its_path_in_the_folder(tmp_path: Path):
    def write(task: Task[Any]) -> None:
        task.path("deep/out.json").write_text("{}")
        task.artifact(task.path("deep/out.json"))
        task.artifact("notes.bin", content_type="x/y", required=False)

    ended = attempt(write, workdir=str(tmp_path))
    assert [(each["path"], each["content_type"], each["required"]) for each in ended.of("artifact")] == [
        ("deep/out.json", "application/json", True),
        ("notes.bin", "x/y", False),
    ]
    assert ended.results == {}


@pytest.mark.parametrize("path", ["nothing.txt", "../beside.txt", "/etc/passwd"])
def test_what_cannot_be_taken_cannot_be_announced(tmp_path: Path, path: str, capfd: pytest.CaptureFixture[str]):
    (tmp_path / "beside.txt").touch()
    (tmp_path / "work").mkdir()
    ended = attempt(lambda task: task.artifact(path), workdir=str(tmp_path / "work"))
    assert ended.code == 1
    assert path.removeprefix("../") in ended.errors[0]


def test_a_service_without_a_folder_is_told_what_to_do():
    ended = attempt(lambda task: task.path("out.wav"))
    assert ended.code == 65
    assert "accs.workdir" in ended.errors[0]


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        ([1], "not list"),
        ({"at": object()}, "cannot be written as JSON"),
        ({"frames": "x" * 300_000}, "announce a file instead"),
    ],
)
def test_a_result_that_cannot_be_kept_is_refused_before_it_is_sent(result: Any, reason: str):
    ended = attempt(lambda task: result)
    assert (ended.code, ended.of("result")) == (65, [])
    assert reason in ended.errors[0]


def test_what_is_raised_decides_the_exit_code(capfd: pytest.CaptureFixture[str]):
    def raising(error: BaseException) -> Attempt:
        def fail(task: Task[Any]) -> None:
            raise error

        return attempt(fail)

    assert raising(Permanent("no such format")).code == 65
    assert raising(Temporary("the mirror is away")).code == 75
    assert raising(Cancelled()).code == 143
    assert capfd.readouterr().err == "", "what was said on purpose has no traceback"
    bug = raising(KeyError("gain"))
    assert (bug.code, bug.errors) == (1, ["KeyError: 'gain'"])
    assert "Traceback" in capfd.readouterr().err


def test_progress_is_told_ten_times_a_second_and_the_last_one_always():
    def count(task: Task[Any]) -> None:
        for number in range(20_001):
            task.progress(number / 20_000, f"{number}")

    told = attempt(count).of("progress")
    assert told[0]["progress"] == 0
    assert told[-1] == {"type": "progress", "progress": 1.0, "message": "20000"}
    assert len(told) < 50


def test_progress_that_was_held_back_is_told_while_the_function_is_busy():
    said: list[dict[str, Any]] = []

    def work(task: Task[Any]) -> None:
        task.progress(0.1, "quick")
        task.progress(0.2, "long")
        eventually_sync(lambda: said[-1].get("message") == "long", within=10)

    assert wire.perform(work, Task({}, said.append)) == 0


def test_heartbeats_come_while_the_function_is_busy(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(wire, "HEARTBEAT_SECONDS", 0.02)
    said: list[dict[str, Any]] = []

    def work(task: Task[Any]) -> None:
        eventually_sync(lambda: said.count({"type": "heartbeat"}) >= 3, within=10)

    before = threading.active_count()
    assert wire.perform(work, Task({}, said.append)) == 0
    assert threading.active_count() == before


def test_long_lines_of_several_threads_are_not_mixed_in_a_narrow_pipe():
    reading, writing = os.pipe()
    lines = wire.Lines(writing)
    says = [
        threading.Thread(target=lambda name=name: [lines.send({"text": name * 150_000}) for _ in range(5)])
        for name in "abcd"
    ]
    for each in says:
        each.start()
    closing = threading.Thread(target=lambda: ([each.join() for each in says], os.close(writing)))
    closing.start()
    with open(reading, "rb") as pipe:
        texts = [json.loads(line)["text"] for line in pipe]
    closing.join()
    assert sorted(texts) == [name * 150_000 for name in "abcd" for _ in range(5)]


def test_the_same_attempt_again_repeats_its_answer_and_does_nothing(tmp_path: Path):
    calls: list[int | None] = []

    def work(task: Task[Any]) -> dict[str, Any]:
        calls.append(task.attempt_id)
        task.path("out.txt").write_text("x")
        task.artifact("out.txt")
        return {"calls": len(calls)}

    given = {"job_task_id": "t", "attempt_id": 1, "workdir": str(tmp_path)}
    first, second = attempt(work, **given), attempt(work, **given)
    assert second.said == first.said
    assert (calls, second.code) == ([1], 0)
    assert attempt(work, **{**given, "attempt_id": 2}).results == {"calls": 2}


def test_an_attempt_that_failed_is_not_begun_again_either(tmp_path: Path):
    given = {"job_task_id": "t", "attempt_id": 1, "workdir": str(tmp_path)}

    def fail(task: Task[Any]) -> None:
        raise Permanent("no")

    assert attempt(fail, **given).code == 65
    assert attempt(lambda task: {}, **given).code == 65


def test_an_attempt_that_runs_is_not_begun_a_second_time(tmp_path: Path):
    given = {"job_task_id": "t", "attempt_id": 1, "workdir": str(tmp_path)}
    inner: list[Attempt] = []

    def work(task: Task[Any]) -> None:
        inner.append(attempt(lambda task: pytest.fail("twice"), **given))

    assert attempt(work, **given).code == 0
    assert (inner[0].code, inner[0].of("result")) == (75, [])


def test_a_cancelled_task_stops_at_its_next_step_and_except_exception_does_not_hold_it():
    def work(task: Task[Any]) -> None:
        for number in range(10):
            if number == 3:
                task.cancel()
            try:
                task.progress(number / 10)
            except Exception:  # noqa: BLE001 - that is the point
                pytest.fail("swallowed")
        pytest.fail("it went on")

    ended = attempt(work)
    assert (ended.code, ended.of("result")) == (143, [])


def test_an_async_function_is_awaited_and_cancelled_where_it_waits():
    cleaned: list[str] = []

    async def work(task: Task[Params]) -> dict[str, Any]:
        await asyncio.sleep(0)
        if task.params.frames == 1:
            return {"frames": 1}
        threading.Timer(0.05, task.cancel).start()
        try:
            await asyncio.sleep(60)
        finally:
            cleaned.append("up")
        return {}

    assert attempt(work).results == {"frames": 1}
    began = time.monotonic()
    assert attempt(work, params={"frames": 2}).code == 143
    assert (cleaned, time.monotonic() - began < 30) == (["up"], True)


def test_a_service_has_one_function_and_a_proper_name():
    service = Service("thumbs")

    @service.task
    def first(task: Task[Any]) -> dict[str, Any]:
        return {}

    assert first(Task({}, print)) == {}, "it stays a plain function"
    with pytest.raises(TypeError, match="has a function already"):
        service.task(lambda task: None)
    with pytest.raises(TypeError, match="takes no argument"):
        Service("thumbs").task(lambda: None)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="Thumbs"):
        Service("Thumbs!")


def asked(service: Service, *arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        service.main(arguments)
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_the_schema_of_the_params_is_printed(capsys: pytest.CaptureFixture[str]):
    service = Service("audio-norm")

    @service.task
    def normalize(task: Task[Params]) -> None: ...

    assert asked(service, "--schema") == 0
    assert json.loads(capsys.readouterr().out) == Params.model_json_schema()


def test_a_trial_needs_nothing_of_accsd(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    service = Service("audio-norm")

    @service.task
    def copy(task: Task[Params]) -> dict[str, Any]:
        task.progress(0.5, "halfway")
        task.log("careful", "warn", peak=0.9)
        out = task.path("out.txt")
        out.write_text(task.input("ingest", "take.txt").read_text() * task.params.frames)
        task.artifact(out)
        return {"size": out.stat().st_size}

    (tmp_path / "take.txt").write_text("ab")
    given = ["--input", f"ingest={tmp_path}/take.txt", "--workdir", f"{tmp_path}/w"]
    for _ in range(2):
        assert asked(service, "--try", '{"params": {"frames": 2}}', *given) == 0
        assert capsys.readouterr().out.splitlines() == [
            "   50%  halfway",
            '  warn  careful  {"peak": 0.9}',
            f"  file  {tmp_path}/w/out.txt  text/plain",
            'result  {"size": 4}',
            f"done (exit code 0); its files are in {tmp_path}/w",
        ]
    assert asked(service, "--try", '{"params": {"frames": 0}}', *given) == 65
    assert "failed for good (exit code 65)" in capsys.readouterr().out


def test_a_task_finds_the_files_of_its_workflow_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    service = Service("letters")

    @service.task
    def read(task: Task) -> dict[str, Any]:
        return {"font": task.file("fonts/a.ttf").read_text(), "all": [*task.files(among="files")], "job": task.files()}

    (tmp_path / "font").write_text("glyphs")
    given = ["--file", f"fonts/a.ttf={tmp_path}/font", "--workdir", f"{tmp_path}/w"]
    assert asked(service, "--try", "{}", *given) == 0
    assert 'result  {"font": "glyphs", "all": ["fonts/a.ttf"], "job": {}}' in capsys.readouterr().out
    assert asked(service, "--try", "{}", "--workdir", f"{tmp_path}/w") == 65
    assert "no input fonts/a.ttf of the workflow; there are: none" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["{"], "this is not JSON"),
        (["[]"], "a JSON object is needed"),
        (['{"parms": {}}'], 'did you mean "params"?'),
        (['{"params": 1}'], '"params" must be a JSON object'),
        (["{}", "--input", "nowhere.wav"], "is not STEP=FILE"),
        (["{}", "--file", "a=nowhere.wav"], "is not NAME=FILE"),
        (["{}", "--file", f"../a={__file__}"], "is not NAME=FILE"),
    ],
)
def test_a_wrong_trial_is_explained(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]):
    assert asked(Service("x"), "--try", *arguments) == 64
    assert said in capsys.readouterr().err


def test_the_wire_stands_alone_and_speaks_as_the_daemon_does():
    text = WIRE.read_text()
    tree = ast.parse(text, feature_version=(3, 9))
    imported = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    imported |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    assert {name.partition(".")[0] for name in imported} <= sys.stdlib_module_names
    assert len(text.splitlines()) < 330, "small enough to be copied"
    assert (wire.SCHEMA_VERSION, wire.MAX_RESULT_BYTES) == (protocol.SCHEMA_VERSION, protocol.MAX_RESULT_BYTES)
