"""Verbs of the builder's own upkeep: what repairs the narrow tables, and what says that a builder is there."""

from collections.abc import Mapping

from accsd.db.pool import Database
from accsd.log import redact
from accsd.values.json import sanitise


async def repair(db: Database, *, limit: int = 1000) -> dict[str, int]:
    """Recounts the narrow tables and repairs what disagrees; returns how many of each kind. Any repair means a bug."""
    rows = await db.fetch("SELECT * FROM accs.repair($1)", limit, repeatable=True)
    return {row["what"]: row["repaired"] for row in rows}


async def note_builder(db: Database, name: str, obstacles: Mapping[str, str]) -> None:
    """Says that this builder makes passes, and what keeps its roles from their work."""
    await db.fetch("SELECT accs.note_builder($1, $2)", name, sanitise(obstacles, scrub=redact), repeatable=True)
