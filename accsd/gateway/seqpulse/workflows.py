"""The three workflows of deployments: one step each, done by the services of this door."""

from collections.abc import Sequence
from typing import Any, Final

from accsd.model import WorkflowDef

COLLECT: Final = "seqpulse-collect"
ANALYSE: Final = "seqpulse-analyse"
# SP-31: three retries; an attempt that takes longer than ten minutes is one.
_PATIENT: Final[dict[str, Any]] = {"max_attempts": 4, "backoff": [30, 120, 300], "timeout": 600}


def _workflow(name: str, title: str, key: str, service: str) -> WorkflowDef:
    return WorkflowDef.model_validate(
        {"name": name, "version": 1, "title": title, "steps": [{"key": key, "service": service, **_PATIENT}]}
    )


WORKFLOWS: Final[Sequence[WorkflowDef]] = (
    _workflow("seqpulse.pre_collect", "A sample before a deployment", "collect", COLLECT),
    _workflow("seqpulse.post_collect", "A sample after a deployment", "collect", COLLECT),
    _workflow("seqpulse.analysis", "The verdict on a deployment", "analyse", ANALYSE),
)
