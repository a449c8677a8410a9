"""The demand for nodes, the nodes of the fleet, and the record of wake calls."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from accsd.db.answers import Verdict
from accsd.db.pool import Database, Record
from accsd.log import redact
from accsd.model import AwakeState, Node
from accsd.planning.cover import Demand, NodeState, WakeCalls
from accsd.values.json import sanitise


@dataclass(frozen=True, slots=True)
class FleetNode:
    """A node, and the facts that decide about waking it. `networks` are its segments, `relays` its neighbours that are
    awake; `last_try` is the last wake call, which the next caller must have known of; `brought_by` is the method that
    woke it the last time."""

    node: Node
    state: NodeState
    power: str
    because: str | None
    last_try: UUID | None
    tried_at: datetime | None
    error: str | None  # why the last wake call did not get through
    brought_by: str | None
    networks: tuple[str, ...]
    relays: tuple[str, ...]

    def is_at_work(self, lease: timedelta) -> bool:
        return self.state.is_awake(lease) and not self.state.is_drained


async def wake_demand(db: Database, ahead: timedelta) -> list[Demand]:
    """Work that is claimable, or will be within `ahead`, by the kind of node that it needs."""
    rows = await db.fetch("SELECT * FROM accs.wake_demand($1)", ahead, repeatable=True)
    return [Demand(**dict(row)) for row in rows]


async def wake_nodes(db: Database, *, silent: timedelta) -> list[FleetNode]:
    """`silent`: how long a node may be unseen before it counts as away. The states have no wake methods yet: those
    depend on the caller."""
    rows = await db.fetch("SELECT * FROM accs.wake_nodes($1)", silent, repeatable=True)
    return [_read(row) for row in rows]


async def look(db: Database, ahead: timedelta, *, silent: timedelta) -> tuple[list[Demand], list[FleetNode]]:
    """Demand and nodes in one snapshot: a task that is claimed between two would be counted as waiting and as live."""
    async with db.acquire() as connection, connection.transaction(isolation="repeatable_read", readonly=True):
        at_once = Database.over(connection)
        return await wake_demand(at_once, ahead), await wake_nodes(at_once, silent=silent)


async def claim_wake(db: Database, known: FleetNode, try_id: UUID, *, method: str, after: UUID | None) -> bool:
    """Whether this wake call is the caller's: since it looked, no other call was made and the node was not seen."""
    answer = await db.fetchval(
        "SELECT accs.claim_wake($1, $2, $3, $4, $5)",
        known.node.name,
        try_id,
        method,
        after,
        known.node.last_seen,
        repeatable=True,
    )
    return Verdict(answer) is not Verdict.REFUSED


async def record_wake(
    db: Database,
    node: str,
    try_id: UUID,
    *,
    ok: bool,
    job_id: UUID | None,
    message: str,
    data: Mapping[str, Any],
    by: str | None = None,
    reason: str | None = None,
) -> None:
    """Records a wake call in the node's history and as an event of the job that needed the node (None: a person did,
    and `by` says who); without secrets."""
    await db.fetch(
        "SELECT accs.record_wake($1, $2, $3, $4, $5, $6, $7, $8)",
        node,
        try_id,
        ok,
        job_id,
        sanitise(message, scrub=redact),
        sanitise(data, scrub=redact),
        by,
        reason,
        repeatable=True,
    )


@dataclass(frozen=True, slots=True)
class NotWoken:
    """Why a node is not woken; `failed`: its circuit breaker is open."""

    known: FleetNode
    because: str
    failed: bool


async def note_not_woken(db: Database, notes: Sequence[NotWoken], *, silent: timedelta) -> None:
    """Writes reasons. A node that was called or seen since is left as it is."""
    await db.fetch(
        "SELECT accs.note_not_woken($1, $2, $3, $4, $5)",
        [note.known.node.name for note in notes],
        [note.known.last_try for note in notes],
        [note.failed for note in notes],
        [sanitise(note.because, scrub=redact) for note in notes],
        silent,
        repeatable=True,
    )


def _read(row: Record) -> FleetNode:
    node = Node.model_validate(dict(row))
    calls = WakeCalls(row["tries"], row["tried_ago"], row["ok"]) if row["tries"] else None
    state = NodeState(
        name=node.name,
        labels=node.labels,
        slots=node.max_concurrency,
        live=row["live"],
        says_asleep=node.awake_state is AwakeState.SLEEP,
        unseen_for=row["unseen_for"],
        is_drained=row["is_drained"],
        latency=row["latency"],
        calls=calls,
    )
    return FleetNode(
        node,
        state,
        power=row["power"],
        because=row["because"],
        last_try=row["try_id"],
        tried_at=row["tried_at"],
        error=row["error"],
        brought_by=row["brought_by"],
        networks=tuple(str(network) for network in row["networks"]),
        relays=tuple(row["relays"]),
    )
