"""A long past for the gateway's bench: what a fleet of 50 machines leaves behind in two months, written at once.

Ended jobs of four steps bypass the verbs, as in filler.py; what is in motion, the large jobs and their tasks are made
by the verbs themselves.
"""

import asyncio
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
import orjson

from accsd.settings.model import StorageSettings
from accsd.storage import open_store
from accsd.storage.base import build_key
from accsd.work.tasklog import SEGMENT_BYTES, LogFacts
from bench.throwaway import ROOT

NODES, SERVICES, WORKFLOWS, LETTERS, MOVING = 50, 30, 10, 2_000, 100
DAYS = 60
LOG_LINES = 1_000_000
LARGE, MIDDLE = 5_000, 50  # tasks
CHUNK = 20_000  # jobs
LEASE = timedelta(minutes=10)
# Job g of {jobs}: the ids are those of its time, as accs.new_id makes them. Of the older jobs each {every}th has failed
# at its third step, of the newest fifth one in 10,000: a list of failed jobs has to look at 100,000.
_PAST = """
CREATE TEMP TABLE past AS
  SELECT g, at, encode(int8send((accs.unix_ms(at) << 16) | 28672 | (g & 4095))
                       || int8send((-9223372036854775808) | (floor(random() * 1073741824)::bigint << 32)
                                   | ((g::bigint & 4294967295) * 1640531527 & 4294967295)), 'hex')::uuid AS job,
         (SELECT id FROM workflows WHERE name = 'media-' || g % {workflows}) AS workflow,
         CASE WHEN g <= {jobs} * 0.8 THEN g % {every} = 0 ELSE g % 10000 = 0 END AS failed
    FROM (SELECT g, now() - interval '1 hour' - interval '{days} days' * (1 - g::float8 / {jobs}) AS at
            FROM generate_series({first}, {last}) g) t;
INSERT INTO jobs (id, workflow_id, status, progress, current_task_key, options, order_seq, created_at, started_at,
                  finished_at, updated_at, task_count, task_progress, created_by, error_code, error_message)
  SELECT job, workflow, CASE WHEN failed THEN 'error' ELSE 'done' END, 1,
         CASE WHEN failed THEN 'render' ELSE 'upload' END,
         jsonb_build_object('source', 's3://in/' || g || '.mov', 'shot', g % 500), g, at, at, at + interval '6 min',
         at + interval '6 min', 4, 4, 'user-' || g % 20, CASE WHEN failed THEN 'exit_' || g % 7 END,
         CASE WHEN failed THEN 'frame ' || g || ' could not be read' END FROM past;
CREATE TEMP TABLE past_tasks AS
  SELECT p.g, p.at + interval '90 s' * (s.step_no - 1) AS at, p.job, accs.task_id(p.job, s.step_no) AS task, s.step_no,
         s.task_key, s.service, s.depends_on, s.params, s.lane,
         'node-' || to_char((g + s.step_no) % {nodes}, 'FM00') AS node,
         CASE WHEN NOT p.failed OR s.step_no < 3 THEN 'done'
              WHEN s.step_no = 3 THEN 'error' ELSE 'skipped' END AS status
    FROM past p JOIN accs.steps s ON s.workflow_id = p.workflow ORDER BY p.g, s.step_no;
INSERT INTO job_tasks (id, job_id, task_key, service_name, status, depends_on, progress, params, results, claimed_by,
                       claimed_at, started_at, finished_at, created_at, updated_at, attempt_id, attempt, step_no, lane,
                       dependants, outcome, outcome_attempt_id, error_code, error_message)
  SELECT task, job, task_key, service, status, depends_on, 1, params,
         CASE status WHEN 'done' THEN jsonb_build_object('file', 'out/' || g || '.mov') END,
         CASE WHEN status <> 'skipped' THEN node END,
         CASE WHEN status <> 'skipped' THEN at + interval '1 s' END,
         CASE WHEN status <> 'skipped' THEN at + interval '2 s' END, at + interval '89 s',
         at, at + interval '89 s', CASE WHEN status = 'skipped' THEN 0 ELSE 1 END, (status = 'error')::int, step_no,
         lane,
         CASE WHEN step_no < 4 THEN ARRAY[accs.task_id(job, step_no + 1)] END,
         CASE WHEN status <> 'skipped' THEN status END, CASE WHEN status <> 'skipped' THEN 1 END,
         CASE status WHEN 'error' THEN 'exit_' || g % 7 END,
         CASE status WHEN 'error' THEN 'frame ' || g || ' could not be read' END FROM past_tasks;
INSERT INTO dead_letters (job_id, job_task_id, generation, service_name, reason, error_code, error_message, created_at)
  SELECT job, task, 0, service, 'permanent_error', 'exit_' || g % 7, 'frame ' || g || ' could not be read',
         at + interval '89 s' FROM past_tasks WHERE status = 'error';
INSERT INTO task_events (id, job_id, job_task_id, ts, source, level, type, message, data, attempt_id)
  SELECT * FROM (
    SELECT g * 20::bigint + CASE WHEN m.b = 'running' THEN 0 ELSE 19 END AS id, job, NULL::uuid, at + m.after AS ts,
           'builder', 'info', 'status', m.a || ' → ' || m.b, jsonb_build_object('from', m.a, 'to', m.b), NULL::int
      FROM past, (VALUES ('queued', 'running', interval '0'), ('running', 'done', '6 min')) AS m (a, b, after)
    UNION ALL
    SELECT g * 20::bigint + (step_no - 1) * 4 + m.n, job, task, at + m.after, 'agent:' || service, 'info', m.type,
           coalesce(m.a || ' → ' || m.b, 'frame ' || g % 1000 || ' of 1000 is rendered'),
           jsonb_strip_nulls(jsonb_build_object('from', m.a, 'to', m.b, 'node', CASE m.n WHEN 1 THEN node END)), 1
      FROM past_tasks, (VALUES (1, 'status', 'queued', 'starting', interval '1 s'),
                               (2, 'status', 'starting', 'running', '2 s'),
                               (3, 'log', NULL, NULL, '50 s'), (4, 'status', 'running', 'done', '89 s'))
                         AS m (n, type, a, b, after)
    UNION ALL
    SELECT g * 20::bigint + 16 + n, job, task, at + interval '20 s' * n, 'agent:' || service, 'info', 'progress', NULL,
           jsonb_build_object('progress', n * 0.25), 1 FROM past_tasks, generate_series(1, 2) n WHERE step_no = 3
  ) e ORDER BY 1;
DROP TABLE past, past_tasks
"""
_FLEET = """
SET session_replication_role = replica;
INSERT INTO nodes (name, labels, last_seen, awake_state, wake_method, mac, max_concurrency)
  SELECT 'node-' || to_char(n, 'FM00'), jsonb_build_object('gpu', n % 5 = 0), now() + interval '1 hour',
         CASE WHEN n % 5 < 3 THEN 'awake' ELSE 'sleep' END, 'wol', '02:00:00:00:00:' || to_char(n, 'FM00'),
         (SELECT jsonb_object_agg('service-' || to_char((n + s) % {services}, 'FM00'), 2) FROM generate_series(0, 5) s)
    FROM generate_series(0, {nodes} - 1) n;
INSERT INTO accs.slots (node, service) SELECT name, jsonb_object_keys(max_concurrency) FROM nodes;
INSERT INTO accs.power (node, state, since, watts)
  SELECT name, CASE awake_state WHEN 'awake' THEN 'ready' ELSE 'asleep' END, now() - interval '10 min',
         '{{"asleep": 3, "booting": 80, "idle": 60, "busy": 200}}' FROM nodes;
INSERT INTO accs.power_log (node, ts, state, because)
  SELECT name, h + s.after, s.state, 'bench' FROM nodes,
         generate_series(date_trunc('hour', now()) - interval '30 days', now() - interval '3 hours', '3 hours') h,
         (VALUES ('waking', interval '0'), ('booting', '5 s'), ('ready', '40 s'),
                 ('asleep', '2 hours')) s (state, after)
   ORDER BY 2;
INSERT INTO accs.samples (node, service, ts, live, slots)
  SELECT n.name, s, m, k.n % 2, 2
    FROM nodes n, LATERAL (SELECT min(s) AS s FROM jsonb_object_keys(n.max_concurrency) s) o,
         generate_series(now() - interval '14 days', now(), '7 min') WITH ORDINALITY AS k (m, n);
RESET session_replication_role
"""
_MONTHS = """
SET session_replication_role = replica;
INSERT INTO task_events (job_id, ts, source, type)
  SELECT gen_random_uuid(), ts, 'bench', 'month'
    FROM generate_series(now() - interval '{days} days', now(), '10 days') ts;
SELECT accs.make_months('task_events');
DELETE FROM task_events WHERE type = 'month';
RESET session_replication_role
"""


@dataclass(frozen=True, slots=True)
class Known:
    """What the requests ask about."""

    past: UUID  # a job of four steps in the middle of the past
    failed: UUID
    middle: UUID
    large: UUID  # done
    large_running: UUID
    log_task: UUID


def _steps(count: int, first: int = 0) -> list[dict[str, Any]]:
    """One step, many beside each other that depend on it, and one that joins them."""
    service = "service-{:02}".format
    many = [{"key": f"clip-{n}", "service": service((first + n) % 5), "depends_on": ["list"]} for n in range(count - 2)]
    return [
        {"key": "list", "service": service(first)},
        *many,
        {"key": "join", "service": service(first), "depends_on": [each["key"] for each in many]},
    ]


async def _workflows(connection: asyncpg.Connection, large: int) -> None:
    for number in range(WORKFLOWS):
        names = [f"service-{(number * 3 + step) % SERVICES:02}" for step in range(4)]
        keys = ("ingest", "audio", "render", "upload")
        steps = [
            {"key": key, "service": name, "depends_on": list(keys[place - 1 : place]) if place else []}
            | {"default_params": {"lufs": -16}}
            for place, (key, name) in enumerate(zip(keys, names, strict=True))
        ]
        await _workflow(connection, f"media-{number}", steps)
    await _workflow(connection, "middle", _steps(MIDDLE))
    await _workflow(connection, "large", _steps(large))


async def _workflow(connection: asyncpg.Connection, name: str, steps: list[dict[str, Any]]) -> None:
    await connection.execute("INSERT INTO workflows (name, steps) VALUES ($1, $2)", name, orjson.dumps(steps).decode())


async def fill(
    url: str, folder: Path, jobs: int, at_once: int = 2, *, large: int = LARGE, log_lines: int = LOG_LINES
) -> Known:
    """The whole of it; `folder` is that of the object store."""
    connection = await asyncpg.connect(url)
    await connection.execute((ROOT / "schema.sql").read_text())
    await connection.execute(_MONTHS.format(days=DAYS))
    await _workflows(connection, large)
    await connection.execute(_FLEET.format(nodes=NODES, services=SERVICES))
    began = time.monotonic()
    await _past(url, jobs, at_once)
    for sequence, last in (("accs.order_seq", jobs), ("accs.id_seq", jobs), ("task_events_id_seq", jobs * 20 + 20)):
        await connection.execute(f"SELECT setval('{sequence}', {last})")
    print(f"  {jobs:,} jobs of the past are written ({time.monotonic() - began:.0f} s)", flush=True)
    await connection.execute("VACUUM (ANALYZE, PARALLEL 2)", timeout=3600)
    print(f"  and vacuumed ({time.monotonic() - began:.0f} s)", flush=True)
    middle = await _run(connection, "middle", MIDDLE)
    whole, half = await _run(connection, "large", large), await _run(connection, "large", large * 3 // 5)
    await _moving(connection)
    past, failed = [
        await connection.fetchval(
            "SELECT id FROM jobs WHERE order_seq >= $1 AND status = $2 ORDER BY order_seq LIMIT 1", jobs // 2, status
        )
        for status in ("done", "error")
    ]
    task = await connection.fetchval("SELECT id FROM job_tasks WHERE job_id = $1 AND task_key = 'render'", past)
    await _log(connection, folder, past, task, log_lines)
    await connection.execute("VACUUM (ANALYZE) jobs, job_tasks, accs.waiting, accs.live, task_artifacts", timeout=3600)
    print(f"  and what is in motion ({time.monotonic() - began:.0f} s)", flush=True)
    await connection.close()
    return Known(past, failed, middle, whole, half, task)


async def _past(url: str, jobs: int, at_once: int) -> None:
    first = iter(range(1, jobs + 1, CHUNK))

    async def some() -> None:
        mine = await asyncpg.connect(url)
        await mine.execute(
            "SET session_replication_role = replica; SET synchronous_commit = off; SET work_mem = '256MB';"
            "SET temp_buffers = '256MB'; SET maintenance_work_mem = '512MB'"
        )
        for begins in first:
            sql = _PAST.format(
                first=begins,
                last=min(jobs, begins + CHUNK - 1),
                jobs=jobs,
                every=max(1, jobs * 8 // 10 // LETTERS),
                workflows=WORKFLOWS,
                nodes=NODES,
                days=DAYS,
            )
            await mine.execute(sql, timeout=3600)
        await mine.close()

    await asyncio.gather(*(some() for _ in range(at_once)))


async def _run(connection: asyncpg.Connection, workflow: str, until: int) -> UUID:
    """Submits a job and works its tasks off by the verbs, a few at a time, until so many are done."""
    job = await connection.fetchval(
        "SELECT job_id FROM accs.submit_jobs(ARRAY(SELECT id FROM workflows WHERE name = $1))", workflow
    )
    done = 0
    while done < until:
        services = await connection.fetch("SELECT DISTINCT service_name FROM job_tasks WHERE job_id = $1", job)
        for (service,) in services:
            claimed = await connection.fetch(
                "SELECT task_id, attempt_id FROM accs.claim_tasks($1, 'bench', 'node-00', $2, $3, true)",
                service,
                min(25, until - done),
                LEASE,
            )
            if claimed:
                await connection.fetch(
                    "SELECT answer FROM accs.finish_tasks($1, $2, 'bench')",
                    [row["task_id"] for row in claimed],
                    [row["attempt_id"] for row in claimed],
                )
            done += len(claimed)
            if done >= until:
                break
    return job


async def _moving(connection: asyncpg.Connection) -> None:
    """Jobs that wait or run, and some that are due tomorrow."""
    await connection.execute(
        """INSERT INTO jobs (workflow_id, scheduled_at)
           SELECT (SELECT id FROM workflows WHERE name = 'media-1'), now() + interval '1 day'
             FROM generate_series(1, $1)""",
        MOVING // 5,
    )
    await connection.fetch(
        "SELECT job_id FROM accs.submit_jobs(ARRAY(SELECT (SELECT id FROM workflows WHERE name = 'media-' || n % 10)"
        " FROM generate_series(1, $1) n))",
        MOVING * 4 // 5,
    )
    for service in range(SERVICES):
        await connection.fetch(
            "SELECT task_id FROM accs.claim_tasks($1, $2, $2, 2, $3, true)",
            f"service-{service:02}",
            f"node-{service:02}",
            LEASE,
        )


async def _log(connection: asyncpg.Connection, folder: Path, job: UUID, task: UUID, lines: int) -> None:
    """A log of 100 bytes a line, with an error in every 20,000 lines, in parts as tasklog.py seals them."""
    at = datetime.now(UTC) - timedelta(days=30)
    part, number = bytearray(), 0
    async with open_store(StorageSettings(), default_folder=folder) as store:
        for n in range(1, lines + 1):
            level = "error" if n % 20_000 == 0 else "info"
            record = {"ts": at + timedelta(milliseconds=n), "stream": "stdout", "level": level, "message": f"frame {n}"}
            part += orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE)
            if len(part) < SEGMENT_BYTES and n < lines:
                continue
            number += 1
            key = build_key(job, "render", "log", attempt_id=1, name=f"{number:06d}.jsonl")
            stored = await store.put_bytes(key, bytes(part))
            await connection.execute(
                """INSERT INTO task_artifacts (job_id, job_task_id, kind, bucket, key, size_bytes, checksum, attempt_id,
                                               facts) VALUES ($1, $2, 'log', $3, $4, $5, $6, 1, $7)""",
                *(job, task, store.bucket, key, stored.size_bytes, stored.checksum),
                orjson.dumps(LogFacts.of(bytes(part)).document()).decode(),
            )
            part.clear()
