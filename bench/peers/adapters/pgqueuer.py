import asyncio
from typing import ClassVar

from adapter_api import FAN, Adapter


class PgQueuer(Adapter):
    name = "pgqueuer"
    version = "1.6.0"
    requirements = ("pgqueuer[asyncpg]==1.6.0", "asyncpg==0.32.0", "uvloop==0.23.0")
    configs: ClassVar = {
        # its command line runs workers under uvloop; a pool lets claims and completions overlap
        "best": {"batch": 1000, "pool": 5, "uvloop": True},
        "default": {"batch": 10, "pool": 0, "uvloop": True},
    }
    main_table = "pgqueuer"
    dag = "chained enqueue"
    fan = "chained enqueue, a counter of one's own"
    event_rows = 3  # queued, picked, successful

    def unfinished_sql(self):
        return "SELECT count(*) FROM pgqueuer WHERE execute_after < now() + interval '1 hour' AND {tail}"

    def filler_sql(self, done, future):
        # a finished job leaves the queue table; its three log rows stay
        return [
            "ALTER TABLE pgqueuer DISABLE TRIGGER USER",
            f"""INSERT INTO pgqueuer_log (created, job_id, status, priority, entrypoint, aggregated)
                SELECT now() - interval '1 day', g, s::pgqueuer_status, 0, 'noop', true
                FROM generate_series(1, {done}) g, unnest(ARRAY['queued', 'picked', 'successful']) s""",
            f"SELECT setval('pgqueuer_id_seq', {done})",
            f"""INSERT INTO pgqueuer (priority, execute_after, status, entrypoint)
                SELECT 0, now() + interval '1 day' + g * interval '1 ms', 'queued', 'noop'
                FROM generate_series(1, {future}) g""",
            "ALTER TABLE pgqueuer ENABLE TRIGGER USER",
        ]

    def setup(self, dsn):
        import asyncpg
        from pgqueuer.queries import Queries

        async def go():
            c = await asyncpg.connect(dsn)
            await Queries.from_asyncpg_connection(c).install()
            await c.execute("CREATE TABLE fans (id int PRIMARY KEY, open int NOT NULL)")
            await c.close()

        asyncio.run(go())

    def enqueue_many(self, dsn, n, cfg, hooks, entrypoint="noop", payload=None):
        import asyncpg
        from pgqueuer.queries import Queries

        async def go():
            c = await asyncpg.connect(dsn)
            q = Queries.from_asyncpg_connection(c)
            hooks.start()
            done = 0
            while done < n and not hooks.expired():
                k = min(1000, n - done)
                await q.enqueue([entrypoint] * k, [payload] * k, [0] * k)
                done += k
            hooks.stop(done)

        asyncio.run(go())

    def enqueue_workflows(self, dsn, n, cfg, hooks):
        self.enqueue_many(dsn, n, cfg, hooks, "step", b"0")

    def enqueue_fans(self, dsn, n, cfg, hooks):
        import asyncpg
        from pgqueuer.queries import Queries

        async def go():
            c = await asyncpg.connect(dsn)
            q = Queries.from_asyncpg_connection(c)
            hooks.start()
            await q.enqueue(["split"] * n, [b"%d" % i for i in range(n)], [0] * n)
            hooks.stop(n)

        asyncio.run(go())

    def enqueue_paced(self, dsn, n, gap, cfg, hooks):
        import asyncpg
        from pgqueuer.queries import Queries

        async def go():
            c = await asyncpg.connect(dsn)
            q = Queries.from_asyncpg_connection(c)
            hooks.begin_pacing(gap)
            for i in range(n):
                await asyncio.sleep(hooks.due_in(i))
                t0 = hooks.now()
                await q.enqueue("noop", b"%d" % i)
                hooks.inserted(i, t0)

        asyncio.run(go())

    def run_worker(self, dsn, cfg, hooks):
        import asyncpg
        import pgqueuer
        from pgqueuer.queries import Queries

        async def go():
            if cfg["pool"]:
                db = await asyncpg.create_pool(dsn, min_size=2, max_size=cfg["pool"])
                pgq, _q = pgqueuer.PgQueuer.from_asyncpg_pool(db), Queries.from_asyncpg_pool(db)
            else:
                db = await asyncpg.connect(dsn)
                pgq, _q = pgqueuer.PgQueuer.from_asyncpg_connection(db), Queries.from_asyncpg_connection(db)

            @pgq.entrypoint("noop")
            async def noop(job):
                hooks.job(job.payload)

            if cfg.get("dag"):

                @pgq.entrypoint("step")
                async def step(job):
                    k = int(job.payload)
                    if k == 3:
                        hooks.job()
                    else:
                        await pgq.queries.enqueue("step", b"%d" % (k + 1))

            if cfg.get("fan"):

                @pgq.entrypoint("split")
                async def split(job):
                    await db.execute("INSERT INTO fans VALUES ($1, $2)", int(job.payload), FAN)
                    await pgq.queries.enqueue(["item"] * FAN, [job.payload] * FAN, [0] * FAN)

                @pgq.entrypoint("item")
                async def item(job):
                    # an item that runs twice is counted twice: its end and its count are two transactions
                    count = "UPDATE fans SET open = open - 1 WHERE id = $1 RETURNING open"
                    if await db.fetchval(count, int(job.payload)) == 0:
                        await pgq.queries.enqueue("join", job.payload)

                @pgq.entrypoint("join")
                async def join(job):
                    hooks.job()

            hooks.ready()
            await pgq.run(batch_size=cfg["batch"])

        asyncio.run(go())

    schedule_config: ClassVar = {"uvloop": True}

    def run_schedules(self, dsn, schedules, cfg, hooks):
        import asyncpg
        import pgqueuer

        async def go():
            pool = await asyncpg.create_pool(dsn, min_size=2, max_size=5)
            pgq = pgqueuer.PgQueuer.from_asyncpg_pool(pool)

            def declare(name, every):
                @pgq.schedule(name, "* * * * *" if every == 60 else f"* * * * * */{every}")
                async def run(schedule):  # its next_run is the one after this
                    async with hooks.running(name, None):
                        pass

            for name, every in schedules.items():
                declare(name, every)
            await pgq.run()

        asyncio.run(go())


ADAPTER = PgQueuer()
