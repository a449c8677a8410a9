"""The end of an attempt: finished, released, or reclaimed from an owner that is gone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, NamedTuple
from uuid import UUID

from accsd.db.answers import Answer, read_answers
from accsd.db.lease import fence_arrays
from accsd.db.pool import Database
from accsd.model import Fence

_FINISH: Final = "SELECT * FROM accs.finish_tasks($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)"


class Done(NamedTuple):
    """An attempt succeeded."""

    fence: Fence
    results: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """An attempt failed. A permanent failure is not tried again."""

    fence: Fence
    code: str
    message: str | None = None
    permanent: bool = False


async def finish_tasks(
    db: Database,
    outcomes: Sequence[Done | Failed],
    *,
    owner: str,
    backoff_base: timedelta | None = None,
) -> dict[UUID, Answer]:
    """Ends attempts, fenced. Dependants become claimable and jobs close in the same transaction."""
    rows = await db.fetch(_FINISH, *_ends(outcomes, owner, backoff_base), False, repeatable=True)
    return read_answers(rows)


async def finish_many_tasks(
    db: Database,
    outcomes: Sequence[Done | Failed],
    *,
    owner: str,
    backoff_base: timedelta | None = None,
) -> dict[UUID, Answer]:
    """`finish_tasks` for thousands: returns only the answers that are not "accepted"."""
    rows = await db.fetch(_FINISH, *_ends(outcomes, owner, backoff_base), True, repeatable=True)
    return read_answers(rows)


def _ends(outcomes: Sequence[Done | Failed], owner: str, backoff_base: timedelta | None) -> tuple[Any, ...]:
    ids, attempts = fence_arrays([outcome.fence for outcome in outcomes])
    base = None if backoff_base is None else backoff_base.total_seconds()
    failures = [outcome if isinstance(outcome, Failed) else None for outcome in outcomes]
    results = [outcome.results if isinstance(outcome, Done) else None for outcome in outcomes]
    # NULL where an array would say the same: it costs its reader and its writer for each element.
    given = results if any(result is not None for result in results) else None
    if not any(failures):
        return ids, attempts, owner, None, given, None, None, None, base
    return (
        ids,
        attempts,
        owner,
        ["done" if failed is None else "error" for failed in failures],
        given,
        [failed and failed.code for failed in failures],
        [failed and failed.message for failed in failures],
        [failed and failed.permanent for failed in failures],
        base,
    )


async def release_tasks(
    db: Database,
    fences: Sequence[Fence],
    *,
    owner: str,
    reason: str | None = None,
    lost: bool = False,
    delay: timedelta | None = None,
    code: str = "worker_lost",
) -> dict[UUID, Answer]:
    """Gives tasks back without spending an attempt; with `lost` each counts as an owner lost, and those are bounded.

    `code` says what was lost (image_missing, agent_disk …) and `reason` explains it: they become the task's error.
    """
    ids, attempts = fence_arrays(fences)
    rows = await db.fetch(
        "SELECT * FROM accs.release_tasks($1, $2, $3, $4, $5, $6, $7)",
        ids,
        attempts,
        owner,
        reason,
        lost,
        delay,
        code,
        repeatable=True,
    )
    return read_answers(rows)


async def reclaim_tasks(
    db: Database, *, limit: int = 100, grace: timedelta = timedelta(seconds=1)
) -> dict[UUID, Answer]:
    """Reclaims tasks whose lease has run out."""
    rows = await db.fetch("SELECT * FROM accs.reclaim_tasks($1, $2)", limit, grace, repeatable=True)
    return read_answers(rows)


# One task at a time, under the names of the original library.


async def mark_task_done(db: Database, fence: Fence, *, owner: str, results: Mapping[str, Any] | None = None) -> Answer:
    return (await finish_tasks(db, [Done(fence, results)], owner=owner))[fence.task_id]


async def mark_task_error(
    db: Database,
    fence: Fence,
    *,
    owner: str,
    code: str,
    message: str | None = None,
    permanent: bool = False,
    backoff_base: timedelta | None = None,
) -> Answer:
    failed = Failed(fence, code, message, permanent)
    return (await finish_tasks(db, [failed], owner=owner, backoff_base=backoff_base))[fence.task_id]
