"""Calendars of days on which schedules do not fire, or on which alone they do: written and removed."""

from collections.abc import Mapping, Sequence
from typing import Any

from accsd.db.answers import Verdict
from accsd.db.pool import Database


async def put_calendar(
    db: Database, name: str, entries: Sequence[Mapping[str, Any]], *, timezone: str, created_by: str | None = None
) -> Verdict:
    """Writes a calendar under its name; its schedules are planned anew. The same entries again are repeated."""
    row = await db.fetchrow(
        """INSERT INTO public.calendars AS k (name, entries, timezone, created_by) VALUES ($1, $2, $3, $4)
           ON CONFLICT (name) DO UPDATE SET entries = excluded.entries, timezone = excluded.timezone
            WHERE (k.entries, k.timezone) IS DISTINCT FROM (excluded.entries, excluded.timezone)
           RETURNING name""",
        name,
        [dict(entry) for entry in entries],
        timezone,
        created_by,
        repeatable=True,
    )
    return Verdict.REPEATED if row is None else Verdict.ACCEPTED


async def remove_calendar(db: Database, name: str) -> None:
    await db.fetch("DELETE FROM public.calendars WHERE name = $1", name, repeatable=True)
