"""What travels between accsd and a task: the envelope and the environment on the way in, messages on the way back.

Only values and names, so that a service's SDK can share them without the rest of accsd.
"""

import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import sha256
from typing import Any, Final, TypeAlias
from uuid import UUID

import orjson

from accsd.model.state import ArtifactKind, Level

SCHEMA_VERSION: Final = 1
MAX_TEXT_BYTES: Final = 64 * 1024  # of a message, or of the data of a log line
MAX_RESULT_BYTES: Final = 256 * 1024
MAX_ARTIFACTS: Final = 10_000  # of one attempt

_TRACE_ID: Final = re.compile(r"[0-9a-f]{32}")
# A later version may have more fields; version ff is none.
_TRACEPARENT: Final = re.compile(r"(?!ff)([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.DOTALL)
_SAMPLED: Final = 1
_ZERO_TRACE: Final = "0" * 32
_ZERO_SPAN: Final = "0" * 16


def envelope(
    *,
    job_id: UUID,
    job_task_id: UUID,
    attempt_id: int,
    task_key: str,
    service: str,
    params: Mapping[str, Any],
    options: Mapping[str, Any],
    inputs: Mapping[str, Any],
    omitted: Sequence[str] = (),
    trace_id: str,
    workdir: str | None,
    artifacts: Sequence[Mapping[str, Any]] = (),
    files: Sequence[Mapping[str, Any]] = (),
    attempt: int = 0,
    max_attempts: int = 1,
    trigger: Mapping[str, Any] | None = None,
) -> bytes:
    """The task's input: one line of JSON, newline included. `attempt` counts the failures so far."""
    fields = {
        "schema_version": SCHEMA_VERSION,
        "job_id": str(job_id),  # orjson does not know the UUID class of a database driver
        "job_task_id": str(job_task_id),
        "attempt_id": attempt_id,
        "attempt": attempt,
        "max_attempts": max_attempts,
        "task_key": task_key,
        "service": service,
        "params": dict(params),
        "options": dict(options),
        "inputs": dict(inputs),
        "omitted": list(omitted),
        "artifacts": [dict(artifact) for artifact in artifacts],
        "files": [dict(file) for file in files],
        "workdir": workdir,
        "trace_id": trace_id,
        "trigger": None if trigger is None else dict(trigger),
    }
    return orjson.dumps(fields, option=orjson.OPT_APPEND_NEWLINE)


def environment(
    *,
    job_id: UUID,
    job_task_id: UUID,
    attempt_id: int,
    trace_id: str,
    traceparent: str,
    task_file: str | None,
    workdir: str | None,
) -> dict[str, str]:
    """The ids again, for tasks that do not read JSON. Paths are as the task sees them, where it sees them at all."""
    variables = {
        "ACC_JOB_ID": str(job_id),
        "ACC_JOB_TASK_ID": str(job_task_id),
        "ACC_ATTEMPT_ID": str(attempt_id),
        "ACC_TRACE_ID": trace_id,
        "TRACEPARENT": traceparent,
    }
    paths = {"ACC_TASK_FILE": task_file, "ACC_WORKDIR": workdir}
    return variables | {name: path for name, path in paths.items() if path is not None}


class JudgeVerdict(StrEnum):
    """What a sandbox says of one run. It does not decide whether the answer was right."""

    OK = "OK"
    TLE = "TLE"  # time
    MLE = "MLE"  # memory
    OLE = "OLE"  # output
    RE = "RE"  # run-time error
    SE = "SE"  # the sandbox itself failed


@dataclass(frozen=True, slots=True)
class JudgeLine:
    """The fields of a judge's line."""

    verdict: JudgeVerdict
    time_ms: float | None = None
    mem_kb: float | None = None
    exit_signal: int | None = None
    sandbox_error: str | None = None


@dataclass(frozen=True, slots=True)
class ProgressLine:
    progress: float
    message: str | None = None


@dataclass(frozen=True, slots=True)
class LogLine:
    """A log message, or any line that is not one of the protocol's.

    `problem` says what is wrong with a line that was meant as a message; it is counted as a protocol error.
    """

    level: Level
    message: str
    data: Any = None
    problem: str | None = None
    truncated: bool = False


@dataclass(frozen=True, slots=True)
class ArtifactAnnounced:
    """A file in the task's folder to be kept. `path` is what the task wrote: nothing about it is checked yet."""

    path: str
    kind: ArtifactKind = ArtifactKind.OUTPUT
    content_type: str | None = None
    required: bool = True


@dataclass(frozen=True, slots=True)
class Heartbeat:
    pass


@dataclass(frozen=True, slots=True)
class Result:
    results: Mapping[str, Any] = field(default_factory=dict[str, Any])
    judgement: JudgeLine | None = None


@dataclass(frozen=True, slots=True)
class ResultTooLarge:
    """`size` is at least that of the result, in bytes of JSON."""

    size: int


@dataclass(frozen=True, slots=True)
class ProtocolViolation:
    """The task answered for another attempt, or as v1 forbids: the attempt fails with protocol_error."""

    reason: str


Message: TypeAlias = (
    ProgressLine | LogLine | ArtifactAnnounced | Heartbeat | Result | ResultTooLarge | ProtocolViolation
)


@dataclass(frozen=True, slots=True)
class Trace:
    """The W3C trace that a job belongs to, from which its tasks are given TRACEPARENT. `parent` is the span that
    submitted the job, where it is known."""

    trace_id: str
    parent: str | None = None
    sampled: bool = True

    def traceparent(self) -> str:
        """For one child: its span id is fresh at every call."""
        return f"00-{self.trace_id}-{_fresh_span()}-{'01' if self.sampled else '00'}"


def trace_of(given: str | None, job_id: UUID) -> Trace:
    """The trace of a job that was submitted with `given`: 32 hex digits, a traceparent, or nothing.

    Without one the job's own id is its trace id. Any other text is hashed: jobs that share it share a trace.
    """
    written = (given or "").strip().lower()
    if not written:
        return Trace(_valid(job_id.hex))
    if _TRACE_ID.fullmatch(written):
        return Trace(_valid(written))
    return _from_traceparent(written) or Trace(_hashed(written))


def _from_traceparent(written: str) -> Trace | None:
    match = _TRACEPARENT.fullmatch(written)
    if match is None:
        return None
    version, trace_id, parent, flags, more = match.groups()
    if (version == "00" and more) or trace_id == _ZERO_TRACE or parent == _ZERO_SPAN:
        return None
    return Trace(trace_id, parent, bool(int(flags, 16) & _SAMPLED))


def _valid(trace_id: str) -> str:
    return _hashed(trace_id) if trace_id == _ZERO_TRACE else trace_id


def _hashed(text: str) -> str:
    return sha256(text.encode("utf-8", "replace")).hexdigest()[:32]


def _fresh_span() -> str:
    span = secrets.token_hex(8)
    return span if span != _ZERO_SPAN else _fresh_span()
