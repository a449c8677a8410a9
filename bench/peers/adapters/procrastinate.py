import asyncio
from typing import ClassVar

from adapter_api import Adapter


class Procrastinate(Adapter):
    name = "procrastinate"
    version = "3.10.0"
    requirements = ("procrastinate==3.10.0", "psycopg[binary,pool]==3.3.8", "uvloop==0.23.0")
    configs: ClassVar = {
        "best": {"concurrency": 20, "pool": 10, "uvloop": True},
        "default": {"concurrency": 1, "pool": 4},
    }
    main_table = "procrastinate_jobs"
    dag = "chained enqueue"
    event_rows = 3  # deferred, started, succeeded

    def unfinished_sql(self):
        return (
            "SELECT count(*) FROM procrastinate_jobs "
            "WHERE status IN ('todo', 'doing') AND scheduled_at IS NULL AND {tail}"
        )

    def filler_sql(self, done, future):
        # triggers are off for the filler; the rows they would have written are inserted directly
        return [
            "ALTER TABLE procrastinate_jobs DISABLE TRIGGER USER",
            f"""INSERT INTO procrastinate_jobs (queue_name, task_name, args, status, attempts)
                SELECT 'default', 'noop', '{{}}', 'succeeded', 1 FROM generate_series(1, {done})""",
            """INSERT INTO procrastinate_events (job_id, type, at)
               SELECT id, t::procrastinate_job_event_type, now() - interval '1 day'
               FROM procrastinate_jobs, unnest(ARRAY['deferred', 'started', 'succeeded']) t""",
            f"""INSERT INTO procrastinate_jobs (queue_name, task_name, args, status, scheduled_at)
                SELECT 'default', 'noop', '{{}}', 'todo', now() + interval '1 day' + g * interval '1 ms'
                FROM generate_series(1, {future}) g""",
            "ALTER TABLE procrastinate_jobs ENABLE TRIGGER USER",
        ]

    def app(self, dsn, cfg, hooks=None):
        import procrastinate

        size = cfg.get("pool", 4)
        app = procrastinate.App(
            connector=procrastinate.PsycopgConnector(conninfo=dsn, min_size=min(4, size), max_size=size)
        )

        @app.task(name="noop")
        async def noop(i=None):
            hooks.job(i)

        @app.task(name="step")
        async def step(k):
            if k == 3:
                hooks.job()
            else:
                await step.defer_async(k=k + 1)

        app.noop, app.step = noop, step
        return app

    def setup(self, dsn):
        app = self.app(dsn, {})

        async def go():
            async with app.open_async():
                await app.schema_manager.apply_schema_async()

        asyncio.run(go())

    def enqueue_many(self, dsn, n, cfg, hooks, kwargs=None, task="noop"):
        app = self.app(dsn, cfg, hooks)

        async def go():
            async with app.open_async():
                hooks.start()
                done = 0
                while done < n and not hooks.expired():
                    k = min(1000, n - done)
                    await getattr(app, task).batch_defer_async(*([kwargs or {}] * k))
                    done += k
                hooks.stop(done)

        asyncio.run(go())

    def enqueue_workflows(self, dsn, n, cfg, hooks):
        self.enqueue_many(dsn, n, cfg, hooks, {"k": 0}, "step")

    def enqueue_paced(self, dsn, n, gap, cfg, hooks):
        app = self.app(dsn, cfg, hooks)

        async def go():
            async with app.open_async():
                hooks.begin_pacing(gap)
                for i in range(n):
                    await asyncio.sleep(hooks.due_in(i))
                    t0 = hooks.now()
                    await app.noop.defer_async(i=i)
                    hooks.inserted(i, t0)

        asyncio.run(go())

    def run_worker(self, dsn, cfg, hooks):
        app = self.app(dsn, cfg, hooks)

        async def go():
            async with app.open_async():
                hooks.ready()
                await app.run_worker_async(concurrency=cfg["concurrency"], install_signal_handlers=False)

        asyncio.run(go())

    # jobs of a dead worker are not taken back by themselves: its documentation has the periodic task for that
    schedule_config: ClassVar = {"uvloop": True, "beat": 1, "dead_after": 5}

    def run_schedules(self, dsn, schedules, cfg, hooks):
        import procrastinate

        app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=dsn, min_size=2, max_size=10))

        def declare(name, every):
            @app.periodic(cron="* * * * *" if every == 60 else f"* * * * * */{every}", periodic_id=name)
            @app.task(name=name)
            async def run(timestamp):
                async with hooks.running(name, timestamp):
                    pass

        for name, every in schedules.items():
            declare(name, every)

        @app.periodic(cron="* * * * * */5")
        @app.task(queueing_lock="retry_stalled_jobs")
        async def retry_stalled_jobs(timestamp):
            for job in await app.job_manager.get_stalled_jobs(seconds_since_heartbeat=cfg["dead_after"]):
                await app.job_manager.retry_job(job)

        async def go():
            async with app.open_async():
                await app.run_worker_async(
                    concurrency=20,
                    install_signal_handlers=False,
                    update_heartbeat_interval=cfg["beat"],
                    stalled_worker_timeout=cfg["dead_after"],
                )

        asyncio.run(go())


ADAPTER = Procrastinate()
