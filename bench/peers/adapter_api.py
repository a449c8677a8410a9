"""Plug-in interface of the benchmark: one file per system in adapters/.

A file `adapters/<name>.py` defines `ADAPTER`, an instance of a subclass of `Adapter`.
Modules are imported twice: by the orchestrator (plain stdlib Python: so import the measured
library lazily, inside the methods) and by `child.py` inside the venv that holds the library.

Orchestrator side (SQL only):
    unfinished_sql()          one row, one number: runnable or running jobs not yet durably finished.
                              Must contain {tail}: replaced by TRUE or, in W4, by a ctid condition on
                              main_table that leaves the filler's pages out (polling must be cheap)
    filler_sql(done, future)  statements that fill the tables for W4, as the system itself would

Child side (each call is its own process; may block; killed with SIGKILL when measured):
    setup(dsn)                          create the schema in an empty database
    enqueue_many(dsn, n, cfg, hooks)    W1: hooks.start(); insert n no-op jobs; hooks.stop(count).
                                        Stop early when hooks.expired() is true.
    enqueue_paced(dsn, n, gap, cfg, hooks)
                                        W3: for each i: hooks.pace(i); t0 = hooks.now(); insert one
                                        job with payload i, awaited to commit; hooks.inserted(i, t0)
    run_worker(dsn, cfg, hooks)         W2..W5: hooks.ready() right before the first claim is possible;
                                        the no-op handler calls hooks.job(i) (i = payload or None)
    enqueue_workflows(dsn, n, cfg, hooks)
                                        W5: n workflows a->b->c->d; only d's handler calls hooks.job()
                                        (run_worker gets cfg["dag"] = True)
    enqueue_fans(dsn, n, cfg, hooks)    W6: n workflows split -> FAN items -> join; only join's handler calls
                                        hooks.job() (run_worker gets cfg["fan"] = True)

    declare_schedules(dsn, schedules, cfg)
                                        run_schedules.py, once: where a schedule is a row. schedules: {name: seconds}
    run_schedules(dsn, schedules, cfg, hooks)
                                        scheduler and worker in one process, killed all the time. What a schedule runs
                                        is `async with hooks.running(name, due)`: due in seconds of the epoch, or None
                                        where the system does not tell its functions

A Node system sets `node_script` (a .mjs file beside it) that speaks the same protocol, see
`adapters/node/harness.mjs`; then only the orchestrator side is Python.
"""

from __future__ import annotations

from typing import ClassVar

FAN = 100  # items of each workflow of W6


class Adapter:
    name = "?"  # as shown in the tables
    module = ""  # filled in by the loader
    version = ""  # pinned version, shown in the tables
    language = "Python"
    peer = True  # False for accsd: it is compared with the best peer, not one of them
    requirements: tuple[str, ...] = ()  # pip requirement strings, pinned
    npm: tuple[str, ...] = ()  # npm package specs, pinned
    node_script: str | None = None
    # "best": documented best-throughput settings; "default": as the quick start leaves it.
    configs: ClassVar[dict[str, dict]] = {"best": {}}
    main_table = ""  # the table that holds the jobs
    default_workloads = ("W2", "W3")  # what is measured for the "default" config
    dag: str | None = None  # how W5 is done: "declared DAG", "steps", "chained enqueue"
    fan: str | None = None  # how W6 is done
    event_rows = 0  # rows of a per-job event log written for a job's whole life
    skip: tuple[str, ...] = ()  # workloads that do not apply

    def unfinished_sql(self) -> str:
        raise NotImplementedError

    def filler_sql(self, done: int, future: int) -> list[str]:
        raise NotImplementedError

    def setup(self, dsn: str) -> None:
        raise NotImplementedError

    def enqueue_many(self, dsn, n, cfg, hooks) -> None:
        raise NotImplementedError

    def enqueue_paced(self, dsn, n, gap, cfg, hooks) -> None:
        raise NotImplementedError

    def run_worker(self, dsn, cfg, hooks) -> None:
        raise NotImplementedError

    def enqueue_workflows(self, dsn, n, cfg, hooks) -> None:
        raise NotImplementedError

    def enqueue_fans(self, dsn, n, cfg, hooks) -> None:
        raise NotImplementedError

    finest = 1  # seconds between two due times of its finest schedule
    own_python = False  # runs in the orchestrator's Python, and not in the venv of the peers
    schedule_config: ClassVar[dict] = {}  # what makes it lose least and notice a dead process soonest

    def declare_schedules(self, dsn, schedules, cfg) -> None:
        pass

    def run_schedules(self, dsn, schedules, cfg, hooks) -> None:
        raise NotImplementedError
