"""The same as the tools show, by address (MC7): schedule://NAME, job://ID, workflow://NAME."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, unquote

from accsd.db.views import schedules as schedule_views
from accsd.db.views import workflows as workflow_views
from accsd.errors import NotFound
from accsd.gateway.mcp.calls import Said, call
from accsd.gateway.mcp.desk import Desk
from accsd.gateway.mcp.untrusted import ROW_BYTES
from accsd.model.access import Scope

MIME: Final = "application/json"


@dataclass(frozen=True, slots=True)
class Resource:
    """One that is listed. `called` is the name that others gave it."""

    uri: str
    name: str
    called: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Template:
    uri: str
    name: str
    about: str


TEMPLATES: Final = (
    Template("schedule://{name}", "schedule", "A schedule: what it means, its state, what is next, what happened."),
    Template("job://{id}", "job", "A job with its tasks, options and results."),
    Template("workflow://{name}", "workflow", "A workflow with its steps and the options that it takes."),
)


async def listed(desk: Desk) -> list[Resource]:
    """Schedules and workflows, by id and name; jobs are too many."""
    desk.require(Scope.READ, "a list of resources")
    most = desk.limits.rows
    schedules = [
        Resource(f"schedule://{row.id}", f"schedule {row.id}", desk.marked(most=ROW_BYTES, name=row.name))
        for row in await schedule_views.schedules(desk.reads)
        if desk.caller.reaches("workflows", row.workflow)
    ]
    workflows = [
        Resource(
            f"workflow://{quote(row.name, safe='')}", f"workflow {row.id}", desk.marked(most=ROW_BYTES, name=row.name)
        )
        for row in await workflow_views.workflows(desk.reads)
        if desk.caller.reaches("workflows", row.name)
    ]
    return [*schedules[: most // 2 + 1], *workflows[: most // 2 + 1]][:most]


async def read(desk: Desk, uri: str) -> Said:
    """NotFound if there is nothing at that address."""
    scheme, found, rest = uri.partition("://")
    if not found or scheme not in _TOOLS or len(rest) > 1000:
        raise NotFound("there is no such resource", hint="there are schedule://NAME, job://ID and workflow://NAME")
    tool, argument = _TOOLS[scheme]
    said = await call(desk, tool, {argument: unquote(rest).rstrip("/")})
    assert isinstance(said, Said), "what only looks has no preview"
    return said


_TOOLS: Final[Mapping[str, tuple[str, str]]] = {
    "schedule": ("show_schedule", "schedule"),
    "job": ("show_job", "job"),
    "workflow": ("list_workflows", "workflow"),
}
