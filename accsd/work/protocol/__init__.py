"""The task protocol, version 1 (docs/protocol.md): what a task is given, what it may answer, and what that means.

wire        the envelope, the environment, the trace, and the messages as values
framing     bytes → lines, in memory that a task cannot make grow
parser      one line of output → one message, whatever the line holds; a sandbox's line is one of them
verdict     what an attempt has said so far, and how it ended, decided in one place
"""

from accsd.work.protocol.parser import Expected, parse_line
from accsd.work.protocol.verdict import Failure, Infrastructure, Success, TaskAnswer, Verdict, verdict_of
from accsd.work.protocol.wire import (
    MAX_ARTIFACTS,
    MAX_RESULT_BYTES,
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
    envelope,
    environment,
)

__all__ = [
    "MAX_ARTIFACTS",
    "MAX_RESULT_BYTES",
    "SCHEMA_VERSION",
    "ArtifactAnnounced",
    "Expected",
    "Failure",
    "Heartbeat",
    "Infrastructure",
    "JudgeLine",
    "JudgeVerdict",
    "LogLine",
    "Message",
    "ProgressLine",
    "ProtocolViolation",
    "Result",
    "ResultTooLarge",
    "Success",
    "TaskAnswer",
    "Verdict",
    "envelope",
    "environment",
    "parse_line",
    "verdict_of",
]
