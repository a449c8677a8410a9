"""How an attempt ended, decided in one place from everything that is known about its end.

First comes the reason why accsd stopped it, then what the runner saw, then the task's answer, then its exit code: a
process that was killed for its time has an exit code too, and it means nothing.
"""

import signal
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, TypeAlias

from accsd.log import redact
from accsd.model.outcome import PERMANENT_EXIT_CODES, ErrorCode
from accsd.model.state import ArtifactKind, Level
from accsd.runners.base import Ending
from accsd.work.protocol.wire import (
    MAX_ARTIFACTS,
    MAX_RESULT_BYTES,
    ArtifactAnnounced,
    JudgeLine,
    JudgeVerdict,
    LogLine,
    Message,
    ProtocolViolation,
    Result,
    ResultTooLarge,
)

_LONGEST_REASON: Final = 2000


@dataclass(frozen=True, slots=True)
class Success:
    results: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Failure:
    """The task's own failure: an attempt is spent. A permanent failure is not tried again."""

    code: ErrorCode
    message: str
    permanent: bool = False


@dataclass(frozen=True, slots=True)
class Infrastructure:
    """The machine's failure: the task is given back, and no attempt is spent."""

    code: ErrorCode
    message: str


Verdict: TypeAlias = Success | Failure | Infrastructure


def verdict_of(
    ending: Ending,
    result: Result | ResultTooLarge | None = None,
    violation: ProtocolViolation | None = None,
    *,
    stopped: Failure | Infrastructure | None = None,  # why accsd stopped it
    reason: str | None = None,  # what the task gave as one, if it failed
) -> Verdict:
    if stopped is not None:
        return stopped
    if ending.cause is not None:
        return _because(ending.cause, ending)
    if ending.exit_code is None:
        return Infrastructure(ErrorCode.WORKER_LOST, _sentence("how it ended is unknown", ending))
    if violation is not None:
        return Failure(ErrorCode.PROTOCOL_ERROR, violation.reason)
    if isinstance(result, ResultTooLarge):
        return Failure(ErrorCode.RESULT_TOO_LARGE, _too_large(result))
    judgement = result.judgement if result else None
    if judgement is not None and judgement.verdict is JudgeVerdict.SE:
        return Failure(ErrorCode.SANDBOX_ERROR, _sandbox(judgement), _is_permanent(ending.exit_code))
    return _by_exit_code(ending.exit_code, ending, result, reason)


def _because(cause: ErrorCode, ending: Ending) -> Failure | Infrastructure:
    message = _sentence(cause.sentence, ending)
    return Infrastructure(cause, message) if cause.is_infrastructure else Failure(cause, message)


def _by_exit_code(exit_code: int, ending: Ending, result: Result | None, reason: str | None) -> Success | Failure:
    if exit_code == 0:
        return Success(result.results if result else {})
    if exit_code < 0:
        return Failure(ErrorCode.KILLED, _sentence(f"{_signal(-exit_code)} ended it", ending))
    message = f"{reason} (exit code {exit_code})" if reason else f"it ended with exit code {exit_code}"
    message = _sentence(message, ending)
    return Failure(ErrorCode.EXIT_NONZERO, message, _is_permanent(exit_code))


def _is_permanent(exit_code: int) -> bool:
    """Only the task itself can say that another attempt would be useless."""
    return exit_code in PERMANENT_EXIT_CODES


def _sentence(what: str, ending: Ending) -> str:
    return f"{what}: {ending.detail}" if ending.detail else what


def _too_large(result: ResultTooLarge) -> str:
    return f"its result has {result.size} bytes or more, {MAX_RESULT_BYTES} are allowed: announce a file instead"


def _sandbox(judgement: JudgeLine) -> str:
    return f"the sandbox failed: {judgement.sandbox_error or 'it gave no reason'}"


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


@dataclass(slots=True)
class TaskAnswer:
    """What an attempt has said: the last result counts, the last announcement of each path, the first violation, and
    the last error in its log: an attempt that fails says there why (Permanent("…") of the SDK does)."""

    result: Result | ResultTooLarge | None = None
    artifacts: dict[str, ArtifactAnnounced] = field(default_factory=dict[str, ArtifactAnnounced])
    violation: ProtocolViolation | None = None
    reason: str | None = None

    def note(self, message: Message) -> None:
        match message:
            case Result() | ResultTooLarge():
                self.result = message
            case ArtifactAnnounced():
                self._announce(message)
            case ProtocolViolation():
                self.violation = self.violation or message
            case LogLine(level=Level.ERROR, problem=None):
                self.reason = redact(message.message.strip())[:_LONGEST_REASON] or self.reason
            case _:
                pass

    def _announce(self, artifact: ArtifactAnnounced) -> None:
        if artifact.path not in self.artifacts and len(self.artifacts) >= MAX_ARTIFACTS:
            self.note(ProtocolViolation(f"it announced more than {MAX_ARTIFACTS} artifacts"))
        else:
            self.artifacts[artifact.path] = artifact

    def as_json(self) -> dict[str, Any]:
        result = self.result
        return {
            "result": asdict(result) if isinstance(result, Result) else None,
            "too_large": result.size if isinstance(result, ResultTooLarge) else None,
            "artifacts": [asdict(artifact) for artifact in self.artifacts.values()],
            "violation": self.violation and self.violation.reason,
            "reason": self.reason,
        }

    @classmethod
    def from_json(cls, saved: Mapping[str, Any]) -> "TaskAnswer":
        announced = [_artifact(artifact) for artifact in saved["artifacts"]]
        return cls(
            _result(saved),
            {artifact.path: artifact for artifact in announced},
            None if saved["violation"] is None else ProtocolViolation(saved["violation"]),
            saved.get("reason"),
        )


def _artifact(saved: Mapping[str, Any]) -> ArtifactAnnounced:
    return ArtifactAnnounced(saved["path"], ArtifactKind(saved["kind"]), saved["content_type"], saved["required"])


def _result(saved: Mapping[str, Any]) -> Result | ResultTooLarge | None:
    if saved["too_large"] is not None:
        return ResultTooLarge(saved["too_large"])
    if (result := saved["result"]) is None:
        return None
    return Result(result["results"], _judgement(result["judgement"]))


def _judgement(saved: Mapping[str, Any] | None) -> JudgeLine | None:
    if saved is None:
        return None
    used: dict[str, Any] = {name: value for name, value in saved.items() if name != "verdict"}
    return JudgeLine(JudgeVerdict(saved["verdict"]), **used)
