"""Lists of jobs that pass a filter, a page at a time, and how far the search for them went.

No index covers what a filter asks for, because that would cost every transition a HOT update. So a list walks along
order_seq, the order of submission, a slice a statement, and stops when its page is full, when nothing is left, or when
its budget is spent; it says which. A page holds every match between two positions of that walk: pages that follow each
other neither skip nor repeat a job, whatever is submitted meanwhile. Three filters do not walk: jobs in motion stand in
narrow tables, whatever their age; an idempotency key has an index; and a time is found by the ids, which begin with
the time of their making.
"""

import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final, cast
from uuid import UUID

from accsd.db.pool import Database, Record
from accsd.db.views.jobs import FITS, JOB_COLUMNS, JobRow
from accsd.errors import DatabaseUnavailable, InvalidValue, QueryTooSlow

_SLICE: Final = 20_000
_SLICE_OF_TASKS: Final = 2_000  # a filter that looks at a job's tasks costs ten times as much a job
# With more than this many rows in a narrow table jobs in motion are no longer rare, and the walk finds them.
_IN_MOTION: Final = 10_000
# An id is made after its transaction began, whose time is created_at: by less than this.
_SLACK: Final = timedelta(hours=1)
_OPEN: Final = frozenset({"queued", "running"})
_FIRST_ID: Final = UUID(int=0)
_LAST_ID: Final = UUID(int=2**128 - 1)
_FIRST_SEQ: Final = -(2**63)
_LAST_SEQ: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class PageBudget:
    """What one page may cost: how many jobs it looks at, and for how long. The slice that it is in is ended, unless one
    statement takes longer than `statement` seconds."""

    rows: int = 100_000
    seconds: float | None = 0.25
    statement: float = 2.0


BUDGET: Final = PageBudget()


@dataclass(frozen=True, slots=True)
class ListPosition:
    """A place between two jobs: behind this one."""

    order_seq: int
    id: UUID


@dataclass(frozen=True, slots=True)
class Scan:
    """How far a search went. `complete`: its budget did not end it. `back_to` is when the last job was submitted that
    it looked at; None: it has looked at all that were left."""

    complete: bool
    looked_at: int
    back_to: datetime | None

    def document(self) -> dict[str, Any]:
        return {"complete": self.complete, "looked_at": self.looked_at, "back_to": self.back_to}


@dataclass(frozen=True, slots=True)
class JobFilter:
    """The conditions of a job, all of them. `node`: one of its tasks is or was last there; `options` are among its own;
    each of `words` occurs in its names or its error; `up_to` is the last order_seq; `within` are
    the names of workflows that may be shown, each may end in *."""

    statuses: Sequence[str] = ()
    workflow: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    service: str | None = None
    node: str | None = None
    error_code: str | None = None
    key: str | None = None
    by: str | None = None
    options: Mapping[str, Any] | None = None
    took_over: timedelta | None = None
    took_under: timedelta | None = None
    words: Sequence[str] = ()
    up_to: int | None = None
    within: Sequence[str] | None = None

    @property
    def is_open(self) -> bool:
        """Whether every status asked for is one of jobs in motion."""
        return bool(self.statuses) and set(self.statuses) <= _OPEN

    @property
    def is_selective(self) -> bool:
        return replace(self, up_to=None) != JobFilter()

    def document(self) -> dict[str, Any]:
        """As JSON, without what is not asked for."""
        known: dict[str, Any] = {
            "status": list(self.statuses) or None,
            "workflow": self.workflow,
            "since": _written(self.since),
            "until": _written(self.until),
            "service": self.service,
            "node": self.node,
            "error_code": self.error_code,
            "key": self.key,
            "created_by": self.by,
            "options": None if self.options is None else dict(self.options),
            "took_over_seconds": None if self.took_over is None else self.took_over.total_seconds(),
            "took_under_seconds": None if self.took_under is None else self.took_under.total_seconds(),
            "text": list(self.words) or None,
            "until_order_seq": self.up_to,
            "within": None if self.within is None else list(self.within),
        }
        return {name: value for name, value in known.items() if value is not None}

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> "JobFilter":
        """What `document` wrote. Raises InvalidValue for anything else."""
        given = dict(document)
        try:
            read = cls(
                statuses=_texts(given.pop("status", ())),
                workflow=_text(given.pop("workflow", None)),
                since=_read(given.pop("since", None)),
                until=_read(given.pop("until", None)),
                service=_text(given.pop("service", None)),
                node=_text(given.pop("node", None)),
                error_code=_text(given.pop("error_code", None)),
                key=_text(given.pop("key", None)),
                by=_text(given.pop("created_by", None)),
                options=_table(given.pop("options", None)),
                took_over=_length(given.pop("took_over_seconds", None)),
                took_under=_length(given.pop("took_under_seconds", None)),
                words=_texts(given.pop("text", ())),
                up_to=_number(given.pop("until_order_seq", None)),
                within=None if (names := given.pop("within", None)) is None else _texts(names),
            )
        except (TypeError, ValueError, OverflowError) as error:
            raise InvalidValue(f"the filter can't be read: {error}") from None
        if given:
            raise InvalidValue(f'a filter of jobs has no "{next(iter(given))}"')
        return read


@dataclass(frozen=True, slots=True)
class JobPage:
    """`next` is where the following page begins; None: nothing is left."""

    rows: list[JobRow]
    next: ListPosition | None
    scan: Scan
    as_of: datetime


@dataclass(frozen=True, slots=True)
class Matches:
    """As a page, of ids alone."""

    ids: list[UUID]
    next: ListPosition | None
    scan: Scan


@dataclass(frozen=True, slots=True)
class Count:
    """So many jobs match; at least so many where it is not exact."""

    number: int
    is_exact: bool


async def list_jobs(
    db: Database,
    asked: JobFilter,
    *,
    after: ListPosition | None = None,
    limit: int = 50,
    oldest_first: bool = False,
    budget: PageBudget = BUDGET,
) -> JobPage:
    """The jobs that pass the filter, in the order of submission, newest first unless asked otherwise."""
    walk = await _Walk.begin(db, asked, after, budget, oldest_first=oldest_first)
    rows: list[JobRow] = []
    async for found in walk.slices(_ROWS, limit):
        rows += [JobRow(**{name: row[name] for name in _JOB_FIELDS}) for row in found if row["passes"]]
    return JobPage(rows, await walk.next(), walk.scan, walk.as_of)


async def matching_jobs(
    db: Database, asked: JobFilter, *, after: ListPosition | None = None, limit: int, budget: PageBudget = BUDGET
) -> Matches:
    """The ids of the newest jobs that pass the filter."""
    walk = await _Walk.begin(db, asked, after, budget)
    ids: list[UUID] = []
    async for found in walk.slices(_IDS, limit):
        ids += [row["id"] for row in found if row["passes"]]
    return Matches(ids, await walk.next(), walk.scan)


async def count_jobs(db: Database, asked: JobFilter, *, budget: PageBudget = BUDGET) -> Count:
    """How many jobs pass the filter, as far as the budget goes."""
    walk = await _Walk.begin(db, asked, None, budget)
    number = 0
    async for found in walk.slices(_NUMBER, _LAST_SEQ):
        number += sum(row["found"] for row in found)
    return Count(number, walk.scan.complete)


async def newest_order_seq(db: Database) -> int:
    """The last job's place in the order of submission: what comes later is above it."""
    return await db.fetchval("SELECT coalesce(max(order_seq), 0) FROM public.jobs", repeatable=True)


async def ask(db: Database, sql: str, *args: object, within: float) -> Sequence[Record]:
    """What a list asks. Raises QueryTooSlow where the answer takes longer."""
    try:
        return await db.fetch(sql, *args, repeatable=True, within=within)
    except DatabaseUnavailable as error:
        if not isinstance(error.__cause__, TimeoutError):
            raise
        raise QueryTooSlow(
            f"the list took longer than {within:g} s", hint="narrow it: a shorter time, a workflow, a state"
        ) from error


# The walk

_JOB_FIELDS: Final = tuple(JobRow.__dataclass_fields__)

_LOOKED_AT: Final = (
    "id, order_seq, created_at, status, workflow_id, error_code, error_message, created_by, options, started_at,"
    " finished_at, idempotency_key, trace_id, current_task_key"
)
# One look-up for each: by OFFSET 0, or the statistics may say that the whole table is cheaper. A job that runs has a
# task that waits or is live, and a waiting task knows its job's number.
_MOVING: Final = f"""(
    SELECT j.* FROM (
      SELECT job_id FROM accs.pending_jobs UNION SELECT job_id FROM accs.live UNION
      SELECT k.id FROM (SELECT DISTINCT order_seq FROM accs.waiting) o,
             LATERAL (SELECT id FROM public.jobs WHERE order_seq = o.order_seq OFFSET 0) k) m,
      LATERAL (SELECT {_LOOKED_AT} FROM public.jobs WHERE id = m.job_id OFFSET 0) j)"""
_BY_KEY: Final = f"(SELECT {_LOOKED_AT} FROM public.jobs WHERE idempotency_key = $15 OFFSET 0)"
_NEWEST: Final = "order_seq DESC, id DESC"
_OLDEST: Final = "order_seq, id"
_LEFT: Final = {  # of all jobs those that lie before the walk
    _NEWEST: "order_seq <= $1 AND (order_seq, id) < ($1, $2) AND order_seq >= $3",
    _OLDEST: "order_seq >= $1 AND (order_seq, id) > ($1, $2) AND order_seq <= $3",
}

_PASSES: Final = """
    (cardinality($5::text[]) = 0 OR s.status = ANY ($5))
    AND ($6::uuid[] IS NULL OR s.workflow_id = ANY ($6))
    AND ($7::timestamptz IS NULL OR s.created_at >= $7)
    AND ($8::timestamptz IS NULL OR s.created_at <= $8)
    AND ($9::text IS NULL OR s.error_code = $9)
    AND ($10::text IS NULL OR s.created_by = $10)
    AND ($11::interval IS NULL OR coalesce(s.finished_at, accs.clock()) - s.started_at > $11)
    AND ($12::interval IS NULL OR coalesce(s.finished_at, accs.clock()) - s.started_at < $12)
    AND ($13::jsonb IS NULL OR s.options @> $13)
    AND (cardinality($14::text[]) = 0 OR NOT EXISTS (
          SELECT FROM (SELECT lower(concat_ws(' ', s.id, (SELECT name FROM public.workflows WHERE id = s.workflow_id),
                         s.current_task_key, s.error_code, s.error_message, s.idempotency_key, s.trace_id,
                         s.created_by)) AS whole OFFSET 0) t, unnest($14::text[]) AS u (word)
           WHERE strpos(t.whole, u.word) = 0))
    AND ($15::text IS NULL OR s.idempotency_key = $15)
    AND ($16::text IS NULL OR EXISTS (
          SELECT FROM public.job_tasks t LEFT JOIN accs.live l ON l.task_id = t.id
           WHERE t.job_id = s.id AND coalesce(l.node, t.claimed_by) = $16))"""
# The last job that was looked at comes back whether it passes or not: it is where the next slice begins.
_LOOKED: Final = f"""
    SELECT s.id, s.order_seq, s.created_at, s.n, s.is_last, coalesce({_PASSES}, false) AS passes
      FROM (SELECT j.*, row_number() OVER o AS n, lead(j.id) OVER o IS NULL AS is_last
              FROM (SELECT {_LOOKED_AT} FROM %(source)s j WHERE %(left)s ORDER BY %(order)s LIMIT %(size)s) j
            WINDOW o AS (ORDER BY %(order)s)) s OFFSET 0"""
# The rows come in the order of the walk; an ORDER BY would have all of them sorted before the first is taken.
_IDS: Final = f"SELECT * FROM ({_LOOKED}) f WHERE f.passes OR f.is_last LIMIT $4"
# In one statement, so that what is shown is what has passed.
_ROWS: Final = f"""
    SELECT {JOB_COLUMNS}, f.order_seq, f.n, f.is_last, f.passes
      FROM ({_IDS}) f, LATERAL (SELECT * FROM public.jobs WHERE id = f.id OFFSET 0) j,
           LATERAL (SELECT name, version FROM public.workflows WHERE id = j.workflow_id OFFSET 0) w ORDER BY f.n"""
_NUMBER: Final = f"""
    SELECT max(id::text) FILTER (WHERE is_last)::uuid AS id, max(order_seq) FILTER (WHERE is_last) AS order_seq,
           max(created_at) FILTER (WHERE is_last) AS created_at, max(n) AS n, true AS is_last,
           count(*) FILTER (WHERE passes) AS found, 0 AS passes
      FROM ({_LOOKED}) f WHERE $4::bigint > 0 HAVING count(*) > 0"""

# Where a time lies in the order of submission, by the ids, which begin with the time: those of version 7 next to it.
# Somebody may have made an id of another time; so the furthest of some of them counts, and created_at decides.
_RANGE: Final = f"""
    SELECT accs.clock() AS as_of,
           CASE WHEN $1::text IS NOT NULL OR $2::text IS NOT NULL OR $3::text[] IS NOT NULL THEN ARRAY(
             SELECT w.id FROM public.workflows w
              WHERE ($1 IS NULL OR w.name = $1)
                AND ($2 IS NULL OR EXISTS (SELECT FROM accs.steps s WHERE s.workflow_id = w.id AND s.service = $2))
                AND ($3 IS NULL OR EXISTS (SELECT FROM unnest($3) AS p (name) WHERE {FITS})))
           END AS workflows,
           CASE WHEN $4::uuid IS NOT NULL THEN (
             SELECT min(order_seq) FROM (
               SELECT id, order_seq FROM public.jobs WHERE id < $4 ORDER BY id DESC LIMIT 100) b
              WHERE get_byte(uuid_send(id), 6) >> 4 = 7) END AS first,
           CASE WHEN $5::uuid IS NOT NULL THEN (
             SELECT max(order_seq) FROM (
               SELECT id, order_seq FROM public.jobs WHERE id > $5 ORDER BY id LIMIT 100) a
              WHERE get_byte(uuid_send(id), 6) >> 4 = 7) END AS last"""
_FEW_IN_MOTION: Final = f"""
    SELECT (SELECT count(*) FROM (SELECT FROM accs.pending_jobs LIMIT {_IN_MOTION + 1}) p) <= {_IN_MOTION}
       AND (SELECT count(*) FROM (SELECT FROM accs.waiting LIMIT {_IN_MOTION + 1}) w) <= {_IN_MOTION}
       AND (SELECT count(*) FROM (SELECT FROM accs.live LIMIT {_IN_MOTION + 1}) l) <= {_IN_MOTION}"""


@dataclass(slots=True)
class _Walk:
    """One page's way through the jobs, from a position towards an end."""

    db: Database
    asked: JobFilter
    budget: PageBudget
    as_of: datetime
    workflows: list[UUID] | None
    position: ListPosition
    end: int
    order: str
    source: str
    scan: Scan = field(default_factory=lambda: Scan(True, 0, None))
    is_over: bool = False

    @classmethod
    async def begin(
        cls,
        db: Database,
        asked: JobFilter,
        after: ListPosition | None,
        budget: PageBudget,
        *,
        oldest_first: bool = False,
    ) -> "_Walk":
        (row,) = await ask(
            db,
            _RANGE,
            asked.workflow,
            asked.service,
            None if asked.within is None else list(asked.within),
            None if asked.since is None else id_at(asked.since - _SLACK),
            None if asked.until is None else id_at(asked.until + _SLACK),
            within=budget.statement,
        )
        first = _FIRST_SEQ if row["first"] is None else row["first"]
        last = min(_LAST_SEQ if row["last"] is None else row["last"], _LAST_SEQ if asked.up_to is None else asked.up_to)
        start = ListPosition(first, _FIRST_ID) if oldest_first else ListPosition(last, _LAST_ID)
        if after is not None:
            further = max if oldest_first else min
            start = further(start, after, key=lambda place: (place.order_seq, place.id))
        order, end = (_OLDEST, last) if oldest_first else (_NEWEST, first)
        source = await cls._source(db, asked, budget)
        walk = cls(db, asked, budget, row["as_of"], row["workflows"], start, end, order, source)
        walk.is_over = row["workflows"] == []
        return walk

    @staticmethod
    async def _source(db: Database, asked: JobFilter, budget: PageBudget) -> str:
        if asked.key is not None:
            return _BY_KEY
        if not asked.is_open:
            return "public.jobs"
        ((are_few,),) = await ask(db, _FEW_IN_MOTION, within=budget.statement)
        return _MOVING if are_few else "public.jobs"

    async def slices(self, statement: str, wanted: int) -> AsyncGenerator[Sequence[Record]]:
        """What `statement` says of one slice after the other, until enough pass, the budget is spent or the end is
        reached. It leaves the position, and how far the search went."""
        began, budget = time.monotonic(), self.budget
        usual = _SLICE if self.asked.node is None else _SLICE_OF_TASKS
        before = found = 0
        while not self.is_over:
            size = min(usual, budget.rows - before) if self.source == "public.jobs" else _LAST_SEQ
            rows = await self._look(statement, wanted - found, size)
            yield rows
            found += sum(row["passes"] for row in rows)
            before += self._note(rows, before, size)
            if self.is_over or found >= wanted:
                return
            spent = time.monotonic() - began
            if before >= budget.rows or (budget.seconds is not None and spent >= budget.seconds):
                self.scan = replace(self.scan, complete=False)
                return

    def _note(self, rows: Sequence[Record], before: int, size: int) -> int:
        """Moves the position behind the last job of these; returns how many were looked at for them."""
        if not rows:
            self.is_over = True
            self.scan = replace(self.scan, back_to=None)
            return 0
        last = rows[-1]
        self.position = ListPosition(last["order_seq"], last["id"])
        self.is_over = last["is_last"] and last["n"] < size
        self.scan = Scan(True, before + last["n"], None if self.is_over else last["created_at"])
        return last["n"]

    async def next(self) -> ListPosition | None:
        """Where the next page begins."""
        if self.is_over:
            return None
        is_left = await ask(
            self.db,
            f"SELECT true FROM public.jobs WHERE {_LEFT[self.order]} ORDER BY {self.order} LIMIT 1",
            self.position.order_seq,
            self.position.id,
            self.end,
            within=self.budget.statement,
        )
        if not is_left:
            self.is_over, self.scan = True, replace(self.scan, complete=True, back_to=None)
        return self.position if is_left else None

    async def _look(self, statement: str, wanted: int, size: int) -> Sequence[Record]:
        asked = self.asked
        return await ask(
            self.db,
            statement % {"source": self.source, "left": _LEFT[self.order], "order": self.order, "size": size},
            self.position.order_seq,
            self.position.id,
            self.end,
            wanted,
            list(asked.statuses),
            self.workflows,
            asked.since,
            asked.until,
            asked.error_code,
            asked.by,
            asked.took_over,
            asked.took_under,
            None if not asked.options else dict(asked.options),
            [word.lower() for word in asked.words],
            asked.key,
            asked.node,
            within=self.budget.statement,
        )


def id_at(moment: datetime) -> UUID:
    """The first id of that millisecond."""
    milliseconds = max(int(moment.timestamp() * 1000), 0)
    return UUID(int=min(milliseconds, 2**48 - 1) << 80)


def _written(moment: datetime | None) -> str | None:
    return None if moment is None else moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _read(value: object) -> datetime | None:
    if value is None:
        return None
    moment = datetime.fromisoformat(str(value))
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def _text(value: object) -> str | None:
    if value is not None and not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _texts(value: object) -> tuple[str, ...]:
    if not isinstance(value, list | tuple):
        raise TypeError(f"{value!r} is no list")
    items = cast("Sequence[object]", value)
    return tuple(text for item in items if (text := _text(item)) is not None)


def _table(value: object) -> Mapping[str, Any] | None:
    if value is not None and not isinstance(value, Mapping):
        raise TypeError(f"{value!r} is no table")
    return cast("Mapping[str, Any] | None", value)


def _number(value: object) -> int | None:
    if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
        raise TypeError(f"{value!r} is no whole number")
    return value


def _length(value: object) -> timedelta | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{value!r} is no number of seconds")
    return timedelta(seconds=value)
