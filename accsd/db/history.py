"""Moves months to the object store, keeps the record of archives, and removes finished jobs by retention."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Final
from uuid import UUID

from accsd.db.months import Monthly, table_of
from accsd.db.pool import Database

_DROP_WITHIN_SEC: Final = 300.0  # the rows of a large month are counted

_TASK: Final = re.compile(r'"job_task_id":(?:"([^"]*)"|null)')  # the data column may say it too, but comes later


@dataclass(frozen=True, slots=True)
class Archive:
    """One month in the object store. `refused`: what was wrong with it at the last look."""

    id: int
    partition: str
    from_ts: datetime
    to_ts: datetime
    rows: int
    mark_sum: Decimal
    bytes: int
    sha256: str
    bucket: str
    key: str
    size_bytes: int
    index_sha256: str
    first_subject: str | None
    last_subject: str | None
    previous: str
    digest: str
    created_at: datetime
    verified_at: datetime | None
    refused: str | None
    superseded_at: datetime | None
    dropped_at: datetime | None

    @property
    def table(self) -> Monthly:
        return table_of(self.partition)

    @property
    def index_key(self) -> str:
        return index_key(self.key, self.index_sha256)


def index_key(key: str, index_sha256: str) -> str:
    """The key of the index. It has the checksum in it: an archiver that comes too late (another builder has dropped
    the month) must not replace the index that is on record."""
    return f"{key.removesuffix('.jsonl.gz')}.{index_sha256[:16]}.index.json"


@dataclass(frozen=True, slots=True)
class ArchivedLine:
    """A row as it is archived: one JSON object, its data last and as PostgreSQL wrote it. `place`: the values by which
    the lines of an archive are sorted, `mark`: what the database knows the row by."""

    place: Sequence[object]
    mark: int
    text: str

    @property
    def subject(self) -> str:
        return str(self.place[0])


async def lines_after(db: Database, month: str, last: ArchivedLine | None, limit: int) -> list[ArchivedLine]:
    """The next lines of a month, in their order. The statements are short: one long one would keep the dead rows
    of every table in the database for as long as it takes. They read the parent: partitions come after the grants."""
    table = table_of(month)
    place: Sequence[object] = () if last is None else last.place
    behind = f"AND {table.subject} >= $2 AND ({table.order}) > ({', '.join(f'${n + 2}' for n in range(len(place)))})"
    rows = await db.fetch(
        f"""SELECT {table.order}, e.mark, row_to_json(l)::text AS line FROM (
              SELECT *, accs.mark_of(e) AS mark FROM public.{table.name} e
               WHERE {table.within(month)} {behind if place else ""}
               ORDER BY {table.order} LIMIT $1) e, LATERAL (SELECT {table.line}) l
             ORDER BY {table.order}""",
        limit,
        *place,
        repeatable=True,
    )
    width = 1 + len(table.then)
    return [ArchivedLine(tuple(row[n] for n in range(width)), row["mark"], row["line"]) for row in rows]


# Read archived lines again


@dataclass(frozen=True, slots=True)
class LineSource:
    """Where a statement about one job ($1) reads events: the table, or table and archived lines as one."""

    before: str
    table: str
    arguments: tuple[object, ...]


def events_source(archived: Sequence[str], parameter: int) -> LineSource:
    """One source of events for the table and archived lines, so that both are told in the same way."""
    if not archived:
        return LineSource("", "public.task_events", ())
    columns = "id, job_id, job_task_id, ts, source, level, type, message, data, attempt_id"
    return LineSource(
        f"""WITH history AS MATERIALIZED (
              SELECT {columns} FROM public.task_events WHERE job_id = $1
              UNION ALL
              SELECT {columns} FROM unnest(${parameter}::text[]) AS l (line),
                     jsonb_to_record(l.line::jsonb) AS r (id bigint, job_id uuid, job_task_id uuid, ts timestamptz,
                       source text, level text, type text, message text, data jsonb, attempt_id int))""",
        "history",
        (list(archived),),
    )


def task_of(line: str) -> str | None:
    """The task of an archived line; None: it is the job's own."""
    found = _TASK.search(line)
    return None if found is None else found[1]


async def lines_here(db: Database, table: Monthly, subject: str) -> list[str]:
    """The lines of a subject that are still in the database, as they will be archived."""
    rows = await db.fetch(
        f"""SELECT row_to_json(l)::text FROM public.{table.name} e, LATERAL (SELECT {table.line}) l
             WHERE e.{table.subject} = $1 ORDER BY {table.order}""",
        subject,
        repeatable=True,
    )
    return [row[0] for row in rows]


# The record


async def archives(db: Database, *, partition: str | None = None) -> list[Archive]:
    """The archives in the order of the chain."""
    rows = await db.fetch(
        "SELECT * FROM accs.archives WHERE $1::text IS NULL OR partition = $1 ORDER BY id", partition, repeatable=True
    )
    return [Archive(**row) for row in rows]


async def archives_with(db: Database, table: Monthly, subject: str) -> list[Archive]:
    """The archives that may hold lines of this subject, if those lines are nowhere else. Ids begin with their time, so
    the first and the last job of a month leave out most of the other months."""
    rows = await db.fetch(
        """SELECT * FROM accs.archives WHERE dropped_at IS NOT NULL AND starts_with(partition, $1 || '_')
              AND length(partition) = length($1) + 8 AND $2 BETWEEN first_subject AND last_subject
            ORDER BY from_ts, id""",
        table.name,
        subject,
        repeatable=True,
    )
    return [Archive(**row) for row in rows]


async def archive_of(db: Database, archive_id: int) -> Archive:
    row = await db.fetchrow("SELECT * FROM accs.archives WHERE id = $1", archive_id, repeatable=True)
    assert row is not None, f"archive {archive_id} was recorded"
    return Archive(**row)


async def digest_before(db: Database, partition: str, bucket: str, key: str) -> str:
    """The digest that this archive is chained to: the last one, or the recorded one if the archive is on record."""
    return await db.fetchval(
        """SELECT coalesce((SELECT previous FROM accs.archives
                             WHERE partition = $1 AND bucket = $2 AND key = $3
                               AND dropped_at IS NULL AND superseded_at IS NULL),
                           (SELECT digest FROM accs.archives ORDER BY id DESC LIMIT 1), '')""",
        partition,
        bucket,
        key,
        repeatable=True,
    )


async def record_archive(
    db: Database,
    partition: str,
    *,
    rows: int,
    mark_sum: int,
    size: int,
    sha256: str,
    bucket: str,
    key: str,
    object_size: int,
    index_sha256: str,
    subjects: tuple[str, str] | None,
    previous: str,
) -> int:
    """Records an archive; returns its id: a new one, or the one that it has. VerbRefused where another archive came
    first, NotFound where its partition has gone."""
    first, last = subjects or (None, None)
    return await db.fetchval(
        "SELECT accs.record_archive($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)",
        partition,
        rows,
        mark_sum,
        size,
        sha256,
        bucket,
        key,
        object_size,
        index_sha256,
        first,
        last,
        previous,
        repeatable=True,
    )


async def check_archive(
    db: Database, archive_id: int, *, rows: int = 0, size: int = 0, sha256: str = "", problem: str | None = None
) -> str | None:
    """Notes the finding when an archive was read back; None: it is as recorded."""
    return await db.fetchval(
        "SELECT accs.check_archive($1, $2, $3, $4, $5)", archive_id, rows, size, sha256, problem, repeatable=True
    )


async def drop_archived(db: Database, archive_id: int) -> str | None:
    """Drops the partition of an archive that was just verified; returns why it did not, or None."""
    async with db.acquire() as connection, connection.transaction():
        # The database role's own timeout is for short statements, and would end this one again and again.
        await connection.execute(f"SET LOCAL statement_timeout = '{_DROP_WITHIN_SEC:.0f}s'")
        return await connection.fetchval("SELECT accs.drop_archived($1)", archive_id, timeout=_DROP_WITHIN_SEC)


# Retention: finished jobs that have been kept long enough, and objects that no row knows

_SCAN: Final = 1000


@dataclass(frozen=True, slots=True)
class Removed:
    """What the retention removes of one workflow. `kept` are jobs that are due, but still needed."""

    workflow: str
    jobs: int
    tasks: int
    artifacts: int
    bytes: int
    kept: int


@dataclass(frozen=True, slots=True)
class RemovedPage:
    removed: list[Removed]
    next_after: int | None  # where to go on; None at the end


async def delete_finished_jobs(
    db: Database,
    *,
    age: timedelta | None,
    workflows: Mapping[str, timedelta | None],
    after: int = 0,
    scan: int = _SCAN,
    dry_run: bool = False,
) -> RemovedPage:
    """Looks at `scan` jobs in the global order; an age of None is for ever. Repeatable: removed jobs stay removed, and
    only the counts of a lost answer are lost."""
    rows = await db.fetch(
        "SELECT * FROM accs.delete_finished_jobs($1, $2, $3, $4, $5, $6)",
        age,
        list(workflows),
        list(workflows.values()),
        after,
        scan,
        dry_run,
        repeatable=True,
    )
    removed = [
        Removed(row["workflow"], row["jobs"], row["tasks"], row["artifacts"], row["bytes"], row["kept"])
        for row in rows[:-1]
    ]
    return RemovedPage(removed, rows[-1]["next_after"])


async def database_time(db: Database) -> datetime:
    """The time of the server's own clock."""
    return await db.fetchval("SELECT clock_timestamp()", repeatable=True)


async def doomed_objects(db: Database, bucket: str, *, limit: int) -> list[str]:
    """Keys of this bucket whose jobs were removed."""
    rows = await db.fetch(
        "SELECT key FROM accs.doomed_objects WHERE bucket = $1 ORDER BY key LIMIT $2", bucket, limit, repeatable=True
    )
    return [row[0] for row in rows]


async def forget_objects(db: Database, bucket: str, keys: Sequence[str]) -> int:
    return await db.fetchval("SELECT accs.forget_objects($1, $2)", bucket, list(keys), repeatable=True)


async def unknown_keys(db: Database, bucket: str, keys: Sequence[str]) -> list[str]:
    """The keys that belong to no artifact and are not about to be removed anyway."""
    rows = await db.fetch(
        """SELECT k.key FROM unnest($2::text[]) AS k (key)
            WHERE NOT EXISTS (SELECT FROM public.task_artifacts a WHERE a.bucket = $1 AND a.key = k.key)
              AND NOT EXISTS (SELECT FROM accs.borrowed_files b WHERE b.bucket = $1 AND b.key = k.key)
              AND NOT EXISTS (SELECT FROM accs.doomed_objects d WHERE d.bucket = $1 AND d.key = k.key)""",
        bucket,
        list(keys),
        repeatable=True,
    )
    return [row[0] for row in rows]


async def statuses_of(db: Database, job_ids: Sequence[UUID]) -> dict[UUID, str]:
    """The statuses of those jobs that exist."""
    rows = await db.fetch("SELECT id, status FROM public.jobs WHERE id = ANY ($1)", list(job_ids), repeatable=True)
    return {row["id"]: row["status"] for row in rows}
