"""The results of steps with cache: forgotten when somebody wants it, and when they are too old."""

from typing import Final

from accsd.db.pool import Database

_AT_ONCE: Final = 10_000


async def forget_results(db: Database, workflow: str, step: str | None = None) -> int:
    """Forgets the cached results of a workflow, or of one step of it: its next tasks run. Returns how many."""
    return await db.fetchval("SELECT accs.forget_results($1, $2)", workflow, step, repeatable=True)


async def expire_results(db: Database) -> int:
    """Removes the rows of results that are too old to be used; returns how many."""
    removed = 0
    while True:
        row = await db.fetchrow("SELECT * FROM accs.expire_results($1)", _AT_ONCE, repeatable=True)
        assert row is not None, "expire_results always answers"
        removed += row["removed"]
        if row["looked_at"] < _AT_ONCE:
            return removed
