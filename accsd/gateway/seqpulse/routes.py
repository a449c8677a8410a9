"""What SeqPulse's clients ask: a deployment begins and ends (SP-11, SP-12); what was found is read."""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal
from uuid import UUID

from fastapi import APIRouter, Header, Query
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from accsd import failpoints
from accsd.db import deployments as stored
from accsd.db.answers import Verdict
from accsd.db.deployments import ReadDeployment, StoredSample, Triggered
from accsd.errors import InvalidValue, NotFound
from accsd.gateway.answers import answer
from accsd.gateway.conditional import told
from accsd.gateway.context import caller_of
from accsd.gateway.messages import Topic
from accsd.gateway.problems import HttpProblem
from accsd.gateway.schemas import answers, objects
from accsd.gateway.seqpulse.app import KeyedRoute, desk_of, guarded, project_of
from accsd.gateway.seqpulse.projects import compared
from accsd.model.access import Scope
from accsd.planning.verdict import METRICS

router = APIRouter(route_class=KeyedRoute, tags=["seqpulse"])

Word = Annotated[str, Field(max_length=255, pattern=r"^[^\x00]*$")]
Address = Annotated[str, Field(max_length=2000, pattern=r"^[^\x00]*$")]
_PUBLIC: Final = "dpl_"
_LARGEST_NUMBER: Final = 2**31 - 1

_TEXT: Final = {"type": "string"}
_MAYBE: Final = {"type": ["string", "null"]}
_NUMBER: Final = {"type": ["number", "null"]}
_ID: Final = {"type": "string", "format": "uuid"}
_TIME: Final = {"type": ["string", "null"], "format": "date-time"}
_SAID: Final = objects(status=_TEXT, message=_MAYBE)
_VERDICT: Final = objects(
    verdict={"enum": ["ok", "warning", "rollback_recommended"]},
    confidence={"type": "number"},
    summary=_TEXT,
    details={"type": "array", "items": _TEXT},
)
_DEPLOYMENT: Final = objects(
    id=_ID,
    public_id=_TEXT,
    internal_id=_ID,
    deployment_number={"type": "integer"},
    project=_TEXT,
    env=_TEXT,
    branch=_MAYBE,
    metrics_endpoint=_MAYBE,
    pipeline_result={"enum": ["success", "failed", None]},
    state={"enum": ["running", "finished", "analyzed"]},
    started_at=_TIME,
    finished_at=_TIME,
    duration_ms={"type": ["integer", "null"]},
    verdict={"anyOf": [_VERDICT, {"type": "null"}]},
    analysis={"anyOf": [objects(status=_TEXT, last_error=_MAYBE), {"type": "null"}]},
)
_SAMPLE: Final = objects(
    id=_ID,
    phase={"enum": ["pre", "post"]},
    sequence_index={"type": ["integer", "null"]},
    **{name: {"type": "number"} for name in METRICS},
    collected_at=_TIME,
    scheduled_at=_TIME,
    warm_up={"type": "boolean"},
)
_HINT: Final = objects(
    id=_ID,
    deployment_id=_ID,
    metric=_TEXT,
    severity={"enum": ["critical", "warning", "info"]},
    **dict.fromkeys(
        ("observed_value", "threshold", "secured_threshold", "exceed_ratio", "tolerance", "confidence"), _NUMBER
    ),
    title=_TEXT,
    diagnosis=_TEXT,
    suggested_actions={"type": "array", "items": _TEXT},
    audit_data={"type": "object"},
    created_at=_TIME,
)


class Asked(BaseModel):
    """A body. Members that are not known are ignored: clients of other versions may send some."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class TriggerAsked(Asked):
    env: Word = Field(min_length=1)
    metrics_endpoint: Address | None = None
    idempotency_key: Word | None = Field(default=None, description="The header X-Idempotency-Key goes before it.")
    branch: Word | None = None


class FinishAsked(Asked):
    deployment_id: UUID
    result: Literal["success", "failed"]
    metrics_endpoint: Address | None = None


@router.post(
    "/deployments/trigger",
    operation_id="deployments.trigger",
    summary="A deployment begins",
    responses=answers(objects(deployment_id=_ID, status={"enum": ["created", "existing"]}, message=_MAYBE)),
    openapi_extra=guarded(Scope.SUBMIT),
)
async def trigger(
    request: Request, wanted: TriggerAsked, x_idempotency_key: Annotated[Word | None, Header()] = None
) -> Response:
    """The same key is the same deployment, and so is one that runs in this environment: `existing`."""
    desk, project = desk_of(request), project_of(request)
    project.require_env(wanted.env)
    project.require_open()
    endpoint = project.resolved(_filled(wanted.metrics_endpoint))
    key = _filled(x_idempotency_key) or _filled(wanted.idempotency_key)
    if await stored.known_deployment(desk.context.reads, project.name, wanted.env, key) is None:
        failed = await desk.preflight.failure(project, endpoint)
        if failed is not None:
            raise HttpProblem("preflight_failed", f"the application gives no metrics: {failed}")
    failpoints.hit("deployment.asked")
    made = await _triggered(request, wanted, endpoint, key)
    failpoints.hit("deployment.begun")
    is_new = made.verdict is Verdict.ACCEPTED
    message = None if is_new else f"this deployment was there already, in {wanted.env}"
    return answer({"deployment_id": made.id, "status": "created" if is_new else "existing", "message": message})


async def _triggered(request: Request, wanted: TriggerAsked, endpoint: str | None, key: str | None) -> Triggered:
    desk, project = desk_of(request), project_of(request)
    await desk.ready()
    return await stored.trigger_deployment(
        desk.context.verbs,
        project.name,
        wanted.env,
        endpoint=endpoint,
        window_minutes=project.settings.window_minutes,
        delay_minutes=project.settings.delay,
        key=key,
        branch=_filled(wanted.branch),
        by=caller_of(request).actor,
    )


@router.post(
    "/deployments/finish",
    operation_id="deployments.finish",
    summary="A deployment has ended",
    responses=answers(objects(status={"enum": ["accepted", "ignored", "not_found"]}, message=_MAYBE)),
    openapi_extra=guarded(Scope.SUBMIT),
)
async def finish(request: Request, wanted: FinishAsked) -> Response:
    """Schedules a sample a minute and the analysis, in one transaction. What has ended already is `ignored`."""
    desk, project = desk_of(request), project_of(request)
    known = await stored.read_deployment(desk.context.reads, project.name, wanted.deployment_id)
    if known is None:
        return answer({"status": "not_found", "message": f"project {project.name} has no such deployment"})
    endpoint = project.resolved(_filled(wanted.metrics_endpoint))
    began_with = known.deployment.metrics_endpoint
    if endpoint is not None and began_with is not None and not _is_same(project.to_ask(began_with), endpoint):
        raise HttpProblem("ENDPOINT_MISMATCH", "the deployment began with another metrics endpoint")
    if known.deployment.state != "running":
        return answer({"status": "ignored", "message": "this deployment has ended already"})
    failed = await desk.preflight.failure(project, endpoint or began_with)
    await desk.ready()
    failpoints.hit("deployment.asked")
    verdict = await stored.finish_deployment(
        desk.context.verbs,
        project.name,
        wanted.deployment_id,
        wanted.result,
        endpoint=endpoint,
        by=caller_of(request).actor,
    )
    failpoints.hit("deployment.finished")
    if verdict is not Verdict.ACCEPTED:
        return answer({"status": "ignored", "message": "this deployment has ended already"})
    message = None if failed is None else f"the application gives no metrics now: {failed}"
    return answer({"status": "accepted", "message": message})


def _filled(text: str | None) -> str | None:
    """A blank text is none."""
    return (text or "").strip() or None


def _is_same(one: str | None, other: str) -> bool:
    return one is not None and compared(one) == compared(other)


# Reading


@router.get(
    "/deployments",
    operation_id="deployments.list",
    summary="Deployments, newest first",
    responses=answers({"type": "array", "items": _DEPLOYMENT}),
    openapi_extra=guarded(Scope.READ),
)
async def list_deployments(
    request: Request,
    env: Word | None = None,
    below: Annotated[int | None, Query(ge=1, le=_LARGEST_NUMBER, description="The last number of a page.")] = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> Response:
    found = await stored.read_deployments(
        desk_of(request).context.reads, project_of(request).name, env=env, below=below, limit=limit
    )
    return answer([_document(each) for each in found])


@router.get(
    "/deployments/{deployment_id}",
    operation_id="deployments.get",
    summary="A deployment with its verdict",
    responses=answers(_DEPLOYMENT),
    openapi_extra=guarded(Scope.READ),
)
async def get_deployment(request: Request, deployment_id: str) -> Response:
    """By its id or as `dpl_7`. With `Prefer: wait=60` the answer comes when there is a verdict."""
    found = (await _found(request, deployment_id)).deployment.id

    async def read() -> dict[str, Any]:
        return _document(await _found(request, str(found)))

    return await told(request, Topic.job(found), read, _is_judged)  # the analysis is a job of this id


@router.get(
    "/deployments/{deployment_id}/metrics",
    operation_id="deployments.metrics",
    summary="The samples of a deployment, oldest first",
    responses=answers({"type": "array", "items": _SAMPLE}),
    openapi_extra=guarded(Scope.READ),
)
async def get_metrics(request: Request, deployment_id: str) -> Response:
    found = await _found(request, deployment_id)
    samples = await stored.stored_samples(desk_of(request).context.reads, found.deployment.id)
    taken = [(each, each.values) for each in samples if each.values is not None]
    return answer([_sample(each, values) for each, values in sorted(taken, key=lambda one: one[1]["collected_at"])])


@router.get(
    "/sdh",
    operation_id="sdh.list",
    summary="Hints for people, of one deployment or of all",
    responses=answers({"type": "array", "items": _HINT}),
    openapi_extra=guarded(Scope.READ),
)
async def list_hints(
    request: Request,
    deployment_id: Annotated[str | None, Query(max_length=100)] = None,
    severity: Literal["critical", "warning", "info"] | None = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> Response:
    which = None if deployment_id is None else (await _found(request, deployment_id)).deployment.id
    rows = await stored.sdh_hints(
        desk_of(request).context.reads, project_of(request).name, deployment_id=which, severity=severity, limit=limit
    )
    return answer([dict(row) for row in rows])


async def _found(request: Request, which: str) -> ReadDeployment:
    """Of the caller's project; another one's is not there."""
    name = project_of(request).name
    known = await stored.read_deployment(desk_of(request).context.reads, name, _read_id(which))
    if known is None:
        raise NotFound(f"project {name} has no deployment {which[:100]}", hint="GET /deployments lists the newest")
    return known


def _read_id(text: str) -> UUID | int:
    number = text.removeprefix(_PUBLIC)
    if number != text and number.isascii() and number.isdigit() and int(number[:11]) <= _LARGEST_NUMBER:
        return int(number[:11])
    try:
        return UUID(text)
    except ValueError:
        raise InvalidValue(
            f'"{text[:100]}" is no id of a deployment: it is a UUID, or {_PUBLIC} and its number'
        ) from None


def _is_judged(shown: dict[str, Any]) -> bool:
    return shown["analysis"] is not None and shown["analysis"]["status"] in ("completed", "failed")


def _document(found: ReadDeployment) -> dict[str, Any]:
    known, verdict = found.deployment, found.verdict
    return {
        "id": known.id,
        "public_id": f"{_PUBLIC}{known.number}",
        "internal_id": known.id,
        "deployment_number": known.number,
        "project": known.project,
        "env": known.env,
        "branch": known.branch,
        "metrics_endpoint": known.metrics_endpoint,
        "pipeline_result": known.pipeline_result,
        "state": "analyzed" if found.analysis == "completed" else known.state,
        "started_at": known.started_at,
        "finished_at": known.finished_at,
        "duration_ms": known.duration_ms,
        "verdict": None
        if verdict is None
        else {
            "verdict": verdict.verdict,
            "confidence": verdict.confidence,
            "summary": verdict.summary,
            "details": verdict.details,
        },
        "analysis": None if found.analysis is None else {"status": found.analysis, "last_error": found.last_error},
    }


def _sample(stored_one: StoredSample, values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "id": stored_one.id,
        "phase": stored_one.phase,
        "sequence_index": stored_one.sequence_index,
        **{name: values[name] for name in METRICS},
        "collected_at": values["collected_at"],
        "scheduled_at": stored_one.scheduled_at,
        "warm_up": values.get("warm_up", False),
    }
