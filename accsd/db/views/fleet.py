"""The fleet for people: nodes, services, live tasks. Read only, and cheap enough to be asked each second."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from accsd.db.pool import Database
from accsd.errors import NotFound
from accsd.values.names import KIND_LABEL
from accsd.values.validation import did_you_mean

_NODES: Final = """
    SELECT n.name, n.labels, n.last_seen, n.awake_state, n.wake_method, n.mac, n.provider_ref, n.script,
           n.max_concurrency AS slots, accs.clock() - n.last_seen AS unseen_for, coalesce(l.live, '{}') AS live,
           p.since AS drained_at, accs.clock() - p.since AS drained_for,
           p.reason AS drained_because, p.by AS drained_by,
           coalesce(w.state, 'unknown') AS power, w.since AS power_since, w.because, w.method, w.tried_at,
           accs.clock() - w.tried_at AS tried_ago,
           w.ok AS tried_ok, w.error AS tried_error, coalesce(w.tries, 0) AS tries, w.brought_by, w.latency,
           w.last_latency,
           coalesce(w.networks, '{}')::text[] AS networks, w.watts,
           coalesce((SELECT jsonb_object_agg(q.service, jsonb_strip_nulls(jsonb_build_object('state', q.state,
                              'since', q.since, 'reason', q.reason, 'probe_at', q.probe_at,
                              'probe_error', q.probe_error)))
                       FROM accs.quarantines q WHERE q.node = n.name), '{}') AS quarantines,
           coalesce((SELECT jsonb_object_agg(o.service, o.reason ORDER BY o.service)
                       FROM accs.obstacles o WHERE o.node = n.name), '{}') AS obstacles,
           (SELECT h.message FROM accs.node_history h WHERE h.node = n.name ORDER BY h.id DESC LIMIT 1) AS last_said
      FROM public.nodes n
      LEFT JOIN (SELECT c.node, jsonb_object_agg(c.service, c.tasks) AS live
                   FROM (SELECT node, service, count(*) AS tasks FROM accs.live GROUP BY node, service) c
                  GROUP BY c.node) l ON l.node = n.name
      LEFT JOIN accs.pauses p ON p.kind = 'node' AND p.name = n.name
      LEFT JOIN accs.power w ON w.node = n.name
     WHERE $1::text IS NULL OR n.name = $1 ORDER BY n.name"""
_SERVICES: Final = """
    WITH offered AS (
      SELECT s.service, array_agg(n.name ORDER BY n.name) AS nodes, sum(s.slots::int)::int AS slots
        FROM public.nodes n, jsonb_each_text(n.max_concurrency) AS s (service, slots)
       WHERE s.slots::int > 0 GROUP BY s.service
    ), known AS (
      SELECT service FROM accs.lanes UNION SELECT service FROM offered
      UNION SELECT name FROM accs.pauses WHERE kind = 'service'
    )
    SELECT k.service, coalesce(l.claimable, 0) AS claimable, coalesce(l.in_backoff, 0) AS in_backoff,
           coalesce(l.held_by_key, 0) AS held_by_key, coalesce(l.paused, 0) AS paused, coalesce(l.live, 0) AS live,
           coalesce(o.nodes, '{}') AS nodes, coalesce(o.slots, 0) AS slots,
           p.since AS paused_at, accs.clock() - p.since AS paused_for, p.reason AS paused_because, p.by AS paused_by,
           ARRAY(SELECT q.node FROM accs.quarantines q WHERE q.service = k.service ORDER BY q.node) AS quarantined_on,
           coalesce((SELECT jsonb_object_agg(h.node, h.reason ORDER BY h.node)
                       FROM accs.obstacles h JOIN public.nodes n ON n.name = h.node AND n.awake_state = 'awake'
                      WHERE h.service = k.service), '{}') AS obstacles
      FROM known k LEFT JOIN accs.service_load l ON l.service = k.service
      LEFT JOIN offered o ON o.service = k.service
      LEFT JOIN accs.pauses p ON p.kind = 'service' AND p.name = k.service
     ORDER BY k.service"""


# Jobs in motion by workflow. A job that runs has a task that waits or is live, and a waiting task knows its job's
# number. At most COUNTED are counted: this is asked each second.
COUNTED: Final = 10_000
_IN_MOTION: Final = f"""
    WITH motion AS (
      (SELECT j.workflow_id, true AS is_queued FROM (SELECT job_id FROM accs.pending_jobs LIMIT {COUNTED}) p
         JOIN public.jobs j ON j.id = p.job_id)
      UNION ALL
      (SELECT j.workflow_id, false FROM (
         SELECT order_seq FROM (SELECT order_seq FROM accs.waiting LIMIT {COUNTED}) w
         UNION
         SELECT r.order_seq FROM (SELECT job_id FROM accs.live LIMIT {COUNTED}) l
           JOIN public.jobs r ON r.id = l.job_id) o
         JOIN public.jobs j ON j.order_seq = o.order_seq)
    )
    SELECT w.name AS workflow, count(*) FILTER (WHERE m.is_queued) AS queued,
           count(*) FILTER (WHERE NOT m.is_queued) AS running,
           EXISTS (SELECT FROM accs.pauses p WHERE p.kind = 'workflow' AND p.name = w.name) AS is_paused
      FROM motion m JOIN public.workflows w ON w.id = m.workflow_id GROUP BY w.name ORDER BY w.name"""


_AWAY: Final = ("waking", "booting", "failed")  # power states that say more than "away"


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node. `method` and `tried_` are of the last wake call; `tries` counts those since it was last seen;
    `brought_by` is the method that woke it last; `latency` is the usual time from a wake call until it is seen."""

    name: str
    labels: dict[str, Any]
    last_seen: datetime | None
    awake_state: str
    wake_method: str | None
    mac: str | None
    provider_ref: str | None
    script: str | None
    slots: dict[str, int]
    unseen_for: timedelta | None
    live: dict[str, int]
    drained_at: datetime | None
    drained_for: timedelta | None
    drained_because: str | None
    drained_by: str | None
    power: str
    power_since: datetime | None
    because: str | None
    method: str | None
    tried_at: datetime | None
    tried_ago: timedelta | None
    tried_ok: bool | None
    tried_error: str | None
    tries: int
    brought_by: str | None
    latency: timedelta | None
    last_latency: timedelta | None
    networks: list[str]
    watts: dict[str, float] | None  # asleep, booting, idle, busy; None: nobody has said
    quarantines: dict[str, dict[str, Any]]  # by service: state, since, reason, probe_at, probe_error
    obstacles: dict[str, str]  # by service: the obstacle
    last_said: str | None

    def state(self, silent: timedelta) -> str:
        """The state as a claim would find it: drained, or the node's whereabouts."""
        return self.whereabouts(silent) if self.drained_at is None else "drained"

    def whereabouts(self, silent: timedelta) -> str:
        """Awake, asleep, waking, booting, failed; or away: its agent has stopped, or was silent for this long."""
        if self.power in _AWAY:
            return self.power
        if self.awake_state == "sleep":
            return "asleep"
        is_heard = self.unseen_for is not None and self.unseen_for < silent
        return "awake" if is_heard and self.awake_state == "awake" else "away"

    @property
    def is_machine(self) -> bool:
        """Whether the node is a machine, and not a process under a node's name, such as an `accsd run`."""
        return KIND_LABEL not in self.labels

    def is_here(self, silent: timedelta) -> bool:
        return self.whereabouts(silent) == "awake"

    def since(self, silent: timedelta) -> datetime | None:
        """When that state began; None: not known, as the node was never seen."""
        match self.state(silent):
            case "drained":
                return self.drained_at
            case "away":
                return self.last_seen
            case _:
                return self.power_since


@dataclass(frozen=True, slots=True)
class NodeEvent:
    """Something that happened to a node."""

    ts: datetime
    state: str
    message: str
    data: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ServiceView:
    """A service: its waiting and running tasks, and the nodes that offer it. `slots` are those of all its nodes."""

    service: str
    claimable: int
    in_backoff: int
    held_by_key: int
    paused: int
    live: int
    nodes: list[str]
    slots: int
    paused_at: datetime | None
    paused_for: timedelta | None
    paused_because: str | None
    paused_by: str | None
    quarantined_on: list[str]
    obstacles: dict[str, str]  # by node: the obstacle


@dataclass(frozen=True, slots=True)
class KeyView:
    """A concurrency key: how many of its tasks run, may run at once, and wait for it."""

    key: str
    max_running: int
    running: int
    waiting: int


@dataclass(frozen=True, slots=True)
class WorkflowLoad:
    """How many jobs of a workflow, all versions, have not ended."""

    workflow: str
    queued: int
    running: int
    is_paused: bool


@dataclass(frozen=True, slots=True)
class LiveTask:
    task_id: UUID
    job_id: UUID
    task_key: str
    service: str
    node: str
    status: str
    progress: float
    since: datetime
    running_for: timedelta
    lease_left: timedelta


@dataclass(frozen=True, slots=True)
class LatestFailure:
    """A dead letter that is neither redriven nor dismissed."""

    id: int
    job_id: UUID
    task_key: str
    service: str
    error_code: str | None
    error_message: str | None
    created_at: datetime
    age: timedelta


async def nodes(db: Database) -> list[NodeView]:
    return [NodeView(**dict(row)) for row in await db.fetch(_NODES, None, repeatable=True)]


async def node_named(db: Database, name: str) -> NodeView:
    row = await db.fetchrow(_NODES, name, repeatable=True)
    if row is None:
        known = [node.name for node in await nodes(db)]
        raise NotFound(f'there is no node "{name}"{did_you_mean(name, known)}', hint="`accsd nodes` lists them")
    return NodeView(**dict(row))


async def node_history(db: Database, name: str, *, limit: int) -> list[NodeEvent]:
    """The last events of a node, the oldest of them first."""
    rows = await db.fetch(
        "SELECT ts, state, message, data FROM accs.node_history WHERE node = $1 ORDER BY id DESC LIMIT $2",
        name,
        limit,
        repeatable=True,
    )
    return [NodeEvent(**dict(row)) for row in reversed(rows)]


async def services(db: Database) -> list[ServiceView]:
    """All services that a workflow names, a node offers, or a pause names."""
    rows = await db.fetch(_SERVICES, repeatable=True)
    return [ServiceView(**dict(row)) for row in rows]


async def service_named(db: Database, name: str) -> ServiceView:
    known = {view.service: view for view in await services(db)}
    if name not in known:
        raise NotFound(
            f'nothing knows a service "{name}"{did_you_mean(name, known)}', hint="`accsd services` lists them"
        )
    return known[name]


async def keys(db: Database, *, limit: int = 1000) -> list[KeyView]:
    """Concurrency keys that people named, by name; of what waits at most COUNTED are counted."""
    rows = await db.fetch(
        """SELECT k.key, k.max_running, (SELECT count(*)::int FROM accs.live l WHERE l.key = k.key) AS running,
                  (SELECT count(*)::int FROM (SELECT FROM accs.waiting w WHERE w.key = k.key
                     AND (w.hold IS NULL OR w.hold = 'key') LIMIT $2) w) AS waiting
             FROM accs.concurrency_keys k WHERE k.key NOT LIKE 'map/%' ORDER BY k.key LIMIT $1""",
        limit,
        COUNTED,
        repeatable=True,
    )
    return [KeyView(**dict(row)) for row in rows]


async def in_motion(db: Database) -> list[WorkflowLoad]:
    return [WorkflowLoad(**dict(row)) for row in await db.fetch(_IN_MOTION, repeatable=True)]


async def failed_since(db: Database, moment: datetime) -> int:
    """How many jobs had a task that failed for good, whatever became of them since."""
    return await db.fetchval(
        """SELECT count(DISTINCT d.job_id)
             FROM (SELECT job_id, created_at FROM public.dead_letters ORDER BY id DESC LIMIT $2) d
            WHERE d.created_at >= $1""",
        moment,
        COUNTED,
        repeatable=True,
    )


async def live_tasks(db: Database, *, limit: int) -> list[LiveTask]:
    """The live tasks, the longest running first."""
    rows = await db.fetch(
        """SELECT l.task_id, l.job_id, t.task_key, l.service, l.node, t.status,
                  coalesce(t.progress, 0)::float8 AS progress, coalesce(t.started_at, t.claimed_at) AS since,
                  accs.clock() - coalesce(t.started_at, t.claimed_at) AS running_for,
                  l.lease_until - accs.clock() AS lease_left
             FROM accs.live l JOIN public.job_tasks t ON t.id = l.task_id ORDER BY since, l.task_id LIMIT $1""",
        limit,
        repeatable=True,
    )
    return [LiveTask(**dict(row)) for row in rows]


async def latest_failures(db: Database, *, limit: int) -> list[LatestFailure]:
    """The newest failures first, along dead_letters_open."""
    rows = await db.fetch(
        """SELECT d.id, d.job_id, t.task_key, d.service_name AS service, d.error_code, d.error_message, d.created_at,
                  accs.clock() - d.created_at AS age
             FROM public.dead_letters d JOIN public.job_tasks t ON t.id = d.job_task_id
            WHERE d.redriven_at IS NULL AND d.dismissed_at IS NULL ORDER BY d.id DESC LIMIT $1""",
        limit,
        repeatable=True,
    )
    return [LatestFailure(**dict(row)) for row in rows]
