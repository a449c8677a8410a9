"""Operations: one action on many jobs or dead letters. They are previewed, followed and stopped."""

from typing import Any, Final, Literal
from uuid import UUID

from fastapi import APIRouter, Query
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from accsd.db.answers import Verdict
from accsd.db.operations import Action, operation, operations, stop_operation
from accsd.errors import VerbRefused
from accsd.gateway.access import GuardedRoute, scoped
from accsd.gateway.answers import answer, document
from accsd.gateway.bodies import Body as RequestBody
from accsd.gateway.bodies import Reason
from accsd.gateway.conditional import told
from accsd.gateway.context import caller_of, context_of
from accsd.gateway.messages import Topic
from accsd.gateway.operations import MAX_IDS, begin, preview, read_wanted
from accsd.gateway.paging import DEFAULT_LIMIT, MAX_LIMIT
from accsd.gateway.problems import HttpProblem
from accsd.gateway.reach import Reach, within
from accsd.gateway.routes.jobs import idempotency_key
from accsd.gateway.routes.verbs import verbs_of
from accsd.gateway.schemas import ANYTHING, TEXT, answers, listed, objects
from accsd.model.access import Scope

router = APIRouter(prefix="/api/v1", route_class=GuardedRoute, tags=["operations"])
_NUMBER: Final = {"type": "integer"}
OPERATION: Final = objects(
    id={"type": "string", "format": "uuid"},
    action=TEXT,
    target=ANYTHING,
    arguments=ANYTHING,
    reason={"type": ["string", "null"]},
    by=TEXT,
    state={"type": "string", "enum": ["running", "done", "stopped", "failed"]},
    expected={"type": ["integer", "null"]},
    looked_at=_NUMBER,
    answers=objects(accepted=_NUMBER, repeated=_NUMBER, refused=_NUMBER),
    reasons=ANYTHING,
    refusals={"type": "array", "items": objects(id=TEXT, reason=TEXT)},
)
_PREVIEW: Final = objects(
    action=TEXT,
    target=ANYTHING,
    count=_NUMBER,
    count_is={"type": "string", "enum": ["exact", "at least"]},
    examples={"type": "array"},
)


class Target(RequestBody):
    """Ids, or all that pass a filter and are not newer than its bound, which a preview names."""

    ids: list[str | int] | None = Field(default=None, min_length=1, max_length=MAX_IDS)
    filter: dict[str, Any] | None = Field(default=None, examples=[{"q": "status:error workflow:media"}])
    until_order_seq: int | None = Field(default=None, ge=0, le=2**63 - 1)
    until_id: int | None = Field(default=None, ge=0, le=2**63 - 1)


class OperationAsked(RequestBody):
    action: Action
    target: Target
    reason: str | None = Field(default=None, max_length=1000)
    priority: int | None = Field(default=None, ge=-(2**31), le=2**31 - 1, description="For set_priority.")
    from_step: str | None = Field(default=None, max_length=200, description="For retry.")
    dry_run: bool = False


@router.post(
    "/operations",
    operation_id="operations.start",
    summary="Do one thing to many jobs or dead letters",
    responses=answers(OPERATION, 200, "Done; or, with dry_run, what it would act on")
    | answers(OPERATION, 202, "Begun: more items than are done within a request"),
    openapi_extra=scoped(Scope.OPERATE, Reach.NARROWED),
)
async def start(request: Request, asked: OperationAsked, dry_run: bool = False) -> Response:
    """A dry run counts and shows examples; its `target`, sent back, touches nothing newer. The same `Idempotency-Key`
    again is the same operation."""
    context, caller = context_of(request), caller_of(request)
    body = asked.model_dump(exclude_none=True)
    wanted = await read_wanted(context.reads, body, within=within(caller))
    if dry_run or asked.dry_run:
        shown = await preview(context.reads, wanted)
        examples = [each if isinstance(each, str) else document(each, context.redaction) for each in shown.examples]
        return answer(shown.document() | {"examples": examples, "dry_run": True})
    begun = await begin(context.reads, verbs_of(request), wanted, by=caller.actor, key=idempotency_key(request))
    where = f"{context.settings.gateway.base_path}/api/v1/operations/{begun.id}"
    return answer(begun.document(), status=202 if begun.state == "running" else 200, headers={"Location": where})


@router.get(
    "/operations",
    operation_id="operations.list",
    summary="Operations, newest first",
    responses=answers(listed(OPERATION)),
    openapi_extra=scoped(Scope.READ, Reach.NARROWED),
)
async def list_page(
    request: Request,
    limit: int = Query(DEFAULT_LIMIT, ge=1, le=MAX_LIMIT),
    cursor: str | None = Query(None, max_length=1_100),
    order: Literal["newest"] = "newest",
) -> Response:
    context = context_of(request)
    asked = {"list": "operations", "order": order}
    after = None if cursor is None else UUID(str(context.cursors.open(cursor, asked)[0]))
    rows = await operations(context.reads, after=after, limit=limit)
    following = context.cursors.seal([str(rows[-1].id)], asked) if len(rows) == limit else None
    caller = caller_of(request)
    shown = [row.document() for row in rows if within(caller) is None or row.by == caller.actor]
    return answer({"items": shown, "next": following})


@router.get(
    "/operations/{operation_id}",
    operation_id="operations.get",
    summary="An operation: how far it is, and what was answered",
    responses=answers(OPERATION),
    openapi_extra=scoped(Scope.READ),
)
async def get(request: Request, operation_id: UUID) -> Response:
    """With `Prefer: wait=30` the answer comes when it has ended, or, with `If-None-Match`, as soon as it differs."""

    async def read() -> dict[str, Any]:
        return (await operation(context_of(request).reads, operation_id)).document()

    return await told(request, Topic.operation(operation_id), read, lambda shown: shown["state"] != "running")


@router.post(
    "/operations/{operation_id}/stop",
    operation_id="operations.stop",
    summary="Stop an operation",
    responses=answers(OPERATION),
    openapi_extra=scoped(Scope.OPERATE),
)
async def stop(request: Request, operation_id: UUID, asked: Reason | None = None) -> Response:
    """It ends after the chunk that it is in; what is done stays done."""
    context = context_of(request)
    said = await stop_operation(
        verbs_of(request), operation_id, by=caller_of(request).actor, reason=None if asked is None else asked.reason
    )
    if said.reason == "not_found":
        raise HttpProblem("not_found", f"there is no operation {operation_id}")
    if said.verdict is Verdict.REFUSED:
        raise VerbRefused("stop_operation", said.reason or "unknown", subject=str(operation_id))
    return answer((await operation(context.verbs, operation_id)).document() | {"answer": said.verdict.value})
