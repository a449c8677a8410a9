"""What a share link shows of its job, to whoever asks with it: over HTTP and in its stream.

A link is for strangers, and a job's rows name other jobs: what started it, whose results it has, where they are kept.
So these are lists of what is shown; what is in none of them, a new field too, is not.
"""

from collections.abc import Mapping
from typing import Any, Final, cast

import orjson

from accsd.gateway.messages import Message
from accsd.gateway.problems import HttpProblem
from accsd.model.access import Caller


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_SHOWN: Final[Mapping[str, frozenset[str]]] = {
    "job": _names(
        """id workflow version status progress current_task_key priority created_at scheduled_at started_at finished_at
           age_seconds took_seconds error_code error_message task_count open_tasks generation created_by options trigger
           no_cache is_paused updated_at event"""
    ),
    "task": _names(
        """id job_id task_key service status depends_on progress attempt max_attempts attempt_id lost generation node
           claimed_at started_at finished_at took_seconds next_attempt_at due_in_seconds remaining hold error_code
           error_message params results outcome items parent item_no tolerated event"""
    ),
    "event": _names(
        "id event ts since_seconds job task job_task_id task_key attempt_id source level type message data"
    ),
    "artifact": _names("id job_id task_id task_key attempt_id kind size_bytes content_type checksum created_at name"),
    "hello": _names("clock mode hearing mark version"),
    "hearing": _names("state"),
    "mode": _names("mode"),
    "reset": _names("topic why"),
}
_INSIDE: Final[Mapping[str, frozenset[str]]] = {
    "trigger": _names("cause"),
    "hearing": _names("state"),
    "data": _names("from to reason outcome error_code attempt lost next_attempt_at tolerated items generation node"),
}
# Of other events only that they happened: what a service says is its log, and a cached result is another job's.
_TELLING: Final = frozenset({"status", "retry", "truncated"})


def shown_to(caller: Caller, kind: str, document: dict[str, Any]) -> dict[str, Any]:
    """The document of a row as this caller is to see it."""
    return document if caller.subject is None else _of_share(kind, document)


def refuse_share(caller: Caller, what: str) -> None:
    """For what a route tells only to those who are known."""
    if caller.subject is not None:
        raise HttpProblem("scope_missing", f"a share link shows {what}")


def told_to_share(message: Message) -> Message | None:
    """A message of a stream as a share is told it; None: it is not."""
    if message.event not in _SHOWN:
        return None
    return Message(message.event, _of_share(message.event, orjson.loads(message.data)), message.mark)


def _of_share(kind: str, document: Mapping[str, Any]) -> dict[str, Any]:
    is_telling = kind != "event" or document["type"] in _TELLING
    return {
        name: _inside(name, value) if is_telling or name not in ("message", "data") else None
        for name, value in document.items()
        if name in _SHOWN[kind]
    }


def _inside(name: str, value: Any) -> Any:
    if (shown := _INSIDE.get(name)) is None:
        return value
    if not isinstance(value, Mapping):
        return None
    return {key: each for key, each in cast("Mapping[str, Any]", value).items() if key in shown}
