"""Artifacts: a row is written only after its object exists, and only by the attempt that made it."""

from dataclasses import dataclass

from accsd.db.answers import Verdict
from accsd.db.pool import Database
from accsd.db.tasks import Fence
from accsd.model import ArtifactKind


@dataclass(frozen=True, slots=True)
class Recorded:
    artifact_id: int | None
    verdict: Verdict
    reason: str | None


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
) -> Recorded:
    row = await db.fetchrow(
        "SELECT * FROM accs.record_artifact($1, $2, $3, $4, $5, $6, $7, $8, $9)",
        fence.task_id,
        fence.attempt_id,
        owner,
        kind,
        bucket,
        key,
        size_bytes,
        content_type,
        checksum,
        repeatable=True,
    )
    assert row is not None, "record_artifact always answers"
    return Recorded(row["artifact_id"], Verdict(row["answer"]), row["reason"])
