"""Operations: one action on many jobs or dead letters. Whoever has the lease does the next chunk, in one transaction
with its position, so that each item is answered once whatever happens to the process."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final
from uuid import UUID

from accsd.db.answers import Verdict
from accsd.db.pool import Database, Record
from accsd.errors import NotFound


class Action(StrEnum):
    CANCEL = "cancel"
    RETRY = "retry"
    SET_PRIORITY = "set_priority"
    REDRIVE = "redrive"
    DISMISS = "dismiss"

    @property
    def is_on_jobs(self) -> bool:
        """Whether it acts on jobs; else on dead letters."""
        return self not in (Action.REDRIVE, Action.DISMISS)


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation as it stands. `refusals` are the first ones; `reasons` counts all by reason."""

    id: UUID
    action: Action
    filter: dict[str, Any] | None
    ids: list[str] | None
    arguments: dict[str, Any]
    reason: str | None
    by: str
    state: str
    expected: int | None
    chunks: int
    position: list[Any] | None
    looked_at: int
    accepted: int
    repeated: int
    refused: int
    reasons: dict[str, int]
    refusals: list[dict[str, Any]]
    owner: str | None
    lease_until: datetime | None
    failures: int
    error: str | None
    created_at: datetime
    ended_at: datetime | None
    ended_by: str | None

    def document(self) -> dict[str, Any]:
        """For people and programs: what is asked, what was answered."""
        return {
            "id": str(self.id),
            "action": self.action.value,
            "target": {"filter": self.filter} if self.ids is None else {"count": len(self.ids)},
            "arguments": self.arguments,
            "reason": self.reason,
            "by": self.by,
            "state": self.state,
            "expected": self.expected,
            "looked_at": self.looked_at,
            "answers": {"accepted": self.accepted, "repeated": self.repeated, "refused": self.refused},
            "reasons": self.reasons,
            "refusals": self.refusals,
            "error": self.error,
            "created_at": self.created_at,
            "ended_at": self.ended_at,
            "ended_by": self.ended_by,
        }


@dataclass(frozen=True, slots=True)
class OperationAnswer:
    verdict: Verdict
    reason: str | None


@dataclass(frozen=True, slots=True)
class Started:
    """`repeated`: an operation of the same key was there."""

    id: UUID
    verdict: Verdict
    reason: str | None


_COLUMNS: Final = ", ".join(Operation.__dataclass_fields__)


async def start_operation(
    db: Database,
    action: Action,
    *,
    by: str,
    filter: Mapping[str, Any] | None = None,  # noqa: A002 (the column's name)
    ids: Sequence[str] | None = None,
    arguments: Mapping[str, Any] | None = None,
    reason: str | None = None,
    key: str | None = None,
    expected: int | None = None,
    owner: str | None = None,
    lease: timedelta | None = None,
) -> Started:
    row = await db.fetchrow(
        "SELECT * FROM accs.start_operation($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)",
        action.value,
        None if filter is None else dict(filter),
        None if ids is None else list(ids),
        dict(arguments or {}),
        by,
        reason,
        key,
        expected,
        owner,
        lease,
        repeatable=key is not None,
    )
    assert row is not None
    return Started(row["id"], Verdict(row["answer"]), row["reason"])


async def take_operation(db: Database, owner: str, lease: timedelta) -> Operation | None:
    """The operation that has waited longest, of those that nobody works on and that this owner works on already."""
    row = await db.fetchrow(f"SELECT {_COLUMNS} FROM accs.take_operation($1, $2)", owner, lease, repeatable=True)
    return None if row is None else _read(row)


async def advance_operation(
    db: Database,
    operation: Operation,
    *,
    owner: str,
    ids: Sequence[str],
    position: Sequence[Any],
    looked_at: int,
    is_last: bool,
    lease: timedelta,
) -> OperationAnswer:
    """Does the next chunk of an operation and notes what was answered. Sent again it is `repeated`."""
    row = await db.fetchrow(
        "SELECT * FROM accs.advance_operation($1, $2, $3, $4, $5, $6, $7, $8)",
        operation.id,
        owner,
        operation.chunks,
        list(ids),
        list(position),
        looked_at,
        is_last,
        lease,
        repeatable=True,
    )
    assert row is not None
    return OperationAnswer(Verdict(row["answer"]), row["reason"])


async def leave_operation(db: Database, operation: UUID, *, owner: str, error: str, pause: timedelta) -> Verdict:
    """Gives an operation back whose next chunk failed. After the fifth time it has failed."""
    said = await db.fetchval(
        "SELECT accs.leave_operation($1, $2, $3, $4)", operation, owner, error, pause, repeatable=False
    )
    return Verdict(said)


async def stop_operation(db: Database, operation: UUID, *, by: str, reason: str | None = None) -> OperationAnswer:
    """Ends an operation after the chunk that it is in; what is done stays done."""
    row = await db.fetchrow("SELECT * FROM accs.stop_operation($1, $2, $3)", operation, by, reason, repeatable=True)
    assert row is not None
    return OperationAnswer(Verdict(row["answer"]), row["reason"])


async def operation(db: Database, operation_id: UUID) -> Operation:
    row = await db.fetchrow(f"SELECT {_COLUMNS} FROM accs.operations WHERE id = $1", operation_id, repeatable=True)
    if row is None:
        raise NotFound(f"there is no operation {operation_id}")
    return _read(row)


async def operation_documents(db: Database, ids: Sequence[UUID]) -> dict[UUID, Mapping[str, Any]]:
    """Those of these operations that are there, as documents: for whoever watches them."""
    rows = await db.fetch(f"SELECT {_COLUMNS} FROM accs.operations WHERE id = ANY ($1)", list(ids), repeatable=True)
    return {row["id"]: _read(row).document() for row in rows}


async def operations(db: Database, *, after: UUID | None = None, limit: int = 50) -> list[Operation]:
    """The newest first; `after` is the last one of the page before."""
    rows = await db.fetch(
        f"SELECT {_COLUMNS} FROM accs.operations WHERE $1::uuid IS NULL OR id < $1 ORDER BY id DESC LIMIT $2",
        after,
        limit,
        repeatable=True,
    )
    return [_read(row) for row in rows]


def _read(row: Record) -> Operation:
    values: dict[str, Any] = dict(row)
    values["action"] = Action(row["action"])
    return Operation(**values)
