"""Wakes the nodes that jobs running now or due soon will need (A13, tick 2; A18).

It looks at what waits and at who is awake, lets planning/waking.py decide, and tries each chosen node once in `retry`,
whichever builder is first. Every try is an event of the job that wanted the node.
"""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Final
from uuid import UUID, uuid4

import anyio

from accsd.db import Database
from accsd.db.waking import FleetNode, claim_wake, record_wake, wake_demand, wake_nodes
from accsd.errors import AccsdError, DatabaseUnavailable
from accsd.log import get_logger
from accsd.metrics import Metrics
from accsd.model import Node
from accsd.planning.waking import Choice, Plan, plan
from accsd.power import WakeFailed, WakeResult, provider_for
from accsd.roles.passes import Pass
from accsd.settings import Wake

_LAST_WORDS_SEC: Final = 5.0
_log = get_logger(role="wake")


class Waker:
    """Several may run at once: a node is tried by the one that claims the try."""

    name: Final = "wake"
    # Without the prefix. What becomes claimable later is told to its service only: the poll finds it.
    channels: Final = ("builder",)

    def __init__(self, db: Database, settings: Wake, *, lease: timedelta, metrics: Metrics | None = None) -> None:
        self._db: Database = db
        self._settings: Wake = settings
        self._lease: timedelta = lease
        self._metrics: Metrics = metrics or Metrics()

    async def run_once(self) -> Pass:
        demand = await wake_demand(self._db, self._settings.ahead)
        if not demand:
            return Pass()
        fleet = {known.node.name: known for known in await wake_nodes(self._db)}
        states = [known.state for known in fleet.values()]
        # In a thread: with hundreds of nodes it takes a second, and the loop has leases to keep.
        made = await asyncio.to_thread(plan, demand, states, lease=self._lease, retry=self._settings.retry)
        _log.debug("wake_planned", wake=[choice.node for choice in made.wake], reasons=dict(made.reasons))
        sentences = await self._wake_all(made, fleet)
        return Pass(did="; ".join(sentences) or None, next_due=self._settings.retry if sentences else made.again_in)

    async def _wake_all(self, made: Plan, fleet: Mapping[str, FleetNode]) -> list[str]:
        """Side by side; none waits for a slow one, or fails with a broken one."""
        sentences: dict[str, str] = {}
        failures: list[AccsdError] = []
        places = anyio.CapacityLimiter(self._settings.at_once)

        async def wake(choice: Choice) -> None:
            async with places:
                try:
                    if sentence := await self._try(choice, fleet[choice.node].node):
                        sentences[choice.node] = sentence
                except AccsdError as failure:  # the database's: the others end what they have begun
                    failures.append(failure)

        async with anyio.create_task_group() as group:
            for choice in made.wake:
                group.start_soon(wake, choice)
        if failures:
            raise failures[0]
        return [sentences[choice.node] for choice in made.wake if choice.node in sentences]

    async def _try(self, choice: Choice, node: Node) -> str | None:
        """What happened; None: another builder was first."""
        try_id = uuid4()
        if not await claim_wake(self._db, node.name, try_id, retry=self._settings.retry):
            return None
        try:
            result = await self._wake(node)
        except asyncio.CancelledError:
            with suppress(AccsdError):
                await self._record(choice, node, try_id, _failed(node, "interrupted"))
            raise
        return await self._record(choice, node, try_id, result)

    async def _record(self, choice: Choice, node: Node, try_id: UUID, result: WakeResult) -> str:
        """Also while we are being stopped: the node may have been called, and that belongs on record."""
        sentence = _sentence(choice, node, result)
        self._metrics.wake_tried(result.method, "sent" if result.ok else "failed")
        with anyio.move_on_after(_LAST_WORDS_SEC, shield=True) as scope:
            await record_wake(
                self._db,
                node.name,
                try_id,
                ok=result.ok,
                job_id=choice.because.job_id,
                message=sentence,
                data=_data(choice, node, result),
            )
        if scope.cancelled_caught:
            raise DatabaseUnavailable(f"the database did not take down within {_LAST_WORDS_SEC:g} s: {sentence}")
        return sentence

    async def _wake(self, node: Node) -> WakeResult:
        try:
            return await provider_for(node, self._settings).wake(node)
        except WakeFailed as failure:
            return _failed(node, failure.message)
        except Exception as failure:  # noqa: BLE001 - one bad row never stops the others; the log has the whole of it
            _log.exception("wake_crashed", node=node.name)
            return _failed(node, repr(failure))


def _failed(node: Node, error: str) -> WakeResult:
    assert node.wake_method is not None, "planning chooses none without"
    return WakeResult(False, node.wake_method, timedelta(0), error=error)


def _sentence(choice: Choice, node: Node, result: WakeResult) -> str:
    if result:
        return f"node {node.name} woken by {node.wake_method} for {choice.because.service}"
    return f"node {node.name} not woken by {node.wake_method} for {choice.because.service}: {result.error}"


def _data(choice: Choice, node: Node, result: WakeResult) -> dict[str, object]:
    data: dict[str, object] = {
        "node": node.name,
        "method": node.wake_method,
        "ok": result.ok,
        "latency_ms": round(result.latency.total_seconds() * 1000),
        "service": choice.because.service,
        "output": result.output,
        "error": result.error,
    }
    return {name: value for name, value in data.items() if value not in (None, "")}
