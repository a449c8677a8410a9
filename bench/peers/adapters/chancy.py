import asyncio
from typing import ClassVar

from adapter_api import Adapter


class Chancy(Adapter):
    name = "chancy"
    version = "0.26.0"
    requirements = ("chancy==0.26.0", "psycopg[binary,pool]==3.3.8", "uvloop==0.23.0")
    configs: ClassVar = {
        "best": {"executor": "async", "concurrency": 1000, "eager": True, "flush": 0.05, "uvloop": True},
        "default": {"executor": "process", "func": "noop_sync"},
    }
    main_table = "chancy_jobs"
    dag = "declared DAG"

    def unfinished_sql(self):
        return (
            "SELECT (SELECT count(*) FROM chancy_jobs WHERE state IN ('pending', 'retrying', 'running') "
            "AND scheduled_at < now() + interval '1 hour' AND {tail}) + "
            "(SELECT count(*) FROM chancy_workflows WHERE state IN ('pending', 'running'))"
        )

    def filler_sql(self, done, future):
        return [
            f"""INSERT INTO chancy_jobs (id, queue, func, state, attempts, started_at, completed_at)
                SELECT uuidv7(interval '-1 day'), 'default', 'noop', 'succeeded', 1, now(), now()
                FROM generate_series(1, {done})""",
            f"""INSERT INTO chancy_jobs (id, queue, func, state, scheduled_at)
                SELECT uuidv7(interval '-1 day'), 'default', 'noop', 'pending',
                       now() + interval '1 day' + g * interval '1 ms'
                FROM generate_series(1, {future}) g""",
        ]

    def app(self, dsn, cfg=None):
        import logging

        import chancy

        if cfg is None:
            cfg = {}
        lg = logging.getLogger("chancy-bench")
        lg.setLevel(logging.ERROR)
        if cfg.get("dag"):  # workflows pushed before the worker runs are found by polling only
            from chancy.plugins.leadership import ImmediateLeadership
            from chancy.plugins.workflow import WorkflowPlugin

            return chancy.Chancy(dsn, log=lg, plugins=[ImmediateLeadership(), WorkflowPlugin(polling_interval=1)])
        return chancy.Chancy(dsn, log=lg)

    def setup(self, dsn):
        async def go():
            async with self.app(dsn) as c:
                await c.migrate()

        asyncio.run(go())

    def enqueue_many(self, dsn, n, cfg, hooks):
        from chancy import Job

        async def go():
            async with self.app(dsn) as c:
                hooks.start()
                done = 0
                while done < n and not hooks.expired():
                    k = min(2000, n - done)
                    async for _ in c.push_many(
                        [Job(func=self.path(cfg.get("func", "noop"))) for _ in range(k)], batch_size=1000
                    ):
                        pass
                    done += k
                hooks.stop(done)

        asyncio.run(go())

    def path(self, f):
        return f"chancy_bench_jobs.{f}"

    def enqueue_workflows(self, dsn, n, cfg, hooks):
        from chancy import Job
        from chancy.plugins.workflow import Workflow, WorkflowPlugin

        def flow():
            w = Workflow("w")
            prev = None
            for s in "abcd":
                w.add(s, Job(func=self.path("step"), kwargs={"last": s == "d"}), [prev] if prev else [])
                prev = s
            return w

        async def go():
            async with self.app(dsn) as c:
                hooks.start()
                done = 0
                while done < n and not hooks.expired():
                    await WorkflowPlugin.push(c, flow())
                    done += 1
                hooks.stop(done)

        asyncio.run(go())

    def enqueue_paced(self, dsn, n, gap, cfg, hooks):
        from chancy import Job

        async def go():
            async with self.app(dsn) as c:
                hooks.begin_pacing(gap)
                for i in range(n):
                    await asyncio.sleep(hooks.due_in(i))
                    t0 = hooks.now()
                    await c.push(Job(func=self.path(cfg.get("func", "noop")), kwargs={"i": i}))
                    hooks.inserted(i, t0)

        asyncio.run(go())

    def run_worker(self, dsn, cfg, hooks):
        import os
        import sys
        from pathlib import Path

        import chancy
        from chancy import Queue, Worker

        helpers = str(Path(__file__).parent / "helpers")
        sys.path.insert(0, helpers)
        os.environ.update(
            PYTHONPATH=helpers, BENCH_PID=str(os.getpid()), BENCH_RECORD="1" if hooks.params.get("record") else "0"
        )

        async def go():
            async with self.app(dsn, cfg) as c:
                if cfg["executor"] == "async":
                    await c.declare(
                        Queue(
                            "default",
                            executor=chancy.Chancy.Executor.Async,
                            concurrency=cfg["concurrency"],
                            eager_polling=cfg["eager"],
                            polling_interval=1,
                        ),
                        upsert=True,
                    )
                w = Worker(c, register_signal_handlers=False)
                if "flush" in cfg:
                    w.send_outgoing_interval = cfg["flush"]
                hooks.ready()
                async with w:
                    await w.wait_for_shutdown()

        asyncio.run(go())


ADAPTER = Chancy()
