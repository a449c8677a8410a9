"""Why an attempt did not succeed: the closed list of error codes that accsd itself gives.

A code answers two questions: what to tell a person, and whether the task is to blame. Where it is not (the machine,
the engine, the object store), no attempt is spent: the task is given back, which is bounded by the count of losses.
"""

from enum import StrEnum


class ErrorCode(StrEnum):
    # the task's own
    EXIT_NONZERO = "exit_nonzero"  # it ended with another code than 0
    TIMEOUT = "timeout"  # it ran longer than its step or service allows
    OOM = "oom"  # it used more memory than its limit
    OUTPUT_LIMIT = "output_limit"  # it wrote more to stdout and stderr than its limit
    PIDS_LIMIT = "pids_limit"  # it had more processes than its limit
    KILLED = "killed"  # a signal ended it that accsd did not send
    PROTOCOL_ERROR = "protocol_error"  # it answered for another attempt, or in a way that protocol v1 excludes
    SANDBOX_ERROR = "sandbox_error"  # it is a judge, and its sandbox failed (verdict SE)
    ARTIFACT_MISSING = "artifact_missing"  # it announced a file that is not there, or not one that may be taken
    RESULT_TOO_LARGE = "result_too_large"  # its result is larger than 256 KiB
    START_FAILED = "start_failed"  # its command cannot be executed
    # the machine's: no attempt is spent
    IMAGE_MISSING = "image_missing"  # the service's image is not on this node and cannot be had
    ENGINE_UNAVAILABLE = "engine_unavailable"  # the container engine does not answer
    WORKER_LOST = "worker_lost"  # the agent, the engine or the container went away while it ran; its end is unknown
    AGENT_DISK = "agent_disk"  # the node's disk is full
    NODE_UNFIT = "node_unfit"  # a folder or whatever else it needs is missing on the node: a mount that has gone
    STORAGE_UNAVAILABLE = "storage_unavailable"  # a required artifact could not be kept or fetched

    @property
    def is_infrastructure(self) -> bool:
        return self in _INFRASTRUCTURE


_INFRASTRUCTURE = frozenset(
    {
        ErrorCode.IMAGE_MISSING,
        ErrorCode.ENGINE_UNAVAILABLE,
        ErrorCode.WORKER_LOST,
        ErrorCode.AGENT_DISK,
        ErrorCode.NODE_UNFIT,
        ErrorCode.STORAGE_UNAVAILABLE,
    }
)

# sysexits: the input or the configuration is wrong, and will be wrong the next time
PERMANENT_EXIT_CODES = frozenset({64, 65, 78})
