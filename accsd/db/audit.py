"""The audit: who did what, when, by which way and why. The verbs write it; here it is read, and pruned."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from accsd.db.pool import Database
from accsd.log import redact
from accsd.values.json import sanitise


@dataclass(frozen=True, slots=True)
class AuditRow:
    """One call. `target` is None where the call named several: `detail` has how many, and the first of them."""

    id: int
    ts: datetime
    actor: str | None
    via: str  # cli | http | mcp | sql
    action: str
    kind: str
    target: str | None
    reason: str | None
    answer: str  # accepted | repeated | refused
    detail: dict[str, Any] | None
    request_id: str | None


async def audit(
    db: Database,
    *,
    actor: str | None = None,
    target: str | None = None,
    kinds: Sequence[str] | None = None,
    actions: Sequence[str] | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    before: int | None = None,
    limit: int = 100,
) -> list[AuditRow]:
    """What people did, schedules included, the newest first. `target` also finds calls that named it among their first
    ids. `before`: an id, to go on where the last page ended."""
    rows = await db.fetch(
        """SELECT id, ts, actor, via, action, kind, target, reason, answer, detail, request_id FROM accs.audit_trail
            WHERE ($1::text IS NULL OR actor = $1) AND ($2::text IS NULL OR target = $2 OR detail -> 'ids' ? $2)
              AND ($3::text[] IS NULL OR kind = ANY ($3)) AND ($4::text[] IS NULL OR action = ANY ($4))
              AND ($5::timestamptz IS NULL OR ts >= $5) AND ($6::timestamptz IS NULL OR ts < $6)
              AND ($7::bigint IS NULL OR id < $7)
            ORDER BY id DESC LIMIT $8""",
        actor,
        target,
        None if kinds is None else list(kinds),
        None if actions is None else list(actions),
        since,
        until,
        before,
        limit,
        repeatable=True,
    )
    return [AuditRow(**row) for row in rows]


async def note_reveal(
    db: Database, kind: str, target: str, *, by: str, reason: str | None = None, detail: dict[str, Any] | None = None
) -> None:
    """Somebody was shown what is masked for others. Written before it is shown."""
    said = None if detail is None else sanitise(detail, scrub=redact)
    await db.fetch("SELECT accs.note_reveal($1, $2, $3, $4, $5)", kind, target, by, reason, said)


async def prune_audit(db: Database) -> int:
    """Upkeep: removes rows that are older than 400 days."""
    return await db.fetchval("SELECT accs.prune_audit()", repeatable=True)
