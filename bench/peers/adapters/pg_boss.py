from typing import ClassVar

from adapter_api import Adapter


class PgBoss(Adapter):
    name = "pg-boss"
    version = "12.35.0"
    language = "Node 24"
    npm = ("pg-boss@12.35.0",)
    node_script = "node/pg_boss.mjs"
    configs: ClassVar = {
        "best": {
            "queue": "noop",
            "notify": True,
            "work": {
                "batchSize": 1000,
                "localConcurrency": 4,
                "burstWhenBatchFull": True,
                "pollingIntervalSeconds": 0.5,
                "notifyPollingIntervalSeconds": 0.5,
            },
        },
        "default": {"queue": "silent", "notify": False, "work": {}},
    }
    main_table = "pgboss.job_common"
    dag = "declared DAG"
    fan = "declared DAG"

    def unfinished_sql(self):
        return (
            "SELECT count(*) FROM pgboss.job_common WHERE state < 'completed' "
            "AND start_after < now() + interval '1 hour' AND {tail}"
        )

    def filler_sql(self, done, future):
        cols = "name, policy, retry_limit, expire_seconds, deletion_seconds, keep_until"
        vals = "'noop', 'standard', 2, 900, 604800, now() + interval '14 days'"
        return [
            f"""INSERT INTO pgboss.job ({cols}, state, started_on, completed_on, created_on, start_after)
                SELECT {vals}, 'completed', now(), now(), now() - interval '1 day', now() - interval '1 day'
                FROM generate_series(1, {done})""",
            f"""INSERT INTO pgboss.job ({cols}, state, created_on, start_after)
                SELECT {vals}, 'created', now() - interval '1 day', now() + interval '1 day' + g * interval '1 ms'
                FROM generate_series(1, {future}) g""",
        ]

    finest = 60
    schedule_config: ClassVar = {
        "boss": {
            "useListenNotify": True,
            "cronMonitorIntervalSeconds": 1,
            "cronWorkerIntervalSeconds": 1,
            "superviseIntervalSeconds": 1,
            "monitorIntervalSeconds": 1,
        },
        "queue": {"notify": True, "retryLimit": 20, "retryDelay": 0, "heartbeatSeconds": 10, "expireInSeconds": 60},
        "work": {"batchSize": 1, "localConcurrency": 20, "pollingIntervalSeconds": 0.5},
        "schedule": {"missed": "once"},
    }


ADAPTER = PgBoss()
