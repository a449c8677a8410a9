"""The verbs that count what has happened, and the figures that they have made."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from accsd.db.pool import Database


@dataclass(frozen=True, slots=True)
class Counted:
    """One pass: how many events it read, how many samples it took, and whether further events are there."""

    events: int
    samples: int
    more: bool


async def count_events(db: Database, *, limit: int = 5000) -> Counted:
    """Nothing is counted twice, also if the answer gets lost and this is asked again."""
    row = await db.fetchrow("SELECT * FROM accs.count_events($1)", limit, repeatable=True)
    assert row is not None, "count_events always answers"
    return Counted(**dict(row))


async def forget_statistics(db: Database) -> int:
    """Puts old figures together and forgets the oldest; returns how many rows there are less."""
    return await db.fetchval("SELECT accs.forget_statistics()", repeatable=True)


@dataclass(frozen=True, slots=True)
class StepStats:
    """How long a step usually runs, in seconds, by its last 200 runs; `n` counts all that were ever done."""

    n: int
    p50: float
    p95: float
    wait_p50: float


async def step_stats(db: Database, workflow: str) -> Mapping[str, StepStats]:
    """By the key of the step; a step that never ended as done is missing."""
    rows = await db.fetch(
        "SELECT task_key, n, p50, p95, wait_p50 FROM accs.step_stats WHERE workflow = $1 LIMIT 10000",
        workflow,
        repeatable=True,
    )
    return {row["task_key"]: StepStats(row["n"], row["p50"], row["p95"], row["wait_p50"]) for row in rows}


@dataclass(frozen=True, slots=True)
class Outcomes:
    """How attempts of a service ended in the `seconds` from `minute` on. `wait_s` and `run_s` are sums over them."""

    minute: datetime
    service: str
    seconds: int
    done: int
    error: int
    retried: int
    lost: int
    wait_s: float
    run_s: float


async def outcomes(db: Database, since: datetime, until: datetime, *, limit: int = 50_000) -> list[Outcomes]:
    """The oldest first."""
    rows = await db.fetch(
        """SELECT minute, service, seconds, done, error, retried, lost, wait_s, run_s FROM accs.outcomes
            WHERE minute >= $1 AND minute < $2 ORDER BY minute, service, seconds LIMIT $3""",
        since,
        until,
        limit,
        repeatable=True,
    )
    return [Outcomes(**dict(row)) for row in rows]


async def outcomes_of(db: Database, service: str, since: datetime, *, bucket: timedelta) -> list[Outcomes]:
    """Those of one service, put together to buckets; the oldest first."""
    rows = await db.fetch(
        """SELECT date_bin($3, minute, $2) AS minute, service, extract(epoch FROM $3::interval)::int AS seconds,
                  sum(done)::int AS done, sum(error)::int AS error, sum(retried)::int AS retried,
                  sum(lost)::int AS lost,
                  sum(wait_s) AS wait_s, sum(run_s) AS run_s
             FROM accs.outcomes WHERE minute >= $2 AND service = $1 GROUP BY 1, 2 ORDER BY 1""",
        service,
        since,
        bucket,
        repeatable=True,
    )
    return [Outcomes(**dict(row)) for row in rows]


@dataclass(frozen=True, slots=True)
class HourOfOutcomes:
    """How attempts of all services ended in the hour from `at` on. `wait_s` is the sum of their waits."""

    at: datetime
    done: int
    error: int
    retried: int
    lost: int
    wait_s: float


async def hourly_outcomes(db: Database, until: datetime, hours: int) -> list[HourOfOutcomes]:
    """The hours up to a moment in which something ended, the oldest first."""
    rows = await db.fetch(
        """SELECT date_bin('1 hour', minute, $1) AS at, sum(done)::bigint AS done, sum(error)::bigint AS error,
                  sum(retried)::bigint AS retried, sum(lost)::bigint AS lost, sum(wait_s)::float8 AS wait_s
             FROM accs.outcomes WHERE minute >= $1::timestamptz - make_interval(hours => $2) AND minute < $1
            GROUP BY 1 ORDER BY 1""",
        until,
        hours,
        repeatable=True,
    )
    return [HourOfOutcomes(**dict(row)) for row in rows]
