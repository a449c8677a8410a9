import asyncio
from typing import ClassVar

from adapter_api import Adapter


class Absurd(Adapter):
    name = "absurd"
    version = "0.5.1"
    requirements = ("absurd-sdk==0.5.1", "absurdctl==0.5.1", "psycopg[binary]==3.3.8", "uvloop==0.23.0")
    configs: ClassVar = {
        # one worker object owns one connection; several of them in one process overlap round trips
        "best": {"workers": 8, "concurrency": 50, "poll": 0.02, "uvloop": True},
        "default": {"workers": 1, "concurrency": 1, "poll": 0.25},
    }
    main_table = "absurd.r_default"
    dag = "steps in one task"

    def unfinished_sql(self):
        return (
            "SELECT count(*) FROM absurd.r_default WHERE state IN ('pending', 'running') "
            "AND available_at < now() + interval '1 hour' AND {tail}"
        )

    def filler_sql(self, done, future):
        def both(n, state, at, extra_t, extra_r):
            return f"""WITH x AS (SELECT uuidv7(interval '-1 day') AS t, uuidv7(interval '-1 day') AS r, g
                           FROM generate_series(1, {n}) g),
                t AS (INSERT INTO absurd.t_default (task_id, task_name, params, headers, state, attempts,
                                                    last_attempt_run, max_attempts, enqueue_at{extra_t[0]})
                      SELECT t, 'noop', 'null', null, '{state}', 1, r, 5, now() - interval '1 day'{extra_t[1]} FROM x)
                INSERT INTO absurd.r_default (run_id, task_id, attempt, state, available_at{extra_r[0]})
                SELECT r, t, 1, '{state}', {at}{extra_r[1]} FROM x"""

        return [
            both(
                done,
                "completed",
                "now() - interval '1 day'",
                (", completed_payload, first_started_at", ", 'null', now() - interval '1 day'"),
                (
                    ", started_at, completed_at, claimed_by, result",
                    ", now() - interval '1 day', now() - interval '1 day', 'w', 'null'",
                ),
            ),
            both(future, "pending", "now() + interval '1 day' + g * interval '1 ms'", ("", ""), ("", "")),
        ]

    def setup(self, dsn):
        import absurdctl
        import psycopg

        with psycopg.connect(dsn, autocommit=True) as c:
            c.execute(absurdctl.BUNDLED_SCHEMA_SQL)
            c.execute("SELECT absurd.create_queue('default')")

    def enqueue_many(self, dsn, n, cfg, hooks, task="noop"):
        # no bulk call: one connection per lane
        from absurd_sdk import AsyncAbsurd

        async def go():
            apps = [AsyncAbsurd(dsn) for _ in range(8)]
            for a in apps:
                await a._ensure_connected()
            hooks.start()
            done = 0

            async def lane(a):
                nonlocal done
                while done < n and not hooks.expired():
                    done += 1
                    await a.spawn(task, None, queue="default")

            await asyncio.gather(*[lane(a) for a in apps])
            hooks.stop(done)

        asyncio.run(go())

    def enqueue_workflows(self, dsn, n, cfg, hooks):
        self.enqueue_many(dsn, n, cfg, hooks, "flow")

    def enqueue_paced(self, dsn, n, gap, cfg, hooks):
        from absurd_sdk import AsyncAbsurd

        async def go():
            a = AsyncAbsurd(dsn)
            await a._ensure_connected()
            hooks.begin_pacing(gap)
            for i in range(n):
                await asyncio.sleep(hooks.due_in(i))
                t0 = hooks.now()
                await a.spawn("noop", i, queue="default")
                hooks.inserted(i, t0)

        asyncio.run(go())

    def run_worker(self, dsn, cfg, hooks):
        from absurd_sdk import AsyncAbsurd

        async def nothing():
            return None

        async def go():
            apps = [AsyncAbsurd(dsn) for _ in range(cfg["workers"])]
            for a in apps:

                @a.register_task("noop")
                async def noop(params, ctx):
                    hooks.job(params)

                @a.register_task("flow")
                async def flow(params, ctx):
                    for s in "abcd":
                        await ctx.step(s, nothing)
                    hooks.job()

                await a._ensure_connected()
            hooks.ready()
            await asyncio.gather(
                *[
                    a.start_worker(worker_id=f"w{k}", concurrency=cfg["concurrency"], poll_interval=cfg["poll"])
                    for k, a in enumerate(apps)
                ]
            )

        asyncio.run(go())


ADAPTER = Absurd()
