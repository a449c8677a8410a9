"""Says that this node is there and what it offers, and keeps its leases."""

import asyncio

from accsd.agent.node import Node
from accsd.agent.offers import offered_tools
from accsd.db import upsert_heartbeat
from accsd.errors import NotFound
from accsd.log import get_logger
from accsd.model import WakeMethod
from accsd.power import networks

_log = get_logger(role="registration")


async def register(node: Node) -> None:
    """Registers the node at the start and whenever its offer has changed; not while this node goes to sleep."""
    await node.leases.may_speak()
    offers, identity = node.settings.node, node.leases.identity
    slots = {service.name: service.concurrency for service in node.runs}
    await upsert_heartbeat(
        node.db,
        node.name,
        labels=dict(offers.labels),
        max_concurrency=slots,
        wake_method=None if offers.wake_method is None else WakeMethod(offers.wake_method),
        mac=offers.mac,
        provider_ref=offers.provider_ref,
        script=offers.script,
        networks=networks(),
        machine_id=identity.machine_id,
        boot_id=identity.boot_id,
        instance=identity.instance,
        lease=node.leases.length,
        tools=await asyncio.to_thread(offered_tools, node.runs),
        watts={} if offers.watts is None else offers.watts.model_dump(),
    )
    node.is_registered = True
    node.look()
    _log.info("node_registered", node=node.name, services=slots, labels=dict(offers.labels))


class Registration:
    def __init__(self, node: Node) -> None:
        self._node = node

    async def serve(self) -> None:
        """Registers and keeps the heartbeat. NameTaken is an outage like others: nothing is claimed meanwhile."""
        while True:
            self._node.is_registered = False
            await register(self._node)
            try:
                await self._node.leases.beat_on()
            except NotFound:
                _log.warning("node_was_removed", node=self._node.name)  # registered again: the node is still here
