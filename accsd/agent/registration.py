"""Says that this node is there and what it offers, and keeps its leases (A12, A14)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from accsd.db import Database, upsert_heartbeat
from accsd.errors import NotFound
from accsd.log import get_logger
from accsd.model import WakeMethod
from accsd.work.lease import LeaseKeeper

_log = get_logger(role="presence")


@dataclass(frozen=True, slots=True)
class Offer:
    """What a node registers."""

    labels: Mapping[str, Any]
    max_concurrency: Mapping[str, int]
    wake_method: str | None = None
    mac: str | None = None
    provider_ref: str | None = None
    script: str | None = None
    networks: Sequence[str] = ()


class Registration:
    def __init__(
        self,
        db: Database,
        *,
        node: str,
        offer: Callable[[], Offer],
        keeper: LeaseKeeper,
        when_registered: Callable[[], None],
    ) -> None:
        self._db: Database = db
        self._node: str = node
        self._offer: Callable[[], Offer] = offer
        self._keeper: LeaseKeeper = keeper
        self._when_registered: Callable[[], None] = when_registered
        self._is_registered: bool = False

    @property
    def is_registered(self) -> bool:
        """The node is known to the database: nothing is claimed before."""
        return self._is_registered

    async def register(self) -> None:
        """At the start, and whenever the offer has changed; not while this node goes to sleep."""
        await self._keeper.may_speak()
        offer, identity = self._offer(), self._keeper.identity
        await upsert_heartbeat(
            self._db,
            self._node,
            labels=dict(offer.labels),
            max_concurrency=dict(offer.max_concurrency),
            wake_method=None if offer.wake_method is None else WakeMethod(offer.wake_method),
            mac=offer.mac,
            provider_ref=offer.provider_ref,
            script=offer.script,
            networks=list(offer.networks),
            machine_id=identity.machine_id,
            boot_id=identity.boot_id,
            instance=identity.instance,
            lease=self._keeper.length,
        )
        self._is_registered = True
        self._when_registered()
        _log.info("node_registered", node=self._node, services=dict(offer.max_concurrency), labels=dict(offer.labels))

    async def serve(self) -> None:
        """NameTaken, at the start or by a heartbeat, is an outage like others: nothing is claimed meanwhile."""
        while True:
            self._is_registered = False
            await self.register()
            try:
                await self._keeper.beat_on()
            except NotFound:
                _log.warning("node_was_removed", node=self._node)  # it is there all the same
