"""Tools are written, retired and found, and workflows are bound to their versions."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from pydantic import ValidationError

from accsd.db.answers import Verdict
from accsd.db.pool import Database, Record
from accsd.errors import InvalidValue, NotFound, VerbRefused
from accsd.model.tool import ToolDef, bound, refuse_use, tool_names
from accsd.model.workflow import WorkflowDef
from accsd.values.names import KIND_LABEL, TOOL_SERVICE
from accsd.values.validation import problems

_COLUMNS: Final = (
    "name, version, kind, service, description, input_schema, output_schema, request, defaults, examples, scopes,"
    " is_active"
)


@dataclass(frozen=True, slots=True)
class WrittenTool:
    """`verdict` is repeated where the newest version says the same."""

    name: str
    version: int
    verdict: Verdict


async def put_tool(db: Database, tool: ToolDef, *, by: str | None = None, reason: str | None = None) -> WrittenTool:
    """Writes a tool as its next version, unless the newest one says the same."""
    row = await db.fetchrow("SELECT * FROM accs.put_tool($1, $2, $3)", tool.document(), by, reason, repeatable=True)
    assert row is not None, "put_tool always answers"
    return WrittenTool(row["tool"], row["tool_version"], Verdict(row["answer"]))


async def retire_tool(
    db: Database, name: str, version: int | None = None, *, by: str | None = None, reason: str | None = None
) -> Verdict:
    """No new workflow can use it. Raises NotFound, VerbRefused."""
    row = await db.fetchrow(
        "SELECT * FROM accs.retire_tool($1, $2, $3, $4)", name, version, by, reason, repeatable=True
    )
    assert row is not None, "retire_tool always answers"
    if row["reason"] == "not_found":
        raise await no_such_tool(db, name, version)
    if row["reason"] is not None:
        raise VerbRefused("retire_tool", row["reason"], subject=name)
    return Verdict(row["answer"])


async def no_such_tool(db: Database, name: str, version: int | None = None) -> NotFound:
    which = f'"{name}"' if version is None else f'"{name}" of version {version}'
    return NotFound(f"there is no tool {which}", hint="`accsd tools list` shows those that there are")


async def find_tools(db: Database, names: Sequence[str] | None = None) -> list[ToolDef]:
    """All versions of tools of these names, or of all; the newest first."""
    rows = await db.fetch(
        f"""SELECT {_COLUMNS} FROM public.tools WHERE $1::text[] IS NULL OR name = ANY ($1)
             ORDER BY name, version DESC""",
        None if names is None else list(names),
        repeatable=True,
    )
    return [_tool(row) for row in rows]


# Offers of nodes


@dataclass(frozen=True, slots=True)
class ToolOffer:
    """What a node says of a service of its own; `document` is unchecked."""

    name: str
    node: str
    service: str
    document: dict[str, Any]
    since: datetime

    def tool(self) -> ToolDef:
        """The tool that it would become. Raises InvalidValue: a node may say anything."""
        try:
            tool = ToolDef.model_validate(self.document)
        except ValidationError as error:
            said = "; ".join(map(str, problems(error, ToolDef, most=5)))
            raise InvalidValue(f'the tool "{self.name}" that {self.node} offers is wrong: {said}') from None
        if (tool.kind, tool.name, tool.service) != ("service", self.name, self.service):
            raise InvalidValue(
                f'the tool "{self.name}" that {self.node} offers is not one of its service {self.service}'
            )
        return tool


async def tool_offers(db: Database, *, name: str | None = None, node: str | None = None) -> list[ToolOffer]:
    """What nodes offer, by the tool's name and the node."""
    rows = await db.fetch(
        """SELECT tool AS name, node, service, document, since FROM accs.tool_offers
            WHERE ($1::text IS NULL OR tool = $1) AND ($2::text IS NULL OR node = $2) ORDER BY tool, node, service""",
        name,
        node,
        repeatable=True,
    )
    return [ToolOffer(**dict(row)) for row in rows]


# Workflows


async def bound_workflow(db: Database, workflow: WorkflowDef, *, by: str | None = None) -> WorkflowDef:
    """The workflow with the versions of its tools, which `by` may use. Raises WorkflowInvalid."""
    names = tool_names(workflow)
    if not names:
        return workflow
    tools = await find_tools(db, names)
    if {tool.name for tool in tools} != set(names):
        tools = await find_tools(db)  # so that the one that was meant can be named
    refuse_use(workflow, await forbidden_tools(db, names, by=by), by=by)
    return bound(workflow, tools)


async def forbidden_tools(db: Database, names: Sequence[str], *, by: str | None) -> set[str]:
    """Those that the limits of an actor do not allow. Nobody in particular is the login."""
    allowed: list[str] | None = await db.fetchval(
        "SELECT limits -> 'tools' FROM accs.actors WHERE name = coalesce($1, session_user)", by, repeatable=True
    )
    if allowed is None:
        return set()
    return {name for name in names if not name.startswith(tuple(prefix.rstrip("*") for prefix in allowed))}


async def refused_tools(db: Database, wanted: Collection[tuple[UUID, str]]) -> dict[tuple[UUID, str], str]:
    """Of jobs and tools: those that the workflow's owner, or who submitted the job, may not use any more; and who."""
    rows = await db.fetch(
        "SELECT * FROM accs.refused_tools($1, $2)",
        [job_id for job_id, _ in wanted],
        [tool for _, tool in wanted],
        repeatable=True,
    )
    return {(row["job_id"], row["tool"]): row["actor"] for row in rows}


def _tool(row: Record) -> ToolDef:
    fields: dict[str, Any] = dict(row)
    if fields["kind"] != "service":
        fields["service"] = ""
    return ToolDef.model_validate(fields)


# The control host


async def has_tasks_for_control(db: Database) -> bool:
    """Whether a workflow has, or had, a step that the control host does itself."""
    return await db.fetchval("SELECT EXISTS (SELECT FROM accs.lanes WHERE service = $1)", TOOL_SERVICE, repeatable=True)


async def silent_control_nodes(db: Database, *, silent: timedelta) -> list[str]:
    """The nodes of control hosts that are gone: each process is a node of its own, and dies with its name."""
    rows = await db.fetch(
        """SELECT name FROM public.nodes WHERE labels ->> $1 = 'control' AND last_seen < accs.clock() - $2::interval
            ORDER BY name LIMIT 100""",
        KIND_LABEL,
        silent,
        repeatable=True,
    )
    return [row["name"] for row in rows]


async def job_outcome(db: Database, job_id: UUID) -> tuple[str, timedelta]:
    """The status of a job, and its age. One that was removed meanwhile had ended."""
    row = await db.fetchrow(
        "SELECT status, accs.clock() - created_at AS age FROM public.jobs WHERE id = $1", job_id, repeatable=True
    )
    return ("done", timedelta()) if row is None else (row["status"], row["age"])
