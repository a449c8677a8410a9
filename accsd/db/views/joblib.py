"""Jobs, workers, tasks and providers as the joblib door shows them: workflows, nodes and jobs in other words."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final, NamedTuple
from uuid import UUID

from accsd.db.pool import Database, Record
from accsd.db.views.jobs import FITS

NODE: Final = "joblib/"  # what the name of a worker's node begins with
TERMINAL: Final = frozenset({"completed", "failed", "cancelled"})
_EVERYWHERE: Final = ("@global", "@internal")
# <room>:<category>:<name>, with a room that there can be.
_IS_JOB: Final = "w.name ~ '^(@global|@internal|[^@:]+):[^:]*:'"
_REACHED: Final = f"($1::text[] IS NULL OR EXISTS (SELECT FROM unnest($1::text[]) AS p (name) WHERE {FITS}))"

Within = Sequence[str] | None  # the names of workflows that a caller reaches; None: all


class JoblibPage(NamedTuple):
    rows: list[Any]
    total: int


@dataclass(frozen=True, slots=True)
class JoblibJob:
    id: UUID
    full_name: str
    schema: dict[str, Any]
    workers: list[UUID]
    workflow_id: UUID  # its newest active version

    @property
    def parts(self) -> tuple[str, str, str]:
        room, category, name = self.full_name.split(":", 2)
        return room, category, name


@dataclass(frozen=True, slots=True)
class JoblibWorker:
    id: UUID
    user: str  # the actor whose it is
    last_heartbeat: datetime
    jobs: list[str]

    @property
    def node(self) -> str:
        return node_of(self.id)


@dataclass(frozen=True, slots=True)
class JoblibTask:
    id: UUID  # the job's
    job_name: str
    room_id: str
    status: str
    created_at: datetime
    started_at: datetime | None
    completed_at: datetime | None
    node: str | None  # who has it, or had it
    error: str | None
    payload: dict[str, Any]
    attempt: int
    attempt_id: int
    progress: float
    result: dict[str, Any] | None
    next_attempt_at: datetime | None
    is_served: bool  # by workers of the door, not by the fleet
    order: int
    task_id: UUID | None
    is_single: bool
    queue_position: int | None = None

    @property
    def worker_id(self) -> UUID | None:
        return worker_of(self.node)


@dataclass(frozen=True, slots=True)
class JoblibProvider:
    id: UUID
    room: str
    category: str
    name: str
    schema: dict[str, Any]
    content_type: str
    owner: str
    node: str
    created_at: datetime

    @property
    def full_name(self) -> str:
        return f"{self.room}:{self.category}:{self.name}"


def node_of(worker: UUID) -> str:
    return f"{NODE}{worker}"


def worker_of(node: str | None) -> UUID | None:
    """None: nobody, or a machine of the fleet."""
    try:
        return UUID(node.removeprefix(NODE)) if node is not None and node.startswith(NODE) else None
    except ValueError:
        return None


async def actor_id(db: Database, name: str) -> UUID | None:
    return await db.fetchval("SELECT id FROM accs.actors WHERE name = $1", name, repeatable=True)


# Jobs

_WORKERS_OF: Final = """ARRAY(SELECT n.name FROM public.nodes n WHERE n.labels ->> 'accs.kind' = 'joblib'
                               AND n.labels ? ('joblib:' || w.name) ORDER BY n.name)"""
# The first version is what stays the same when a job comes back with another schema.
_JOBS: Final = f"""
    SELECT DISTINCT ON (w.name) w.id AS workflow_id, w.name AS full_name, f.id, f.created_at, {_WORKERS_OF} AS workers,
           coalesce(w.meta #> '{{joblib,schema}}', w.options_schema #> '{{properties,payload}}', '{{}}') AS schema
      FROM public.workflows w, LATERAL (
        SELECT id, created_at FROM public.workflows WHERE name = w.name ORDER BY version LIMIT 1) f
     WHERE w.is_active AND {_IS_JOB} AND {_REACHED} AND %s ORDER BY w.name, w.version DESC"""
_JOB: Final = _JOBS % "w.name = $2"
_LISTED_JOBS: Final = f"""
    WITH found AS MATERIALIZED ({_JOBS % "split_part(w.name, ':', 1) = ANY ($2)"}),
    page AS (SELECT * FROM found ORDER BY created_at DESC, id DESC LIMIT $3 OFFSET $4)
    SELECT t.total, p.* FROM (SELECT count(*) AS total FROM found) t LEFT JOIN page p ON true
     ORDER BY p.created_at DESC, p.id DESC"""


def visible_rooms(room: str) -> list[str]:
    """Whose jobs are seen from a room."""
    return [room] if room in _EVERYWHERE else [room, *_EVERYWHERE]


async def job_named(db: Database, name: str, *, within: Within = None) -> JoblibJob | None:
    row = await db.fetchrow(_JOB, within, name, repeatable=True)
    return None if row is None else _job(row)


async def jobs_seen(db: Database, room: str, *, limit: int, offset: int, within: Within = None) -> JoblibPage:
    rows = await db.fetch(_LISTED_JOBS, within, visible_rooms(room), limit, offset, repeatable=True)
    return JoblibPage([_job(row) for row in rows if row["id"] is not None], rows[0]["total"])


def _job(row: Record) -> JoblibJob:
    return JoblibJob(row["id"], row["full_name"], row["schema"], workers_of(row["workers"]), row["workflow_id"])


def workers_of(names: Sequence[str]) -> list[UUID]:
    return [found for name in names if (found := worker_of(name)) is not None]


# Workers

_WORKER: Final = """n.name, n.labels ->> 'joblib.user' AS user, n.last_seen,
    ARRAY(SELECT substr(k, 8) FROM jsonb_object_keys(n.labels) k WHERE k LIKE 'joblib:%%') AS jobs"""
_IS_WORKER: Final = "n.labels ->> 'accs.kind' = 'joblib' AND starts_with(n.name, 'joblib/')"
_ONE_WORKER: Final = f"SELECT {_WORKER} FROM public.nodes n WHERE n.name = $1 AND {_IS_WORKER}".replace("%%", "%")
_WORKERS_OF_USER: Final = f"""
    SELECT {_WORKER} FROM public.nodes n WHERE {_IS_WORKER} AND n.labels ->> 'joblib.user' = $1
     ORDER BY n.name DESC LIMIT 100""".replace("%%", "%")
# Of the jobs that the caller reaches, or the caller's own.
_LISTED_WORKERS: Final = f"""
    WITH found AS MATERIALIZED (
      SELECT {_WORKER} FROM public.nodes n WHERE {_IS_WORKER}
         AND ($1::text[] IS NULL OR n.labels ->> 'joblib.user' = $4 OR EXISTS (
               SELECT FROM public.workflows w WHERE n.labels ? ('joblib:' || w.name) AND {_REACHED}))
         AND %s),
    page AS (SELECT * FROM found ORDER BY name DESC LIMIT $2 OFFSET $3)
    SELECT t.total, p.* FROM (SELECT count(*) AS total FROM found) t LEFT JOIN page p ON true ORDER BY p.name DESC"""
_SERVES: Final = f"""EXISTS (SELECT FROM public.workflows w WHERE w.is_active AND {_IS_JOB} AND {_REACHED}
    AND split_part(w.name, ':', 1) = ANY ($5) AND n.labels ? ('joblib:' || w.name))"""


async def worker_named(db: Database, worker: UUID) -> JoblibWorker | None:
    row = await db.fetchrow(_ONE_WORKER, node_of(worker), repeatable=True)
    return None if row is None else _worker(row)


async def workers_of_user(db: Database, user: str) -> list[JoblibWorker]:
    """The newest first."""
    return [_worker(row) for row in await db.fetch(_WORKERS_OF_USER, user, repeatable=True)]


async def workers_seen(
    db: Database, *, limit: int, offset: int, user: str, room: str | None = None, within: Within = None
) -> JoblibPage:
    """All of them; those that serve a job that is seen from a room."""
    given: list[Any] = [within, limit, offset, user]
    if room is None:
        rows = await db.fetch(_LISTED_WORKERS % "true", *given, repeatable=True)
    else:
        rows = await db.fetch(_LISTED_WORKERS % _SERVES, *given, visible_rooms(room), repeatable=True)
    return JoblibPage([_worker(row) for row in rows if row["name"] is not None], rows[0]["total"])


def _worker(row: Record) -> JoblibWorker:
    return JoblibWorker(UUID(row["name"].removeprefix(NODE)), row["user"], row["last_seen"], row["jobs"])


async def silent_workers(db: Database, silent: float) -> tuple[list[str], float | None]:
    """The nodes of workers that were not heard for so many seconds, and in how many the next one may be."""
    rows = await db.fetch(
        f"""SELECT n.name, extract(epoch FROM n.last_seen - accs.clock())::float8 + $1 AS left
              FROM public.nodes n WHERE {_IS_WORKER} ORDER BY n.last_seen LIMIT 1000""",
        silent,
        repeatable=True,
    )
    gone = [row["name"] for row in rows if row["left"] <= 0]
    return gone, min((row["left"] for row in rows if row["left"] > 0), default=None)


# Tasks

_STATUS: Final = """CASE j.status
    WHEN 'done' THEN 'completed' WHEN 'error' THEN 'failed' WHEN 'cancelled' THEN 'cancelled'
    WHEN 'queued' THEN 'pending'
    ELSE CASE WHEN t.waits THEN 'pending' WHEN t.n = 1 AND t.starts THEN 'claimed' ELSE 'running' END END"""
# A task is a job. Of several steps any that runs makes it running; what has ended says how.
_STEPS: Final = """LATERAL (
        SELECT count(*) AS n, coalesce(bool_and(s.service_name = 'joblib'), false) AS served,
               bool_or(s.status = 'starting') AS starts, coalesce(bool_and(s.status = 'queued'), true) AS waits,
               min(s.started_at) FILTER (WHERE s.status NOT IN ('queued', 'starting')) AS started_at,
               max(s.claimed_by) FILTER (WHERE s.status <> 'queued') AS node, coalesce(max(s.attempt), 0) AS attempt,
               coalesce(max(s.attempt_id), 0) AS attempt_id,
               (array_agg(s.results ORDER BY s.step_no DESC))[1] AS results,
               max(s.next_attempt_at) FILTER (WHERE s.status = 'queued' AND isfinite(s.next_attempt_at)) AS due,
               (array_agg(s.id))[1] AS id
          FROM public.job_tasks s WHERE s.job_id = j.id OFFSET 0) t"""
_ROOM: Final = "coalesce(j.options ->> 'room_id', split_part(w.name, ':', 1))"
_TASK: Final = f"""j.id, w.name AS job_name, {_ROOM} AS room_id, {_STATUS} AS status, j.created_at, t.started_at,
    j.finished_at AS completed_at, t.node,
    CASE WHEN j.status IN ('error', 'cancelled')
         THEN coalesce(j.error_message, CASE WHEN NOT t.served THEN j.error_code END) END AS error,
    CASE WHEN jsonb_typeof(j.options -> 'payload') = 'object' THEN j.options -> 'payload' ELSE '{{}}' END AS payload,
    t.attempt, t.attempt_id, coalesce(j.progress, 0)::float8 AS progress,
    CASE WHEN j.status = 'done' THEN t.results END AS result,
    CASE WHEN j.status = 'running' THEN t.due END AS next_attempt_at, t.served AS is_served, j.order_seq AS "order",
    t.id AS task_id, t.n <= 1 AS is_single"""
_SOME_TASKS: Final = f"""
    SELECT {_TASK} FROM unnest($2::uuid[]) AS u (id), LATERAL (SELECT * FROM public.jobs j WHERE j.id = u.id OFFSET 0) j
      JOIN public.workflows w ON w.id = j.workflow_id AND {_IS_JOB} AND {_REACHED}, {_STEPS}"""
# Open ones are looked at one by one only where a status is asked for that their job's does not say.
_LISTED_TASKS: Final = f"""
    WITH found AS MATERIALIZED (
      SELECT j.id, j.order_seq FROM public.jobs j
        JOIN public.workflows w ON w.id = j.workflow_id AND {_IS_JOB} AND {_REACHED}
       WHERE j.options ? 'room_id' AND left(j.options ->> 'room_id', 200) = left($2, 200)
         AND j.options ->> 'room_id' = $2
         AND ($5::text IS NULL OR w.name = $5)
         AND CASE $6::text WHEN 'completed' THEN j.status = 'done' WHEN 'failed' THEN j.status = 'error'
                           WHEN 'cancelled' THEN j.status = 'cancelled'
                           ELSE $6 IS NULL OR j.status IN ('queued', 'running')
                                              AND $6 = (SELECT {_STATUS} FROM {_STEPS}) END),
    page AS (SELECT * FROM found ORDER BY order_seq DESC LIMIT $3 OFFSET $4)
    SELECT (SELECT count(*) FROM found) AS total, ARRAY(SELECT id FROM page ORDER BY order_seq DESC) AS ids"""
# What waits for something else (a pause, a backoff) stands behind those that could be claimed.
_POSITIONS: Final = """
    WITH wanted AS (SELECT w.task_id, w.lane FROM accs.waiting w WHERE w.task_id = ANY ($1)),
    ranked AS (
      SELECT o.task_id, o.lane,
             row_number() OVER (PARTITION BY o.lane ORDER BY o.rank, o.order_seq, o.created_at, o.task_id) AS n
        FROM accs.waiting o WHERE o.lane IN (SELECT lane FROM wanted) AND o.hold IS NULL)
    SELECT w.task_id, coalesce(r.n, 1 + (SELECT count(*) FROM ranked a WHERE a.lane = w.lane)) AS n
      FROM wanted w LEFT JOIN ranked r ON r.task_id = w.task_id"""
_POSITION: Final = """
    SELECT w.task_id, (w.hold IS NOT NULL)::int + (
             SELECT count(*) FROM accs.waiting o
              WHERE o.lane = w.lane AND o.hold IS NULL
                AND (o.rank, o.order_seq, o.created_at, o.task_id)
                    <= (w.rank, w.order_seq, w.created_at, w.task_id)) AS n
      FROM accs.waiting w WHERE w.task_id = ANY ($1)"""


async def task_of(db: Database, task: UUID, *, within: Within = None) -> JoblibTask | None:
    found = await tasks_of(db, [task], within=within)
    return found[0] if found else None


async def tasks_of(db: Database, ids: Sequence[UUID], *, within: Within = None) -> list[JoblibTask]:
    """Those of these jobs that are tasks of the door, the newest first, each with its place in the queue."""
    rows = await db.fetch(_SOME_TASKS, within, list(ids), repeatable=True)
    tasks = [JoblibTask(**dict(row)) for row in rows]
    waiting = [each.task_id for each in tasks if each.status == "pending" and each.is_served]
    places: dict[UUID | None, int] = {}
    if waiting:
        found = await db.fetch(_POSITION if len(waiting) == 1 else _POSITIONS, waiting, repeatable=True)
        places = {row["task_id"]: row["n"] for row in found}
    placed = [replace(each, queue_position=places.get(each.task_id)) for each in tasks]
    return sorted(placed, key=lambda each: each.order, reverse=True)


async def tasks_seen(
    db: Database,
    room: str,
    *,
    limit: int,
    offset: int,
    job: str | None = None,
    status: str | None = None,
    within: Within = None,
) -> JoblibPage:
    """The tasks that were submitted into a room, those of one job, those with one status."""
    row = await db.fetchrow(_LISTED_TASKS, within, room, limit, offset, job, status, repeatable=True)
    assert row is not None
    return JoblibPage(await tasks_of(db, row["ids"]), row["total"])


class Claimable(NamedTuple):
    """What claims would find, by job: how many tasks now, at most some more than anybody waits for; and in how many
    seconds the next one comes due that waits for its time."""

    ready: dict[str, int]
    next_due: float | None


async def claimable(db: Database, most: int) -> Claimable:
    rows = await db.fetch(
        """SELECT (SELECT substr(k, 8) FROM jsonb_object_keys(l.requires) k LIMIT 1) AS job,
                  (SELECT count(*) FROM (SELECT FROM accs.waiting w WHERE w.lane = l.id AND w.hold IS NULL LIMIT $1) r)
                  + (SELECT count(*) FROM (SELECT FROM accs.waiting w WHERE w.lane = l.id AND w.hold = 'backoff'
                                              AND w.due_at <= accs.clock() LIMIT $1) d) AS n,
                  (SELECT extract(epoch FROM w.due_at - accs.clock())::float8 FROM accs.waiting w
                    WHERE w.lane = l.id AND w.hold = 'backoff' AND w.due_at > accs.clock() AND w.due_at < 'infinity'
                    ORDER BY w.due_at LIMIT 1) AS due
             FROM accs.lanes l WHERE l.service = 'joblib' AND l.node IS NULL""",
        most,
        repeatable=True,
    )
    ready = {row["job"]: row["n"] for row in rows if row["n"] and row["job"] is not None}
    return Claimable(ready, min((row["due"] for row in rows if row["due"] is not None), default=None))


# Providers

_PROVIDER: Final = "p.id, p.room, p.category, p.name, p.schema, p.content_type, p.owner, p.node, p.created_at"


async def provider_of(db: Database, provider: UUID) -> JoblibProvider | None:
    row = await db.fetchrow(
        f"SELECT {_PROVIDER} FROM accs.joblib_providers p WHERE p.id = $1", provider, repeatable=True
    )
    return None if row is None else JoblibProvider(**dict(row))


async def provider_named(db: Database, room: str, category: str, name: str) -> JoblibProvider | None:
    row = await db.fetchrow(
        f"SELECT {_PROVIDER} FROM accs.joblib_providers p WHERE p.room = $1 AND p.category = $2 AND p.name = $3",
        room,
        category,
        name,
        repeatable=True,
    )
    return None if row is None else JoblibProvider(**dict(row))


_LISTED_PROVIDERS: Final = f"""
    WITH found AS (
      SELECT {_PROVIDER} FROM accs.joblib_providers p,
             LATERAL (SELECT concat_ws(':', p.room, p.category, p.name) AS name) w
       WHERE p.room = ANY ($2) AND {_REACHED}),
    page AS (SELECT * FROM found ORDER BY created_at DESC, id DESC LIMIT $3 OFFSET $4)
    SELECT t.total, p.* FROM (SELECT count(*) AS total FROM found) t LEFT JOIN page p ON true
     ORDER BY p.created_at DESC, p.id DESC"""


async def providers_seen(db: Database, room: str, *, limit: int, offset: int, within: Within = None) -> JoblibPage:
    """The room's, and those that are everywhere."""
    rooms = ["@global"] if room == "@global" else ["@global", room]
    rows = await db.fetch(_LISTED_PROVIDERS, within, rooms, limit, offset, repeatable=True)
    found = [JoblibProvider(**{k: v for k, v in row.items() if k != "total"}) for row in rows if row["id"] is not None]
    return JoblibPage(found, rows[0]["total"])
