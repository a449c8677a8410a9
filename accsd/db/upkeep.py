"""The verb that repairs the narrow tables."""

from accsd.db.pool import Database


async def repair(db: Database, *, limit: int = 1000) -> dict[str, int]:
    """Recounts the narrow tables and repairs what disagrees; returns how many of each kind. Any repair means a bug."""
    rows = await db.fetch("SELECT * FROM accs.repair($1)", limit, repeatable=True)
    return {row["what"]: row["repaired"] for row in rows}
