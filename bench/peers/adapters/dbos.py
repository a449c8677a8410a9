import os
import time
from typing import ClassVar

from adapter_api import FAN, Adapter


class Dbos(Adapter):
    name = "dbos"
    version = "3.3.0"
    requirements = ("dbos==3.3.0", "psycopg[binary]==3.3.8", "SQLAlchemy==2.1.8")
    configs: ClassVar = {
        # the queue is polled (nothing announces a new workflow) and its limits live in the database
        "best": {"queue": "q", "worker_concurrency": 100, "poll": 0.01, "pool": 20, "threads": 32},
        "default": {"queue": "qd"},
    }
    main_table = "dbos.workflow_status"
    dag = "steps in one workflow"
    fan = "a workflow that enqueues others and awaits them"

    def unfinished_sql(self):
        return "SELECT count(*) FROM dbos.workflow_status WHERE status IN ('ENQUEUED', 'PENDING') AND {tail}"

    def filler_sql(self, done, future):
        cols = (
            "workflow_uuid, status, name, application_version, executor_id, created_at, updated_at, "
            "recovery_attempts, inputs, queue_name, priority, serialization, application_name"
        )
        ms = "(extract(epoch FROM now()) * 1000)::bigint"
        return [
            f"""INSERT INTO dbos.workflow_status ({cols}, output, started_at_epoch_ms, completed_at)
                SELECT gen_random_uuid()::text, 'SUCCESS', 'noop', '1', 'local', {ms} - g, {ms} - g, 1,
                       x.inputs, 'q', 0, x.serialization, 'bench', 'gASVAgAAAAAAAABOLg==', {ms} - g, {ms} - g
                FROM generate_series(1, {done}) g,
                     (SELECT 'gASVIAAAAAAAAAB9lCiMBGFyZ3OUKYwGa3dhcmdzlH2UdS4='::text AS inputs,
                             NULL::text AS serialization) x""",
            # a delayed workflow is its own state until a sweep moves it to ENQUEUED
            f"""INSERT INTO dbos.workflow_status ({cols}, delay_until_epoch_ms)
                SELECT gen_random_uuid()::text, 'DELAYED', 'noop', '1', NULL, {ms} - g, {ms} - g, 0,
                       'gASVIAAAAAAAAAB9lCiMBGFyZ3OUKYwGa3dhcmdzlH2UdS4=', 'q', 0, NULL, 'bench', {ms} + 86400000 + g
                FROM generate_series(1, {future}) g""",
        ]

    def setup(self, dsn):
        from dbos import DBOS

        DBOS.migrate(dsn)
        DBOS(config={"name": "bench", "system_database_url": dsn, "log_level": "ERROR", "application_version": "1"})
        DBOS.launch()
        best = self.configs["best"]
        DBOS.register_queue("q", worker_concurrency=best["worker_concurrency"], polling_interval_sec=best["poll"])
        DBOS.register_queue("qd")
        DBOS.register_queue("items", worker_concurrency=best["worker_concurrency"], polling_interval_sec=best["poll"])
        os._exit(0)

    def client(self, dsn):
        from dbos import DBOSClient

        return DBOSClient(system_database_url=dsn, application_name="bench")

    def enqueue_many(self, dsn, n, cfg, hooks, workflow="noop"):
        # no bulk call; enqueue_in_transaction lets 500 share one commit
        import sqlalchemy as sa

        c = self.client(dsn)
        engine = sa.create_engine(sa.make_url(dsn).set(drivername="postgresql+psycopg"))
        with engine.connect():
            pass
        hooks.start()
        done = 0
        while done < n and not hooks.expired():
            with engine.begin() as conn:
                for _ in range(min(500, n - done)):
                    c.enqueue_in_transaction(conn, {"workflow_name": workflow, "queue_name": cfg["queue"]})
                    done += 1
                    if hooks.expired():
                        break
        hooks.stop(done)
        os._exit(0)

    def enqueue_workflows(self, dsn, n, cfg, hooks):
        self.enqueue_many(dsn, n, cfg, hooks, "flow")

    def enqueue_fans(self, dsn, n, cfg, hooks):
        self.enqueue_many(dsn, n, cfg, hooks, "fan")

    def enqueue_paced(self, dsn, n, gap, cfg, hooks):
        c = self.client(dsn)
        hooks.begin_pacing(gap)
        for i in range(n):
            time.sleep(hooks.due_in(i))
            t0 = hooks.now()
            c.enqueue({"workflow_name": "noop", "queue_name": cfg["queue"]}, i)
            hooks.inserted(i, t0)
        os._exit(0)

    def run_worker(self, dsn, cfg, hooks):
        from dbos import DBOS, DBOSConfig

        config: DBOSConfig = {
            "name": "bench",
            "system_database_url": dsn,
            "log_level": "ERROR",
            "application_version": "1",
            "executor_id": f"e{os.getpid()}",
            "run_migrations": False,
        }
        if "pool" in cfg:
            config["sys_db_pool_size"] = cfg["pool"]
        if "threads" in cfg:
            config["max_executor_threads"] = cfg["threads"]
        DBOS(config=config)

        @DBOS.workflow(name="noop")
        def noop(i=None):
            hooks.job(i)

        @DBOS.step(name="step")
        def step():
            return None

        @DBOS.workflow(name="flow")
        def flow():
            for _ in range(4):
                step()
            hooks.job()

        @DBOS.workflow(name="item")
        def item():
            return None

        @DBOS.workflow(name="fan")
        async def fan():  # async: one that waits holds no thread
            handles = [await DBOS.enqueue_workflow_async("items", item) for _ in range(FAN)]
            for handle in handles:
                await handle.get_result(polling_interval_sec=cfg.get("poll", 1.0))
            hooks.job()

        DBOS.listen_queues([cfg["queue"], "items"])
        hooks.ready()
        DBOS.launch()
        while True:
            time.sleep(60)


ADAPTER = Dbos()
