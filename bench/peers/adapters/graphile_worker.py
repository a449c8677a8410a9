from typing import ClassVar

from adapter_api import Adapter


class GraphileWorker(Adapter):
    name = "graphile-worker"
    version = "0.18.0"
    language = "Node 24"
    npm = ("graphile-worker@0.18.0",)
    node_script = "node/graphile_worker.mjs"
    configs: ClassVar = {
        # its "performance" page: local queue and batched completion
        "best": {
            "concurrentJobs": 24,
            "maxPoolSize": 10,
            "localQueue": {"size": 1000},
            "completeJobBatchDelay": 0,
            "failJobBatchDelay": 0,
        },
        "default": {},
    }
    main_table = "graphile_worker._private_jobs"
    dag = "chained enqueue"

    def unfinished_sql(self):
        return "SELECT count(*) FROM graphile_worker._private_jobs WHERE run_at < now() + interval '1 hour' AND {tail}"

    def filler_sql(self, done, future):
        # finished jobs are deleted: nothing of them stays
        return [
            "INSERT INTO graphile_worker._private_tasks (identifier) VALUES ('noop') ON CONFLICT DO NOTHING",
            f"""INSERT INTO graphile_worker._private_jobs (task_id, run_at)
                SELECT (SELECT id FROM graphile_worker._private_tasks WHERE identifier = 'noop'),
                       now() + interval '1 day' + g * interval '1 ms' FROM generate_series(1, {future}) g""",
        ]


ADAPTER = GraphileWorker()
