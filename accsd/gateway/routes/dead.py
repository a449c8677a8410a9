"""Dead letters: tasks that failed for good, one by one and in groups, until somebody settles them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from fastapi import APIRouter, Query
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from accsd.db import Database, dismiss, redrive
from accsd.db.retry import DeadLetterAnswer
from accsd.db.views.dead_letters import LetterFilter, letter_groups, list_letters
from accsd.db.views.jobs import DeadLetterRow, letters_outside
from accsd.errors import NotFound
from accsd.explain.jobs import dead_because
from accsd.gateway.access import GuardedRoute, scoped
from accsd.gateway.answers import answer, document
from accsd.gateway.bodies import Body as RequestBody
from accsd.gateway.context import caller_of, context_of
from accsd.gateway.paging import DEFAULT_LIMIT, MAX_LIMIT, Page
from accsd.gateway.reach import Reach, within
from accsd.gateway.routes.verbs import done
from accsd.gateway.schemas import ANYTHING, TEXT, answers, listed, objects, paged, row_schema
from accsd.model.access import Scope

router = APIRouter(prefix="/api/v1", route_class=GuardedRoute, tags=["dead letters"])
_GROUP: Final = objects(
    group=objects(service=TEXT, step=TEXT, error_code={"type": ["string", "null"]}, message=TEXT),
    count={"type": "integer"},
    first={"type": "string", "format": "date-time"},
    last={"type": "string", "format": "date-time"},
    letters={"type": "array", "items": {"type": "integer"}},
    jobs={"type": "array", "items": {"type": "string", "format": "uuid"}},
)


class Chosen(RequestBody):
    ids: list[int] = Field(min_length=1, max_length=10_000)
    reason: str | None = Field(default=None, max_length=1000)


@router.get(
    "/dead-letters",
    operation_id="dead_letters.list",
    summary="Tasks that failed for good",
    responses=answers(paged({"allOf": [row_schema(DeadLetterRow), objects(because=TEXT)]})),
    openapi_extra=scoped(Scope.READ, Reach.NARROWED),
)
async def list_dead(
    request: Request,
    service: str | None = Query(None, max_length=200),
    workflow: str | None = Query(None, max_length=200),
    step: str | None = Query(None, max_length=200),
    error_code: str | None = Query(None, max_length=200),
    settled: bool = False,
    limit: int = Query(DEFAULT_LIMIT, ge=1, le=MAX_LIMIT),
    cursor: str | None = Query(None, max_length=1_100),
) -> Response:
    """The newest first; with `settled`, those that were retried or dismissed too."""
    context = context_of(request)
    wanted = LetterFilter(
        service=service,
        workflow=workflow,
        step=step,
        error_code=error_code,
        settled=settled,
        within=within(caller_of(request)),
    )
    asked = {"list": "dead_letters"} | wanted.document()
    after = None if cursor is None else int(context.cursors.open(cursor, asked)[0])
    page = await list_letters(context.reads, wanted, after=after, limit=limit)
    following = None if page.next is None else context.cursors.seal([page.next], asked)
    rows = [document(row) | {"because": dead_because(row)} for row in page.rows]
    return answer(
        Page(rows, following, page.scan, page.as_of).document() | {"filter": replace(wanted, within=None).document()}
    )


@router.get(
    "/dead-letters/groups",
    operation_id="dead_letters.groups",
    summary="The same failures counted together",
    responses=answers(listed(_GROUP)),
    openapi_extra=scoped(Scope.READ, Reach.NARROWED),
)
async def list_groups(
    request: Request,
    service: str | None = Query(None, max_length=200),
    workflow: str | None = Query(None, max_length=200),
) -> Response:
    """By service, step, error and the message without what differs; the largest group first. An operation takes `group`
    as its filter. `complete: false`: only the newest were looked at."""
    found = await letter_groups(
        context_of(request).reads, LetterFilter(service=service, workflow=workflow, within=within(caller_of(request)))
    )
    rows = [
        {"group": each.signature.document()}
        | {name: getattr(each, name) for name in ("count", "first", "last", "letters", "jobs")}
        for each in found.groups
    ]
    return answer({"items": rows, "complete": found.complete, "looked_at": found.looked_at, "as_of": found.as_of})


@router.post(
    "/dead-letters/redrive",
    operation_id="dead_letters.redrive",
    summary="Send dead letters back to work",
    responses=answers(listed(ANYTHING)),
    openapi_extra=scoped(Scope.OPERATE, Reach.NARROWED),
)
async def redrive_dead(request: Request, asked: Chosen, dry_run: bool = False) -> Response:
    """With the steps that were skipped because of them."""
    by = caller_of(request).actor
    await _require_letters(request, asked.ids)

    async def work(db: Database) -> list[DeadLetterAnswer]:
        return await redrive(db, _once(asked.ids), by=by, reason=asked.reason)

    return _told(await done(request, work, dry_run=dry_run), dry_run=dry_run)


@router.post(
    "/dead-letters/dismiss",
    operation_id="dead_letters.dismiss",
    summary="Take dead letters off the list",
    responses=answers(listed(ANYTHING)),
    openapi_extra=scoped(Scope.OPERATE, Reach.NARROWED),
)
async def dismiss_dead(request: Request, asked: Chosen, dry_run: bool = False) -> Response:
    """Nobody will do anything about them; their jobs stay as they are."""
    by = caller_of(request).actor
    await _require_letters(request, asked.ids)

    async def work(db: Database) -> list[DeadLetterAnswer]:
        return await dismiss(db, _once(asked.ids), by=by, reason=asked.reason)

    return _told(await done(request, work, dry_run=dry_run), dry_run=dry_run)


async def _require_letters(request: Request, ids: Sequence[int]) -> None:
    if (names := within(caller_of(request))) is None:
        return
    if outside := await letters_outside(context_of(request).reads, _once(ids), names):
        raise NotFound(f"there is no dead letter {outside[0]}", hint=f"the token is limited to {', '.join(names)}")


def _once(ids: Sequence[int]) -> list[int]:
    return [each for each in dict.fromkeys(ids) if 0 < each < 2**63]


def _told(made: Sequence[DeadLetterAnswer], *, dry_run: bool) -> Response:
    rows = [{"id": each.dead_letter_id, "answer": each.verdict, "reason": each.reason} for each in made]
    return answer({"items": rows} | ({"dry_run": True} if dry_run else {}))
