"""What travels between accsd and a task: the envelope and the environment on the way in, messages on the way back.

Only values and names, so that a service's SDK can share them without the rest of accsd.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, TypeAlias
from uuid import UUID

import orjson

from accsd.model.state import ArtifactKind, Level

SCHEMA_VERSION: Final = 1
MAX_TEXT_BYTES: Final = 64 * 1024  # of a message, or of the data of a log line
MAX_RESULT_BYTES: Final = 256 * 1024
MAX_ARTIFACTS: Final = 10_000  # of one attempt


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
    trace_id: str,
    workdir: str | None,
    artifacts: Sequence[Mapping[str, Any]] = (),
    attempt: int = 0,
    max_attempts: int = 1,
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
        "artifacts": [dict(artifact) for artifact in artifacts],
        "workdir": workdir,
        "trace_id": trace_id,
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
