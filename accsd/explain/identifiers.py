"""Ids as people type them: the end of one, as a listing shows it, or its beginning; JOB/STEP for a task."""

import re
from collections.abc import Iterable, Sequence
from typing import Final
from uuid import UUID

from accsd.db.pool import Database
from accsd.db.views import jobs as job_views
from accsd.errors import InvalidValue, NotFound
from accsd.explain.words import duration, short
from accsd.values.validation import did_you_mean

_HEX: Final = re.compile(r"[0-9a-f-]{1,36}")
_CANDIDATES_SHOWN: Final = 5


async def job_named(db: Database, text: str) -> UUID:
    """The one job whose id begins or ends with this."""
    typed = _hexadecimal("job", text)
    found = await job_views.job_ids_like(db, typed, limit=_CANDIDATES_SHOWN + 1)
    if len(found) == 1:
        return found[0].id
    if not found:
        raise NotFound(f'no job has an id that begins or ends with "{text}"', hint=_listing("job"))
    shown = [
        f"{each.id}  {each.workflow}, submitted {'far off' if each.age is None else f'{duration(each.age)} ago'}"
        for each in found
    ]
    raise _ambiguous("job", text, _which_part([str(each.id) for each in found], typed), shown)


async def jobs_named(db: Database, texts: Iterable[str]) -> list[UUID]:
    """The jobs in the order given, each once."""
    return list(dict.fromkeys([await job_named(db, text) for text in texts]))


async def task_named(db: Database, text: str) -> UUID:
    """The task whose id begins with this, or JOB/STEP. (The end of a task's id is that of its job.)"""
    job_text, slash, step = text.partition("/")
    if not slash:
        found = await job_views.task_ids_like(db, _hexadecimal("task", text), limit=_CANDIDATES_SHOWN + 1)
        if len(found) == 1:
            return found[0]
        if not found:
            raise NotFound(f'no task has an id that begins with "{text}"', hint=_listing("task"))
        raise _ambiguous("task", text, "beginning", [str(task) for task in found])
    job_id = await job_named(db, job_text)
    steps = await job_views.task_ids_of(db, job_id)
    if step in steps:
        return steps[step]
    raise NotFound(
        f'job {short(job_id)} has no step "{step}"{did_you_mean(step, steps)}', hint=f"try `accsd job {short(job_id)}`"
    )


def _hexadecimal(kind: str, text: str) -> str:
    typed = text.strip().lower()
    if _HEX.fullmatch(typed) is None:
        raise InvalidValue(f'"{text}" is not the id of a {kind}, nor a part of one', hint=_listing(kind))
    return typed


def _which_part(ids: Sequence[str], typed: str) -> str:
    digits = typed.replace("-", "")
    begin = [each.replace("-", "").startswith(digits) for each in ids]
    return "beginning" if all(begin) else "beginning or the end" if any(begin) else "end"


def _ambiguous(kind: str, text: str, part: str, shown: Sequence[str]) -> InvalidValue:
    more = ["and more"] if len(shown) > _CANDIDATES_SHOWN else []
    lines = [f"  {each}" for each in (*shown[:_CANDIDATES_SHOWN], *more)]
    return InvalidValue(
        "\n".join([f'"{text}" is the {part} of several {kind} ids:', *lines]), hint="type more of it, or the whole id"
    )


def _listing(kind: str) -> str:
    return "`accsd jobs` lists the newest jobs" if kind == "job" else "`accsd job JOB` lists the tasks of a job"
