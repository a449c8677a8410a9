"""Workflows for people: lists, pauses, and the name that was meant."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from accsd.db.pool import Database
from accsd.db.workflows import StoredWorkflow, find_workflow
from accsd.errors import NotFound
from accsd.values.validation import did_you_mean


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
    title: str | None


@dataclass(frozen=True, slots=True)
class WorkflowPause:
    """`paused_for` is None while the workflow is not paused; `live` counts its running tasks, of all versions."""

    live: int
    paused_for: timedelta | None
    reason: str | None
    by: str | None


async def workflows(db: Database, *, every_version: bool = False) -> list[WorkflowRow]:
    """The workflows by name; the newest version of each unless all are asked for."""
    rows = await db.fetch(
        f"""SELECT {"" if every_version else "DISTINCT ON (w.name)"} w.name, w.version,
                   jsonb_array_length(w.steps) AS steps, w.is_active, w.updated_at, w.created_by, w.id,
                   p.since AS paused_at, w.title
              FROM public.workflows w LEFT JOIN accs.pauses p ON p.kind = 'workflow' AND p.name = w.name
             ORDER BY w.name, w.version DESC""",
        repeatable=True,
    )
    return [WorkflowRow(**row) for row in rows]


async def workflow_named(db: Database, name: str, version: int | None = None) -> StoredWorkflow:
    """The same workflow as `find_workflow`, or NotFound with the name that was meant."""
    found = await find_workflow(db, name, version)
    if found is None:
        raise await no_such_workflow(db, name, version)
    return found


async def pause_of(db: Database, name: str) -> WorkflowPause:
    row = await db.fetchrow(
        """SELECT (SELECT count(*) FROM accs.live l JOIN public.jobs j ON j.id = l.job_id
                     JOIN public.workflows w ON w.id = j.workflow_id WHERE w.name = $1) AS live,
                  accs.clock() - p.since AS paused_for, p.reason, p.by
             FROM (SELECT) one LEFT JOIN accs.pauses p ON p.kind = 'workflow' AND p.name = $1""",
        name,
        repeatable=True,
    )
    assert row is not None, "one row, whether it is paused or not"
    return WorkflowPause(**dict(row))


async def failing_steps(db: Database, workflow: UUID) -> dict[str, str]:
    """Why each step that fails on every node counts as failing."""
    rows = await db.fetch(
        "SELECT task_key, reason FROM accs.step_health WHERE workflow_id = $1", workflow, repeatable=True
    )
    return {row["task_key"]: row["reason"] for row in rows}


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


async def offered_services(db: Database) -> set[str] | None:
    """Services that a registered node offers; None where no node has ever registered."""
    rows = await db.fetch("SELECT max_concurrency FROM public.nodes", repeatable=True)
    return {service for row in rows for service in row[0]} if rows else None


@dataclass(frozen=True, slots=True)
class WorkflowContent:
    """What a version of a workflow holds. `omitted`: it is larger than was asked for, by PostgreSQL's count, and left
    out."""

    name: str
    version: int
    params: dict[str, Any]
    steps: list[dict[str, Any]]
    meta: dict[str, Any]
    omitted: int | None


async def contents_of(
    db: Database, wanted: Sequence[tuple[str, int | None]], *, most: int | None = None
) -> list[WorkflowContent | None]:
    """Of workflows by name and version, without one the newest that is active; None where there is none."""
    rows = await db.fetch(
        """SELECT w.name, w.version, CASE WHEN s.fits THEN w.params ELSE '{}' END AS params,
                  CASE WHEN s.fits THEN w.steps ELSE '[]' END AS steps,
                  CASE WHEN s.fits THEN w.meta ELSE '{}' END AS meta,
                  CASE WHEN NOT s.fits THEN s.size END AS omitted
             FROM unnest($1::text[], $2::int[]) WITH ORDINALITY AS n (name, version, i)
             LEFT JOIN LATERAL (
               SELECT * FROM public.workflows w WHERE w.name = n.name AND (n.version IS NULL OR w.version = n.version)
                ORDER BY w.is_active DESC, w.version DESC LIMIT 1) w ON true
            CROSS JOIN LATERAL (
              SELECT z.size, coalesce(z.size <= $3, true) AS fits
                FROM (SELECT pg_column_size(w.steps) + pg_column_size(w.meta) + pg_column_size(w.params) AS size) z) s
            ORDER BY n.i""",
        [name for name, _ in wanted],
        [version for _, version in wanted],
        most,
        repeatable=True,
    )
    return [None if row["name"] is None else WorkflowContent(**row) for row in rows]
