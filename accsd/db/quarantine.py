"""Conclusions about nodes and steps that fail, and the quarantines that follow from them."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from accsd.db.answers import Verdict
from accsd.db.pool import Database, Record
from accsd.log import redact
from accsd.model.outcome import ErrorCode
from accsd.planning.quarantine import Conclusion, Failing, Fault, Lift, Place, Quarantine, Shut, Step
from accsd.values.json import sanitise

NEWS: Final = "_health"  # without the prefix: an attempt failed, or passed after failures; no service has such a name
SHUT: Final = "_quarantines"  # the payload is the node, one of whose services was shut
_KEPT: Final = 100  # conclusions of a step on a node


@dataclass(frozen=True, slots=True)
class OwnQuarantine:
    """A service that this node must not claim for, and when to probe it."""

    service: str
    state: Quarantine
    reason: str
    times: int
    probes: int
    probe_in: timedelta


async def health_evidence(db: Database, *, window: timedelta) -> list[Conclusion]:
    """The conclusions within the window, the oldest first."""
    rows = await db.fetch("SELECT * FROM accs.health_evidence($1)", window, repeatable=True)
    return [_read(row) for row in rows]


async def quarantine(db: Database, shut: Shut) -> Verdict:
    """Shuts a service on a node. Repeated: it was shut already, or its node is not registered any more. Refused: the
    place is no longer as it was judged."""
    answer = await db.fetchval(
        "SELECT accs.quarantine($1, $2, $3, '{}', $4, $5, $6)",
        *shut.place,
        sanitise(shut.reason, scrub=redact),
        shut.probe_in,
        shut.seen.version,
        shut.seen.conclusion,
    )
    return Verdict(answer)


async def end_trial(db: Database, lift: Lift, *, because: str) -> bool:
    """Lifts a quarantine after its trial. Returns whether it did: not if the place is no longer as it was judged."""
    rows = await db.fetch(
        "SELECT * FROM accs.lift_quarantine($1, $2, $3, NULL, $4, $5)",
        *lift.place,
        because,
        lift.seen.version,
        lift.seen.conclusion,
    )
    return bool(rows)


async def lift_quarantine(
    db: Database, *, node: str | None = None, service: str | None = None, because: str, by: str | None = None
) -> list[Place]:
    """Lifts the quarantines that fit, of any node or service where none is named; returns the lifted ones."""
    rows = await db.fetch("SELECT * FROM accs.lift_quarantine($1, $2, $3, $4)", node, service, because, by)
    return [Place(row["node"], row["service"]) for row in rows]


@dataclass(frozen=True, slots=True)
class NodeEvidence:
    """How attempts of a service ended on a node lately, of the steps that fail."""

    node: str
    passed: int
    failed: int
    lost: int
    last_failed_at: datetime | None
    last_message: str | None


async def evidence_by_node(db: Database, service: str) -> list[NodeEvidence]:
    """Where a service fails, the worst first: what a quarantine is decided by."""
    rows = await db.fetch(
        """SELECT node, count(*) FILTER (WHERE passed) AS passed,
                  count(*) FILTER (WHERE NOT passed AND NOT lost) AS failed, count(*) FILTER (WHERE lost) AS lost,
                  max(ts) FILTER (WHERE NOT passed) AS last_failed_at,
                  (array_agg(message ORDER BY id DESC) FILTER (WHERE NOT passed))[1] AS last_message
             FROM accs.conclusions WHERE service = $1 GROUP BY node
            ORDER BY count(*) FILTER (WHERE NOT passed) DESC, node LIMIT 100""",
        service,
        repeatable=True,
    )
    return [NodeEvidence(**dict(row)) for row in rows]


async def count_quarantines(db: Database) -> dict[str, int]:
    """The number of quarantines by state."""
    rows = await db.fetch("SELECT state, count(*) AS n FROM accs.quarantines GROUP BY state", repeatable=True)
    return {row["state"]: row["n"] for row in rows}


async def mark_steps(db: Database, failing: Sequence[Failing]) -> list[tuple[Step, bool]]:
    """Marks the steps that fail everywhere. Returns those that have changed, and whether they fail now."""
    rows = await db.fetch(
        "SELECT * FROM accs.mark_steps($1, $2, $3)",
        [each.step.workflow_id for each in failing],
        [each.step.task_key for each in failing],
        [sanitise(each.reason, scrub=redact) for each in failing],
    )
    return [(Step(row["workflow_id"], row["task_key"]), row["failing"]) for row in rows]


async def prune_conclusions(db: Database, *, window: timedelta) -> int:
    return await db.fetchval("SELECT accs.prune_conclusions($1, $2)", window, _KEPT, repeatable=True)


async def node_quarantines(db: Database, node: str) -> list[OwnQuarantine]:
    rows = await db.fetch("SELECT * FROM accs.node_quarantines($1)", node, repeatable=True)
    return [
        OwnQuarantine(
            row["service"], Quarantine(row["state"]), row["reason"], row["times"], row["probes"], row["probe_in"]
        )
        for row in rows
    ]


async def note_probe(db: Database, place: Place, problem: str | None, *, again: timedelta) -> Verdict:
    """Notes a probe. `problem` None: it passed, and the next task of the service is its trial."""
    said = None if problem is None else sanitise(problem, scrub=redact)
    return Verdict(await db.fetchval("SELECT accs.note_probe($1, $2, $3, $4)", *place, said, again, repeatable=True))


def _read(row: Record) -> Conclusion:
    return Conclusion(
        id=row["id"],
        place=Place(row["node"], row["service"]),
        step=Step(row["workflow_id"], row["task_key"]),
        task_id=row["task_id"],
        fault=_fault(row),
        code=row["code"],
        message=row["message"],
        quarantine=None if row["quarantine"] is None else Quarantine(row["quarantine"]),
        version=row["version"],
        is_trial=row["is_trial"],
        times=row["times"],
        offered=row["offered"],
    )


def _fault(row: Record) -> Fault | None:
    if row["passed"]:
        return None
    if row["permanent"]:
        return Fault.TASK
    # A store that is away is away for all nodes: only a comparison tells whether this node alone does not reach it.
    is_machines = row["lost"] and row["code"] != ErrorCode.STORAGE_UNAVAILABLE
    return Fault.MACHINE if is_machines else Fault.UNKNOWN
