"""Node orders: a process asks a node for what only that node can do: send a magic packet into its network, or sleep."""

from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import Final
from uuid import UUID

import anyio

from accsd.clock import boot_time
from accsd.db.answers import Verdict
from accsd.db.pool import Database
from accsd.errors import DatabaseUnavailable
from accsd.log import redact
from accsd.retry import Backoff
from accsd.values.json import sanitise

CHANNEL: Final = "orders"  # without the prefix; the payload is the node that is asked
# How long the asking process waits for the answer; a node does not carry out an older node order.
ANSWERED_WITHIN: Final = timedelta(seconds=10)
_LOOKS: Final = (timedelta(seconds=0.02), timedelta(seconds=0.5))


class OrderKind(StrEnum):
    RELAY = "relay"
    SLEEP = "sleep"


@dataclass(frozen=True, slots=True)
class Order:
    """A node order. `target` and `mac` are those of the node that is to be woken."""

    id: UUID
    kind: OrderKind
    target: str | None
    mac: str | None
    asked_by: str | None
    taken_at: float = field(default_factory=boot_time)

    @property
    def is_late(self) -> bool:
        """The asking process has given up and reported that there was no answer."""
        return boot_time() - self.taken_at > ANSWERED_WITHIN.total_seconds()


@dataclass(frozen=True, slots=True)
class OrderAnswer:
    ok: bool
    output: str


async def ask_node(
    db: Database,
    order_id: UUID,
    node: str,
    kind: OrderKind,
    *,
    target: str | None = None,
    by: str | None = None,
    within: timedelta = ANSWERED_WITHIN,
    reason: str | None = None,
) -> Verdict:
    answer = await db.fetchval(
        "SELECT accs.ask_node($1, $2, $3, $4, $5, $6, $7)",
        order_id,
        node,
        kind,
        target,
        by,
        within,
        reason,
        repeatable=True,
    )
    return Verdict(answer)


async def take_orders(db: Database, node: str) -> list[Order]:
    """Takes node orders. Not repeatable: each is given out once, and a lost one is like a lost wake call."""
    rows = await db.fetch("SELECT * FROM accs.take_orders($1)", node)
    return [Order(row["id"], OrderKind(row["kind"]), row["target"], row["mac"], row["asked_by"]) for row in rows]


async def answer_order(db: Database, order_id: UUID, node: str, *, ok: bool, output: str) -> Verdict:
    said = sanitise(output, scrub=redact)
    answer = await db.fetchval("SELECT accs.answer_order($1, $2, $3, $4)", order_id, node, ok, said, repeatable=True)
    return Verdict(answer)


async def order_answer(db: Database, order_id: UUID, *, within: timedelta | None = None) -> OrderAnswer | None:
    """The answer; None: there is none yet. `within` limits how long the database may take."""
    rows = await db.fetch(
        "SELECT ok, output FROM accs.node_orders WHERE id = $1 AND answered_at IS NOT NULL",
        order_id,
        repeatable=True,
        within=None if within is None else within.total_seconds(),
    )
    return OrderAnswer(rows[0]["ok"], rows[0]["output"] or "") if rows else None


async def answer_within(db: Database, order_id: UUID, within: timedelta = ANSWERED_WITHIN) -> OrderAnswer | None:
    """Asks again and again, less and less often, also while the database is away: it may be back in time. None: the
    node has not answered. DatabaseUnavailable: that could not be known in the end."""
    pauses, away = Backoff(*_LOOKS), None
    with anyio.move_on_after(within.total_seconds()):
        while True:
            try:
                if (answer := await order_answer(db, order_id, within=within / 5)) is not None:
                    return answer
                away = None
            except DatabaseUnavailable as error:
                away = error
            await pauses.pause()
    if away is not None:
        said = f"the answer was not known within {within.total_seconds():g} s: {away.message}"
        raise DatabaseUnavailable(said, hint=away.hint) from away
    return None
