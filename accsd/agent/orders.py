"""Carries out node orders: sends a magic packet into this node's network, or lets the machine sleep.

Each node order is answered, if need be when the database is back. The node that asked may have given up by then; the
answer is on record all the same.
"""

from uuid import UUID

from accsd.agent.node import GOES_TO_SLEEP, Node
from accsd.db.orders import Order, OrderKind, answer_order, take_orders
from accsd.model import Node as Target
from accsd.power import WakeOnLAN, WakeResult
from accsd.supervisor import Pass


class Orders:
    def __init__(self, node: Node) -> None:
        self._node = node
        self._unanswered: dict[UUID, tuple[bool, str]] = {}

    async def run_once(self) -> Pass:
        await self._answer()
        did = [await self._do(order) for order in await take_orders(self._node.db, self._node.name)]
        await self._answer()
        return Pass(did="; ".join(did) or None)

    async def _answer(self) -> None:
        for order_id, (ok, said) in list(self._unanswered.items()):
            await answer_order(self._node.db, order_id, self._node.name, ok=ok, output=said)
            del self._unanswered[order_id]

    async def _do(self, order: Order) -> str:
        match order.kind:
            case OrderKind.RELAY:
                return await self._relay(order)
            case OrderKind.SLEEP:
                return self._go_to_sleep(order)

    async def _relay(self, order: Order) -> str:
        target = order.target or ""
        result = await self._send(Target(name=target, mac=order.mac))
        said = result.output if result.ok else ": ".join(filter(None, (result.error, result.output)))
        self._unanswered[order.id] = (result.ok, said)
        return f"node {target} {'called' if result.ok else 'not called'} for {order.asked_by or 'somebody'}: {said}"

    async def _send(self, target: Target) -> WakeResult:
        settings = self._node.settings.wake
        also = [str(address) for address in settings.broadcast]
        return await WakeOnLAN(target.mac or "", settings.interface, also=also, port=settings.port).wake(target)

    def _go_to_sleep(self, order: Order) -> str:
        """Hands the node order to the role `sleep`, which decides whether this node may sleep, and answers."""
        node = self._node
        if not node.sleeps:
            self._unanswered[order.id] = (False, "this node does not sleep by itself")
            return "asked to sleep, which this node does not do by itself"
        if node.is_going_to_sleep:
            self._unanswered[order.id] = (True, GOES_TO_SLEEP)
        else:
            node.sleep_orders.append(order)
            node.wake_role("sleep")
        return f"asked to sleep by {order.asked_by or 'somebody'}"
