"""Workflows are applied, one by one or all of a set at once, and found by their names."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final
from uuid import UUID

from accsd.db.answers import Verdict
from accsd.db.pool import Database
from accsd.db.tools import bound_workflow
from accsd.errors import NotFound
from accsd.model import WorkflowDef


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
    params: dict[str, Any]
    options_schema: dict[str, Any] | None
    files: list[dict[str, Any]]
    title: str | None

    def definition(self) -> WorkflowDef:
        return WorkflowDef(
            name=self.name,
            version=self.version,
            is_active=self.is_active,
            title=self.title,
            notify=self.notify,
            params=self.params,
            options_schema=self.options_schema,
            files=self.files,  # pyright: ignore[reportArgumentType]
            steps=self.steps,  # pyright: ignore[reportArgumentType]
        )


_COLUMNS: Final = (
    "id, name, version, is_active, steps, created_at, updated_at, created_by, notify, params, options_schema, files,"
    " title"
)


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


async def workflows_by_id(db: Database, ids: Sequence[UUID]) -> list[StoredWorkflow]:
    rows = await db.fetch(f"SELECT {_COLUMNS} FROM public.workflows WHERE id = ANY ($1)", list(ids), repeatable=True)
    return [StoredWorkflow(**row) for row in rows]


async def workflow_id(db: Database, name: str, version: int | None = None) -> UUID:
    """The id of the newest active version, unless one is named."""
    found: UUID | None = await db.fetchval(
        """SELECT id FROM public.workflows WHERE name = $1 AND is_active AND ($2::int IS NULL OR version = $2)
            ORDER BY version DESC LIMIT 1""",
        name,
        version,
        repeatable=True,
    )
    if found is None:
        which = f'"{name}"' if version is None else f'"{name}" of version {version}'
        raise NotFound(f"there is no active workflow {which}")
    return found


async def apply_workflow(
    db: Database,
    workflow: WorkflowDef,
    *,
    created_by: str | None = None,
    reason: str | None = None,
    meta: Mapping[str, Any] | None = None,
) -> UUID:
    """Writes a workflow under its name and version; the same one again is updated. The database checks it too.
    `created_by` is who does it; `meta` what a door keeps with it, None: what is there stays. Raises WorkflowInvalid."""
    workflow.schema_of_options()
    workflow = await bound_workflow(db, workflow, by=created_by)
    document = {
        "name": workflow.name,
        "version": workflow.version,
        "steps": workflow.steps_document(),
        "notify": workflow.notify,
        "params": workflow.params,
        "options_schema": workflow.options_schema,
        "files": workflow.files_document(),
        "title": workflow.title,
    } | ({} if meta is None else {"meta": dict(meta)})
    return await db.fetchval("SELECT accs.apply_workflow($1, $2, $3)", document, created_by, reason, repeatable=True)


async def retire_workflow(db: Database, name: str, *, by: str | None = None, reason: str | None = None) -> Verdict:
    """Nobody can submit it any more; its jobs go on. Raises NotFound."""
    row = await db.fetchrow("SELECT * FROM accs.retire_workflow($1, $2, $3)", name, by, reason, repeatable=True)
    assert row is not None, "retire_workflow always answers"
    if row["reason"] is not None:
        raise NotFound(f'there is no workflow "{name}"')
    return Verdict(row["answer"])


class Change(StrEnum):
    CREATED = "created"
    UPDATED = "updated"
    UNCHANGED = "unchanged"


@dataclass(frozen=True, slots=True)
class Applied:
    name: str
    version: int
    change: Change
    previous: int | None  # the newest version before, if there was one


async def apply_workflows(
    db: Database, wanted: Sequence[WorkflowDef], *, created_by: str | None = None, reason: str | None = None
) -> list[Applied]:
    """Applies workflows in one transaction. A definition that names a version is written under it. One that names none
    becomes a new version if it differs from the newest: jobs of the old version keep their meaning."""
    async with db.acquire() as connection, connection.transaction():
        within = Database.over(connection, like=db)
        await within.fetchval("SELECT accs.lock_workflows()")
        return [await _apply(within, workflow, created_by, reason) for workflow in wanted]


async def _apply(db: Database, workflow: WorkflowDef, created_by: str | None, reason: str | None) -> Applied:
    workflow = await bound_workflow(db, workflow, by=created_by)
    newest = await find_workflow(db, workflow.name)
    previous = None if newest is None else newest.version
    names_version = "version" in workflow.model_fields_set
    stands = await find_workflow(db, workflow.name, workflow.version) if names_version else newest
    if stands is not None and stands.is_active and meaning(stands.definition()) == meaning(workflow):
        return Applied(workflow.name, stands.version, Change.UNCHANGED, previous)
    version = workflow.version if names_version else _next_version(stands, workflow)
    numbered = workflow.model_copy(update={"version": version})
    await apply_workflow(db, numbered, created_by=created_by, reason=reason)
    is_there = stands is not None and stands.version == version
    return Applied(workflow.name, version, Change.UPDATED if is_there else Change.CREATED, previous)


def _next_version(newest: StoredWorkflow | None, workflow: WorkflowDef) -> int:
    if newest is None:
        return 1
    is_same = meaning(newest.definition()) == meaning(workflow)
    return newest.version if is_same else newest.version + 1  # the same but inactive is made active again


def meaning(workflow: WorkflowDef) -> tuple[Any, ...]:
    """The steps without defaults, fields in one order, and what else a job meets: equal when two workflows mean the
    same."""
    steps = [step.model_dump(mode="json", exclude_defaults=True) for step in workflow.steps]
    files = sorted((file.meaning for file in workflow.files), key=lambda file: file["name"])
    return steps, set(workflow.notify), workflow.params, workflow.options_schema, files, workflow.title
