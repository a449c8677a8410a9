"""Ids as people type them. A listing shows the last block's first characters, because ids are time-ordered and those of
one minute begin alike; a prefix of the whole id is accepted too, and so is JOB/STEP for a task."""

import re
from collections.abc import Iterable, Sequence
from typing import Final
from uuid import UUID

from accsd.db import reading
from accsd.db.pool import Database
from accsd.errors import InvalidValue, NotFound
from accsd.validation import did_you_mean

_SHORT: Final = 8
_HEX: Final = re.compile(r"[0-9a-f-]{1,36}")
_CANDIDATES_SHOWN: Final = 5


def short(full: UUID | str) -> str:
    """What a table shows of an id, and what `job_named` takes."""
    return str(full)[-12:][:_SHORT]


async def job_named(db: Database, text: str) -> UUID:
    """The one job whose id, or last block of it, begins with this."""
    return _only_one(
        "job", text, await reading.job_ids_like(db, _hexadecimal("job", text), limit=_CANDIDATES_SHOWN + 1)
    )


async def jobs_named(db: Database, texts: Iterable[str]) -> list[UUID]:
    """In the order given, each once."""
    return list(dict.fromkeys([await job_named(db, text) for text in texts]))


async def task_named(db: Database, text: str) -> UUID:
    """A task by the beginning of its id, or as JOB/STEP. The last block is its job's: it names no task."""
    job_text, slash, step = text.partition("/")
    if not slash:
        found = await reading.task_ids_like(db, _hexadecimal("task", text), limit=_CANDIDATES_SHOWN + 1)
        return _only_one("task", text, found)
    job_id = await job_named(db, job_text)
    steps = await reading.task_ids_of(db, job_id)
    if step in steps:
        return steps[step]
    raise NotFound(
        f'job {short(job_id)} has no step "{step}"{did_you_mean(step, steps)}', hint=f"try `accsd job {short(job_id)}`"
    )


def _hexadecimal(kind: str, text: str) -> str:
    typed = text.strip().lower()
    if _HEX.fullmatch(typed) is None:
        raise InvalidValue(f'"{text}" is not the id of a {kind}, nor the beginning of one', hint=_listing(kind))
    return typed


def _only_one(kind: str, text: str, found: Sequence[UUID]) -> UUID:
    if not found:
        raise NotFound(f'no {kind} has an id that begins with "{text}"', hint=_listing(kind))
    if len(found) > 1:
        shown = ", ".join(str(candidate) for candidate in found[:_CANDIDATES_SHOWN])
        more = " and more" if len(found) > _CANDIDATES_SHOWN else ""
        raise InvalidValue(f'"{text}" is the beginning of several {kind} ids: {shown}{more}', hint="type more of it")
    return found[0]


def _listing(kind: str) -> str:
    return "`accsd jobs` lists the newest jobs" if kind == "job" else "`accsd job JOB` lists the tasks of a job"
