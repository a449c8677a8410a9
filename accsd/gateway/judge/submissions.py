"""Submissions: taken in the order of checks OJ-12, found again when they are the same, shown, judged again."""

import hashlib
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from accsd.db.pool import Database
from accsd.db.retry import retry_jobs
from accsd.db.submissions import SubmissionRow, submission, submissions_with_keys
from accsd.db.submit import Submission, submit_jobs
from accsd.db.workflows import StoredWorkflow
from accsd.errors import NotFound
from accsd.gateway.context import GatewayContext
from accsd.gateway.judge.gate import may_see
from accsd.gateway.judge.pace import Room
from accsd.gateway.judge.problems import DEFAULT_KB, DEFAULT_MS, MOST_KB, MOST_MS, STEP, Problems, clamped
from accsd.gateway.judge.refusals import Refusal
from accsd.model.access import Caller
from accsd.settings.doors import JudgeSettings

DEDUP_SEC: Final = 600
_GENERATIONS: Final = 8  # of one key: after so many judgements of it that failed there is none
_MOST_INT: Final = 2**31 - 1


class SubmissionBody(BaseModel):
    """What a client sends. Fields that are not known are ignored (G-6)."""

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")

    code: str = Field(min_length=1)
    language: int | str = Field(description="1 is C++, 3 is Python; a name is taken, too")
    problem_id: int | None = None
    time_limit: int | None = Field(default=None, description="ms")
    memory_limit: int | None = Field(default=None, description="KB")


def read_submission(document: Any) -> SubmissionBody:
    try:
        return SubmissionBody.model_validate(document)
    except ValidationError as error:
        found = error.errors(include_input=False, include_url=False, include_context=False)
        details = "; ".join(f"{'.'.join(map(str, each['loc'])) or 'body'}: {each['msg']}" for each in found[:5])
        raise Refusal("BAD_REQUEST", "the body is not a submission", details=details) from None


def language_of(wanted: SubmissionBody, settings: JudgeSettings) -> str:
    """The name of its language, by which the judge knows it."""
    if wanted.language in settings.languages:
        return str(wanted.language)
    for name, number in settings.languages.items():
        if wanted.language == number:
            return name
    known = ", ".join(f"{number} ({name})" for name, number in settings.languages.items())
    raise Refusal("INVALID_PARAM", f"language {str(wanted.language)[:50]!r} is not judged here: {known} are")


def require_fitting(wanted: SubmissionBody, settings: JudgeSettings) -> None:
    if len(wanted.code.encode()) > settings.code:
        raise Refusal("INVALID_PARAM", f"code has more than {settings.code} bytes")


async def submit(
    context: GatewayContext,
    settings: JudgeSettings,
    room: Room,
    problems: Problems,
    wanted: SubmissionBody,
    caller: Caller,
    *,
    request_id: str,
    afresh: bool,
) -> dict[str, Any]:
    """The checks that need more than the body, in their order. `afresh`: whatever was submitted before."""
    require_fitting(wanted, settings)
    language = language_of(wanted, settings)
    problem = await _problem(problems, wanted.problem_id, caller)
    if problem is None:
        raise Refusal("PROBLEM_NOT_FOUND", f"there is no problem {wanted.problem_id}")
    options = {"code": wanted.code, "language": language, **_limits(wanted, problem)}
    async with room.place():
        key = None
        if settings.dedup and not afresh:
            key, known = await _known(context.reads, fingerprint(caller.actor, problem, options))
            if known is not None:
                return repeated(known)
        job = Submission(problem.id, options, key=key, trace_id=request_id)
        [made] = await submit_jobs(context.verbs, [job], created_by=caller.actor)
    if made.job_id is None:  # deleted a moment ago
        raise Refusal("PROBLEM_NOT_FOUND", f"there is no problem {wanted.problem_id}")
    return {"job_id": str(made.job_id), "status": "Queuing"}


async def _problem(problems: Problems, number: int | None, caller: Caller) -> StoredWorkflow | None:
    if number is None or not 0 < number <= _MOST_INT:
        return None
    found = await problems.active(number)
    return found if found is not None and caller.reaches("workflows", found.name) else None


def _limits(wanted: SubmissionBody, problem: StoredWorkflow) -> dict[str, int]:
    """Those of the problem are the default and the upper bound (OJ-25)."""
    params: Mapping[str, Any] = problem.steps[0].get("default_params") or {}
    most_ms = clamped(params.get("time_limit_ms"), DEFAULT_MS, MOST_MS)
    most_kb = clamped(params.get("memory_limit_kb"), DEFAULT_KB, MOST_KB)
    return {
        "time_limit": clamped(wanted.time_limit, most_ms, most_ms),
        "memory_limit": clamped(wanted.memory_limit, most_kb, most_kb),
    }


# The same again (OJ-16)


def fingerprint(actor: str, problem: StoredWorkflow, options: Mapping[str, Any]) -> str:
    """Two submissions have it in common if they are one: user, code, language, limits, problem and test data, which
    the version of the workflow stands for."""
    said = orjson.dumps([actor, str(problem.id), options], option=orjson.OPT_SORT_KEYS)
    return hashlib.sha256(said).hexdigest()


async def _known(db: Database, wanted: str) -> tuple[str | None, SubmissionRow | None]:
    """The key to submit under, or the submission of the last ten minutes that is the same.

    A key is used for good. So it names the ten minutes in which it was made and, as a submission whose judge failed or
    that was cancelled is not the answer to another one, which try of them it is. At the change of the ten minutes two
    at once may both be judged: that costs time and nothing else.
    """
    now = int(time.time()) // DEDUP_SEC
    keys = [f"judge/{wanted}/{period}/{n}" for period in (now, now - 1) for n in range(_GENERATIONS)]
    found = await submissions_with_keys(db, keys, timedelta(seconds=DEDUP_SEC))
    for known in found.values():
        if known.is_judged or not known.is_done:
            return None, known
    return next((key for key in keys[:_GENERATIONS] if key not in found), None), None


def repeated(known: SubmissionRow) -> dict[str, Any]:
    if known.is_done:
        return document(known) | {"cached": True}
    return {"job_id": str(known.job_id), "status": "Queuing"}


# Status


def document(row: SubmissionRow) -> dict[str, Any]:
    """What is told of a submission (OJ-2). An end is always `Finished`; the verdict stands in `data`."""
    shown: dict[str, Any] = {
        "job_id": str(row.job_id),
        "status": "Finished" if row.is_done else row.status,
        "state": row.state,
        "data": row.result,
    }
    return shown if row.is_done else shown | {"progress": row.progress}


async def seen(db: Database, job_id: str, caller: Caller) -> SubmissionRow:
    """The submission, if there is one and the caller may see it."""
    try:
        found = await submission(db, UUID(job_id))
    except ValueError:
        found = None
    if found is None or not caller.reaches("workflows", found.workflow):
        raise NotFound(f"there is no submission {job_id[:50]}")
    if not may_see(caller, found.owner):
        raise Refusal("FORBIDDEN", "it was submitted by somebody else")
    return found


async def rejudge(context: GatewayContext, row: SubmissionRow, *, by: str, request_id: str) -> dict[str, Any]:
    """Judges it again, in the next attempt; the earlier verdict stays in its history."""
    db = context.verbs.acting("http", request_id)
    answers = await retry_jobs(db, [row.job_id], from_step=STEP, by=by, reason="rejudged")
    if not answers[row.job_id].is_effective:
        raise Refusal("CONFLICT", "it has not ended yet")
    return {"job_id": str(row.job_id), "status": "Queuing"}
