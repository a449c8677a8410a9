"""Workflows: listed, shown, checked, written, paused and resumed."""

from typing import Any, Final, cast

from fastapi import APIRouter, Body, Path, Query
from starlette.requests import Request
from starlette.responses import Response

from accsd.db import Pausable
from accsd.db import workflows as stored
from accsd.db.statistics import step_stats
from accsd.db.tools import bound_workflow
from accsd.db.views import workflows as workflow_views
from accsd.db.views.workflows import WorkflowRow
from accsd.db.workflows import Applied, Change, StoredWorkflow
from accsd.errors import WorkflowInvalid
from accsd.gateway.access import GuardedRoute, require_limit, scoped
from accsd.gateway.answers import answer, document
from accsd.gateway.bodies import Reason
from accsd.gateway.conditional import etag
from accsd.gateway.context import GatewayContext, caller_of, context_of
from accsd.gateway.problems import pointer
from accsd.gateway.reach import Reach
from accsd.gateway.routes.pauses import pause_thing, resume_thing
from accsd.gateway.routes.verbs import verbs_of
from accsd.gateway.schemas import ANYTHING, answers, listed, objects, row_schema
from accsd.model import WorkflowDef
from accsd.model.access import Scope
from accsd.pipeline.document import as_workflow, is_pipeline
from accsd.pipeline.flow import check_workflow

router = APIRouter(prefix="/api/v1", route_class=GuardedRoute, tags=["workflows"])
_NAME: Final = Path(min_length=1, max_length=200)
_VERSION: Final = Path(ge=1, le=2**31 - 1)
WORKFLOW: Final = row_schema(StoredWorkflow)


@router.get(
    "/workflows",
    operation_id="workflows.list",
    summary="The newest version of each workflow",
    responses=answers(listed(row_schema(WorkflowRow))),
    openapi_extra=scoped(Scope.READ, Reach.NARROWED),
)
async def list_workflows(request: Request, all_versions: bool = False) -> Response:
    rows = await workflow_views.workflows(context_of(request).reads, every_version=all_versions)
    caller = caller_of(request)
    return answer({"items": [document(row) for row in rows if caller.reaches("workflows", row.name)]})


@router.get(
    "/workflows/{name}",
    operation_id="workflows.get",
    summary="A workflow",
    responses=answers(WORKFLOW),
    openapi_extra=scoped(Scope.READ, Reach.WORKFLOW),
)
async def get_workflow(request: Request, name: str = _NAME) -> Response:
    """The newest version, active or not."""
    return await _shown(request, name, None)


@router.get(
    "/workflows/{name}/versions",
    operation_id="workflows.versions",
    summary="All versions of a workflow",
    responses=answers(listed(row_schema(WorkflowRow))),
    openapi_extra=scoped(Scope.READ, Reach.WORKFLOW),
)
async def versions(request: Request, name: str = _NAME) -> Response:
    context = context_of(request)
    rows = [row for row in await workflow_views.workflows(context.reads, every_version=True) if row.name == name]
    if not rows:
        raise await workflow_views.no_such_workflow(context.reads, name)
    return answer({"items": [document(row) for row in rows]})


@router.get(
    "/workflows/{name}/versions/{version}",
    operation_id="workflows.get_version",
    summary="One version of a workflow",
    responses=answers(WORKFLOW),
    openapi_extra=scoped(Scope.READ, Reach.WORKFLOW),
)
async def get_version(request: Request, name: str = _NAME, version: int = _VERSION) -> Response:
    return await _shown(request, name, version)


_SECONDS: Final = {"type": ["number", "null"]}


@router.get(
    "/workflows/{name}/steps",
    operation_id="workflows.steps",
    summary="How long the steps of a workflow usually take, and which fail everywhere",
    responses=answers(
        listed(
            objects(
                key={"type": "string"},
                n={"type": "integer"},
                p50_seconds=_SECONDS,
                p95_seconds=_SECONDS,
                wait_p50_seconds=_SECONDS,
                fails_everywhere={"type": ["string", "null"]},
            )
        )
    ),
    openapi_extra=scoped(Scope.READ, Reach.WORKFLOW),
)
async def steps(request: Request, name: str = _NAME, version: int | None = Query(None, ge=1, le=2**31 - 1)) -> Response:
    """By the last 200 runs of each step, of any version; `n` counts all that were ever done."""
    db = context_of(request).reads
    found = await workflow_views.workflow_named(db, name, version)
    usual, failing = await step_stats(db, name), await workflow_views.failing_steps(db, found.id)
    rows: list[dict[str, Any]] = []
    for key in (str(step["key"]) for step in found.steps):
        figures = usual.get(key)
        rows.append(
            {
                "key": key,
                "n": 0 if figures is None else figures.n,
                "p50_seconds": None if figures is None else figures.p50,
                "p95_seconds": None if figures is None else figures.p95,
                "wait_p50_seconds": None if figures is None else figures.wait_p50,
                "fails_everywhere": failing.get(key),
            }
        )
    return answer({"items": rows})


async def _shown(request: Request, name: str, version: int | None) -> Response:
    context = context_of(request)
    found = document(await workflow_views.workflow_named(context.reads, name, version), context.redaction)
    found["steps"] = [
        {key: context.redaction.of(key, value) for key, value in step.items()}
        for step in cast("list[dict[str, Any]]", found["steps"])
    ]
    tag = etag(found)
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers={"ETag": tag})
    return answer(found, headers={"ETag": tag})


_CHECKED: Final = objects(
    name={"type": "string"}, steps={"type": "integer"}, warnings={"type": "array", "items": {"type": "string"}}
)


@router.post(
    "/workflows/check",
    operation_id="workflows.check",
    summary="Check a workflow with its expressions, and write nothing",
    responses=answers(_CHECKED),
    openapi_extra=scoped(Scope.READ, Reach.FREE),
)
async def check(request: Request, written: dict[str, Any] = Body()) -> Response:
    """422 with every mistake and its place, where something is wrong."""
    return answer(_told(*await _read(context_of(request), written)))


@router.put(
    "/workflows/{name}",
    operation_id="workflows.apply",
    summary="Write a workflow",
    responses=answers(row_schema(Applied), 200, "It stood there already, or a dry run")
    | answers(row_schema(Applied), 201, "A new version"),
    openapi_extra=scoped(Scope.OPERATE, Reach.NARROWED),
)
async def apply(
    request: Request, written: dict[str, Any] = Body(), name: str = _NAME, dry_run: bool = False
) -> Response:
    """The body is the document of `accsd workflows apply`, as JSON. A document that names no version becomes a new one
    where it differs from the newest."""
    context, caller = context_of(request), caller_of(request)
    require_limit(caller, "workflows", name)
    wanted, warnings = await _read(context, {**written, "name": written.get("name", name)})
    if wanted.name != name:
        raise WorkflowInvalid(f'the path says "{name}" and the document "{wanted.name}"')
    if dry_run:
        return answer({"dry_run": True, **_told(wanted, warnings)})
    [made] = await stored.apply_workflows(verbs_of(request), [wanted], created_by=caller.actor)
    return answer(document(made), status=200 if made.change is Change.UNCHANGED else 201)


async def _read(context: GatewayContext, written: dict[str, Any]) -> tuple[WorkflowDef, list[str]]:
    """The workflow, and what may surprise its author. WorkflowInvalid has every mistake."""
    found = WorkflowDef.model_validate(as_workflow(written))
    warnings = check_workflow(found, steps_at="pipeline" if is_pipeline(written) else "steps")
    return await bound_workflow(context.reads, found), [f"{pointer(place)}: {said}" for place, said in warnings]


def _told(found: WorkflowDef, warnings: list[str]) -> dict[str, Any]:
    return {"name": found.name, "steps": len(found.steps), "warnings": warnings}


@router.post(
    "/workflows/{name}/pause",
    operation_id="workflows.pause",
    summary="Let nobody begin a task of a workflow",
    responses=answers(ANYTHING),
    openapi_extra=scoped(Scope.OPERATE, Reach.WORKFLOW),
)
async def pause(
    request: Request, name: str = _NAME, asked: Reason = Body(default=Reason()), dry_run: bool = False
) -> Response:
    await workflow_views.workflow_named(context_of(request).reads, name)
    return await pause_thing(request, Pausable.WORKFLOW, name, asked, dry_run=dry_run)


@router.post(
    "/workflows/{name}/resume",
    operation_id="workflows.resume",
    summary="Let the tasks of a workflow begin again",
    responses=answers(ANYTHING),
    openapi_extra=scoped(Scope.OPERATE, Reach.WORKFLOW),
)
async def resume(
    request: Request, name: str = _NAME, asked: Reason = Body(default=Reason()), dry_run: bool = False
) -> Response:
    await workflow_views.workflow_named(context_of(request).reads, name)
    return await resume_thing(request, Pausable.WORKFLOW, name, asked, dry_run=dry_run)
