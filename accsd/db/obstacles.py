"""What keeps a node from a service that it offers, told to the database so that `accsd why` can name it."""

from accsd.db.pool import Database
from accsd.jsonsafe import sanitise
from accsd.log import redact


async def note_obstacle(db: Database, *, node: str, service: str, reason: str | None) -> None:
    """None: nothing does. Since when is kept while the words change."""
    said = None if reason is None else sanitise(reason, scrub=redact)[:500]
    await db.fetchval("SELECT accs.note_obstacle($1, $2, $3)", node, service, said, repeatable=True)
