import asyncio
from typing import ClassVar

from adapter_api import Adapter


class Saq(Adapter):
    name = "saq"
    version = "0.26.4"
    requirements = ("saq[postgres]==0.26.4", "psycopg[binary,pool]==3.3.8", "uvloop==0.23.0")
    configs: ClassVar = {
        "best": {"concurrency": 50, "pool": 10, "uvloop": True},
        "default": {"concurrency": 10, "pool": 20},
    }
    main_table = "saq_jobs"
    dag = "chained enqueue"

    def unfinished_sql(self):
        return (
            "SELECT count(*) FROM saq_jobs WHERE status IN ('queued', 'active') "
            "AND scheduled < extract(epoch FROM now()) + 3600 AND {tail}"
        )

    def filler_sql(self, done, future):
        text = '{"function":"noop","kwargs":{},"queue":"default","key":"%s","id":"%s"}'
        job = f"convert_to(format('{text}', k, k), 'UTF8')"
        return [
            f"""INSERT INTO saq_jobs (key, job, queue, status, scheduled, expire_at)
                SELECT k, {job}, 'default', 'complete', extract(epoch FROM now()) - 60,
                       extract(epoch FROM now()) + 86400
                FROM (SELECT 'saq:job:default:' || gen_random_uuid() AS k FROM generate_series(1, {done})) x""",
            f"""INSERT INTO saq_jobs (key, job, queue, status, scheduled)
                SELECT k, {job}, 'default', 'queued', extract(epoch FROM now()) + 86400 + g / 1000
                FROM (SELECT 'saq:job:default:' || gen_random_uuid() AS k, g FROM generate_series(1, {future}) g) x""",
        ]

    def queue(self, dsn, cfg):
        import logging

        from saq import Queue

        logging.getLogger("saq").setLevel(logging.WARNING)
        return Queue.from_url(dsn, name="default", min_size=4, max_size=cfg.get("pool", 20))

    def setup(self, dsn):
        async def go():
            q = self.queue(dsn, {})
            await q.connect()
            await q.disconnect()

        asyncio.run(go())

    def enqueue_many(self, dsn, n, cfg, hooks, function="noop", **kwargs):
        # no bulk call: 20 enqueues in flight over the pool
        async def go():
            q = self.queue(dsn, cfg)
            await q.connect()
            hooks.start()
            done = 0

            async def lane():
                nonlocal done
                while done < n and not hooks.expired():
                    done += 1
                    await q.enqueue(function, **kwargs)

            await asyncio.gather(*[lane() for _ in range(20)])
            hooks.stop(done)
            await q.disconnect()

        asyncio.run(go())

    def enqueue_workflows(self, dsn, n, cfg, hooks):
        self.enqueue_many(dsn, n, cfg, hooks, "step", k=0)

    def enqueue_paced(self, dsn, n, gap, cfg, hooks):
        async def go():
            q = self.queue(dsn, cfg)
            await q.connect()
            hooks.begin_pacing(gap)
            for i in range(n):
                await asyncio.sleep(hooks.due_in(i))
                t0 = hooks.now()
                await q.enqueue("noop", i=i)
                hooks.inserted(i, t0)
            await q.disconnect()

        asyncio.run(go())

    def run_worker(self, dsn, cfg, hooks):
        from saq import Worker

        async def noop(ctx, *, i=None):
            hooks.job(i)

        async def step(ctx, *, k):
            if k == 3:
                hooks.job()
            else:
                await ctx["worker"].queue.enqueue("step", k=k + 1)

        async def go():
            q = self.queue(dsn, cfg)
            await q.connect()
            w = Worker(q, functions=[("noop", noop), ("step", step)], concurrency=cfg["concurrency"])
            w.SIGNALS = []
            hooks.ready()
            await w.start()

        asyncio.run(go())


ADAPTER = Saq()
