"""The author's side of the task protocol, version 1, in one file that `accsd sdk vendor` copies beside a service:

    def thumbnail(task):
        source = task.input("ingest", "take.png")
        task.artifact(shrink(source, task.path("thumb.png")))
        return {"width": 320}

    if __name__ == "__main__":
        main(thumbnail)

Standard library only, Python 3.9 or later; nothing else of accsd is needed. docs/protocol.md says what travels.
"""

from __future__ import annotations

import contextlib
import io
import json
import mimetypes
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, Generic, NoReturn, TypeVar

SCHEMA_VERSION = 1
MAX_RESULT_BYTES = 256 * 1024
DONE, FAILED, NO_TASK, PERMANENT, TEMPORARY, CANCELLED = 0, 1, 64, 65, 75, 143  # exit codes, after sysexits.h
HEARTBEAT_SECONDS = 10.0
_PROGRESS_SECONDS = 0.1  # a loop may report each of a million steps; a person reads no more than ten lines a second
_LONGEST_MESSAGE = 16_000

Params = TypeVar("Params")
Message = dict[str, Any]
Handler = Callable[[Any], Any]  # called with a Task, in the main thread
ReadParams = Callable[[dict[str, Any]], Any]


class Permanent(Exception):
    """Another attempt would not help. Each argument becomes a line of the log."""


class Temporary(Exception):
    """The attempt failed, but a later one may succeed: the step's backoff decides when."""


class Cancelled(BaseException):
    """The task was asked to stop. It is no Exception, so that `except Exception` lets it through."""


def _given(name: str, otherwise: Callable[[], Any] = lambda: None) -> Any:
    return property(lambda task: task.envelope.get(name) or otherwise())


class Task(Generic[Params]):
    """One attempt at one step: its inputs, and how it answers."""

    params: Params
    envelope: dict[str, Any]
    job_id: str | None = _given("job_id")
    task_id: str | None = _given("job_task_id")
    attempt_id: int | None = _given("attempt_id")  # a fence: no other attempt ever has it
    options: dict[str, Any] = _given("options", dict)  # the job's options
    upstream: dict[str, Any] = _given("inputs", dict)  # results of earlier steps, by key; of a fan-out, a list
    omitted: list[str] = _given("omitted", list)  # the steps whose results are not in upstream: they are too large
    trigger: dict[str, Any] | None = _given("trigger")  # what started the job, where a schedule did
    folder: str | None = _given("workdir", lambda: os.environ.get("ACC_WORKDIR"))

    def __init__(self, envelope: dict[str, Any] | None, send: Callable[[Message], None]) -> None:
        if envelope is not None:  # None in pull mode, where values are computed on demand
            self.envelope = envelope
        self.answer: list[Message] = []  # the messages that decide its end
        self.is_cancelled = self.is_interruptible = False
        self.when_cancelled: Callable[[], object] = lambda: None
        self._send = send
        self._progress: Message | None = None  # held back, not sent yet
        self._progress_due = 0.0

    @property
    def workdir(self) -> Path:
        if not self.folder:
            raise Permanent("this service has no folder for its tasks: give it accs.workdir and a bind mount")
        return Path(self.folder).absolute()

    def path(self, name: str | os.PathLike[str]) -> Path:
        """The path for a file of that name in the task's folder."""
        path = self.workdir / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def files(self, step: str | None = None, among: str = "artifacts") -> dict[str, Path]:
        """The files that an earlier step announced, by name; without a step, those that came with the job."""
        given: list[dict[str, Any]] = self.envelope.get(among) or []
        return {each["name"]: self.workdir / each["path"] for each in given if each.get("task_key") == step}

    async def load_inputs(self) -> None:
        """Fetches all files in pull mode; async functions await it before they ask for one. Else they are there."""

    def file(self, name: str) -> Path:
        """A file that the workflow gives to its tasks; `files(among="files")` are all of them."""
        return self.input(None, name, "files")

    def input(self, step: str | None = None, name: str | None = None, among: str = "artifacts") -> Path:
        """One file of `files`. The name may be left out where there is only one."""
        files, whose = self.files(step, among), step or ("the workflow" if among == "files" else "the job")
        name = next(iter(files)) if name is None and len(files) == 1 else name
        if name is None or name not in files:
            raise Permanent(f"no input {name or ''} of {whose}; there are: {', '.join(files) or 'none'}")
        return files[name]

    def artifact(self, path: str | os.PathLike[str], *, content_type: str | None = None, required: bool = True) -> None:
        """Announces a file of the task's folder. It is kept when the task has succeeded."""
        inside = os.path.relpath(os.path.abspath(self.workdir / path), self.workdir)
        if inside.startswith(os.pardir):
            raise ValueError(f"{path} is not in the task's folder {self.workdir}")
        if required and not (self.workdir / inside).is_file():
            raise FileNotFoundError(f"{inside} cannot be announced: it is not a file in {self.workdir}")
        known = content_type or mimetypes.guess_type(inside)[0]
        self.answer.append({"type": "artifact", "path": inside, "content_type": known, "required": required})
        self.say(self.answer[-1])

    def progress(self, fraction: float, message: str | None = None) -> None:
        """Reports progress from 0 to 1. A cancelled task stops here, too."""
        self.check_cancelled()
        said = {"type": "progress", "progress": min(1.0, max(0.0, float(fraction)))}
        self._progress = said if message is None else {**said, "message": message[:_LONGEST_MESSAGE]}
        if time.monotonic() >= self._progress_due:
            self.tell_progress()

    def tell_progress(self) -> None:
        """Sends the latest progress, if it was held back."""
        said, self._progress = self._progress, None
        if said is not None:
            self._progress_due = time.monotonic() + _PROGRESS_SECONDS
            self.say(said)

    def log(self, message: object, level: str = "info", **data: Any) -> None:
        """Writes a line of the log, with level debug, info, warn or error and optional data."""
        said = {"type": "log", "level": level, "message": str(message)[:_LONGEST_MESSAGE]}
        self.say({**said, "data": data} if data else said)

    def finish(self, results: object) -> None:
        if results is not None and not isinstance(results, dict):
            raise Permanent(f"a task's function returns a dict or None, not {type(results).__name__}")
        try:
            size = len(json.dumps(results or {}, ensure_ascii=False).encode("utf-8", "replace"))
        except (TypeError, ValueError) as error:
            raise Permanent(f"the result cannot be written as JSON: {error}") from error
        if size > MAX_RESULT_BYTES:
            raise Permanent(f"the result has {size} bytes, {MAX_RESULT_BYTES} are allowed: announce a file instead")
        self.tell_progress()
        self.answer.append({"type": "result", "results": results or {}})
        self.say(self.answer[-1])

    def say(self, message: Message) -> None:
        if not self.is_interruptible or threading.current_thread() is not threading.main_thread():
            return self._send(message)
        self.is_interruptible = False  # a line is never cut in the middle
        try:
            self._send(message)
        finally:
            self.is_interruptible = True
        return self.check_cancelled()

    def cancel(self) -> None:
        self.is_cancelled = True
        self.when_cancelled()

    def check_cancelled(self) -> None:
        """Raises Cancelled if the task shall stop."""
        if self.is_cancelled:
            raise Cancelled

    @contextlib.contextmanager
    def cancellable(self) -> Generator[None]:
        """Raises Cancelled at once inside the block, even while it waits for a sleep, a download or a child."""
        self.is_interruptible = True
        try:
            self.check_cancelled()
            yield
        finally:
            self.is_interruptible = False


def main(handler: Handler, params: Callable[..., Any] | None = None) -> NoReturn:
    """Runs one task, from stdin to the exit code. `params` makes the typed parameters: a dataclass, for instance."""
    sys.exit(serve(handler, dict if params is None else lambda given: params(**given)))


def serve(handler: Handler, read_params: ReadParams) -> int:
    lines = Lines(os.dup(1))
    os.dup2(2, 1)  # output of children and C libraries goes to stderr: stdout has only whole messages
    try:
        task: Task[Any] = Task(read_envelope(), lines.send)
    except (OSError, ValueError) as error:
        lines.send({"type": "log", "level": "error", "message": f"no task was given: {error}"})
        return NO_TASK

    def stop(*_: object) -> None:
        task.cancel()
        if task.is_interruptible:
            raise Cancelled

    signal.signal(signal.SIGTERM, stop)
    with contextlib.redirect_stdout(Printed(task.log)) as printed:
        code = perform(handler, task, read_params)
        printed.write("\n")  # the last line may lack its newline
    return code


def read_envelope() -> dict[str, Any]:
    path = os.environ.get("ACC_TASK_FILE")
    text = Path(path).read_text("utf-8") if path and os.path.exists(path) else sys.stdin.readline()
    envelope: dict[str, Any] | None = json.loads(text) if text.strip() else None
    if not isinstance(envelope, dict):
        raise ValueError("stdin holds no JSON object, and ACC_TASK_FILE names none")
    if envelope.get("schema_version", SCHEMA_VERSION) != SCHEMA_VERSION:
        raise ValueError(f"it is of protocol version {envelope['schema_version']}, not {SCHEMA_VERSION}")
    return envelope


def perform(handler: Handler, task: Task[Any], read_params: ReadParams = dict) -> int:
    """Performs one attempt; returns its exit code. An attempt that was begun in this folder before repeats its
    answer."""
    known = task.folder and task.attempt_id is not None
    marker = task.workdir / f".accsd-{task.task_id}.{task.attempt_id}" if known else None
    try:
        if marker:
            os.close(os.open(marker, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
    except FileExistsError:
        return _repeat(task, marker.read_text("utf-8") if marker else "")
    with _heartbeat(task):
        code = _outcome(handler, task, read_params)
    if marker:
        draft = marker.with_name(marker.name + ".draft")
        draft.write_text(json.dumps({"code": code, "answer": task.answer}), "utf-8")
        draft.replace(marker)
    return code


def _repeat(task: Task[Any], ended: str) -> int:
    if not ended:
        task.log("this attempt was begun here before and has not ended: it is not begun again", "warn")
        return TEMPORARY
    before = json.loads(ended)
    for message in before["answer"]:
        task.say(message)
    return before["code"]


def _outcome(handler: Handler, task: Task[Any], read_params: ReadParams) -> int:
    try:
        try:
            task.params = read_params(task.envelope.get("params") or {})
        except (TypeError, ValueError) as error:
            raise Permanent(f"params: {error}") from error
        task.finish(handler(task))
    except Cancelled:
        return _failed(task, CANCELLED, "cancelled")
    except Permanent as error:
        return _failed(task, PERMANENT, *error.args)
    except Temporary as error:
        return _failed(task, TEMPORARY, *error.args)
    except Exception as error:  # noqa: BLE001 - any error of the author's code is this attempt's failure
        traceback.print_exc()
        return _failed(task, FAILED, f"{type(error).__name__}: {error}")
    return DONE


def _failed(task: Task[Any], code: int, *reasons: object) -> int:
    task.tell_progress()
    for reason in reasons:
        task.log(reason, "warn" if code == CANCELLED else "error")
    return code


@contextlib.contextmanager
def _heartbeat(task: Task[Any]) -> Generator[None]:
    """Sends heartbeats from a thread: a handler that computes for an hour is not silent."""
    ended = threading.Event()

    def beat() -> None:
        due = time.monotonic() + HEARTBEAT_SECONDS
        with contextlib.suppress(OSError):  # no agent reads any more
            while not ended.wait(min(1.0, HEARTBEAT_SECONDS)):
                task.tell_progress()
                if time.monotonic() >= due:
                    task.say({"type": "heartbeat"})
                    due += HEARTBEAT_SECONDS

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


class Lines:
    """Writes whole lines, one write each, from any thread."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = threading.Lock()

    def send(self, message: Message) -> None:
        line = (json.dumps(message, ensure_ascii=False, default=str) + "\n").encode("utf-8", "replace")
        with self._lock:
            while line:
                line = line[os.write(self._descriptor, line) :]


class Printed(io.TextIOBase):
    """sys.stdout of a task: printed text becomes lines of its log."""

    def __init__(self, log: Callable[[str], None]) -> None:
        self._log = log
        self._begun = ""

    def write(self, text: str) -> int:
        *lines, self._begun = (self._begun + text).split("\n")
        for line in filter(None, lines):
            self._log(line)
        return len(text)
