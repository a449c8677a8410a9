"""Verbs of upkeep: what repairs the narrow tables, and what says that a daemon is there."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from accsd.db.pool import Database
from accsd.log import redact
from accsd.values.json import sanitise


async def repair(db: Database, *, limit: int = 1000) -> dict[str, int]:
    """Recounts the narrow tables and repairs what disagrees; returns how many of each kind. Any repair means a bug."""
    rows = await db.fetch("SELECT * FROM accs.repair($1)", limit, repeatable=True)
    return {row["what"]: row["repaired"] for row in rows}


@dataclass(frozen=True, slots=True)
class DaemonRow:
    """A process of accsd as it describes itself; `hearing` says whether notifications arrive, `problems` what keeps its
    roles from their work, by role."""

    name: str
    roles: Sequence[str]  # builder, agent, gateway
    version: str
    since: datetime
    hearing: str
    problems: Mapping[str, str]


async def note_daemon(db: Database, daemon: DaemonRow) -> None:
    """Says that this process is there."""
    await db.fetch(
        "SELECT accs.note_daemon($1, $2, $3, $4, $5, $6)",
        daemon.name,
        list(daemon.roles),
        daemon.version,
        daemon.since,
        sanitise(daemon.hearing, scrub=redact),
        sanitise(daemon.problems, scrub=redact),
        repeatable=True,
    )
