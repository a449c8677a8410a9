"""accsd for the peers' benchmark (bench/peers): the bare SQL verbs, as any client would call them.

    python3 bench/peers/run_peers.py --systems accsd,pgqueuer,graphile_worker

Everything is on as shipped: fence, lease, global order, guard, an event for each transition. A worker has one
connection that claims ahead and one that finishes, so that a batch is finished while the next is claimed.
"""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from datetime import timedelta
from pathlib import Path
from typing import ClassVar

from adapter_api import FAN, Adapter

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from bench.filler import FINISHED, FUTURE  # noqa: E402 - from the repository, wherever the harness runs

LEASE = timedelta(seconds=120)
CHAIN = [
    {"key": key, "service": "noop", "depends_on": list(after)} for key, after in zip("abcd", ("", *"abc"), strict=True)
]
FANS = [
    {"key": "split", "service": "noop"},
    {
        "key": "item",
        "service": "noop",
        "depends_on": ["split"],
        "for_each": "steps.split.parts",
        "with": {"n": "${item}"},
    },
    {"key": "join", "service": "noop", "depends_on": ["item"]},
]
# the same with its items written down, as a declared DAG of a peer has them
DECLARED = [
    {"key": "split", "service": "noop"},
    *({"key": f"item{n}", "service": "noop", "depends_on": ["split"]} for n in range(FAN)),
    {"key": "join", "service": "noop", "depends_on": [f"item{n}" for n in range(FAN)]},
]
PARTS = {"parts": list(range(FAN))}


# The tasks in motion: a blocked step becomes a waiting one in the transaction that finishes its last dependency.
# The narrow tables know nothing of the filler, so the harness's {tail} has nothing to leave out.
UNFINISHED = """
SELECT (SELECT count(*) FROM accs.waiting WHERE hold IS NULL) + (SELECT count(*) FROM accs.live) /* {tail} */
"""


# A plain INSERT is a submission; the builder makes the tasks. The verb makes them in the same transaction.
SUBMIT = {
    "insert": "INSERT INTO jobs (workflow_id) SELECT * FROM unnest($1::uuid[]) RETURNING id",
    "verb": "SELECT job_id FROM accs.submit_jobs($1)",
}


class Accsd(Adapter):
    name = "accsd"
    version = "0.1 (SQL verbs)"
    peer = False
    requirements = ("asyncpg==0.32.0", "uvloop==0.23.0")
    configs: ClassVar = {
        "best": {"batch": 1000, "uvloop": True, "submit": "insert"},
        "default": {"batch": 1000, "uvloop": True, "submit": "verb", "declared": True},
    }
    default_workloads = ("W1", "W6")
    main_table = "public.job_tasks"
    dag = "declared DAG"
    fan = "for_each, a builder beside"
    event_rows = 5  # job started, claimed, started, done, job done

    def unfinished_sql(self):
        return UNFINISHED

    def filler_sql(self, done, future):
        return [FINISHED.format(done=done), FUTURE.format(future=future)]

    def setup(self, dsn):
        import asyncpg

        async def go():
            connection = await asyncpg.connect(dsn)
            await connection.execute((ROOT / "schema.sql").read_text())
            await connection.execute(
                "INSERT INTO workflows (name, steps) VALUES ('noop', $1)", '[{"key": "a", "service": "noop"}]'
            )
            await connection.execute("INSERT INTO workflows (name, steps) VALUES ('chain', $1)", json.dumps(CHAIN))
            await connection.execute("INSERT INTO workflows (name, steps) VALUES ('fan', $1)", json.dumps(FANS))
            await connection.execute(
                "INSERT INTO workflows (name, steps) VALUES ('declared', $1)", json.dumps(DECLARED)
            )
            await connection.close()

        asyncio.run(go())

    def enqueue_many(self, dsn, n, cfg, hooks, workflow="noop"):
        import asyncpg

        async def go():
            connection = await asyncpg.connect(dsn)
            which = await connection.fetchval("SELECT id FROM workflows WHERE name = $1", workflow)
            submit = await connection.prepare(SUBMIT[cfg["submit"]])
            hooks.start()
            done = 0
            while done < n and not hooks.expired():
                rows = await submit.fetch([which] * min(1000, n - done))
                done += len(rows)
            hooks.stop(done)
            while await connection.fetch("SELECT FROM accs.instantiate_due_jobs(1000)"):
                pass  # what the builder does with rows that were inserted
            await connection.close()

        asyncio.run(go())

    def enqueue_workflows(self, dsn, n, cfg, hooks):
        self.enqueue_many(dsn, n, cfg, hooks, "chain")

    def enqueue_fans(self, dsn, n, cfg, hooks):
        self.enqueue_many(dsn, n, cfg, hooks, "declared" if cfg.get("declared") else "fan")

    def enqueue_paced(self, dsn, n, gap, cfg, hooks):
        import asyncpg

        async def go():
            connection = await asyncpg.connect(dsn)
            which = await connection.fetchval("SELECT id FROM workflows WHERE name = 'noop'")
            submit = await connection.prepare("SELECT job_id FROM accs.submit_jobs($1, $2)")
            hooks.begin_pacing(gap)
            for i in range(n):
                await asyncio.sleep(hooks.due_in(i))
                began = hooks.now()
                await submit.fetch([which], [f'{{"i": {i}}}'])
                hooks.inserted(i, began)

        asyncio.run(go())

    def run_worker(self, dsn, cfg, hooks):
        if cfg.get("fan") and not cfg.get("declared"):
            builder_beside(dsn)
        asyncio.run(_Worker(cfg, hooks).run(dsn))


def builder_beside(dsn):
    """What evaluates expressions: a builder, as on any control host. It is killed with the group of this process."""
    environ = {"ACC_DB_URL": dsn, "ACC_STATE_DIR": tempfile.mkdtemp(), "ACC_LOG_LEVEL": "warn", "PYTHONPATH": str(ROOT)}
    command = [ROOT / ".venv/bin/python", "-m", "accsd", "--role", "builder"]
    subprocess.Popen(command, env={**os.environ, **environ, "ACC_NODE_NAME": f"builder-{os.getpid()}"})
    asyncio.run(_until_a_builder_is_there(dsn))


async def _until_a_builder_is_there(dsn):
    import asyncpg

    connection = await asyncpg.connect(dsn)
    while not await connection.fetchval("SELECT count(*) FROM accs.daemons WHERE 'builder' = ANY (roles)"):  # noqa: ASYNC110 - nobody tells
        await asyncio.sleep(0.05)
    await connection.close()


class _Worker:
    def __init__(self, cfg, hooks):
        self.batch = cfg["batch"]
        self.dag = cfg.get("dag", False)
        self.fan = cfg.get("fan", False)
        self.hooks = hooks
        self.claimed = asyncio.Queue(maxsize=2)
        self.news = asyncio.Event()

    async def run(self, dsn):
        import asyncpg

        self.me = f"w{os.getpid()}"
        claimer, finisher = [await asyncpg.connect(dsn) for _ in range(2)]
        await claimer.execute("SELECT accs.register_node($1)", self.me)
        await claimer.add_listener("accs_noop", lambda *_: self.news.set())
        # a claim that a crash forgets is only an early retry
        await claimer.execute("SET synchronous_commit = off")
        claim = await claimer.prepare(
            "SELECT task_id, attempt_id, task_key, options FROM accs.claim_tasks('noop', $1, $1, $2, $3, true)"
        )
        finish = await finisher.prepare("SELECT * FROM accs.finish_tasks($1, $2, $3, p_results => $4, p_quiet => true)")
        # of nothing, so that the server has its plans
        await claim.fetch(self.me, 0, LEASE)
        await finish.fetch([], [], self.me, None)
        self.hooks.ready()
        await asyncio.gather(self.claim(claim), self.work(finish))

    async def claim(self, claim):
        while True:
            self.news.clear()
            rows = await claim.fetch(self.me, self.batch, LEASE)
            if rows:
                await self.claimed.put(rows)
            else:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(1):
                        await self.news.wait()

    async def work(self, finish):
        while True:
            rows = await self.claimed.get()
            fence = [row[0] for row in rows], [row[1] for row in rows], self.me
            results = [json.dumps(PARTS) if row[2] == "split" else None for row in rows] if self.fan else None
            for row in rows:
                self.handle(row)
            refused = await finish.fetch(*fence, results)
            assert not refused, refused
            self.news.set()  # a finished step may have freed the next one

    def handle(self, row):
        if self.fan:
            if row[2] == "join":
                self.hooks.job()
        elif not self.dag:
            self.hooks.job(int(row[3][6:-1]) if len(row[3]) > 2 else None)
        elif row[2] == "d":
            self.hooks.job()


ADAPTER = Accsd()
