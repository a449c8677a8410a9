"""A real cycle: a node is sent to sleep and woken again, each step with its time."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import timedelta

from accsd.cli.checks.finding import Check, Finding, fail, ok, warn
from accsd.cli.session import operator
from accsd.db import Database
from accsd.db.views import jobs as job_views
from accsd.db.views.fleet import NodeView, node_named
from accsd.errors import AccsdError
from accsd.explain import power
from accsd.explain.words import duration
from accsd.power import WakeResult
from accsd.settings import Settings


def cycle_check(name: str, settle: timedelta) -> Check:
    """`settle` is how long a machine takes to be really asleep after it has said so, and its network card to listen."""

    async def check(settings: Settings) -> AsyncIterator[Finding]:
        db = await Database.open(settings.database, application="accsd doctor")
        try:
            async for finding in _Cycle(db, settings, name).run(settle):
                yield finding
        finally:
            await db.close()

    return check


class _Cycle:
    def __init__(self, db: Database, settings: Settings, name: str) -> None:
        self._db = db
        self._settings = settings
        self._name = name
        self._began: float = time.monotonic()

    async def run(self, settle: timedelta) -> AsyncIterator[Finding]:
        """Yields a finding for each step. An AccsdError becomes the last one."""
        if self._name == self._settings.node.name:
            yield fail(
                "cycle", "this machine can't wake itself", "run it on another one, the control host for instance"
            )
            return
        node = await node_named(self._db, self._name)
        power.check_awake(node, self._settings)
        methods = power.caller(self._db, self._settings, by=operator()).methods(
            await power.known_node(self._db, self._name, self._settings)
        )
        if not methods:
            yield fail("cycle", f"{self._name} has no wake_method: it would not come back", "set node.wake_method")
            return
        asked_at = await job_views.clock(self._db)
        yield self._step(
            f"{self._name} is asked to sleep: {await power.ask_to_sleep(self._db, self._name, by=operator())}"
        )
        asleep = await power.asleep(self._db, self._name, since=asked_at, within=power.GOES_WITHIN)
        yield self._step(f"it says that it sleeps; {duration(settle)} for it to be so")
        await asyncio.sleep(settle.total_seconds())
        if (now := await node_named(self._db, self._name)).last_seen != asleep.last_seen:
            yield self._refuted(now)
            return
        async for finding in self._wake(asleep, methods):
            yield finding

    async def _wake(self, asleep: NodeView, methods: Sequence[str]) -> AsyncIterator[Finding]:
        """Tries one wake method after the other until the node is seen."""
        patience = power.patience(asleep, self._settings)
        for _ in methods:
            for finding in self._told(await power.call(self._db, self._name, self._settings, by=operator())):
                yield finding
            try:
                node = await power.seen(self._db, asleep, within=patience)
            except AccsdError as late:
                yield warn("cycle", self._at(late.message), "the next method has its turn, if there is one")
                continue
            latency = "" if node.last_latency is None else f", {duration(node.last_latency)} after the call"
            yield self._step(f"{self._name} is awake again{latency}")
            return
        do = f"switch it on by hand; then `accsd doctor --node` on {self._name} looks at its card and firmware"
        yield fail("cycle", self._at(f"{self._name} did not come back"), do)

    def _told(self, results: Sequence[WakeResult]) -> Iterator[Finding]:
        if not results:
            yield self._step("somebody else calls it at this moment")
        for result in results:
            said = f": {result.output}" if result.output else ""
            if result.ok:
                yield self._step(f"called by {result.method}{said}")
            else:
                failed = f"not called by {result.method}: {result.error}{said}"
                yield warn("cycle", self._at(failed), f"`accsd doctor --node {self._name}` has more about it")

    def _refuted(self, now: NodeView) -> Finding:
        because = f": {now.because}" if now.because else ""
        said = self._at(f"{self._name} was seen again although nobody has called it from here{because}")
        return fail("cycle", said, f"it did not fall asleep, or work came for it: `accsd nodes show {self._name}`")

    def _step(self, said: str) -> Finding:
        return ok("cycle", self._at(said))

    def _at(self, said: str) -> str:
        return f"{f'+{time.monotonic() - self._began:.1f}s':>8}  {said}"
