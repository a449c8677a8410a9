"""Why something did not succeed: the one table of error codes. A row says what happened, what a person can do about it,
and whose fault it was.

The agent's verdicts, `accsd why` and the tables of docs/protocol.md (`make reference`) say what stands here. A service
may have codes of its own.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, NamedTuple


class ErrorCode(StrEnum):
    """What an agent says of an attempt."""

    EXIT_NONZERO = "exit_nonzero"
    TIMEOUT = "timeout"
    OOM = "oom"
    OUTPUT_LIMIT = "output_limit"
    PIDS_LIMIT = "pids_limit"
    KILLED = "killed"
    PROTOCOL_ERROR = "protocol_error"
    SANDBOX_ERROR = "sandbox_error"
    ARTIFACT_MISSING = "artifact_missing"
    RESULT_TOO_LARGE = "result_too_large"
    OUTPUT_INVALID = "output_invalid"
    CALL_FAILED = "call_failed"
    START_FAILED = "start_failed"
    FILE_MISSING = "file_missing"
    IMAGE_MISSING = "image_missing"
    ENGINE_UNAVAILABLE = "engine_unavailable"
    WORKER_LOST = "worker_lost"
    AGENT_DISK = "agent_disk"
    NODE_UNFIT = "node_unfit"
    STORAGE_UNAVAILABLE = "storage_unavailable"
    SECRET_MISSING = "secret_missing"

    @property
    def sentence(self) -> str:
        return MEANINGS[self].sentence

    @property
    def is_infrastructure(self) -> bool:
        """The machine, the engine or the object store is to blame, and no attempt is spent: the task is released, which
        is bounded by the count of losses."""
        return MEANINGS[self].fault is Blame.MACHINE


class DatabaseCode(StrEnum):
    """What the state machine says by itself, of a task or of a job."""

    UPSTREAM_FAILED = "upstream_failed"
    CONDITION_FALSE = "condition_false"
    INPUT_SKIPPED = "input_skipped"
    NOT_IN_LIST = "not_in_list"
    CONDITION_ERROR = "condition_error"
    TEMPLATE_ERROR = "template_error"
    INPUT_INVALID = "input_invalid"
    TOOL_REFUSED = "tool_refused"
    ASSERTION_FAILED = "assertion_failed"
    OPTIONS_INVALID = "options_invalid"
    FAN_OUT_TOO_LARGE = "fan_out_too_large"
    CANCELLED = "cancelled"
    WORKFLOW_INACTIVE = "workflow_inactive"
    WORKFLOW_INVALID = "workflow_invalid"
    INSTANTIATE_FAILED = "instantiate_failed"
    NO_TASKS = "no_tasks"


class Blame(StrEnum):
    """Where something has to change."""

    TASK = "task"
    MACHINE = "machine"
    WORKFLOW = "workflow"
    NOBODY = "nobody"


class Meaning(NamedTuple):
    """`sentence` is about the task or the job, "it"."""

    sentence: str
    advice: str
    fault: Blame


_LOG: Final = "read its log, put it right, then retry the job"
_EXPRESSION: Final = "correct the expression, apply the workflow, then submit the job again"
_SUBMIT: Final = "correct the workflow, then submit the job again"

MEANINGS: Final[Mapping[str, Meaning]] = {
    ErrorCode.EXIT_NONZERO: Meaning("it ended with another code than 0", _LOG, Blame.TASK),
    ErrorCode.TIMEOUT: Meaning("it ran longer than it may", "raise the timeout of the step or the service", Blame.TASK),
    ErrorCode.OOM: Meaning("it used more memory than its limit", "raise limits.memory of the service", Blame.TASK),
    ErrorCode.OUTPUT_LIMIT: Meaning(
        "it wrote more output than its limit", "make it say less, or raise limits.output", Blame.TASK
    ),
    ErrorCode.PIDS_LIMIT: Meaning(
        "it had more processes than its limit", "raise limits.pids of the service", Blame.TASK
    ),
    ErrorCode.KILLED: Meaning(
        "a signal ended it that accsd did not send", "see who did, in the log of that machine", Blame.TASK
    ),
    ErrorCode.PROTOCOL_ERROR: Meaning(
        "it broke the task protocol", "correct the service: docs/protocol.md", Blame.TASK
    ),
    ErrorCode.SANDBOX_ERROR: Meaning("the judge's sandbox failed", "look at the judge on that node", Blame.TASK),
    ErrorCode.ARTIFACT_MISSING: Meaning("it announced a file that could not be taken", _LOG, Blame.TASK),
    ErrorCode.RESULT_TOO_LARGE: Meaning("its result exceeds 256 KiB", "put it into a file, as an artifact", Blame.TASK),
    ErrorCode.OUTPUT_INVALID: Meaning(
        "its result is not what its tool gives", "correct the tool, or what it says", Blame.TASK
    ),
    ErrorCode.CALL_FAILED: Meaning(
        "what its tool calls did not do it", "see what was answered; correct the step's with, or the tool", Blame.TASK
    ),
    ErrorCode.START_FAILED: Meaning("its command cannot be executed", "correct the service's command", Blame.TASK),
    ErrorCode.FILE_MISSING: Meaning(
        "a file of its workflow is not in the store, or damaged there",
        "apply the workflow again, with --again if it is damaged; then retry the job",
        Blame.WORKFLOW,
    ),
    ErrorCode.IMAGE_MISSING: Meaning(
        "the image is not on the node",
        "`docker compose build` (or pull) its service there, then retry the job",
        Blame.MACHINE,
    ),
    ErrorCode.ENGINE_UNAVAILABLE: Meaning(
        "the container engine does not answer", "run `accsd doctor` on that node", Blame.MACHINE
    ),
    ErrorCode.WORKER_LOST: Meaning(  # how it ended is unknown
        "its agent or container went away", "see that node's log, and `accsd nodes`", Blame.MACHINE
    ),
    ErrorCode.AGENT_DISK: Meaning(
        "the node's disk is full", "make room there; `accsd doctor` says how much is wanted", Blame.MACHINE
    ),
    ErrorCode.NODE_UNFIT: Meaning(
        "the node lacks a folder or a mount", "see its mounts; `accsd nodes` says which node", Blame.MACHINE
    ),
    ErrorCode.STORAGE_UNAVAILABLE: Meaning(
        "an artifact was not kept or fetched", "run `accsd doctor` on that node", Blame.MACHINE
    ),
    ErrorCode.SECRET_MISSING: Meaning(
        "the node lacks a secret that it names", "add it to [secrets] of that node's settings", Blame.MACHINE
    ),
    DatabaseCode.UPSTREAM_FAILED: Meaning("a step that it depends on has failed", "see why that one did", Blame.NOBODY),
    DatabaseCode.CONDITION_FALSE: Meaning(
        "its condition did not hold", "nothing: what depends on it goes on", Blame.NOBODY
    ),
    DatabaseCode.INPUT_SKIPPED: Meaning(
        "a step was skipped whose results it refers to",
        "nothing; or give the value a default: .orValue(…)",
        Blame.NOBODY,
    ),
    DatabaseCode.NOT_IN_LIST: Meaning("its item is not in the list any more", "nothing", Blame.NOBODY),
    DatabaseCode.CONDITION_ERROR: Meaning("its condition could not be evaluated", _EXPRESSION, Blame.WORKFLOW),
    DatabaseCode.TEMPLATE_ERROR: Meaning("an expression of it could not be evaluated", _EXPRESSION, Blame.WORKFLOW),
    DatabaseCode.INPUT_INVALID: Meaning(
        "its input is not what its tool takes", "correct the step's with, apply it, then submit again", Blame.WORKFLOW
    ),
    DatabaseCode.TOOL_REFUSED: Meaning(
        "who owns the workflow, or submitted the job, may not use its tool",
        "let somebody who may apply or submit it, or allow the tool to its actor",
        Blame.WORKFLOW,
    ),
    DatabaseCode.ASSERTION_FAILED: Meaning(
        "what it asserts does not hold", "see its message; retry the job when it holds", Blame.TASK
    ),
    DatabaseCode.OPTIONS_INVALID: Meaning(
        "the job's options are not what its workflow takes", "submit it again with other options", Blame.TASK
    ),
    DatabaseCode.FAN_OUT_TOO_LARGE: Meaning(
        "its list has more items than it may", "make the list shorter, or raise max_items", Blame.WORKFLOW
    ),
    DatabaseCode.CANCELLED: Meaning("its job was cancelled", "retry the job if it is wanted after all", Blame.NOBODY),
    DatabaseCode.WORKFLOW_INACTIVE: Meaning(
        "its workflow is not active", "activate the workflow, then submit the job again", Blame.WORKFLOW
    ),
    DatabaseCode.WORKFLOW_INVALID: Meaning("its workflow cannot be used", _SUBMIT, Blame.WORKFLOW),
    DatabaseCode.INSTANTIATE_FAILED: Meaning("its tasks could not be made", _SUBMIT, Blame.WORKFLOW),
    DatabaseCode.NO_TASKS: Meaning("it had no task at all", _SUBMIT, Blame.WORKFLOW),
}
_OF_A_SERVICE: Final = Meaning("", _LOG, Blame.TASK)


def meaning_of(code: str | None) -> Meaning:
    """Its row. A code that is not in the table is a service's own: its sentence is empty."""
    return MEANINGS.get(code or "", _OF_A_SERVICE)


# sysexits: the input or the configuration is wrong, and will be wrong the next time
PERMANENT_EXIT_CODES: Final = frozenset({64, 65, 78})
