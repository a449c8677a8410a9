"""Jobs are submitted, instantiated, and changed before they end."""

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from accsd.db.answers import Answer, Verdict, read_answers
from accsd.db.pool import Database
from accsd.errors import InvalidValue, NotFound, OptionsInvalid, SchemaInvalid, VerbRefused
from accsd.values.json import MAX_DEPTH, is_too_deep
from accsd.values.schemas import Schema, schema_of, sentences
from accsd.values.validation import Problem

_SCHEMAS_KEPT_SEC: Final = 5.0  # a workflow of which nobody submits more is asked about again; the resolver checks, too
_MOST_SCHEMAS: Final = 1000


@dataclass(frozen=True, slots=True)
class Submission:
    """One job to submit. `key` makes it idempotent: the same key again is the same job."""

    workflow_id: UUID
    options: Mapping[str, Any] | None = None
    priority: int = 0
    scheduled_at: datetime | None = None
    key: str | None = None
    trace_id: str | None = None
    trigger: Mapping[str, Any] | None = None  # what caused the job
    no_cache: bool = False  # its steps run, although a result of the same input is known


@dataclass(frozen=True, slots=True)
class Submitted:
    job_id: UUID | None
    verdict: Verdict
    reason: str | None
    status: str | None


async def submit_jobs(
    db: Database, submissions: Sequence[Submission], *, created_by: str | None = None
) -> list[Submitted]:
    """Submits jobs in one round trip, in order; due jobs are instantiated at once.

    The ids are made here, so that the call can be sent again when its answer was lost. InvalidValue where options are
    nested so deeply that they could not be handed to a task; OptionsInvalid where they are not what their workflow
    takes.
    """
    for submission in submissions:
        _check_depth(submission.options)
    await check_options(db, submissions)
    rows = await db.fetch(
        "SELECT * FROM accs.submit_jobs($1, $2, $3, $4, $5, $6, $7, $8, $9, p_no_cache => $10)",
        [submission.workflow_id for submission in submissions],
        [submission.options for submission in submissions],
        [submission.priority for submission in submissions],
        [submission.scheduled_at for submission in submissions],
        [submission.key for submission in submissions],
        [new_id() for _ in submissions],
        created_by,
        [submission.trace_id for submission in submissions],
        [submission.trigger for submission in submissions],
        [True if each.no_cache else None for each in submissions]
        if any(each.no_cache for each in submissions)
        else None,
        repeatable=True,
    )
    return [Submitted(row["job_id"], Verdict(row["answer"]), row["reason"], row["status"]) for row in rows]


def _check_depth(options: Mapping[str, Any] | None) -> None:
    if is_too_deep(options):
        raise InvalidValue(
            f"the options of a job are nested deeper than {MAX_DEPTH} levels",
            hint="pass what is nested so deeply as a text, or as a file that the job comes with",
        )


_schemas: dict[UUID, tuple[float, Schema | None]] = {}


async def check_options(db: Database, submissions: Sequence[Submission]) -> None:
    """Checks options before anything is written. A schema is asked for once in a while: it seldom changes, and jobs
    that were checked against an older one are checked again by the resolver."""
    now = time.monotonic()
    wanted = {each.workflow_id for each in submissions}
    if unknown := [each for each in wanted if _schemas.get(each, (0.0, None))[0] <= now]:
        rows = await db.fetch(
            "SELECT id, options_schema FROM public.workflows WHERE id = ANY ($1) AND options_schema IS NOT NULL",
            unknown,
            repeatable=True,
        )
        found = {row["id"]: _usable(row["options_schema"]) for row in rows}
        if len(_schemas) > _MOST_SCHEMAS:
            _schemas.clear()
        _schemas.update({each: (now + _SCHEMAS_KEPT_SEC, found.get(each)) for each in unknown})
    for submission in submissions:
        schema = _schemas[submission.workflow_id][1]
        if schema is not None and (problems := schema.problems(dict(submission.options or {}))):
            raise _refusal(problems)


def _usable(document: Any) -> Schema | None:
    try:
        return schema_of(document)
    except SchemaInvalid:
        return None  # written by plain SQL: the job's own error says what is wrong with it


def _refusal(problems: Sequence[Problem]) -> OptionsInvalid:
    return OptionsInvalid(
        sentences(problems, "options"),
        hint="`accsd workflows show NAME` lists the options that a workflow takes",
        complaints=[(each.place, str(each)) for each in problems],
    )


async def submit_job(db: Database, submission: Submission, *, created_by: str | None = None) -> UUID:
    """Submits one job; returns its id, or raises VerbRefused."""
    [submitted] = await submit_jobs(db, [submission], created_by=created_by)
    if submitted.job_id is None:
        raise VerbRefused("submit", submitted.reason or "unknown", subject=f"workflow {submission.workflow_id}")
    return submitted.job_id


async def rerun_job(db: Database, job_id: UUID, options: Mapping[str, Any], *, created_by: str | None = None) -> UUID:
    """Submits a job with an earlier one's workflow version and priority, and other options; its id, or VerbRefused."""
    earlier = await db.fetchrow("SELECT workflow_id, priority FROM public.jobs WHERE id = $1", job_id, repeatable=True)
    if earlier is None:
        raise NotFound(f"there is no job {job_id}", hint="`accsd jobs` lists the newest jobs")
    return await submit_job(
        db, Submission(**earlier, options=options, trigger={"rerun_of": str(job_id)}), created_by=created_by
    )


@dataclass(frozen=True, slots=True)
class Instantiated:
    job_id: UUID
    verdict: Verdict
    reason: str | None


async def instantiate_due_jobs(db: Database, *, limit: int = 100) -> list[Instantiated]:
    """Makes the tasks of jobs whose time has come. A job that can't be instantiated ends in error by itself."""
    rows = await db.fetch("SELECT * FROM accs.instantiate_due_jobs($1)", limit, repeatable=True)
    return [Instantiated(row["job_id"], Verdict(row["answer"]), row["reason"]) for row in rows]


async def instantiate_tasks(db: Database, job_id: UUID) -> Instantiated:
    """Makes the tasks of one queued job now, due or not."""
    row = await db.fetchrow("SELECT * FROM accs.instantiate_due_jobs(1, ARRAY[$1::uuid])", job_id, repeatable=True)
    assert row is not None, "instantiate_due_jobs answers for every job that it was asked about"
    return Instantiated(row["job_id"], Verdict(row["answer"]), row["reason"])


async def change_jobs(
    db: Database,
    job_ids: Sequence[UUID],
    *,
    priority: int | None = None,
    options: Mapping[str, Any] | None = None,
    scheduled_at: datetime | None = None,
    by: str | None = None,
    reason: str | None = None,
) -> dict[UUID, Answer]:
    """Changes jobs. Of a job that has started only the priority can change."""
    _check_depth(options)
    rows = await db.fetch(
        "SELECT * FROM accs.change_jobs($1, $2, $3, $4, $5, $6)",
        list(job_ids),
        priority,
        options,
        scheduled_at,
        by,
        reason,
        repeatable=True,
    )
    return read_answers(rows)


def new_id() -> UUID:
    """A time-ordered UUID (version 7), like accs.new_id() of the schema."""
    moment = (time.time_ns() // 1_000_000 & 0xFFFF_FFFF_FFFF) << 80
    chance = int.from_bytes(os.urandom(10))
    return UUID(int=moment | 0x7 << 76 | (chance >> 68 & 0xFFF) << 64 | 0b10 << 62 | chance & (1 << 62) - 1)


@dataclass(frozen=True, slots=True)
class NextDue:
    """Times from now, by the database's clock; None: no job is pending, or no lease is live."""

    is_due: bool
    next_job: timedelta | None
    next_lease: timedelta | None


async def builder_outlook(db: Database) -> NextDue:
    """Is a job due, when is the next one due, and when does the next lease end (reclaim adds its grace)."""
    row = await db.fetchrow("SELECT * FROM accs.builder_outlook()", repeatable=True)
    assert row is not None, "builder_outlook always answers"
    return NextDue(row["due"], row["next_job"], row["next_lease"])
