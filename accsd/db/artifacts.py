"""Artifacts: a row is written only after its object exists, and only by the attempt that made it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from accsd.db.answers import Verdict
from accsd.db.pool import Database
from accsd.model import ArtifactKind, Fence


@dataclass(frozen=True, slots=True)
class Recorded:
    artifact_id: int | None
    verdict: Verdict
    reason: str | None


@dataclass(frozen=True, slots=True)
class TaskInput:
    """An object that an attempt may need. `task_key` is the step that made it; None: it is the job's own."""

    task_key: str | None
    kind: ArtifactKind
    bucket: str
    key: str
    size_bytes: int | None
    content_type: str | None
    checksum: str | None


@dataclass(frozen=True, slots=True)
class TaskFile:
    """A file of the task's workflow, as an object in the store."""

    name: str
    key: str
    size_bytes: int
    checksum: str  # sha256:<hex>


async def task_inputs(db: Database, fence: Fence, *, owner: str) -> list[TaskInput]:
    """The outputs of the steps that a task depends on, and the inputs of its job and its own.

    VerbRefused where the attempt does not hold its lease any more.
    """
    return (await task_objects(db, fence, owner=owner))[0]


async def task_objects(db: Database, fence: Fence, *, owner: str) -> tuple[list[TaskInput], list[TaskFile]]:
    """The inputs of a task, and the files of its workflow, in one answer. VerbRefused as `task_inputs`."""
    rows = await db.fetch(
        "SELECT * FROM accs.task_inputs($1, $2, $3)", fence.task_id, fence.attempt_id, owner, repeatable=True
    )
    files = [
        TaskFile(row["name"], row["key"], row["size_bytes"], row["checksum"]) for row in rows if row["kind"] == "file"
    ]
    inputs = [
        TaskInput(
            task_key=row["task_key"],
            kind=ArtifactKind(row["kind"]),
            bucket=row["bucket"],
            key=row["key"],
            size_bytes=row["size_bytes"],
            content_type=row["content_type"],
            checksum=row["checksum"],
        )
        for row in rows
        if row["kind"] != "file"
    ]
    return inputs, files


async def record_task_artifact(
    db: Database,
    fence: Fence,
    *,
    owner: str,
    kind: ArtifactKind,
    bucket: str,
    key: str,
    size_bytes: int | None = None,
    content_type: str | None = None,
    checksum: str | None = None,
    facts: Mapping[str, Any] | None = None,
) -> Recorded:
    """`facts`: of a part of a log, how many lines it has and of which levels."""
    row = await db.fetchrow(
        "SELECT * FROM accs.record_artifact($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)",
        fence.task_id,
        fence.attempt_id,
        owner,
        kind,
        bucket,
        key,
        size_bytes,
        content_type,
        checksum,
        facts,
        repeatable=True,
    )
    assert row is not None, "record_artifact always answers"
    return Recorded(row["artifact_id"], Verdict(row["answer"]), row["reason"])
