"""The desk at which a call is answered: what every tool needs, and who asks. The gateway makes one for each request,
`accsd mcp` one for its process."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import UUID

from accsd.db import Database
from accsd.db.lists import cursor_key
from accsd.db.views import schedules as schedule_views
from accsd.db.views.schedules import ScheduleRow
from accsd.db.why import job_of_task
from accsd.errors import NotFound
from accsd.explain.identifiers import job_named, task_named
from accsd.explain.redaction import Redaction
from accsd.gateway.access import require_limit, require_owner
from accsd.gateway.mcp.confirmation import Confirmations
from accsd.gateway.mcp.untrusted import MOST_BYTES, untrusted
from accsd.gateway.problems import HttpProblem
from accsd.gateway.reach import require_jobs, require_schedule, within
from accsd.model.access import Caller, Scope
from accsd.settings import Settings
from accsd.settings.doors import McpSettings
from accsd.storage import ObjectStore


@dataclass(eq=False, slots=True)
class Desk:
    settings: Settings
    reads: Database
    verbs: Database  # what is done through them is in the audit as "mcp"
    store: ObjectStore | None
    caller: Caller
    redaction: Redaction = field(init=False)

    def __post_init__(self) -> None:
        self.redaction = Redaction(self.settings.gateway.redact)

    @property
    def limits(self) -> McpSettings:
        return self.settings.gateway.mcp or McpSettings()

    @property
    def spread(self) -> timedelta:
        return self.settings.scheduler.spread

    async def confirmations(self) -> Confirmations:
        return Confirmations(await cursor_key(self.verbs))

    def marked(self, *, most: int = MOST_BYTES, **fields: Any) -> dict[str, Any]:
        """What others wrote, marked."""
        return untrusted(self.redaction, most=most, **fields)

    # What the caller may

    def require(self, scope: Scope, what: str) -> None:
        if self.caller.may(scope):
            return
        has = ", ".join(sorted(self.caller.scopes)) or "none"
        raise HttpProblem(
            "scope_missing",
            f'{what} needs the scope "{scope}"; {self._credential} has {has}',
            hint=f"a person can make a token that may: accsd tokens create NAME --kind assistant --scope {scope}",
            scope=scope.value,
        )

    @property
    def _credential(self) -> str:
        if self.caller.token_id is not None:
            return f"token {self.caller.token_id}"
        return "this connection, which has no token (--scope gives it more),"

    def require_limit(self, kind: str, name: str) -> None:
        require_limit(self.caller, kind, name)

    def require_own(self, owner: str | None) -> None:
        try:
            require_owner(self.caller, owner, own_jobs=self.settings.gateway.own_jobs)
        except HttpProblem as refused:  # it names the owner, and a name is what somebody chose
            whose = "somebody else" if owner else "nobody"
            raise HttpProblem(
                refused.code,
                f'it belongs to {whose}, and {self._credential} has no scope "operate"',
                hint=refused.hint,
                scope=Scope.OPERATE.value,
            ) from None

    def is_own(self, owner: str | None) -> bool:
        return owner is not None and owner == self.caller.actor

    @property
    def within(self) -> Sequence[str] | None:
        """The names of workflows that the caller reaches; None: all."""
        return within(self.caller)

    # What the caller names

    async def schedule(self, name: str) -> ScheduleRow:
        """By name or id, if the caller reaches it."""
        await require_schedule(self, self.caller, name)
        return await schedule_views.schedule_named(self.reads, name)

    async def own_schedule(self, name: str) -> ScheduleRow:
        row = await self.schedule(name)
        self.require_own(row.created_by)
        return row

    async def job(self, name: str) -> UUID:
        await require_jobs(self, self.caller, [name])
        return await job_named(self.reads, name)

    async def task(self, name: str) -> UUID:
        """By id, or JOB/STEP. A part of an id is not for a token with limits: it would tell of others."""
        job, slash, _ = name.partition("/")
        if self.within is None:
            return await task_named(self.reads, name)
        await require_jobs(self, self.caller, [job if slash else await self._job_of(name)])
        return await task_named(self.reads, name)

    async def _job_of(self, task: str) -> UUID:
        try:
            found = await job_of_task(self.reads, UUID(task))
        except ValueError:
            found = None
        if found is None:
            raise NotFound("there is no such task", hint="a token with limits names tasks by their whole id")
        return found
