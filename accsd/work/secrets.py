"""The secrets that a task names: filled into its params on the node, just before the task is handed over, and struck
out of everything that the node says from then on. The database only knows their names."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar, cast

from accsd.db import ClaimedTask
from accsd.errors import AttemptFailed
from accsd.log import redact, register_secret
from accsd.model.outcome import ErrorCode
from accsd.settings import environment
from accsd.settings.model import SecretSettings
from accsd.values.json import sanitise

_LONGEST: Final = 64 * 1024
Results = TypeVar("Results", bound=Mapping[str, Any] | None)


def with_secrets(task: ClaimedTask, known: Mapping[str, SecretSettings]) -> ClaimedTask:
    """The task with its secrets in its params. AttemptFailed(secret_missing), which spends no attempt, because another
    node may have what this one lacks: the task is released, as often as a task may be lost."""
    params = task.params
    for each in task.secrets:
        params = _put(params, each["at"], secret_value(each["name"], known, service=task.service_name))
    return task._replace(params=params)


def secret_value(name: str, known: Mapping[str, SecretSettings], *, service: str) -> str:
    found = known.get(name)
    if found is None:
        raise _missing(f'the node has no secret "{name}" in its settings')
    if found.services is not None and service not in found.services:
        raise _missing(f'the node gives the secret "{name}" to other services than {service}')
    value = _read(name, found.file) if found.file is not None else environment().get(found.env or "", "")
    if not value:
        raise _missing(f'the secret "{name}" is empty here')
    register_secret(value)
    return value


def struck_out(task: ClaimedTask, results: Results) -> Results:
    """The results of a task without the secrets that it was given. Results of other tasks are theirs: a short secret
    may be a word in them."""
    return sanitise(results, scrub=redact) if task.secrets and results else results


def _read(name: str, file: Path) -> str:
    try:
        with file.open(encoding="utf-8") as opened:
            text = opened.read(_LONGEST + 1)
    except (OSError, UnicodeDecodeError) as error:
        said = getattr(error, "strerror", None) or "it is no text"
        raise _missing(f'the secret "{name}" can\'t be read: {said}') from None
    if len(text) > _LONGEST:
        raise _missing(f'the secret "{name}" is longer than {_LONGEST} characters')
    return text.strip("\r\n")


def _missing(what: str) -> AttemptFailed:
    return AttemptFailed(ErrorCode.SECRET_MISSING, what, hint="add it to [secrets] of that node's settings")


def _put(document: Any, at: Sequence[str | int], value: str) -> Any:
    if not at:
        return value
    first, rest = at[0], at[1:]
    if isinstance(document, list):
        items = list(cast("list[Any]", document))
        items[int(first)] = _put(items[int(first)], rest, value)
        return items
    members = dict(cast("dict[str, Any]", document))
    return members | {str(first): _put(members.get(str(first)), rest, value)}
