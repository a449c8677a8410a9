"""Workflows as they stand in the database: listed, looked up, and applied from files, all of them or none."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final
from uuid import UUID

from accsd.db.jobs import apply_workflow
from accsd.db.pool import Database
from accsd.errors import NotFound
from accsd.model import WorkflowDef
from accsd.values.validation import did_you_mean


@dataclass(frozen=True, slots=True)
class StoredWorkflow:
    id: UUID
    name: str
    version: int
    is_active: bool
    steps: list[dict[str, Any]]
    created_at: datetime
    updated_at: datetime
    created_by: str | None
    notify: list[str]

    def definition(self) -> WorkflowDef:
        return WorkflowDef(
            name=self.name,
            version=self.version,
            is_active=self.is_active,
            notify=self.notify,
            steps=self.steps,  # pyright: ignore[reportArgumentType]
        )


_COLUMNS: Final = "id, name, version, is_active, steps, created_at, updated_at, created_by, notify"


@dataclass(frozen=True, slots=True)
class WorkflowRow:
    """One line of a list."""

    name: str
    version: int
    steps: int
    is_active: bool
    updated_at: datetime
    created_by: str | None
    id: UUID
    paused_at: datetime | None


@dataclass(frozen=True, slots=True)
class WorkflowPause:
    """`since` is None while it is not paused; `live` are its tasks that run, of all versions."""

    live: int
    since: datetime | None
    reason: str | None
    by: str | None


async def workflows(db: Database, *, every_version: bool = False) -> list[WorkflowRow]:
    """By name; the newest version of each unless all are asked for."""
    rows = await db.fetch(
        f"""SELECT {"" if every_version else "DISTINCT ON (w.name)"} w.name, w.version,
                   jsonb_array_length(w.steps) AS steps, w.is_active, w.updated_at, w.created_by, w.id,
                   p.since AS paused_at
              FROM public.workflows w LEFT JOIN accs.pauses p ON p.kind = 'workflow' AND p.name = w.name
             ORDER BY w.name, w.version DESC""",
        repeatable=True,
    )
    return [WorkflowRow(**row) for row in rows]


async def find_workflow(db: Database, name: str, version: int | None = None) -> StoredWorkflow | None:
    """The newest version, active or not, unless one is named."""
    row = await db.fetchrow(
        f"""SELECT {_COLUMNS} FROM public.workflows WHERE name = $1 AND ($2::int IS NULL OR version = $2)
             ORDER BY version DESC LIMIT 1""",
        name,
        version,
        repeatable=True,
    )
    return None if row is None else StoredWorkflow(**row)


async def workflow_named(db: Database, name: str, version: int | None = None) -> StoredWorkflow:
    """The same, or NotFound with the name that was meant."""
    found = await find_workflow(db, name, version)
    if found is None:
        raise await no_such_workflow(db, name, version)
    return found


async def pause_of(db: Database, name: str) -> WorkflowPause:
    row = await db.fetchrow(
        """SELECT (SELECT count(*) FROM accs.live l JOIN public.jobs j ON j.id = l.job_id
                     JOIN public.workflows w ON w.id = j.workflow_id WHERE w.name = $1) AS live, p.since, p.reason, p.by
             FROM (SELECT) one LEFT JOIN accs.pauses p ON p.kind = 'workflow' AND p.name = $1""",
        name,
        repeatable=True,
    )
    assert row is not None, "one row, whether it is paused or not"
    return WorkflowPause(**dict(row))


async def no_such_workflow(db: Database, name: str, version: int | None = None) -> NotFound:
    rows = await db.fetch("SELECT DISTINCT name FROM public.workflows ORDER BY name", repeatable=True)
    names = [row[0] for row in rows]
    if not names:
        return NotFound(
            f'there is no workflow "{name}", nor any other', hint="`accsd workflows apply FILE` brings one in"
        )
    if name in names:
        which = "of that name that is active" if version is None else f"with version {version}"
        return NotFound(f'there is no workflow "{name}" {which}', hint="try `accsd workflows list --all`")
    return NotFound(f'there is no workflow "{name}"{did_you_mean(name, names)}', hint="try `accsd workflows list`")


class Change(StrEnum):
    CREATED = "created"
    UPDATED = "updated"
    UNCHANGED = "unchanged"


@dataclass(frozen=True, slots=True)
class Applied:
    name: str
    version: int
    change: Change
    previous: int | None  # the newest version before, where there was one


async def apply_workflows(
    db: Database, wanted: Sequence[WorkflowDef], *, created_by: str | None = None
) -> list[Applied]:
    """In one transaction. A definition that names a version is written under it. One that names none becomes a new
    version where it differs from the newest: what was submitted under the old version keeps its meaning."""
    async with db.acquire() as connection, connection.transaction():
        within = Database.over(connection)
        await within.fetchval("SELECT accs.lock_workflows()")
        return [await _apply(within, workflow, created_by) for workflow in wanted]


async def _apply(db: Database, workflow: WorkflowDef, created_by: str | None) -> Applied:
    newest = await find_workflow(db, workflow.name)
    previous = None if newest is None else newest.version
    names_version = "version" in workflow.model_fields_set
    stands = await find_workflow(db, workflow.name, workflow.version) if names_version else newest
    if stands is not None and stands.is_active and meaning(stands.definition()) == meaning(workflow):
        return Applied(workflow.name, stands.version, Change.UNCHANGED, previous)
    version = workflow.version if names_version else _next_version(stands, workflow)
    await apply_workflow(db, workflow.model_copy(update={"version": version}), created_by=created_by)
    is_there = stands is not None and stands.version == version
    return Applied(workflow.name, version, Change.UPDATED if is_there else Change.CREATED, previous)


def _next_version(newest: StoredWorkflow | None, workflow: WorkflowDef) -> int:
    if newest is None:
        return 1
    is_same = meaning(newest.definition()) == meaning(workflow)
    return newest.version if is_same else newest.version + 1  # the same but inactive is made active again


def meaning(workflow: WorkflowDef) -> tuple[list[dict[str, Any]], set[str]]:
    """The steps without what is default anyway, fields in one order, and notify: equal when they mean the same."""
    return [step.model_dump(mode="json", exclude_defaults=True) for step in workflow.steps], set(workflow.notify)


async def offered_services(db: Database) -> set[str] | None:
    """Services that a registered node offers; None where no node has ever registered."""
    rows = await db.fetch("SELECT max_concurrency FROM public.nodes", repeatable=True)
    return {service for row in rows for service in row[0]} if rows else None
