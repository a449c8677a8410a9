"""What wants nodes, which nodes there are, and each try to wake one (A13, tick 2)."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from accsd.db.answers import Verdict
from accsd.db.pool import Database, Record
from accsd.jsonsafe import sanitise
from accsd.log import redact
from accsd.model import AwakeState, Node
from accsd.planning.waking import Demand, NodeState, Try


@dataclass(frozen=True, slots=True)
class FleetNode:
    """A node, and what decides about waking it."""

    node: Node
    state: NodeState


async def wake_demand(db: Database, ahead: timedelta) -> list[Demand]:
    """What is claimable, or will be within `ahead`, by the kind of node that it wants."""
    rows = await db.fetch("SELECT * FROM accs.wake_demand($1)", ahead, repeatable=True)
    return [Demand(**dict(row)) for row in rows]


async def wake_nodes(db: Database) -> list[FleetNode]:
    rows = await db.fetch("SELECT * FROM accs.wake_nodes()", repeatable=True)
    return [_read(row) for row in rows]


async def claim_wake(db: Database, node: str, try_id: UUID, *, retry: timedelta) -> bool:
    """Whether this try is the caller's: a node is tried once in `retry`, by one builder."""
    answer = await db.fetchval("SELECT accs.claim_wake($1, $2, $3)", node, try_id, retry, repeatable=True)
    return Verdict(answer) is not Verdict.REFUSED


async def record_wake(
    db: Database, node: str, try_id: UUID, *, ok: bool, job_id: UUID | None, message: str, data: Mapping[str, Any]
) -> None:
    """How the try ended, as an event of the job that wanted the node (None: a person did); without secrets."""
    await db.fetch(
        "SELECT accs.record_wake($1, $2, $3, $4, $5, $6)",
        node,
        try_id,
        ok,
        job_id,
        sanitise(message, scrub=redact),
        sanitise(data, scrub=redact),
        repeatable=True,
    )


def _read(row: Record) -> FleetNode:
    node = Node.model_validate(dict(row))
    tried = None if row["tried_ago"] is None else Try(row["tried_ago"], row["tried_ok"], row["tries"])
    state = NodeState(
        name=node.name,
        labels=node.labels,
        slots=node.max_concurrency,
        live=row["live"],
        says_asleep=node.awake_state is AwakeState.SLEEP,
        unseen_for=row["unseen_for"],
        can_be_woken=node.wake_method is not None,
        is_drained=row["is_drained"],
        tried=tried,
    )
    return FleetNode(node, state)
