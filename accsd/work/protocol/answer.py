"""What an attempt has said so far that its end depends on.

It is saved together with the place up to which its output was read: an agent that restarts reads on from there, and
would otherwise never hear of a result or an artifact that came before.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from accsd.model.state import ArtifactKind
from accsd.work.protocol.wire import (
    MAX_ARTIFACTS,
    ArtifactAnnounced,
    JudgeLine,
    JudgeVerdict,
    Message,
    ProtocolViolation,
    Result,
    ResultTooLarge,
)


@dataclass(slots=True)
class TaskAnswer:
    """The last result counts, the last announcement of each path, and the first violation."""

    result: Result | ResultTooLarge | None = None
    artifacts: dict[str, ArtifactAnnounced] = field(default_factory=dict[str, ArtifactAnnounced])
    violation: ProtocolViolation | None = None

    def note(self, message: Message) -> None:
        match message:
            case Result() | ResultTooLarge():
                self.result = message
            case ArtifactAnnounced():
                self._announce(message)
            case ProtocolViolation():
                self.violation = self.violation or message
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
        }

    @classmethod
    def from_json(cls, saved: Mapping[str, Any]) -> "TaskAnswer":
        announced = [_artifact(artifact) for artifact in saved["artifacts"]]
        return cls(
            _result(saved),
            {artifact.path: artifact for artifact in announced},
            None if saved["violation"] is None else ProtocolViolation(saved["violation"]),
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
