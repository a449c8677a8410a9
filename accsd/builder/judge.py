"""Notices bad nodes and bad steps: reads how attempts ended, lets planning/quarantine.py judge, and records it."""

import asyncio
import time
from datetime import timedelta
from typing import Final

from accsd.db import Database
from accsd.db.answers import Verdict
from accsd.db.quarantine import (
    count_quarantines,
    end_trial,
    health_evidence,
    lift_quarantine,
    mark_steps,
    prune_conclusions,
    quarantine,
)
from accsd.log import get_logger
from accsd.metrics import Metrics
from accsd.planning.quarantine import Judgement, Lift, Place, QuarantineRules, Shut, judge
from accsd.settings import QuarantineSettings
from accsd.supervisor import Pass

# A herd of failures is judged together, and a fleet that fails all the time costs one look in this time.
_AT_MOST_EVERY: Final = timedelta(milliseconds=500)
_PRUNE_EVERY: Final = timedelta(seconds=10)
_log = get_logger(role="judge")


class Judge:
    """Several judges and people may act at once: each verb refuses a judgement that rests on outdated evidence."""

    def __init__(self, db: Database, settings: QuarantineSettings, *, metrics: Metrics) -> None:
        self._db = db
        self._metrics = metrics
        self._is_on: bool = settings.is_on
        self._window: timedelta = settings.window
        self._rules: QuarantineRules = QuarantineRules(
            settings.failures, settings.luck, settings.probe, settings.longest_probe
        )
        self._looked_at: float = float("-inf")  # monotonic
        self._pruned_at: float = float("-inf")
        self._is_clear: bool = False  # nothing is marked or kept; an earlier judge may have left something

    async def run_once(self) -> Pass:
        if (left := self._looked_at + _AT_MOST_EVERY.total_seconds() - time.monotonic()) > 0:
            return Pass(next_due=timedelta(seconds=left))
        self._looked_at = time.monotonic()
        if not self._is_on:
            return await self._release_all()
        evidence = await health_evidence(self._db, window=self._window)
        if not evidence and self._is_clear:
            return Pass()
        # In a thread: a large fleet has many conclusions, and the loop has leases to keep.
        judgement = await asyncio.to_thread(judge, evidence, self._rules)
        sentences = await self._carry_out(judgement)
        shut = await count_quarantines(self._db)
        self._metrics.quarantines(shut)
        # Evidence that has just become too old would otherwise stay, and every finish would look at it.
        await self._prune(at_once=not evidence)
        self._is_clear = not evidence and not shut
        return Pass(did="; ".join(sentences) or None)

    async def _release_all(self) -> Pass:
        """Ends all quarantines once, when they are switched off: nothing would end a trial. Another builder may have a
        judge."""
        lifted: list[Place] = []
        if not self._is_clear:
            lifted = await lift_quarantine(self._db, because="quarantine is switched off", by="builder")
            await mark_steps(self._db, ())
            self._is_clear = True
            self._metrics.quarantines(await count_quarantines(self._db))
        await self._prune()
        return Pass(did="; ".join(f"{each.service} on {each.node} out of quarantine" for each in lifted) or None)

    async def _carry_out(self, judgement: Judgement) -> list[str]:
        shut = [await self._shut(each) for each in judgement.shut]
        lifted = [await self._lift(each) for each in judgement.lift]
        return [sentence for sentence in (*shut, *lifted, *await self._mark(judgement)) if sentence]

    async def _shut(self, shut: Shut) -> str | None:
        answer = await quarantine(self._db, shut)
        if answer is Verdict.REFUSED:
            _log.info("judged_too_late", node=shut.place.node, service=shut.place.service, reason=shut.reason)
        if answer is not Verdict.ACCEPTED:
            return None
        _log.warning("quarantined", node=shut.place.node, service=shut.place.service, reason=shut.reason)
        return f"{shut.place.service} on {shut.place.node} put into quarantine"

    async def _lift(self, lift: Lift) -> str | None:
        place = lift.place
        if not await end_trial(self._db, lift, because="its trial passed"):
            return None
        _log.info("quarantine_lifted", node=place.node, service=place.service)
        return f"{place.service} on {place.node} out of quarantine"

    async def _mark(self, judgement: Judgement) -> list[str]:
        reasons = {each.step: each.reason for each in judgement.failing}
        said: list[str] = []
        for step, fails in await mark_steps(self._db, judgement.failing):
            if fails:
                _log.warning("step_failing", workflow_id=str(step.workflow_id), step=step.task_key, why=reasons[step])
            said.append(
                f'step "{step.task_key}" {"fails everywhere" if fails else "does not fail everywhere any more"}'
            )
        return said

    async def _prune(self, *, at_once: bool = False) -> None:
        if at_once or time.monotonic() >= self._pruned_at + _PRUNE_EVERY.total_seconds():
            self._pruned_at = time.monotonic()
            await prune_conclusions(self._db, window=self._window)
