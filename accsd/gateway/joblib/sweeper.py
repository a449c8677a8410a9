"""The sweeper (JB-32, JB-33): removes workers that are not heard any more, and ends what takes too long. Several
gateways may sweep at once: each worker is removed once."""

from datetime import timedelta
from typing import TYPE_CHECKING

from accsd.db.joblib import sweep
from accsd.db.views.joblib import silent_workers
from accsd.supervisor import Pass

if TYPE_CHECKING:
    from accsd.gateway.joblib.desk import Desk


class Sweeper:
    def __init__(self, desk: "Desk") -> None:
        self._desk = desk

    async def run_once(self) -> Pass:
        settings, verbs = self._desk.settings, self._desk.context.verbs
        silent = timedelta(seconds=settings.worker_timeout_seconds)
        gone, next_due = await silent_workers(self._desk.context.reads, settings.worker_timeout_seconds)
        did: dict[str, int] = {}
        for node in gone:
            if await self._desk.remove_worker(verbs, node, silent=silent) is not None:
                did["workers removed"] = did.get("workers removed", 0) + 1
        claimed = settings.claimed_timeout_seconds
        did |= await sweep(
            verbs,
            internal=timedelta(seconds=settings.internal_task_timeout_seconds),
            claimed=None if claimed is None else timedelta(seconds=claimed),
            keep=self._desk.keeps_dead_letters,
        )
        pause = min(settings.sweeper_interval_seconds, next_due or settings.sweeper_interval_seconds)
        said = ", ".join(f"{what}: {n}" for what, n in did.items()) or None
        return Pass(said, next_due=timedelta(seconds=max(0.05, pause)))
