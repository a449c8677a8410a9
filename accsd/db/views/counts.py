"""How much is in motion, counted in the narrow tables and no further than COUNTED: cheap with any backlog."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from accsd.db.pool import Database
from accsd.db.views.fleet import COUNTED

_ONE_MORE: Final = COUNTED + 1


@dataclass(frozen=True, slots=True)
class BoundedCount:
    """A count that was not carried on for ever: so many, or more."""

    count: int
    more: bool

    def __str__(self) -> str:
        return f"{self.count:,}{'+' if self.more else ''}"

    def document(self) -> dict[str, Any]:
        return {"count": self.count, "more": self.more}


@dataclass(frozen=True, slots=True)
class ServiceCounts:
    """The tasks of a service, by what holds them; `live` are starting or running."""

    service: str
    claimable: BoundedCount
    in_backoff: BoundedCount
    held_by_key: BoundedCount
    paused: BoundedCount
    resolving: BoundedCount
    live: BoundedCount


@dataclass(frozen=True, slots=True)
class Motion:
    """Jobs that have not ended, what their tasks wait for by service, and failures that nobody has settled."""

    queued: BoundedCount
    running: BoundedCount
    dead_letters: BoundedCount
    services: list[ServiceCounts]
    as_of: datetime


_JOBS: Final = f"""
    SELECT accs.clock() AS as_of,
           (SELECT count(*) FROM (SELECT FROM accs.pending_jobs LIMIT {_ONE_MORE}) p) AS queued,
           (SELECT count(*) FROM (
              SELECT order_seq FROM (SELECT order_seq FROM accs.waiting LIMIT {_ONE_MORE}) w
              UNION
              SELECT j.order_seq FROM (SELECT job_id FROM accs.live LIMIT {_ONE_MORE}) l,
                     LATERAL (SELECT order_seq FROM public.jobs WHERE id = l.job_id OFFSET 0) j) o) AS running,
           (SELECT count(*) FROM (SELECT FROM accs.waiting LIMIT {_ONE_MORE}) w) AS waiting,
           (SELECT count(*) FROM (SELECT FROM public.dead_letters WHERE redriven_at IS NULL AND dismissed_at IS NULL
                                   ORDER BY id DESC LIMIT {_ONE_MORE}) d) AS dead_letters"""
# By lane as far as an index goes by lane, and each in the order of its index: or the statistics may say that reading
# the whole table comes sooner to an end.
_TASKS: Final = f"""
    SELECT l.service, c.hold, c.n, c.n > {COUNTED} AS more
      FROM accs.lanes l, LATERAL (
        SELECT 'claimable' AS hold, count(*) AS n FROM (
          SELECT FROM accs.waiting WHERE lane = l.id AND hold IS NULL
           ORDER BY rank, order_seq, created_at, task_id LIMIT {_ONE_MORE}) w
        UNION ALL
        SELECT 'in_backoff', count(*) FROM (
          SELECT FROM accs.waiting WHERE lane = l.id AND hold = 'backoff' ORDER BY due_at LIMIT {_ONE_MORE}) w) c
     WHERE c.n > 0
    UNION ALL
    SELECT l.service, w.hold, count(*), max(w.total) > {COUNTED}
      FROM (SELECT *, count(*) OVER (PARTITION BY hold) AS total FROM (
              (SELECT lane, 'paused' AS hold FROM accs.waiting WHERE hold = 'paused' ORDER BY task_id LIMIT {_ONE_MORE})
              UNION ALL
              (SELECT lane, 'resolving' FROM accs.waiting WHERE hold = 'resolve'
                ORDER BY rank, order_seq, created_at, task_id LIMIT {_ONE_MORE})
              UNION ALL
              (SELECT lane, 'held_by_key' FROM accs.waiting
                WHERE key IS NOT NULL AND (hold IS NULL OR hold = 'key') AND hold = 'key'
                ORDER BY key, lane, rank, order_seq, created_at, task_id LIMIT {_ONE_MORE})) h) w
      JOIN accs.lanes l ON l.id = w.lane GROUP BY l.service, w.hold
    UNION ALL
    SELECT service, 'live', count(*), max(total) > {COUNTED}
      FROM (SELECT service, count(*) OVER () AS total FROM (SELECT service FROM accs.live LIMIT {_ONE_MORE}) a) v
     GROUP BY service"""
_HOLDS: Final = ("claimable", "in_backoff", "held_by_key", "paused", "resolving", "live")


async def motion(db: Database) -> Motion:
    jobs = await db.fetchrow(_JOBS, repeatable=True)
    assert jobs is not None
    found: dict[str, dict[str, BoundedCount]] = {}
    for row in await db.fetch(_TASKS, repeatable=True):
        of_service = found.setdefault(row["service"], {})
        of_service[row["hold"]] = _sum(of_service.get(row["hold"], _NONE), row["n"], row["more"])
    return Motion(
        queued=_bounded(jobs["queued"]),
        running=_sum(_NONE, jobs["running"], jobs["waiting"] > COUNTED),
        dead_letters=_bounded(jobs["dead_letters"]),
        services=[_service(name, found[name]) for name in sorted(found)],
        as_of=jobs["as_of"],
    )


_NONE: Final = BoundedCount(0, more=False)


def _service(name: str, holds: Mapping[str, BoundedCount]) -> ServiceCounts:
    return ServiceCounts(name, **{hold: holds.get(hold, _NONE) for hold in _HOLDS})


def _bounded(count: int) -> BoundedCount:
    return BoundedCount(min(count, COUNTED), count > COUNTED)


def _sum(before: BoundedCount, count: int, more: bool) -> BoundedCount:
    return BoundedCount(before.count + min(count, COUNTED), before.more or more)
