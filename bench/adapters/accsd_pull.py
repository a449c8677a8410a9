"""accsd's pull mode for the peers' benchmark (bench/peers): the real `Service.run`, as a service's author has it.

    python3 bench/peers/run_peers.py --systems accsd_pull,accsd,pgqueuer

Enqueueing and the tables are those of the adapter of the bare verbs.
"""

import asyncio
import importlib.util
import os
import subprocess
import sys
import tempfile
from datetime import datetime
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
        if is_fan := cfg.get("fan", False):
            _VERBS.builder_beside(dsn)

        @service.task
        async def noop(task: Task):
            if is_fan:
                if task.envelope["task_key"] == "join":
                    hooks.job()
                return _VERBS.PARTS if task.envelope["task_key"] == "split" else None
            if not is_dag:
                hooks.job(task.options.get("i"))
            elif task.envelope["task_key"] == "d":
                hooks.job()
            return None

        service.run(concurrency=cfg["concurrency"], node=f"w{os.getpid()}", when_ready=hooks.ready)

    own_python = True
    schedule_config: ClassVar = {"lease": 5}

    def declare_schedules(self, dsn, schedules, cfg):
        import asyncpg

        async def go():
            connection = await asyncpg.connect(dsn)
            await connection.executemany(
                "INSERT INTO schedules (name, schedule_kind, schedule_expr, workflow, overlap, missed)"
                " VALUES ($1, 'cron', $2, 'noop', 'allow', 'all')",
                [(name, "* * * * *" if n == 60 else f"*/{n} * * * * *") for name, n in schedules.items()],
            )
            await connection.close()

        asyncio.run(go())

    def run_schedules(self, dsn, schedules, cfg, hooks):
        """A builder and a service in pull mode, which die together: they are one group."""
        node = f"w{hooks.params['slot']}"
        os.environ |= {
            "ACC_DB_URL": dsn,
            "ACC_STATE_DIR": hooks.params["state"],
            "ACC_LOG_LEVEL": "warn",
            "ACC_HEARTBEAT_TTL_SEC": str(cfg["lease"]),
            "PYTHONPATH": str(_VERBS.ROOT),
        }
        builder = [sys.executable, "-m", "accsd", "--role", "builder"]
        subprocess.Popen(builder, env={**os.environ, "ACC_NODE_NAME": f"builder-{node}"})
        sys.path.insert(0, str(_VERBS.ROOT))
        from accsd.sdk import Service, Task

        service = Service("noop")

        @service.task
        async def noop(task: Task):
            trigger = task.envelope["trigger"]
            async with hooks.running(trigger["schedule"], datetime.fromisoformat(trigger["due_at"]).timestamp()):
                pass

        service.run(concurrency=20, node=node)


ADAPTER = AccsdPull()
