"""The answers of the state machine: accepted, repeated, or refused with a reason and what the database holds."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final
from uuid import UUID

from accsd.db.pool import Record
from accsd.errors import VerbRefused


class Verdict(StrEnum):
    ACCEPTED = "accepted"
    REPEATED = "repeated"  # the same call was accepted before; nothing changed now
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Held:
    """What the database holds of a task that it refused to change."""

    status: str | None
    attempt_id: int | None
    lease_owner: str | None
    lease_until: datetime | None


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer for one task or job."""

    id: UUID
    verdict: Verdict
    reason: str | None
    held: Held

    @property
    def is_effective(self) -> bool:
        """The database is as the caller wanted it, by this call or by an earlier one."""
        return self.verdict is not Verdict.REFUSED

    def or_raise(self, verb: str) -> "Answer":
        """For callers that want an exception where the answer is no."""
        if self.is_effective:
            return self
        held = {
            "status": self.held.status,
            "attempt_id": self.held.attempt_id,
            "lease_owner": self.held.lease_owner,
            "lease_until": self.held.lease_until,
        }
        known = {name: value for name, value in held.items() if value is not None}
        raise VerbRefused(verb, self.reason or "unknown", subject=str(self.id), held=known)


_NOTHING: Final = Held(None, None, None, None)
_VERDICTS: Final = {verdict.value: verdict for verdict in Verdict}


def read_answer(row: Record) -> Answer:
    status, lease_until = row["db_status"], row["db_lease_until"]
    is_bare = status is None and lease_until is None  # most rows, and there may be thousands
    held = _NOTHING if is_bare else Held(status, row["db_attempt_id"], row["db_lease_owner"], lease_until)
    return Answer(row["id"], _VERDICTS[row["answer"]], row["reason"], held)


def read_answers(rows: Sequence[Record]) -> dict[UUID, Answer]:
    """The answers by id: every id that was asked about has its answer."""
    return {row["id"]: read_answer(row) for row in rows}
