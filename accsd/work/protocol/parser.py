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
from accsd.work.protocol import judge
from accsd.work.protocol.framing import LINE_LIMIT, TAIL, OutputLine
from accsd.work.protocol.wire import (
    MAX_RESULT_BYTES,
    MAX_TEXT_BYTES,
    ArtifactAnnounced,
    Heartbeat,
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
        judge.check_ids(fields, expected.job_id, expected.attempt_id, required=False)
        judgement = judge.read(fields) if "verdict" in fields else None
    except judge.Violated as violated:
        return ProtocolViolation(str(violated))
    shown = judge.shown(fields) if judgement else {}
    return _measured(Result({**shown, **cast("dict[str, Any]", results or {})}, judgement))


def _judge_line(fields: Fields, expected: Expected) -> Result | ResultTooLarge | ProtocolViolation:
    """The whole line of a sandbox is the result, without the fields that it was addressed by."""
    try:
        judge.check_version(fields)
        judge.check_ids(fields, expected.job_id, expected.attempt_id, required=True)
        judgement = judge.read(fields)
    except judge.Violated as violated:
        return ProtocolViolation(str(violated))
    results = {name: value for name, value in fields.items() if name not in judge.ADDRESS}
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
