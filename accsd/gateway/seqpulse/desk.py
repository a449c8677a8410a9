"""What the routes and the services of this door share: projects, the look at applications, who asks how often."""

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import anyio
from starlette.requests import Request

from accsd.db.workflows import apply_workflows
from accsd.gateway.context import GatewayContext
from accsd.gateway.door_access import caller_at_door
from accsd.gateway.problems import HttpProblem
from accsd.gateway.seqpulse.collector import Preflight
from accsd.gateway.seqpulse.projects import WatchedProject
from accsd.gateway.seqpulse.workflows import WORKFLOWS
from accsd.model.access import Caller, Scope
from accsd.settings import SeqpulseSettings

_HOW: Final = "accsd tokens create ci --scope submit --limit door=seqpulse --limit project=NAME"
_WINDOW_SEC: Final = 60
_MOST_TOKENS: Final = 10_000


@dataclass(slots=True)
class _Quota:
    ends: float
    taken: int = 0


class Quotas:
    """So many requests a minute for each token (SP-6), counted in this process."""

    def __init__(self, per_minute: int, clock: Callable[[], float] = time.time) -> None:
        self._limit = per_minute
        self._clock = clock
        self._by_token: OrderedDict[str, _Quota] = OrderedDict()

    def take(self, token: str) -> dict[str, str]:
        """The headers that say how much is left. Raises HttpProblem, with when to come back, if nothing is."""
        now = self._clock()
        quota = self._by_token.pop(token, None)
        if quota is None or not now < quota.ends <= now + _WINDOW_SEC:
            quota = _Quota(now + _WINDOW_SEC)
        self._by_token[token] = quota
        if len(self._by_token) > _MOST_TOKENS:
            self._by_token.popitem(last=False)
        is_over = quota.taken >= self._limit
        quota.taken += not is_over
        headers = {
            "X-RateLimit-Limit": str(self._limit),
            "X-RateLimit-Remaining": str(self._limit - quota.taken),
            "X-RateLimit-Reset": str(round(quota.ends)),
        }
        if is_over:
            retry = {"Retry-After": str(max(1, round(quota.ends - now + 0.5)))}
            raise HttpProblem("rate_limited", f"more than {self._limit} requests a minute", headers=headers | retry)
        return headers


class Desk:
    def __init__(self, context: GatewayContext, settings: SeqpulseSettings) -> None:
        self.context = context
        self.settings = settings
        self.preflight: Preflight = Preflight(within=settings.preflight, lasts=settings.preflight_lasts)
        self.quotas: Quotas = Quotas(settings.per_minute)
        self._are_written: bool = False
        self._writing: anyio.Lock = anyio.Lock()

    def project(self, name: str) -> WatchedProject | None:
        settings = self.settings.projects.get(name)
        return None if settings is None else WatchedProject(name, settings)

    async def ready(self) -> None:
        """Writes the workflows of deployments, once for each process. Version 1 is ours; a newer one is left alone."""
        async with self._writing:
            if not self._are_written:
                await apply_workflows(self.context.verbs, WORKFLOWS, created_by="seqpulse")
                self._are_written = True

    # Who gets in

    async def admitted(self, request: Request, scope: Scope) -> tuple[Caller, WatchedProject]:
        """The caller of the header X-API-Key and its project, or HttpProblem."""
        given = request.headers.get("x-api-key", "").strip()
        caller = await caller_at_door(self.context, request, "seqpulse", token=given, hint=_HOW)
        _require_rights(caller, scope)
        return caller, self._project_of(caller)

    def _project_of(self, caller: Caller) -> WatchedProject:
        name = caller.limits.get("project")
        if name is None:
            raise HttpProblem(
                "scope_missing",
                f"token {caller.token_id} belongs to no project",
                hint=_HOW.replace("NAME", next(iter(self.settings.projects), "NAME")),
            )
        project = self.project(name)
        if project is None:
            raise HttpProblem(
                "scope_missing",
                f'token {caller.token_id} belongs to the project "{name}", which this gateway does not know',
                hint=f"gateway.seqpulse.projects.{name} in its settings",
            )
        return project


def _require_rights(caller: Caller, scope: Scope) -> None:
    if not caller.may(scope):
        raise HttpProblem("scope_missing", f'this needs the scope "{scope}", which token {caller.token_id} has not')
    if outside := [each.name for each in WORKFLOWS if not caller.reaches("workflows", each.name)]:
        raise HttpProblem("scope_missing", f"token {caller.token_id} is limited to other workflows than {outside[0]}")
