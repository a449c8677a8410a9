"""Does what this node is asked to do by others: sends a magic packet into its network, or lets the machine sleep.

What was done is answered, if need be when the database is back. Whoever asked may have been told by then that there was
no answer; it is on record all the same.
"""

from collections.abc import Callable
from uuid import UUID

from accsd.db import Database
from accsd.db.orders import Order, OrderKind, answer_order, take_orders
from accsd.model import Node
from accsd.passes import Pass
from accsd.power import WakeOnLAN, WakeResult
from accsd.settings import WakeSettings


class Orders:
    """`sleep` hands an order to whoever decides about it and answers it, or says what is to be answered at once; None:
    this node does not sleep by itself."""

    def __init__(
        self,
        db: Database,
        *,
        node: str,
        wake: Callable[[], WakeSettings],
        sleep: Callable[[], Callable[[Order], str | None] | None],
    ) -> None:
        self._db: Database = db
        self._node: str = node
        self._wake: Callable[[], WakeSettings] = wake
        self._sleep: Callable[[], Callable[[Order], str | None] | None] = sleep
        self._unanswered: dict[UUID, tuple[bool, str]] = {}

    async def run_once(self) -> Pass:
        await self._answer()
        did = [await self._do(order) for order in await take_orders(self._db, self._node)]
        await self._answer()
        return Pass(did="; ".join(did) or None)

    async def _answer(self) -> None:
        for order_id, (ok, said) in list(self._unanswered.items()):
            await answer_order(self._db, order_id, self._node, ok=ok, output=said)
            del self._unanswered[order_id]

    async def _do(self, order: Order) -> str:
        match order.kind:
            case OrderKind.RELAY:
                return await self._relay(order)
            case OrderKind.SLEEP:
                return self._go_to_sleep(order)

    async def _relay(self, order: Order) -> str:
        target = order.target or ""
        result = await self._send(Node(name=target, mac=order.mac))
        said = result.output if result.ok else ": ".join(filter(None, (result.error, result.output)))
        self._unanswered[order.id] = (result.ok, said)
        return f"node {target} {'called' if result.ok else 'not called'} for {order.asked_by or 'somebody'}: {said}"

    async def _send(self, target: Node) -> WakeResult:
        settings = self._wake()
        also = [str(address) for address in settings.broadcast]
        return await WakeOnLAN(target.mac or "", settings.interface, also=also, port=settings.port).wake(target)

    def _go_to_sleep(self, order: Order) -> str:
        sleep = self._sleep()
        if sleep is None:
            self._unanswered[order.id] = (False, "this node does not sleep by itself")
            return "asked to sleep, which this node does not do by itself"
        if (said := sleep(order)) is not None:
            self._unanswered[order.id] = (True, said)
        return f"asked to sleep by {order.asked_by or 'somebody'}"
