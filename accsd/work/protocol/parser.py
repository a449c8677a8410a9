"""One line of a task's output → one message. Never raises: a line may hold anything, and the task goes on.

Most lines are plain text and are never parsed; stderr is always plain text.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast
from uuid import UUID

import orjson

from accsd.log import known_level, redact
from accsd.model.state import ArtifactKind, Level
from accsd.runners.base import Stream
from accsd.values.json import sanitise
from accsd.work.protocol.framing import LINE_LIMIT, TAIL, OutputLine
from accsd.work.protocol.wire import (
    MAX_RESULT_BYTES,
    MAX_TEXT_BYTES,
    SCHEMA_VERSION,
    ArtifactAnnounced,
    Heartbeat,
    JudgeLine,
    JudgeVerdict,
    LogLine,
    Message,
    ProgressLine,
    ProtocolViolation,
    Result,
    ResultTooLarge,
)

Fields = Mapping[str, Any]

_BEGINS_AS_MESSAGE: Final = re.compile(rb'\{\s*"type"\s*:\s*"(progress|log|artifact|heartbeat|result)"')
_BEGINS_AS_RESULT: Final = re.compile(rb'\{\s*"type"\s*:\s*"result"')
_ENDS_AS_RESULT: Final = re.compile(rb'"type"\s*:\s*"result"\s*\}\s*$')
# Sums of floating-point steps miss 1 by a little; 50 would be a percentage.
_ROUNDING: Final = 0.001
# Longer than any secret: the text at a cut may be half of a secret.
_SECRET_MARGIN: Final = 4096
_LONGEST_PATH: Final = 1024  # bytes: the limit of S3 for a key
_LONGEST_CONTENT_TYPE: Final = 255
# No result is cut before it was measured: a line has at most 512 KiB, and repairing it may triple that.
_UNCUT: Final = 4 * 1024 * 1024
# A sandbox's line: one JSON object with schema_version, the ids, a verdict and what the run used.
_ADDRESS: Final = frozenset({"schema_version", "job_id", "attempt_id"})
_JUDGEMENT: Final = ("verdict", "time_ms", "mem_kb", "exit_signal", "sandbox_error")
_SHOWN_BYTES: Final = 200
_MOST: Final = 2**53  # up to which a JSON number is exact everywhere


@dataclass(frozen=True, slots=True)
class Expected:
    """The job and attempt that an answer must name."""

    job_id: UUID
    attempt_id: int


class _Malformed(Exception):
    """A message of a known type whose fields are not as the protocol says."""


def parse_line(line: OutputLine, stream: Stream, expected: Expected) -> Message:
    if stream is Stream.STDERR:
        return _plain(line, Level.WARN)
    if line.data.lstrip(b" \t")[:1] != b"{":
        return _plain(line, Level.INFO)
    if line.truncated:
        return _cut_object(line)
    fields = _read_object(line.data)
    if fields is None:
        problem = "it is not readable JSON" if _BEGINS_AS_MESSAGE.match(line.data) else None
        return _plain(line, Level.WARN if problem else Level.INFO, problem)
    try:
        return _message(fields, expected) or _plain(line, Level.INFO)
    except _Malformed as malformed:
        return _plain(line, Level.WARN, str(malformed))


def _message(fields: Fields, expected: Expected) -> Message | None:
    kind = fields.get("type")
    if isinstance(kind, str):
        reader = _READERS.get(kind)
        return reader(fields, expected) if reader else None
    if "type" not in fields and "schema_version" in fields and "verdict" in fields:
        return _judge_line(fields, expected)
    return None


def _progress(fields: Fields, _: Expected) -> ProgressLine:
    value = fields.get("progress")
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise _Malformed("progress is not a number")
    if not -_ROUNDING <= value <= 1 + _ROUNDING:  # false for NaN, too
        raise _Malformed("progress is not between 0 and 1")
    return ProgressLine(min(max(float(value), 0.0), 1.0), _optional_text(fields, "message"))


def _log(fields: Fields, _: Expected) -> LogLine:
    message, level = _optional_text(fields, "message"), _optional_text(fields, "level")
    if message is None:
        raise _Malformed("a log line has no message")
    return LogLine(known_level(level or Level.INFO), message, _bounded(fields.get("data")))


def _artifact(fields: Fields, _: Expected) -> ArtifactAnnounced:
    path, content_type = fields.get("path"), fields.get("content_type")
    if not isinstance(path, str) or not _is_plain_text(path, _LONGEST_PATH):
        raise _Malformed("an artifact has no path, or not one that a file can have")
    if content_type is not None and not (
        isinstance(content_type, str) and _is_plain_text(content_type, _LONGEST_CONTENT_TYPE)
    ):
        raise _Malformed("the content_type of an artifact is not a short text")
    required = fields.get("required", True)
    if not isinstance(required, bool):
        raise _Malformed("required of an artifact is neither true nor false")
    return ArtifactAnnounced(path, _artifact_kind(fields.get("kind", ArtifactKind.OUTPUT)), content_type, required)


def _artifact_kind(kind: object) -> ArtifactKind:
    try:
        return ArtifactKind(cast("str", kind))
    except ValueError:
        raise _Malformed("the kind of an artifact is not input, output or log") from None


def _heartbeat(_: Fields, __: Expected) -> Heartbeat:
    return Heartbeat()


def _result(fields: Fields, expected: Expected) -> Result | ResultTooLarge | ProtocolViolation:
    """A result that can't be read is a violation and no mere log line: the task would be done without its result."""
    results = fields.get("results")
    if results is not None and not isinstance(results, dict):
        return ProtocolViolation("the results of a result line are not a JSON object")
    try:
        _check_ids(fields, expected.job_id, expected.attempt_id, required=False)
        judgement = _judgement(fields) if "verdict" in fields else None
    except _Violated as violated:
        return ProtocolViolation(str(violated))
    shown = _shown(fields) if judgement else {}
    return _measured(Result({**shown, **cast("dict[str, Any]", results or {})}, judgement))


def _judge_line(fields: Fields, expected: Expected) -> Result | ResultTooLarge | ProtocolViolation:
    """The whole line of a sandbox is the result, without the fields that it was addressed by."""
    try:
        _check_version(fields)
        _check_ids(fields, expected.job_id, expected.attempt_id, required=True)
        judgement = _judgement(fields)
    except _Violated as violated:
        return ProtocolViolation(str(violated))
    results = {name: value for name, value in fields.items() if name not in _ADDRESS}
    return _measured(Result(results, judgement))


_READERS: Final[Mapping[str, Callable[[Fields, Expected], Message]]] = {
    "progress": _progress,
    "log": _log,
    "artifact": _artifact,
    "heartbeat": _heartbeat,
    "result": _result,
}


def _measured(result: Result) -> Result | ResultTooLarge:
    """The result if it fits. It is not redacted: a result is data, and a short password may be a word in it."""
    clean = sanitise(result.results, max_bytes=_UNCUT)
    size = len(orjson.dumps(clean))
    return ResultTooLarge(size) if size > MAX_RESULT_BYTES else Result(clean, result.judgement)


def _read_object(data: bytes) -> Fields | None:
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError:
        value = _read_leniently(data)
    return cast("Fields", value) if isinstance(value, dict) else None


def _read_leniently(data: bytes) -> object:
    """Reads what orjson refuses and other writers emit: NaN, 1e400, lone surrogates, other encodings in a text."""
    if b'"type"' not in data and b'"verdict"' not in data:
        return None
    try:
        return json.loads(data.decode("utf-8", "replace"))
    except (ValueError, RecursionError):  # ValueError: also an integer of more than 4,300 digits
        return None


def _cut_object(line: OutputLine) -> LogLine | ResultTooLarge:
    if _BEGINS_AS_RESULT.match(line.data) or _ENDS_AS_RESULT.search(line.data[-TAIL:] + line.tail):
        return ResultTooLarge(len(line.data) + len(line.tail))
    return _plain(line, Level.INFO)


def _plain(line: OutputLine, level: Level, problem: str | None = None) -> LogLine:
    data = line.data
    if line.truncated or len(data) > LINE_LIMIT:
        return LogLine(level, _text(data[:LINE_LIMIT])[:-_SECRET_MARGIN], None, problem, True)
    return LogLine(level, _text(data), None, problem)


def _text(data: bytes) -> str:
    """The text without secrets. They are struck out here, because the line goes into the log and into events."""
    text = data.decode("utf-8", "replace")
    return redact(text.replace("\x00", "\ufffd") if "\x00" in text else text)


def _optional_text(fields: Fields, name: str) -> str | None:
    value = fields.get(name)
    if value is not None and not isinstance(value, str):
        raise _Malformed(f"{name} is not a text")
    return _bounded(value)


def _bounded(value: Any) -> Any:
    # Secrets are struck out before the text may be cut.
    return None if value is None else sanitise(value, max_bytes=MAX_TEXT_BYTES, scrub=redact)


def _is_plain_text(text: str, max_bytes: int) -> bool:
    try:
        return 0 < len(text.encode()) <= max_bytes and "\x00" not in text
    except UnicodeEncodeError:
        return False


# The line of a sandbox


class _Violated(Exception):
    """The line is not what a sandbox says; the text says why."""


def _check_version(fields: Fields) -> None:
    version = fields["schema_version"]
    if type(version) is not int or version != SCHEMA_VERSION:
        raise _Violated(f"schema_version is {_brief(version)}, not {SCHEMA_VERSION}")


def _check_ids(fields: Fields, job_id: UUID, attempt_id: int, *, required: bool) -> None:
    """Raises _Violated if the line is not an answer of this attempt: a task may have kept or guessed one."""
    for name, mine in (("job_id", str(job_id)), ("attempt_id", str(attempt_id))):
        if name not in fields:
            if required:
                raise _Violated(f"the line has no {name}")
        elif _written(fields[name]) != mine:
            raise _Violated(f"the line is of {name} {_brief(fields[name])}, this attempt is of {mine}")


def _judgement(fields: Fields) -> JudgeLine:
    try:
        verdict = JudgeVerdict(fields["verdict"])
    except ValueError:
        raise _Violated(f"verdict is {_brief(fields['verdict'])}, not one of {', '.join(JudgeVerdict)}") from None
    error = fields.get("sandbox_error")
    if error is not None and not isinstance(error, str):
        raise _Violated("sandbox_error is not a text")
    signal = _amount(fields, "exit_signal")
    return JudgeLine(
        verdict,
        _amount(fields, "time_ms"),
        _amount(fields, "mem_kb"),
        None if signal is None else int(signal),
        sanitise(error, scrub=redact) or None,
    )


def _shown(fields: Fields) -> dict[str, Any]:
    """The judgement's part of a result."""
    return {name: fields[name] for name in _JUDGEMENT if name in fields}


def _amount(fields: Fields, name: str) -> float | None:
    value = fields.get(name)
    if value is None:
        return None
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= _MOST:
        raise _Violated(f"{name} is not a number from 0 up")
    return cast("float", value)


def _written(value: object) -> str | None:
    """A number as text: a shell knows only text, so "7" is as good as 7."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        return None
    return value.lower() if isinstance(value, str) else str(value)


def _brief(value: object) -> str:
    return str(sanitise(value, max_bytes=_SHOWN_BYTES, scrub=redact))
