"""Cleanup: reclaims tasks whose lease has run out, and repairs rows that should never need it.

Reclaim sleeps to the next end of a lease. The other chores have their own rhythm: partitions are made ahead; sessions,
old results of the cache and the audit of long ago are forgotten; holds without a reason are freed; the narrow tables
are recounted. A repair means a bug somewhere: it is logged as an error and counted.
"""

import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta

from accsd import failpoints
from accsd.db import Database, recheck_holds, reclaim_tasks
from accsd.db.access import forget_access
from accsd.db.audit import prune_audit
from accsd.db.cache import expire_results
from accsd.db.months import make_months
from accsd.db.submit import builder_outlook
from accsd.db.topics import forget_event_keys
from accsd.db.upkeep import repair
from accsd.errors import AccsdError, Unavailable
from accsd.log import get_logger
from accsd.metrics import Metrics
from accsd.supervisor import Pass

_BATCH = 100
_AFTER_FAILURE = timedelta(seconds=30)
_log = get_logger(role="cleanup")


@dataclass(slots=True)
class _Chore:
    name: str
    every: timedelta
    do: Callable[[], Awaitable[str | None]]
    due: float  # monotonic


class Cleanup:
    """Several may run at once: every verb looks again under its locks."""

    def __init__(
        self,
        db: Database,
        *,
        lease: timedelta,
        grace: timedelta,
        metrics: Metrics,
    ) -> None:
        self._db = db
        self._lease = lease
        self._grace = grace
        self._metrics = metrics
        now = time.monotonic()
        self._chores: list[_Chore] = [
            _Chore("making partitions", timedelta(hours=1), self._make_partitions, now),
            _Chore("forgetting keys of events", timedelta(hours=1), self._forget_keys, now),
            _Chore("forgetting sessions", timedelta(hours=1), self._forget_access, now),
            _Chore("forgetting old results", timedelta(hours=1), self._forget_results, now),
            _Chore("freeing holds", timedelta(minutes=1), self._free_holds, now + 60),
            _Chore("repair", timedelta(minutes=10), self._repair, now + 600),
        ]

    async def run_once(self) -> Pass:
        sentences = [await self._reclaim()]
        sentences += [await self._do(chore) for chore in self._chores if time.monotonic() >= chore.due]
        did = "; ".join(filter(None, sentences))
        return Pass(did=did or None, next_due=await self._next_due())

    async def _do(self, chore: _Chore) -> str | None:
        """Does one chore. A failure is logged and tried again later: a crash of the role would delay the reclaim."""
        chore.due = time.monotonic() + _AFTER_FAILURE.total_seconds()
        try:
            did = await chore.do()
        except Unavailable:
            raise
        except AccsdError as error:
            _log.error("chore_failed", chore=chore.name, error=str(error), hint=error.hint, exc_info=error)
            return f"{chore.name} failed"
        chore.due = time.monotonic() + chore.every.total_seconds()
        return did

    async def _reclaim(self) -> str | None:
        decisions = Counter[str]()
        while taken := await reclaim_tasks(self._db, limit=_BATCH, grace=self._grace):
            failpoints.hit("reclaim.committed")
            batch = Counter(answer.reason or "claimed" for answer in taken.values())
            decisions += batch
            if len(taken) < _BATCH or not batch["claimed"]:
                break
        for decision, count in decisions.items():
            self._metrics.reclaimed(decision, count)
        return (
            f"{decisions['claimed']} tasks taken back from owners that did not keep them"
            if decisions["claimed"]
            else None
        )

    async def _make_partitions(self) -> str | None:
        made = await make_months(self._db)
        return f"partitions made: {', '.join(made)}" if made else None

    async def _forget_keys(self) -> str | None:
        forgotten = await forget_event_keys(self._db)
        return f"{forgotten} keys of events forgotten" if forgotten else None

    async def _forget_access(self) -> str | None:
        """Codes, sessions and tokens that let nobody in any more, and rows of the audit after 400 days."""
        forgotten, pruned = await forget_access(self._db), await prune_audit(self._db)
        said = [
            f"{forgotten} codes, sessions and tokens forgotten" if forgotten else None,
            f"{pruned} old rows of the audit removed" if pruned else None,
        ]
        return "; ".join(filter(None, said)) or None

    async def _forget_results(self) -> str | None:
        forgotten = await expire_results(self._db)
        return f"{forgotten} cached results forgotten" if forgotten else None

    async def _free_holds(self) -> str | None:
        freed = await recheck_holds(self._db)
        return f"{freed} holds without a reason freed" if freed else None

    async def _repair(self) -> str | None:
        repaired = await repair(self._db)
        for what, count in repaired.items():
            self._metrics.repaired(what, count)
            _log.error("repaired", what=what, count=count)
        return f"repaired: {repaired}" if repaired else None

    async def _next_due(self) -> timedelta:
        chore = timedelta(seconds=max(0.0, min(chore.due for chore in self._chores) - time.monotonic()))
        known = (await builder_outlook(self._db)).next_lease
        # No notification tells of a claim, but a lease that is given from now on ends no sooner than this.
        ends = self._lease if known is None else min(known, self._lease)
        # A lease that has run out and was not reclaimed is locked by another session: don't look again at once.
        return min(chore, max(ends + self._grace, timedelta(milliseconds=100)))
