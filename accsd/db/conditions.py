"""Conditions: samples from outside, probes that are due and what they found, and what people see of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

import asyncpg

from accsd.db.answers import Verdict
from accsd.db.pool import Database, Record, Session, connect
from accsd.errors import InvalidValue, NotFound
from accsd.settings import DatabaseSettings

_STATEMENT_TIMEOUT_MS: Final = 2000
_LONGEST_ANSWER: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class SampleAnswer:
    """What became of a sample. `outcome` and `because` are those of the ledger, where the sample led to a row there."""

    schedule: str | None
    verdict: Verdict
    reason: str | None
    sample_id: int | None
    state: str | None
    outcome: str | None
    because: str | None
    job_id: UUID | None


async def report_sample(
    db: Database,
    name: str,
    value: float | bool | None,
    *,
    at: datetime | None = None,
    key: str | None = None,
    by: str | None = None,
) -> list[SampleAnswer]:
    """A sample of a condition, for every schedule that has it. None: it could not be measured. With a key the same call
    again is repeated."""
    sql = "SELECT * FROM accs.report_sample($1, $2, $3, $4, $5)"
    rows = await db.fetch(sql, name, value, at, key, by, repeatable=key is not None)
    return [_answer(row, row["schedule"]) for row in rows]


@dataclass(frozen=True, slots=True)
class DueProbe:
    """A probe that is to be run now. `taken_at` is the database's time, and that of the sample."""

    schedule_id: UUID
    schedule: str
    name: str
    revision: int
    condition: Mapping[str, Any]
    every: timedelta
    begun_at: datetime
    taken_at: datetime


async def take_probes(db: Database, *, limit: int) -> list[DueProbe]:
    """Probes that are due. Each is moved on before it is given out: a call whose answer is lost loses them for once."""
    return [DueProbe(**dict(row)) for row in await db.fetch("SELECT * FROM accs.take_probes($1)", limit)]


async def record_probe(
    db: Database, probe: DueProbe, value: float | bool | None, error: str | None, *, by: str | None = None
) -> SampleAnswer:
    """What a probe has found: a value, or why there is none. The same call again is repeated."""
    row = await db.fetchrow(
        "SELECT * FROM accs.record_probe($1, $2, $3, $4, $5, $6)",
        probe.schedule_id,
        probe.revision,
        value,
        error,
        probe.taken_at,
        by,
        repeatable=True,
    )
    assert row is not None, "record_probe always answers"
    return _answer(row, probe.schedule)


async def measure(db: Database, what: str, of: str | None, *, silent: timedelta, since: datetime) -> Any:
    """What accsd knows by itself: waiting, oldest_wait, dead_letters, node_away, silence."""
    return await db.fetchval("SELECT accs.measure($1, $2, $3, $4)", what, of, silent, since, repeatable=True)


async def ask_database(settings: DatabaseSettings, statement: str) -> Any:
    """The one value of a statement that somebody else wrote: in a read-only transaction, with the rights of accs_probe
    where the roles are installed, on a connection that is closed afterwards. (Of the pool's, a lock that the statement
    takes would stay taken.) Raises InvalidValue with what PostgreSQL says."""
    connection = await connect(settings, application="accsd probe")
    try:
        async with connection.transaction(readonly=True):
            # the first query takes the snapshot: from then on nothing makes the transaction writable
            has_roles = await connection.fetchval("SELECT to_regprocedure('accs.probe(text)') IS NOT NULL")
            await connection.execute(f"SET LOCAL statement_timeout = {_STATEMENT_TIMEOUT_MS}")
            if has_roles:
                return _bounded(await connection.fetchval("SELECT accs.probe($1)", statement))
            return _bounded(await _only_value(connection, statement))
    except (asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        raise InvalidValue(f"the statement failed: {error}") from error
    finally:
        connection.terminate()


async def _only_value(connection: Session, statement: str) -> Any:
    prepared = await connection.prepare(statement)  # one statement: the protocol takes no second one
    columns = prepared.get_attributes()
    if len(columns) != 1:
        raise InvalidValue(f"the statement gives {len(columns)} columns, not one")
    cursor = await prepared.cursor()
    rows = await cursor.fetch(2)
    if len(rows) != 1:
        raise InvalidValue(f"the statement gives {'no row' if not rows else 'more than one row'}")
    value = rows[0][0]
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    return value


def _bounded(value: Any) -> Any:
    if isinstance(value, str) and len(value) > _LONGEST_ANSWER:
        raise InvalidValue(f"the statement gives a text of {len(value)} characters; the limit is {_LONGEST_ANSWER}")
    return value


# What people see


@dataclass(frozen=True, slots=True)
class ConditionRow:
    """A condition of one schedule, with its state. `schedule_state` is the schedule's own."""

    name: str
    schedule: str
    workflow: str
    schedule_state: str
    schedule_reason: str | None
    state: str
    since: datetime
    level: str | None
    streak: int
    streak_since: datetime | None
    last_value: float | bool | None
    last_at: datetime | None
    last_error: str | None
    last_fired_at: datetime | None
    next_probe: datetime | None
    condition: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SampleRow:
    id: int
    schedule: str
    at: datetime
    value: float | bool | None
    error: str | None
    by: str | None
    verdict: str
    outcome: str | None
    because: str | None
    job_id: UUID | None


_CONDITIONS: Final = """
SELECT s.schedule_expr AS name, s.name AS schedule, s.workflow, v.state AS schedule_state,
       v.reason AS schedule_reason, c.state, c.since, c.level, c.streak, c.streak_since,
       c.last_value, c.last_at, c.last_error, c.last_fired_at,
       a.due_at AS next_probe, s.condition
  FROM accs.conditions c JOIN public.schedules s ON s.id = c.schedule_id JOIN accs.schedule_states v ON v.id = s.id
  LEFT JOIN accs.agenda a ON a.schedule_id = s.id AND a.what = 'probe'
 WHERE CASE WHEN $1::text IS NULL THEN s.state <> 'ended' ELSE $1 IN (s.schedule_expr, s.name) END
 ORDER BY s.schedule_expr, s.name
"""
_SAMPLES: Final = """
SELECT p.id, s.name AS schedule, p.at, p.value, p.error, p.by, p.verdict, f.outcome, f.reason AS because, f.job_id
  FROM accs.condition_samples p JOIN public.schedules s ON s.id = p.schedule_id
  LEFT JOIN public.firings f ON f.schedule_id = p.schedule_id AND f.nominal = p.at AT TIME ZONE 'UTC'
                                  AND f.fold = 0 AND f.cause_id = p.id
 WHERE $1 IN (s.schedule_expr, s.name) ORDER BY p.id DESC LIMIT $2
"""


async def conditions(db: Database, name: str | None = None) -> list[ConditionRow]:
    """All that have not ended, or those of this name, which may be the schedule's."""
    rows = [ConditionRow(**dict(row)) for row in await db.fetch(_CONDITIONS, name, repeatable=True)]
    if name is not None and not rows:
        raise NotFound(f'there is no condition "{name}"', hint="accsd conditions list shows them")
    return rows


async def samples(db: Database, name: str, *, limit: int) -> list[SampleRow]:
    """The last samples, newest first, with what each led to."""
    return [SampleRow(**dict(row)) for row in await db.fetch(_SAMPLES, name, limit, repeatable=True)]


def _answer(row: Record, schedule: str | None) -> SampleAnswer:
    return SampleAnswer(
        schedule=schedule,
        verdict=Verdict(row["answer"]),
        reason=row["reason"],
        sample_id=row["sample_id"],
        state=row["state"],
        outcome=row["outcome"],
        because=row["outcome_reason"],
        job_id=row["job_id"],
    )
