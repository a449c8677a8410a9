"""What this machine and this PostgreSQL can do at most, without any queue library (pgbench, asyncpg)."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile

PLAIN = """
CREATE TABLE job (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, state smallint NOT NULL DEFAULT 0,
                  worker int, payload jsonb, started_at timestamptz, ended_at timestamptz);
CREATE INDEX ON job (id) WHERE state = 0;
CREATE TABLE event (task_id bigint NOT NULL, at timestamptz NOT NULL DEFAULT clock_timestamp(), kind smallint NOT NULL);
CREATE INDEX ON event (task_id);
INSERT INTO job (payload) SELECT '{}' FROM generate_series(1, {n})
"""
# the runnable set is a narrow table of its own; the wide row's state changes are HOT (no index on them)
SPLIT = """
CREATE TABLE job (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, state smallint NOT NULL DEFAULT 0,
                  worker int, payload jsonb, started_at timestamptz, ended_at timestamptz) WITH (fillfactor = 55);
CREATE TABLE ready (ord bigint NOT NULL, id bigint NOT NULL, PRIMARY KEY (ord, id));
CREATE TABLE event (task_id bigint NOT NULL, at timestamptz NOT NULL DEFAULT clock_timestamp(), kind smallint NOT NULL);
CREATE INDEX ON event (task_id);
WITH j AS (INSERT INTO job (payload) SELECT '{}' FROM generate_series(1, {n}) RETURNING id)
INSERT INTO ready SELECT 0, id FROM j
"""
SINGLE = """
UPDATE job SET state = 1, started_at = now() WHERE id = (
  SELECT id FROM job WHERE state = 0 ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED) RETURNING id \\gset
UPDATE job SET state = 2, ended_at = now() WHERE id = :id;
"""
BATCH_PLAIN = """
WITH c AS (SELECT id FROM job WHERE state = 0 ORDER BY id LIMIT {b} FOR UPDATE SKIP LOCKED),
     u AS (UPDATE job SET state = 1, started_at = now() FROM c WHERE job.id = c.id RETURNING job.id),
     e AS (INSERT INTO event (task_id, kind) SELECT id, k FROM u, (VALUES (1), (2)) v(k))
SELECT array_agg(id) AS ids FROM u \\gset
WITH u AS (UPDATE job SET state = 2, ended_at = now() WHERE id = ANY (:ids::bigint[]) RETURNING id)
INSERT INTO event (task_id, kind) SELECT id, 3 FROM u;
"""
BATCH_SPLIT = """
WITH c AS (DELETE FROM ready WHERE ctid = ANY (ARRAY(
             SELECT ctid FROM ready ORDER BY ord, id LIMIT {b} FOR UPDATE SKIP LOCKED)) RETURNING id),
     u AS (UPDATE job SET state = 1, started_at = now() FROM c WHERE job.id = c.id RETURNING job.id),
     e AS (INSERT INTO event (task_id, kind) SELECT id, k FROM c, (VALUES (1), (2)) v(k))
SELECT array_agg(id) AS ids FROM u \\gset
WITH u AS (UPDATE job SET state = 2, ended_at = now() WHERE id = ANY (:ids::bigint[]) RETURNING id)
INSERT INTO event (task_id, kind) SELECT id, 3 FROM u;
"""
INSERT1 = "INSERT INTO job (payload) VALUES ('{}');\n"
INSERT1000 = """
WITH j AS (INSERT INTO job (payload) SELECT '{}' FROM generate_series(1, 1000) RETURNING id),
     r AS (INSERT INTO ready SELECT 0, id FROM j)
INSERT INTO event (task_id, kind) SELECT id, 0 FROM j;
"""

LATENCY = r'''
import asyncio, json, os, sys, time
import asyncpg
dsn, n, sync = sys.argv[1], int(sys.argv[2]), sys.argv[3]
now = time.monotonic_ns
CLAIM = """WITH c AS (DELETE FROM ready WHERE ctid = ANY (ARRAY(
             SELECT ctid FROM ready ORDER BY ord, id LIMIT 10 FOR UPDATE SKIP LOCKED)) RETURNING id)
           UPDATE job SET state = 1 FROM c WHERE job.id = c.id RETURNING job.id"""
ENQ = """WITH j AS (INSERT INTO job (payload) VALUES ('{}') RETURNING id), r AS (INSERT INTO ready SELECT 0, id FROM j)
         SELECT id, pg_notify('r', '') FROM j"""
async def worker(out):
    c = await asyncpg.connect(dsn, server_settings={"jit": "off", "enable_seqscan": "off", "synchronous_commit": sync})
    st = await c.prepare(CLAIM)
    await st.fetch()
    ev = asyncio.Event()
    await c.add_listener("r", lambda *a: ev.set())
    os.write(out, b"go\n")
    seen = []
    while len(seen) < n:
        await ev.wait()
        ev.clear()
        tn = now()
        for r in await st.fetch():
            seen.append((r[0], tn, now()))
    os.write(out, json.dumps(seen).encode() + b"\n")
async def sender():
    c = await asyncpg.connect(dsn)
    st = await c.prepare(ENQ)
    sent = []
    for _ in range(n):
        await asyncio.sleep(0.02)
        i = (await st.fetch())[0][0]
        sent.append((i, now()))
    return sent
r, w = os.pipe()
if os.fork() == 0:
    asyncio.run(worker(w)); os._exit(0)
f = os.fdopen(r)
f.readline()
sent = asyncio.run(sender())
seen = {i: (tn, th) for i, tn, th in json.loads(f.readline())}
print(json.dumps({"notified": [(seen[i][0] - t) / 1e6 for i, t in sent if i in seen],
                  "claimed": [(seen[i][1] - t) / 1e6 for i, t in sent if i in seen]}))
'''


# without this the planner may pick a hash join over the whole table for a batch of 1000 of 200,000 rows
PIN = {
    "PGOPTIONS": " ".join(
        f"-c {setting}=off"
        for setting in ("jit", "enable_seqscan", "enable_bitmapscan", "enable_hashjoin", "enable_mergejoin")
    )
}


def pgbench(pg, db, script, clients, seconds) -> float:
    with tempfile.NamedTemporaryFile("w", suffix=".sql") as f:
        f.write(script)
        f.flush()
        out = subprocess.run(
            [
                pg.bin / "pgbench",
                "-h",
                pg.sock,
                "-U",
                "postgres",
                "-n",
                "-M",
                "prepared",
                "-c",
                str(clients),
                "-j",
                "2" if clients > 1 else "1",
                "-T",
                str(max(1, round(seconds))),
                "-f",
                f.name,
                db,
            ],
            check=False,
            capture_output=True,
            text=True,
            env={**os.environ, **PIN},
        )
    m = re.search(r"tps = ([\d.]+)", out.stdout)
    if not m:
        raise RuntimeError(out.stderr[-500:])
    return float(m[1])


def measure(pg, env, seconds, log) -> dict:
    from report import pct

    db, res = "b_ceiling", {}

    def fresh(ddl, n):
        pg.create(db)
        pg.psql(db, *[s for s in ddl.replace("{n}", str(n)).split(";") if s.strip()])
        pg.psql(db, "VACUUM ANALYZE")
        pg.psql(db, "CHECKPOINT")

    def put(key, value):
        res[key] = round(value, 1)
        log(f"ceiling: {key}: {value:.0f}/s")

    fresh(PLAIN, 0)
    for c in (1, 8, 32):
        put(f"single-row INSERT, {c} clients (commits/s)", pgbench(pg, db, INSERT1, c, seconds / 2))
    fresh(SPLIT, 0)
    for c in (1, 2):
        put(
            f"1000-row INSERT + 1 event row each, {c} clients (jobs/s)",
            1000 * pgbench(pg, db, INSERT1000, c, seconds / 2),
        )
    for c in (2, 8, 32):
        fresh(PLAIN, int(12000 * seconds))
        put(f"claim + complete, single row, no events, {c} clients (jobs/s)", pgbench(pg, db, SINGLE, c, seconds))
    for name, ddl, script in (("one table", PLAIN, BATCH_PLAIN), ("ready table + HOT", SPLIT, BATCH_SPLIT)):
        for b in (100, 1000):
            for c in (1, 2):
                # as many jobs as can be done; a batch past the end of the table costs nothing and is not counted
                n = 200_000
                fresh(ddl, n)
                tx = pgbench_count(pg, db, script.replace("{b}", str(b)), c, n // b)
                put(f"claim + complete, batches of {b}, 3 event rows/job, {name}, {c} clients (jobs/s)", n / tx)
    for sync in ("on", "off"):
        fresh(SPLIT, 0)
        out = subprocess.run(
            [env["python"], "-c", LATENCY, pg.dsn(db), "200", sync], check=False, capture_output=True, text=True
        )
        if out.returncode:
            raise RuntimeError(out.stderr[-1000:])
        d = json.loads(out.stdout)
        if sync == "on":
            res["insert commit -> notification, ms"] = {f"p{p}": pct(d["notified"], p) for p in (50, 95, 99)}
        res[f"insert commit -> claimed (claim's synchronous_commit = {sync}), ms"] = {
            f"p{p}": pct(d["claimed"], p) for p in (50, 95, 99)
        }
    log(f"ceiling: {res}")
    pg.drop(db)
    return res


def pgbench_count(pg, db, script, clients, transactions) -> float:
    """Seconds for a fixed number of transactions."""
    with tempfile.NamedTemporaryFile("w", suffix=".sql") as f:
        f.write(script)
        f.flush()
        out = subprocess.run(
            [
                pg.bin / "pgbench",
                "-h",
                pg.sock,
                "-U",
                "postgres",
                "-n",
                "-M",
                "prepared",
                "-c",
                str(clients),
                "-j",
                str(clients),
                "-t",
                str(transactions // clients),
                "-f",
                f.name,
                db,
            ],
            check=False,
            capture_output=True,
            text=True,
            env={**os.environ, **PIN},
        )
    m = re.search(r"tps = ([\d.]+)", out.stdout)
    if not m:
        raise RuntimeError(out.stderr[-500:])
    return transactions / float(m[1])
