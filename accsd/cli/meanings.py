"""What an error code means, and what a person can do about it. A code that is not here is a service's own."""

from collections.abc import Mapping
from typing import Final, NamedTuple

from accsd.model.outcome import ErrorCode


class Meaning(NamedTuple):
    means: str
    do: str


_LOOK_AT_THE_LOG: Final = "read its log, put it right, then retry the job"

MEANINGS: Final[Mapping[str, Meaning]] = {
    ErrorCode.EXIT_NONZERO: Meaning("it ended with another code than 0", _LOOK_AT_THE_LOG),
    ErrorCode.TIMEOUT: Meaning("it ran longer than it may", "raise the timeout of the step or the service"),
    ErrorCode.OOM: Meaning("it used more memory than its limit", "raise limits.memory of the service"),
    ErrorCode.OUTPUT_LIMIT: Meaning("it wrote more output than its limit", "make it say less, or raise limits.output"),
    ErrorCode.PIDS_LIMIT: Meaning("it had more processes than its limit", "raise limits.pids of the service"),
    ErrorCode.KILLED: Meaning("a signal ended it that accsd did not send", "see who did, in the log of that machine"),
    ErrorCode.PROTOCOL_ERROR: Meaning("it broke the task protocol", "correct the service: docs/protocol.md"),
    ErrorCode.SANDBOX_ERROR: Meaning("the judge's sandbox failed", "look at the judge on that node"),
    ErrorCode.ARTIFACT_MISSING: Meaning("it announced a file that could not be taken", _LOOK_AT_THE_LOG),
    ErrorCode.RESULT_TOO_LARGE: Meaning("its result exceeds 256 KiB", "put it into a file, as an artifact"),
    ErrorCode.START_FAILED: Meaning("its command cannot be executed", "correct the service's command"),
    ErrorCode.IMAGE_MISSING: Meaning(
        "the image is not on the node", "`docker compose build` (or pull) its service there, then retry the job"
    ),
    ErrorCode.ENGINE_UNAVAILABLE: Meaning("the container engine does not answer", "run `accsd doctor` on that node"),
    ErrorCode.WORKER_LOST: Meaning("its agent or container went away", "see that node's log, and `accsd nodes`"),
    ErrorCode.AGENT_DISK: Meaning("the node's disk is full", "make room there; `accsd doctor` says how much is wanted"),
    ErrorCode.NODE_UNFIT: Meaning(
        "the node lacks a folder or a mount", "see its mounts; `accsd nodes` says which node"
    ),
    ErrorCode.STORAGE_UNAVAILABLE: Meaning("an artifact was not kept or fetched", "run `accsd doctor` on that node"),
    "upstream_failed": Meaning("a step that it depends on has failed", "see why that one did"),
    "condition_false": Meaning("its condition did not hold", "nothing: what depends on it goes on"),
    "cancelled": Meaning("its job was cancelled", "retry the job if it is wanted after all"),
    "workflow_inactive": Meaning("its workflow is not active", "activate the workflow, then submit the job again"),
    "workflow_invalid": Meaning("its workflow cannot be used", "correct the workflow, then submit the job again"),
    "instantiate_failed": Meaning("its tasks could not be made", "correct the workflow, then submit the job again"),
    "no_tasks": Meaning("it had no task at all", "correct the workflow, then submit the job again"),
}


def meaning_of(code: str | None) -> Meaning:
    return MEANINGS.get(code or "", Meaning("", _LOOK_AT_THE_LOG))
