"""Finds what people type into one field: an id or a part of it, a key, a name. Few hits, in a bounded time."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from accsd.db.pool import Database
from accsd.db.views.jobs import FITS
from accsd.errors import DatabaseUnavailable
from accsd.model.access import own_key

MOST: Final = 20
_MOST_OF_A_KIND: Final = 6
_LONGEST: Final = 200
_ID: Final = re.compile(r"[0-9a-fA-F-]{4,36}")
_IDS_LOOKED_AT: Final = 1_000_000  # for the end of an id, which no index knows: an index-only scan of 0.3 s
_ENDS_SEC: Final = 0.35
KINDS: Final = ("job", "workflow", "service", "node", "schedule")


@dataclass(frozen=True, slots=True)
class Hit:
    """`name` is what is shown, `id` what it is found by: of a job its id, else the name. `why`: what has matched."""

    kind: str
    id: str
    name: str
    why: str


@dataclass(frozen=True, slots=True)
class Found:
    """`complete`: nothing was left out for want of time or room."""

    hits: list[Hit]
    complete: bool


_NAMES: Final = f"""
    SELECT kind, name, CASE WHEN lower(name) = $1 THEN 0 WHEN starts_with(lower(name), $1) THEN 1 ELSE 2 END AS rank
      FROM (SELECT kind, name, row_number() OVER (PARTITION BY kind ORDER BY length(name), name) AS n
              FROM (SELECT 'workflow' AS kind, w.name FROM public.workflows w
                     WHERE $2::text[] IS NULL OR EXISTS (SELECT FROM unnest($2) AS p (name) WHERE {FITS})
                    UNION SELECT 'service', service FROM accs.lanes
                    UNION SELECT 'service', jsonb_object_keys(max_concurrency) FROM public.nodes
                    UNION SELECT 'node', name FROM public.nodes
                    UNION SELECT 'schedule', s.name FROM public.schedules s) known
             WHERE strpos(lower(name), $1) > 0) found
     WHERE n <= {_MOST_OF_A_KIND + 1} ORDER BY kind, rank, length(name), name"""
_JOBS: Final = f"""
    SELECT j.id, w.name AS workflow, f.why
      FROM (%s) f, LATERAL (SELECT id, workflow_id FROM public.jobs WHERE id = f.id OFFSET 0) j,
           LATERAL (SELECT name FROM public.workflows WHERE id = j.workflow_id OFFSET 0) w
     WHERE $1::text[] IS NULL OR EXISTS (SELECT FROM unnest($1) AS p (name) WHERE {FITS})
     ORDER BY j.id DESC LIMIT {_MOST_OF_A_KIND + 1}"""
_BY_START: Final = _JOBS % (
    f"""(SELECT id, 'id' AS why FROM public.jobs WHERE $2::uuid IS NOT NULL AND id BETWEEN $2 AND $3
          ORDER BY id DESC LIMIT {_MOST_OF_A_KIND + 1})
        UNION
        (SELECT id, 'key' FROM public.jobs WHERE idempotency_key = ANY ($4::text[]))"""
)
_ENDS: Final = f"""SELECT id, 'id' AS why FROM (SELECT id FROM public.jobs ORDER BY id DESC LIMIT {_IDS_LOOKED_AT}) i
                     WHERE %s LIMIT {_MOST_OF_A_KIND + 1}"""
_BY_END: Final = _JOBS % (_ENDS % "right(i.id::text, length($2)) = $2")
# Two digits are a byte, and to write an id as text takes longer than to find it.
_BY_LAST_BYTES: Final = _JOBS % (_ENDS % "substring(uuid_send(i.id) FROM 17 - length($2::bytea)) = $2")


async def search(db: Database, text: str, *, actor: str | None = None, within: Sequence[str] | None = None) -> Found:
    """At most MOST hits, jobs first, each kind by how near it is. `within` are the names of workflows that may be
    shown, each may end in *."""
    typed = text.strip()[:_LONGEST]
    if not typed:
        return Found([], complete=True)
    shown = None if within is None else list(within)
    jobs, is_whole = await _jobs(db, typed, actor, shown)
    rows = await db.fetch(_NAMES, typed.lower(), shown, repeatable=True)
    by_kind = {
        kind: [Hit(kind, row["name"], row["name"], "name") for row in rows if row["kind"] == kind] for kind in KINDS
    }
    by_kind["job"] = jobs
    is_whole = is_whole and all(len(hits) <= _MOST_OF_A_KIND for hits in by_kind.values())
    hits = [hit for kind in KINDS for hit in by_kind[kind][:_MOST_OF_A_KIND]]
    return Found(hits[:MOST], is_whole and len(hits) <= MOST)


async def _jobs(db: Database, typed: str, actor: str | None, within: list[str] | None) -> tuple[list[Hit], bool]:
    first, last = _range(typed) if _ID.fullmatch(typed) else (None, None)
    keys = [typed] if actor is None else [typed, own_key(actor, typed)]
    rows = await db.fetch(_BY_START, within, first, last, keys, repeatable=True)
    is_whole = True
    if first is not None and len(typed) < len(str(first)):
        try:
            sql, end = _end(typed.lower())
            ends = await db.fetch(sql, within, end, repeatable=True, within=_ENDS_SEC)
            rows = [*rows, *(row for row in ends if row["id"] not in {known["id"] for known in rows})]
        except DatabaseUnavailable:
            is_whole = False  # it took too long; if the database is away, the next question says so
    return [Hit("job", str(row["id"]), row["workflow"], row["why"]) for row in rows], is_whole


def _end(typed: str) -> tuple[str, str | bytes]:
    is_bytes = len(typed) % 2 == 0 and "-" not in typed
    return (_BY_LAST_BYTES, bytes.fromhex(typed)) if is_bytes else (_BY_END, typed)


def _range(beginning: str) -> tuple[UUID, UUID]:
    digits = beginning.replace("-", "")[:32]
    return UUID(digits.ljust(32, "0")), UUID(digits.ljust(32, "f"))
