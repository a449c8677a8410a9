"""The two services that do what is scheduled for deployments, in pull mode, in the gateway's own process: they have the
database and the secrets, and nothing is installed on nodes."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final, Literal, cast
from uuid import UUID

import anyio
from pydantic import BaseModel, ConfigDict, ValidationError

from accsd import failpoints
from accsd.db.deployments import Deployment, StoredSample, deployment, stored_samples
from accsd.db.views.jobs import clock
from accsd.errors import ServiceBusy, Unavailable
from accsd.gateway.context import GatewayContext
from accsd.gateway.seqpulse.collector import SampleFailed, sample
from accsd.gateway.seqpulse.desk import Desk
from accsd.gateway.seqpulse.projects import WatchedProject
from accsd.gateway.seqpulse.workflows import ANALYSE, COLLECT
from accsd.planning.hints import hints_of
from accsd.planning.verdict import METRICS, MetricSample, judge
from accsd.roles import Role
from accsd.sdk import Permanent, Service, Task, Temporary
from accsd.settings import Settings
from accsd.values.names import KIND_LABEL

_CONNECTIONS: Final = 3  # of each service
_AWAY: Final = timedelta(seconds=5)  # the database; after this a task that was given back is tried again
_SOONEST, _LATEST = timedelta(seconds=1), timedelta(seconds=30)


class DeploymentOptions(BaseModel):
    """What a task is about: options of a job of a deployment, or parameters of a step in somebody's own pipeline."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    project: str
    deployment_id: UUID | None = None
    phase: Literal["pre", "post"] = "post"
    sequence_index: int | None = None


def roles_of(desk: Desk) -> tuple[Role[GatewayContext], ...]:
    collecting = partial(PullService, desk, lambda: collect_service(desk), desk.settings.concurrency)
    analysing = partial(PullService, desk, lambda: analyse_service(desk), 2)
    return (
        Role(COLLECT, "asks applications how they are, before and after a deployment", lambda _: collecting()),
        Role(ANALYSE, "judges deployments by what the applications have said", lambda _: analysing()),
    )


class PullService:
    """The role: a service in pull mode in this process, until it is cancelled; its tasks are given back then."""

    def __init__(self, desk: Desk, make: Callable[[], Service], concurrency: int) -> None:
        self._desk = desk
        self._make = make
        self._concurrency = concurrency

    async def serve(self) -> None:
        await self._desk.ready()
        settings = _settings_of_worker(self._desk.context.settings)
        working = asyncio.ensure_future(self._make().serve(concurrency=self._concurrency, settings=settings))
        try:
            await asyncio.shield(working)
        finally:
            working.cancel()
            with anyio.CancelScope(shield=True):  # a scope that is cancelled would cut its goodbye, again and again
                await asyncio.wait([working])


def _settings_of_worker(settings: Settings) -> Settings:
    """Its node is no machine: nobody wakes it, and lists of machines do not have it."""
    node = settings.node.model_copy(update={"labels": {KIND_LABEL: "gateway"}})
    database = settings.database.model_copy(update={"pool_size": _CONNECTIONS})
    return settings.model_copy(update={"node": node, "database": database})


# Samples


def collect_service(desk: Desk) -> Service:
    service = Service(COLLECT)

    @service.task
    async def collect(task: Task[dict[str, Any]]) -> dict[str, Any]:  # pyright: ignore[reportUnusedFunction]
        wanted = _wanted(task)
        project, url, known, began = await _or_later(_target(desk, wanted))
        try:
            values = await sample(project, url, within=desk.settings.timeout)
        except SampleFailed as failed:
            raise (Permanent if failed.permanent else Temporary)(str(failed)) from None
        failpoints.hit("sample.taken")
        is_warm_up = wanted.phase == "post" and _warms_up(desk, wanted, known, began)
        return values | {"phase": wanted.phase, "collected_at": began.isoformat(), "warm_up": is_warm_up}

    return service


async def _target(desk: Desk, wanted: DeploymentOptions) -> tuple[WatchedProject, str, Deployment | None, datetime]:
    """Whom to ask, and what the database's clock shows."""
    project = desk.project(wanted.project)
    if project is None:
        raise Permanent(f"gateway.seqpulse.projects has no {wanted.project}")
    if project.settings.blocked:
        raise Permanent(f"project {project.name} is blocked")
    known, now = None, None
    if wanted.deployment_id is not None:
        known, now = await _deployment(desk, wanted.deployment_id, project.name)
    url = project.to_ask(known.metrics_endpoint if known is not None else None)
    if url is None:
        raise Permanent(f"project {project.name} takes its endpoint from the trigger, which has named none")
    return project, url, known, now or await clock(desk.context.reads)


def _warms_up(desk: Desk, wanted: DeploymentOptions, known: Deployment | None, at: datetime) -> bool:
    """SP-25: the application counts requests over its last minute, and was started anew a moment ago."""
    if known is None or known.finished_at is None:
        return wanted.sequence_index == 0
    return at < known.finished_at + desk.settings.warm_up


# The verdict


def analyse_service(desk: Desk) -> Service:
    service = Service(ANALYSE)

    @service.task
    async def analyse(task: Task[dict[str, Any]]) -> dict[str, Any]:  # pyright: ignore[reportUnusedFunction]
        wanted = _wanted(task)
        pre, post, about, now = await _or_later(_samples(desk, wanted, task.upstream, task.attempt_id or 1))
        judgement = judge(pre, post, desk.settings.analysis, now)
        failpoints.hit("verdict.made")
        return {
            "verdict": judgement.outcome,
            "confidence": judgement.confidence,
            "summary": judgement.summary,
            "details": list(judgement.details),
            "quality": round(judgement.quality.score, 4),
            "hints": [asdict(hint) for hint in hints_of(judgement)],
            "samples": {"pre": len(pre), "post": len(post)},
            "project": wanted.project,
        } | about

    return service


async def _samples(
    desk: Desk, wanted: DeploymentOptions, upstream: Mapping[str, Any], claims: int
) -> tuple[list[MetricSample], list[MetricSample], dict[str, Any], datetime]:
    """Before and after, what the verdict is about, and what the database's clock shows. `claims`: so often the
    analysis was begun."""
    if wanted.deployment_id is None:
        return (*_by_phase(_listed(upstream)), {}, await clock(desk.context.reads))
    known, now = await _deployment(desk, wanted.deployment_id, wanted.project)
    stored = await stored_samples(desk.context.reads, known.id)
    _wait_for(desk, stored, now, claims)
    about = {
        "deployment_id": str(known.id),
        "number": known.number,
        "env": known.env,
        "pipeline": known.pipeline_result,
    }
    return (*_by_phase([each.values for each in stored]), about, now)


def _listed(upstream: Mapping[str, Any]) -> list[object]:
    """The results of the steps before: of one that was multiplied, each of its items'."""
    found: list[object] = []
    for result in upstream.values():
        found += cast("list[object]", result) if isinstance(result, list) else [result]
    return found


def _by_phase(given: Sequence[object]) -> tuple[list[MetricSample], list[MetricSample]]:
    pre, post = list[MetricSample](), list[MetricSample]()
    for each in given:
        if isinstance(each, dict) and "collected_at" in each:
            values = cast("Mapping[str, Any]", each)
            (pre if values.get("phase") == "pre" else post).append(_read(values))
    return pre, post


def _read(values: Mapping[str, Any]) -> MetricSample:
    return MetricSample(
        **{name: float(values[name]) for name in METRICS},
        collected_at=datetime.fromisoformat(values["collected_at"]),
        is_warm_up=values.get("warm_up") is True,
    )


def _wait_for(desk: Desk, stored: Sequence[StoredSample], now: datetime, claims: int) -> None:
    """After an outage everything is overdue at once. A verdict is given once, so it waits for samples that nobody has
    tried to take yet; not for those whose first try has failed. How long it has waited is counted in claims: the time
    since it was due says how long the outage was."""
    overdue = sum(each.is_untried and each.scheduled_at <= now for each in stored)
    if overdue and sum((_pause(claim) for claim in range(1, claims)), timedelta()) < desk.settings.patience:
        raise ServiceBusy(f"{overdue} samples are still to be taken", again_in=_pause(claims))


def _pause(claim: int) -> timedelta:
    """After the first claim a second, then half as long again each time, up to half a minute."""
    return min(_LATEST, _SOONEST * 1.5 ** min(claim - 1, 20))


# What both need


def _wanted(task: Task[dict[str, Any]]) -> DeploymentOptions:
    try:
        return DeploymentOptions.model_validate({**task.options, **task.params})
    except ValidationError as error:
        said = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
        raise Permanent(f"this is about no deployment and no project: {said}") from None


async def _deployment(desk: Desk, deployment_id: UUID, project: str) -> tuple[Deployment, datetime]:
    found = await deployment(desk.context.reads, deployment_id)
    if found is None or found[0].project != project:
        raise Permanent(f"project {project} has no deployment {deployment_id}")
    return found


async def _or_later(reading: Any) -> Any:
    """What was read; a database that is away spends no attempt."""
    try:
        return await reading
    except ServiceBusy:
        raise
    except Unavailable as error:
        raise ServiceBusy(error.message, again_in=_AWAY) from error
