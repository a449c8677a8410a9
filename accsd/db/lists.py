"""What lists need besides rows: the key that seals their cursors, and the views that people have saved."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from accsd.db.answers import Verdict
from accsd.db.pool import Database


async def cursor_key(db: Database) -> bytes:
    """The key of this installation. Its gateways seal cursors with it, so that each can open those of the others."""
    return await db.fetchval("SELECT accs.cursor_key()", repeatable=True)


@dataclass(frozen=True, slots=True)
class SavedView:
    """A query under a name. Without an owner it is shared by all."""

    name: str
    owner: str | None
    query: dict[str, Any]
    revision: int
    saved_by: str
    saved_at: datetime


@dataclass(frozen=True, slots=True)
class ViewAnswer:
    """`revision` is the one that stands now, 0 where there is none."""

    verdict: Verdict
    reason: str | None
    revision: int


async def views(db: Database, owner: str) -> list[SavedView]:
    """The views of one actor, and the shared ones, by name."""
    rows = await db.fetch(
        """SELECT name, owner, query, revision, saved_by, saved_at FROM accs.views
            WHERE owner = $1 OR owner IS NULL ORDER BY name, owner NULLS LAST""",
        owner,
        repeatable=True,
    )
    return [SavedView(**row) for row in rows]


async def save_view(
    db: Database, name: str, query: Mapping[str, Any], *, owner: str | None, by: str, if_revision: int | None = None
) -> ViewAnswer:
    """Saves a view. With a revision only if the view is still that one; 0: if there is none yet."""
    row = await db.fetchrow(
        "SELECT * FROM accs.save_view($1, $2, $3, $4, $5)", name, dict(query), owner, by, if_revision, repeatable=True
    )
    assert row is not None
    return ViewAnswer(Verdict(row["answer"]), row["reason"], row["revision"])


async def drop_view(db: Database, name: str, *, owner: str | None, by: str) -> Verdict:
    return Verdict(await db.fetchval("SELECT accs.drop_view($1, $2, $3)", name, owner, by, repeatable=True))
