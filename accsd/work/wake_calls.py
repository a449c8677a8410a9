"""Makes wake calls to a node: by one method after the other until one gets through, each of them on record.

Builders and people wake nodes through here; of several at once one makes each wake call.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Final
from uuid import UUID, uuid4

import anyio

from accsd.db import Database
from accsd.db.orders import ANSWERED_WITHIN, OrderKind, answer_within, ask_node
from accsd.db.wake import FleetNode, claim_wake, record_wake
from accsd.errors import AccsdError, DatabaseUnavailable
from accsd.log import get_logger
from accsd.model import Node, WakeMethod
from accsd.planning.cover import Demand
from accsd.power import (
    RELAY,
    Relay,
    WakeFailed,
    WakeProvider,
    WakeResult,
    methods_of,
    provider_for,
    shares_network,
)
from accsd.settings import WakeSettings

_LAST_WORDS_SEC: Final = 5.0
_log = get_logger(component="calling")


class WakeCaller:
    """`by` is the caller: this node, or a person, who may give a reason. `when_called` hears how each wake call
    went."""

    def __init__(
        self,
        db: Database,
        settings: WakeSettings,
        *,
        by: str,
        reason: str | None = None,
        when_called: Callable[[WakeResult], None] | None = None,
    ) -> None:
        self._db = db
        self._settings = settings
        self._by = by
        self._reason = reason
        self._when_called = when_called

    def methods(self, known: FleetNode) -> tuple[str, ...]:
        """The methods by which this machine can wake the node, the best first."""
        has_relay = bool(self._neighbours(known))
        is_near = not has_relay or shares_network(known.networks)
        return methods_of(known.node, has_relay=has_relay, is_near=is_near, brought_by=known.brought_by)

    async def call(
        self, known: FleetNode, methods: Sequence[str], wanted: Demand | None = None
    ) -> list[tuple[WakeResult, str]]:
        """Makes the wake calls; returns each with its sentence for the record. None was made if another caller was
        first, or the node is awake. `wanted` is the work that it is woken for; None: a person wants it."""
        calls: list[tuple[WakeResult, str]] = []
        after = known.last_try
        for method in methods:
            try_id = uuid4()
            if not await claim_wake(self._db, known, try_id, method=method, after=after):
                break
            calls.append(await self._recorded(known, try_id, method, wanted))
            if calls[-1][0].ok:
                break
            after = try_id
        return calls

    def _neighbours(self, known: FleetNode) -> list[str]:
        """Awake nodes in the same network, without this machine: its own packet is the method before."""
        return [name for name in known.relays if name != self._by]

    async def _recorded(
        self, known: FleetNode, try_id: UUID, method: str, wanted: Demand | None
    ) -> tuple[WakeResult, str]:
        try:
            result = await self._wake(known, method)
        except asyncio.CancelledError:
            with suppress(AccsdError):
                await self._record(known.node, try_id, _failed(method, "interrupted"), wanted)
            raise
        return result, await self._record(known.node, try_id, result, wanted)

    async def _wake(self, known: FleetNode, method: str) -> WakeResult:
        try:
            return await self._provider(known, method).wake(known.node)
        except WakeFailed as failure:
            return _failed(method, failure.message)
        except Exception as failure:  # noqa: BLE001 - one bad row never stops the others; the log has the traceback
            _log.exception("wake_crashed", node=known.node.name)
            return _failed(method, repr(failure))

    def _provider(self, known: FleetNode, method: str) -> WakeProvider:
        async def ask(neighbour: str) -> str:
            return await self._asked(neighbour, known.node.name)

        if method == RELAY:
            return Relay(self._neighbours(known), ask)
        return provider_for(known.node, self._settings, WakeMethod(method))

    async def _asked(self, neighbour: str, target: str) -> str:
        order = uuid4()
        await ask_node(self._db, order, neighbour, OrderKind.RELAY, target=target, by=self._by)
        answer = await answer_within(self._db, order)
        if answer is None:
            raise WakeFailed(f"it did not answer within {ANSWERED_WITHIN.total_seconds():g} s")
        if not answer.ok:
            raise WakeFailed(answer.output)
        return answer.output

    async def _record(self, node: Node, try_id: UUID, result: WakeResult, wanted: Demand | None) -> str:
        """Records a wake call, even while this process is being stopped: the node may have been called."""
        sentence = _sentence(node, result, self._by if wanted is None else wanted.service)
        if self._when_called is not None:
            self._when_called(result)
        with anyio.move_on_after(_LAST_WORDS_SEC, shield=True) as scope:
            await record_wake(
                self._db,
                node.name,
                try_id,
                ok=result.ok,
                job_id=None if wanted is None else wanted.job_id,
                message=sentence,
                data=self._data(node, result, wanted),
                by=self._by if wanted is None else None,
                reason=self._reason if wanted is None else None,
            )
        if scope.cancelled_caught:
            raise DatabaseUnavailable(f"the database did not take down within {_LAST_WORDS_SEC:g} s: {sentence}")
        return sentence

    def _data(self, node: Node, result: WakeResult, wanted: Demand | None) -> dict[str, object]:
        data: dict[str, object] = {
            "node": node.name,
            "method": result.method,
            "ok": result.ok,
            "latency_ms": round(result.latency.total_seconds() * 1000),
            "service": None if wanted is None else wanted.service,
            "schedule": None if wanted is None else wanted.schedule,
            "by": self._by if wanted is None else None,
            "output": result.output,
            "error": result.error,
        }
        return {name: value for name, value in data.items() if value not in (None, "")}


def _failed(method: str, error: str) -> WakeResult:
    return WakeResult(False, method, timedelta(0), error=error)


def _sentence(node: Node, result: WakeResult, wanted: str) -> str:
    if result:
        return f"node {node.name} woken by {result.method} for {wanted}"
    return f"node {node.name} not woken by {result.method} for {wanted}: {result.error}"
