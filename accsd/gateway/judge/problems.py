"""Problems are workflows `judge.<id>`: their test data are a file of the version, their limits its params."""

import hashlib
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, Any, Final

import anyio.to_thread

from accsd.db import Database
from accsd.db.retry import retry_jobs
from accsd.db.submissions import ended_submissions, next_problem_id
from accsd.db.workflows import StoredWorkflow, apply_workflows, find_workflow, retire_workflow
from accsd.errors import InvalidValue, NotFound
from accsd.gateway.context import GatewayContext, require_store
from accsd.gateway.judge.package import repack
from accsd.gateway.judge.refusals import Refusal
from accsd.model import WorkflowDef
from accsd.model.files import WorkflowFile
from accsd.settings.doors import JudgeSettings
from accsd.storage import build_file_key

STEP: Final = "judge"
TESTS: Final = "tests.zip"  # what the judge finds among the files of its task
DEFAULT_MS: Final = 1_000
MOST_MS: Final = 10_000
DEFAULT_KB: Final = 64 * 1024  # of a submission to a problem that says nothing
MOST_KB: Final = 512 * 1024
_DEFAULT_MB: Final = 128
_REJUDGED_AT_ONCE: Final = 500
_MOST_REJUDGED: Final = 10_000  # by one request
_LONGEST_TITLE: Final = 200
_COMPILES_SEC: Final = 60
_LONGEST_SEC: Final = 3_600
_KNOWN_SEC: Final = 1.0
_MOST_KNOWN: Final = 1_000


@dataclass(frozen=True, slots=True)
class ProblemForm:
    title: str
    time_limit: int  # ms
    memory_limit: int  # MB
    difficulty: str | None


def clamped(given: int | None, default: int, most: int) -> int:
    """Numbers are clamped and not refused; nothing, zero and less is the default (OJ-11)."""
    return min(given, most) if given is not None and given > 0 else min(default, most)


def workflow_name(problem: int) -> str:
    return f"judge.{problem}"


async def active_problem(db: Database, problem: int) -> StoredWorkflow | None:
    found = await find_workflow(db, workflow_name(problem))
    return found if found is not None and found.is_active else None


class Problems:
    """Problems that are submitted to just now. One that is known is asked for again after a second: what was taken away
    meanwhile the database refuses by itself."""

    def __init__(self, db: Database, clock: Callable[[], float] = time.monotonic) -> None:
        self._db = db
        self._clock = clock
        self._known: dict[int, tuple[float, StoredWorkflow]] = {}

    async def active(self, problem: int) -> StoredWorkflow | None:
        now = self._clock()
        until, known = self._known.get(problem, (0.0, None))
        if now < until:
            return known
        found = await active_problem(self._db, problem)
        if found is not None:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[problem] = now + _KNOWN_SEC, found
        return found

    def forget(self, problem: int) -> None:
        self._known.pop(problem, None)


async def create_problem(
    context: GatewayContext, settings: JudgeSettings, form: ProblemForm, upload: IO[bytes], *, by: str, request_id: str
) -> dict[str, Any]:
    """Its data go into the store before anything names them (OJ-3)."""
    with tempfile.TemporaryFile() as packed:
        cases = await anyio.to_thread.run_sync(repack, upload, packed)
        file = await _stored(context, packed)
    db = context.verbs.acting("http", request_id)
    number = await next_problem_id(db)
    try:
        document = _document(number, form, settings, file, cases)
        await apply_workflows(db, [WorkflowDef.model_validate(document)], created_by=by)
    except InvalidValue as error:
        raise Refusal("INVALID_PARAM", error.message) from None
    return {
        "id": number,
        "status": "created",
        "minio_path": f"problems/{number}.zip",
        "workflow": workflow_name(number),
        "cases": len(cases),
        "key": file.key,
        "sha256": file.sha256,
    }


def _document(
    number: int, form: ProblemForm, settings: JudgeSettings, file: WorkflowFile, cases: list[str]
) -> dict[str, Any]:
    time_ms = clamped(form.time_limit, DEFAULT_MS, MOST_MS)
    memory_kb = clamped(form.memory_limit, _DEFAULT_MB, MOST_KB // 1024) * 1024
    params = {
        "problem": number,
        "title": form.title,
        "time_limit_ms": time_ms,
        "memory_limit_kb": memory_kb,
        "cases": len(cases),
        **({} if form.difficulty is None else {"difficulty": form.difficulty}),
    }
    # a case may sleep for twice its time of computing, and some seconds more
    timeout = min(_LONGEST_SEC, _COMPILES_SEC + len(cases) * (2 * time_ms / 1000 + 3))
    step = {
        "key": STEP,
        "service": settings.service,
        "max_attempts": 3,
        "backoff": [2, 10],  # a judge that failed is soon asked again, and then perhaps another one
        "timeout": timeout,
        "default_params": params,
    }
    return {"name": workflow_name(number), "title": form.title[:_LONGEST_TITLE], "steps": [step], "files": [file]}


async def _stored(context: GatewayContext, packed: IO[bytes]) -> WorkflowFile:
    """The file in the store, under the name of its content: the same data are there once."""
    store = require_store(context)
    digest, size = await anyio.to_thread.run_sync(_digest, packed)
    put = await store.put_file(build_file_key(digest), packed.fileno(), content_type="application/zip")
    return WorkflowFile(name=TESTS, key=put.key, sha256=digest, size=size)


def _digest(packed: IO[bytes]) -> tuple[str, int]:
    packed.flush()
    packed.seek(0)
    digest = hashlib.file_digest(packed, "sha256").hexdigest()  # pyright: ignore[reportArgumentType]
    return digest, packed.tell()


async def delete_problem(context: GatewayContext, problem: int, *, by: str, request_id: str) -> None:
    """Nobody can submit to it any more; what was submitted is judged (OJ-4)."""
    if await active_problem(context.reads, problem) is None:
        raise NotFound(f"there is no problem {problem}")
    await retire_workflow(context.verbs.acting("http", request_id), workflow_name(problem), by=by)


async def rejudge_problem(context: GatewayContext, problem: int, *, by: str, request_id: str) -> dict[str, Any]:
    """Judges all its submissions again that have ended, each by the test data that it was submitted under."""
    if await find_workflow(context.reads, workflow_name(problem)) is None:
        raise NotFound(f"there is no problem {problem}")
    db = context.verbs.acting("http", request_id)
    rejudged, refused, after = 0, 0, None
    while rejudged + refused < _MOST_REJUDGED:
        ids = await ended_submissions(db, workflow_name(problem), after=after, limit=_REJUDGED_AT_ONCE)
        if not ids:
            return {"rejudged": rejudged, "refused": refused, "more": False}
        answers = await retry_jobs(db, ids, from_step=STEP, by=by, reason="rejudged")
        effective = sum(each.is_effective for each in answers.values())
        rejudged, refused, after = rejudged + effective, refused + len(ids) - effective, ids[-1]
    return {"rejudged": rejudged, "refused": refused, "more": True}
