"""accsd's pull mode for the peers' benchmark (bench/peers): the real `Service.run`, as a service's author has it.

    python3 bench/peers/run_peers.py --systems accsd_pull,accsd,pgqueuer

Enqueueing and the tables are those of the adapter of the bare verbs.
"""

import importlib.util
import os
import sys
import tempfile
from pathlib import Path
from typing import ClassVar

_SPEC = importlib.util.spec_from_file_location("adapter_accsd_verbs", Path(__file__).with_name("accsd.py"))
_VERBS = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(_VERBS)


class AccsdPull(_VERBS.Accsd):
    name = "accsd pull"
    version = "0.1 (Service.run)"
    requirements = (
        "anyio==4.16.0",
        "asyncpg==0.32.0",
        "orjson==3.13.0",
        "prometheus-client==0.26.0",
        "pydantic==2.14.3",
        "structlog==26.1.0",
        "uvloop==0.23.0",
    )
    configs: ClassVar = {
        "best": {**_VERBS.Accsd.configs["best"], "concurrency": 1000},
        "default": {**_VERBS.Accsd.configs["best"], "concurrency": 16},
    }

    def run_worker(self, dsn, cfg, hooks):
        sys.path.insert(0, str(_VERBS.ROOT))
        os.environ |= {"ACC_DB_URL": dsn, "ACC_STATE_DIR": tempfile.mkdtemp(), "ACC_LOG_LEVEL": "warn"}
        from accsd.sdk import Service, Task

        service = Service("noop")
        is_dag = cfg.get("dag", False)

        @service.task
        async def noop(task: Task):
            if not is_dag:
                hooks.job(task.options.get("i"))
            elif task.envelope["task_key"] == "d":
                hooks.job()

        service.run(concurrency=cfg["concurrency"], node=f"w{os.getpid()}", when_ready=hooks.ready)


ADAPTER = AccsdPull()
