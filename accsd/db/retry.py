"""Runs finished jobs again; sends dead letters back to work, or dismisses them."""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from accsd.db.answers import Answer, Verdict, read_answers
from accsd.db.pool import Database


async def retry_jobs(
    db: Database,
    job_ids: Sequence[UUID],
    *,
    from_step: str | None = None,
    by: str | None = None,
    reason: str | None = None,
) -> dict[UUID, Answer]:
    """Runs finished jobs again: the steps that did not succeed, or the named step and all steps below it."""
    rows = await db.fetch(
        "SELECT * FROM accs.retry_jobs($1, $2, $3, $4)",
        list(job_ids),
        None if from_step is None else [from_step] * len(job_ids),
        by,
        reason,
        repeatable=True,
    )
    return read_answers(rows)


@dataclass(frozen=True, slots=True)
class DeadLetterAnswer:
    dead_letter_id: int
    verdict: Verdict
    reason: str | None


async def redrive(
    db: Database, dead_letter_ids: Sequence[int], *, by: str | None = None, reason: str | None = None
) -> list[DeadLetterAnswer]:
    """Sends dead letters back to work, with the steps that were skipped because of them."""
    rows = await db.fetch("SELECT * FROM accs.redrive($1, $2, $3)", list(dead_letter_ids), by, reason, repeatable=True)
    return [DeadLetterAnswer(row["dead_letter_id"], Verdict(row["answer"]), row["reason"]) for row in rows]


async def dismiss(
    db: Database, dead_letter_ids: Sequence[int], *, by: str | None = None, reason: str | None = None
) -> list[DeadLetterAnswer]:
    """Dismisses dead letters: they leave the list of open ones without being redriven."""
    rows = await db.fetch("SELECT * FROM accs.dismiss($1, $2, $3)", list(dead_letter_ids), by, reason, repeatable=True)
    return [DeadLetterAnswer(row["dead_letter_id"], Verdict(row["answer"]), row["reason"]) for row in rows]
