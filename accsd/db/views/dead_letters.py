"""Dead letters for people: a list by pages, and the same failures counted together.

Open dead letters have an index of their own; a page and a table of groups look at the newest of them, up to a number,
and say whether that was all.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, cast
from uuid import UUID

from accsd.db.pool import Database, Record
from accsd.db.views.job_list import Count, Scan, ask
from accsd.db.views.jobs import FITS, DeadLetterRow
from accsd.errors import InvalidValue

LOOKED_AT: Final = 10_000  # dead letters a page or a table of groups looks at; about 0.1 s
_MOST_GROUPS: Final = 200
_STATEMENT_SEC: Final = 5.0
_LAST_ID: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Signature:
    """What failures have in common: the step of a service, the error, and its message without what differs."""

    service: str
    step: str
    error_code: str | None
    message: str

    def document(self) -> dict[str, Any]:
        return {
            "service": self.service,
            "step": self.step,
            "error_code": self.error_code,
            "message": self.message,
        }

    @classmethod
    def from_document(cls, document: object) -> "Signature":
        names = ("service", "step", "error_code", "message")
        if not isinstance(document, Mapping) or set(cast("Mapping[str, Any]", document)) != set(names):
            raise InvalidValue(f"a group of dead letters has {', '.join(names)}")
        given = cast("Mapping[str, Any]", document)
        for name in names:
            if not isinstance(given[name], str) and not (name == "error_code" and given[name] is None):
                raise InvalidValue(f"{name} of a group is no text")
        return cls(**{name: given[name] for name in names})


@dataclass(frozen=True, slots=True)
class LetterFilter:
    """The conditions of a dead letter, all of them. `up_to` is the last id."""

    service: str | None = None
    workflow: str | None = None
    step: str | None = None
    error_code: str | None = None
    reason: str | None = None
    group: Signature | None = None
    settled: bool = False  # also those that were redriven or dismissed
    up_to: int | None = None
    within: Sequence[str] | None = None  # as of jobs

    def document(self) -> dict[str, Any]:
        known: dict[str, Any] = {name: getattr(self, name) for name in _TEXTS}
        known |= {
            "group": None if self.group is None else self.group.document(),
            "settled": self.settled or None,
            "until_id": self.up_to,
            "within": None if self.within is None else list(self.within),
        }
        return {name: value for name, value in known.items() if value is not None}

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> "LetterFilter":
        """What `document` wrote. Raises InvalidValue for anything else."""
        given = dict(document)
        texts = {name: given.pop(name, None) for name in _TEXTS}
        group, settled, up_to = given.pop("group", None), given.pop("settled", False), given.pop("until_id", None)
        names = given.pop("within", None)
        if given:
            raise InvalidValue(f'a filter of dead letters has no "{next(iter(given))}"')
        for name, value in texts.items():
            if value is not None and not isinstance(value, str):
                raise InvalidValue(f"{name} of a filter is no text")
        if not isinstance(settled, bool) or (up_to is not None and type(up_to) is not int):
            raise InvalidValue("settled is true or false, until_id a whole number")
        return cls(
            **texts,
            group=None if group is None else Signature.from_document(group),
            settled=settled,
            up_to=up_to,
            within=None if names is None else tuple(str(name) for name in names),
        )


_TEXTS: Final = ("service", "workflow", "step", "error_code", "reason")


@dataclass(frozen=True, slots=True)
class LetterPage:
    """`next`: the following page has ids below this one; None: nothing is left."""

    rows: list[DeadLetterRow]
    next: int | None
    scan: Scan
    as_of: datetime


@dataclass(frozen=True, slots=True)
class LetterMatches:
    ids: list[int]
    next: int | None
    scan: Scan


@dataclass(frozen=True, slots=True)
class LetterGroup:
    """Failures of one signature. `letters` are the ids of the newest."""

    signature: Signature
    count: int
    first: datetime
    last: datetime
    letters: list[int]
    jobs: list[UUID]


@dataclass(frozen=True, slots=True)
class LetterGroups:
    """The groups, the largest first. Not `complete`: there are more dead letters than were looked at, or groups than
    are named."""

    groups: list[LetterGroup]
    complete: bool
    looked_at: int
    as_of: datetime


# A word with a digit in it names one file, one frame, one address: what is left is the kind of failure.
_MESSAGE: Final = (
    r"""regexp_replace(split_part(left(coalesce(d.error_message, ''), 400), E'\n', 1), '\S*\d\S*', '#', 'g')"""
)
_OPEN: Final = "redriven_at IS NULL AND dismissed_at IS NULL"
_PASSES: Final = f"""
    ($2::text IS NULL OR d.service_name = $2) AND ($3::text IS NULL OR w.name = $3)
    AND ($4::text IS NULL OR t.task_key = $4) AND ($5::text IS NULL OR d.error_code = $5)
    AND ($6::text IS NULL OR d.reason = $6)
    AND ($7::text[] IS NULL OR d.service_name = $7[1] AND t.task_key = $7[2] AND d.error_code IS NOT DISTINCT FROM $7[3]
         AND {_MESSAGE} = $7[4])
    AND ($8::text[] IS NULL OR EXISTS (SELECT FROM unnest($8) AS p (name) WHERE {FITS}))"""
# One look-up for each: by OFFSET 0, or the statistics may say that the whole table is cheaper.
_LOOKED: Final = f"""
    SELECT d.*, t.task_key, w.name AS workflow, coalesce({_PASSES}, false) AS passes
      FROM (SELECT l.*, row_number() OVER o AS n, lead(l.id) OVER o IS NULL AS is_last
              FROM (SELECT * FROM public.dead_letters WHERE id < $1 AND %s
                     ORDER BY id DESC LIMIT {LOOKED_AT}) l WINDOW o AS (ORDER BY id DESC)) d,
           LATERAL (SELECT task_key FROM public.job_tasks WHERE id = d.job_task_id OFFSET 0) t,
           LATERAL (SELECT workflow_id FROM public.jobs WHERE id = d.job_id OFFSET 0) j,
           LATERAL (SELECT name FROM public.workflows WHERE id = j.workflow_id OFFSET 0) w OFFSET 0"""
_ROWS: Final = f"""
    SELECT d.id, d.job_id, d.workflow, d.task_key, d.service_name AS service, d.reason, d.error_code, d.error_message,
           d.created_at, accs.clock() - d.created_at AS age, d.redriven_at, d.dismissed_at, d.n, d.is_last, d.passes
      FROM ({_LOOKED}) d WHERE d.passes OR d.is_last LIMIT $9"""
_COUNT: Final = f"""
    SELECT count(*) FILTER (WHERE passes) AS found, count(*) AS looked FROM ({_LOOKED}) d WHERE $9::bigint > 0"""
_GROUPS: Final = f"""
    WITH looked AS MATERIALIZED (SELECT d.*, {_MESSAGE} AS message FROM ({_LOOKED}) d)
    SELECT g.*, (SELECT count(*) FROM looked) AS looked, count(*) OVER () AS groups
      FROM (SELECT service_name AS service, task_key AS step, error_code, message, count(*) AS count,
                   min(created_at) AS first, max(created_at) AS last, (array_agg(id ORDER BY id DESC))[1:5] AS letters,
                   (array_agg(job_id ORDER BY id DESC))[1:5] AS jobs
              FROM looked WHERE passes GROUP BY 1, 2, 3, 4) g
     ORDER BY g.count DESC, g.last DESC, g.service, g.step LIMIT $9"""


async def settled_letters(db: Database, letter_ids: Sequence[int]) -> list[int]:
    """Of these dead letters those that were redriven or dismissed."""
    rows = await db.fetch(
        """SELECT id FROM public.dead_letters
            WHERE id = ANY ($1) AND (redriven_at IS NOT NULL OR dismissed_at IS NOT NULL) ORDER BY id""",
        list(letter_ids),
        repeatable=True,
    )
    return [row[0] for row in rows]


async def list_letters(db: Database, asked: LetterFilter, *, after: int | None = None, limit: int = 50) -> LetterPage:
    """The dead letters that pass the filter, newest first; open ones, unless the filter says otherwise."""
    as_of = await db.fetchval("SELECT accs.clock()", repeatable=True)
    rows = await _look(db, _ROWS, asked, after, limit)
    fields = tuple(DeadLetterRow.__dataclass_fields__)
    found = [DeadLetterRow(**{name: row[name] for name in fields}) for row in rows if row["passes"]]
    position, scan = _how_far(rows, len(found) >= limit)
    return LetterPage(found, position, scan, as_of)


async def matching_letters(db: Database, asked: LetterFilter, *, after: int | None = None, limit: int) -> LetterMatches:
    """The ids of the newest dead letters that pass the filter."""
    rows = await _look(db, _ROWS, asked, after, limit)
    ids = [row["id"] for row in rows if row["passes"]]
    position, scan = _how_far(rows, len(ids) >= limit)
    return LetterMatches(ids, position, scan)


async def count_letters(db: Database, asked: LetterFilter) -> Count:
    (row,) = await _look(db, _COUNT, asked, None, 1)
    return Count(row["found"], row["looked"] < LOOKED_AT)


async def letter_groups(db: Database, asked: LetterFilter) -> LetterGroups:
    """The newest open dead letters that pass the filter, by signature."""
    as_of = await db.fetchval("SELECT accs.clock()", repeatable=True)
    rows = await _look(db, _GROUPS, asked, None, _MOST_GROUPS)
    looked = rows[0]["looked"] if rows else 0
    groups = [
        LetterGroup(
            Signature(row["service"], row["step"], row["error_code"], row["message"]),
            row["count"],
            row["first"],
            row["last"],
            row["letters"],
            row["jobs"],
        )
        for row in rows
    ]
    complete = looked < LOOKED_AT and (not rows or rows[0]["groups"] <= _MOST_GROUPS)
    return LetterGroups(groups, complete, looked, as_of)


async def newest_letter(db: Database) -> int:
    """The last dead letter's id: what fails later is above it."""
    return await db.fetchval("SELECT coalesce(max(id), 0) FROM public.dead_letters", repeatable=True)


async def _look(db: Database, statement: str, asked: LetterFilter, after: int | None, limit: int) -> Sequence[Record]:
    group = asked.group
    below = min(_LAST_ID if after is None else after, _LAST_ID if asked.up_to is None else asked.up_to + 1)
    return await ask(
        db,
        statement % ("true" if asked.settled else _OPEN),
        below,
        asked.service,
        asked.workflow,
        asked.step,
        asked.error_code,
        asked.reason,
        None if group is None else [group.service, group.step, group.error_code, group.message],
        None if asked.within is None else list(asked.within),
        limit,
        within=_STATEMENT_SEC,
    )


def _how_far(rows: Sequence[Record], is_full: bool) -> tuple[int | None, Scan]:
    if not rows:
        return None, Scan(True, 0, None)
    last = rows[-1]
    if last["is_last"] and last["n"] < LOOKED_AT:
        return None, Scan(True, last["n"], None)
    return last["id"], Scan(is_full, last["n"], last["created_at"])
