"""What a node is asked to do by somebody who can't do it for it: send a magic packet into its network, go to sleep."""

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Final
from uuid import UUID

import anyio

from accsd.db.answers import Verdict
from accsd.db.pool import Database
from accsd.jsonsafe import sanitise
from accsd.log import redact

CHANNEL: Final = "orders"  # without the prefix; the payload is the node that is asked
_FIRST_LOOK_SEC: Final = 0.02
_LONGEST_LOOK_SEC: Final = 0.5


class OrderKind(StrEnum):
    RELAY = "relay"
    SLEEP = "sleep"


@dataclass(frozen=True, slots=True)
class Order:
    """`target` and its `mac` are those of the node that is to be woken."""

    id: UUID
    kind: OrderKind
    target: str | None
    mac: str | None
    asked_by: str | None


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
    within: timedelta,
) -> Verdict:
    answer = await db.fetchval(
        "SELECT accs.ask_node($1, $2, $3, $4, $5, $6)", order_id, node, kind, target, by, within, repeatable=True
    )
    return Verdict(answer)


async def take_orders(db: Database, node: str) -> list[Order]:
    """Not repeatable: each order is given out once, and one that got lost is no more than a call that did."""
    rows = await db.fetch("SELECT * FROM accs.take_orders($1)", node)
    return [Order(row["id"], OrderKind(row["kind"]), row["target"], row["mac"], row["asked_by"]) for row in rows]


async def answer_order(db: Database, order_id: UUID, node: str, *, ok: bool, output: str) -> Verdict:
    said = sanitise(output, scrub=redact)
    answer = await db.fetchval("SELECT accs.answer_order($1, $2, $3, $4)", order_id, node, ok, said, repeatable=True)
    return Verdict(answer)


async def order_answer(db: Database, order_id: UUID) -> OrderAnswer | None:
    """None: it was not answered yet."""
    row = await db.fetchrow(
        "SELECT ok, output FROM accs.node_orders WHERE id = $1 AND answered_at IS NOT NULL", order_id, repeatable=True
    )
    return None if row is None else OrderAnswer(row["ok"], row["output"] or "")


async def answer_within(db: Database, order_id: UUID, within: timedelta) -> OrderAnswer | None:
    """Asks again and again, less and less often. None: the node has not answered in that time."""
    pause = _FIRST_LOOK_SEC
    with anyio.move_on_after(within.total_seconds()):
        while (answer := await order_answer(db, order_id)) is None:
            await anyio.sleep(pause)
            pause = min(2 * pause, _LONGEST_LOOK_SEC)
        return answer
    return None
