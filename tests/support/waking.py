"""The waker without a daemon around it: a pass that lasts until its calls have ended."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import anyio

from accsd.builder.calls import CallsUnderWay
from accsd.builder.wake import Waker
from accsd.db import Database
from accsd.errors import AccsdError
from accsd.settings import WakeSettings
from accsd.supervisor import Pass
from tests.support.eventually import eventually

LEASE = timedelta(seconds=120)


class Builder:
    def __init__(
        self, db: Database, settings: WakeSettings, *, calls: CallsUnderWay | None = None, **given: Any
    ) -> None:
        self.calls: CallsUnderWay = calls or CallsUnderWay()
        self.waker: Waker = Waker(db, settings, lease=LEASE, calls=self.calls, **given)

    async def run_once(self) -> Pass:
        """What it did are its calls. As the supervisor sees it there is more to do when one has ended."""
        results: list[Pass | AccsdError] = []
        async with anyio.create_task_group() as group:
            group.start_soon(self.calls.serve)
            await eventually(lambda: self.calls.is_open)
            try:
                results.append(await self._until_all_ended())
            except AccsdError as failure:  # by itself, as the supervisor gets it
                results.append(failure)
            group.cancel_scope.cancel()
        if isinstance(results[0], AccsdError):
            raise results[0]
        return results[0]

    async def _until_all_ended(self) -> Pass:
        done = await self.waker.run_once()
        await self.calls.all_ended()
        said = self.calls.take()
        return replace(done, did="; ".join(said) or None, more=bool(said))
