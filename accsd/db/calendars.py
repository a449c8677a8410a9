"""Calendars of days on which schedules do not fire, or on which alone they do: written, removed and listed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from accsd.db.answers import Verdict
from accsd.db.pool import Database
from accsd.errors import NotFound
from accsd.values.validation import did_you_mean


async def put_calendar(
    db: Database,
    name: str,
    entries: Sequence[Mapping[str, Any]],
    *,
    timezone: str | None,
    created_by: str | None = None,
) -> Verdict:
    """Writes a calendar under its name; its schedules are planned anew. The same entries again are repeated.
    `timezone`: whose dates they are; None: those of each schedule's own zone."""
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


@dataclass(frozen=True, slots=True)
class CalendarRow:
    name: str
    timezone: str | None
    entries: list[dict[str, Any]]
    created_by: str | None
    updated_at: datetime
    schedules: list[str]  # that name it, ended ones not


async def calendars(db: Database) -> list[CalendarRow]:
    rows = await db.fetch(
        """SELECT k.name, k.timezone, k.entries, k.created_by, k.updated_at,
                  ARRAY(SELECT s.name FROM public.schedules s WHERE k.name = ANY (s.exclude || s.only_on)
                           AND s.state <> 'ended' ORDER BY 1) AS schedules
             FROM public.calendars k ORDER BY k.name""",
        repeatable=True,
    )
    return [CalendarRow(**row) for row in rows]


async def calendars_named(db: Database, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The entries and zones of calendars by name, or NotFound with the name that was meant."""
    if not names:
        return {}
    known = {row.name: {"entries": row.entries, "timezone": row.timezone} for row in await calendars(db)}
    for name in names:
        if name not in known:
            raise NotFound(
                f'there is no calendar "{name}"{did_you_mean(name, known)}',
                hint="`accsd schedules calendars list` shows them, `import FILE` brings one in",
            )
    return {name: known[name] for name in names}
