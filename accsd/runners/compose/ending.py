"""What the end of a container or command means: the facts of the engine become a cause where they tell one."""

import re
from typing import Final

from accsd.model.outcome import ErrorCode
from accsd.runners.base import Ending
from accsd.runners.compose.docker import Container

SIGKILL_CODE: Final = 137
# How containers end when their engine is stopped, killed, or finds them dead when it comes back.
_ENGINE_CODES: Final = frozenset({SIGKILL_CODE, 143, 255})
_SIGNAL_CODES: Final = frozenset({SIGKILL_CODE, 143})
_EXEC_CODES: Final = frozenset({126, 127, 128})
_NOT_EXECUTED: Final = re.compile(
    rb"\A\s*(?:OCI runtime exec failed|Error response from daemon: OCI runtime exec failed)"
)


def lost(detail: str) -> Ending:
    return Ending(cause=ErrorCode.WORKER_LOST, detail=detail)


def of_container(container: Container, *, was_stopped: bool, engine_was_away: bool) -> Ending:
    """How an attempt ended whose container was its own."""
    code = container.exit_code
    if container.started_at is None:
        return Ending(code, ErrorCode.START_FAILED, container.error or "the container was never started")
    if code == 0 or was_stopped:
        return Ending(code)
    if container.oom_killed:
        return Ending(code, ErrorCode.OOM, "the container used more memory than its limit")
    if code in _ENGINE_CODES and engine_was_away:
        return Ending(code, ErrorCode.WORKER_LOST, "the Docker engine was stopped or restarted while it ran")
    if code in _SIGNAL_CODES:
        return Ending(code, ErrorCode.KILLED, f"ended by signal {code - 128}, which accsd did not send")
    return Ending(code, detail=container.error or None)


def of_exec(code: int, head: bytes, *, saw_oom: bool) -> Ending:
    """How a command ended in a container that runs on. `head` is the beginning of its output."""
    if code in _EXEC_CODES and _NOT_EXECUTED.match(head):
        return Ending(code, ErrorCode.START_FAILED, head.decode(errors="replace").strip()[:2000])
    if code == SIGKILL_CODE and saw_oom:
        return Ending(
            code, ErrorCode.OOM, "a process of the service's container was killed for its memory while it ran"
        )
    if code in _SIGNAL_CODES:
        return Ending(code, ErrorCode.KILLED, f"ended by signal {code - 128}, which accsd did not send")
    return Ending(code)


def with_its_container(before: Container, now: Container | None) -> Ending:
    """How an attempt ended in a service's container that ended, or was restarted, under it."""
    if now is not None and now.id == before.id and now.oom_killed:
        return Ending(now.exit_code, ErrorCode.OOM, "the service's container ran out of memory")
    return lost("the service's container ended or was restarted while it ran")
