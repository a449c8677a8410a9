"""Attempts of the process runner on a real database, without a daemon around them: what is claimed is run."""

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import anyio
from anyio.abc import TaskGroup

from accsd.db import ClaimedTask, Database, claim_tasks
from accsd.metrics import Metrics
from accsd.runners.base import Runner
from accsd.runners.process.runner import ProcessRunner
from accsd.settings import ServiceSettings, StorageSettings
from accsd.storage import open_store
from accsd.work.attempt import Attempt
from accsd.work.attempts import Attempts
from accsd.work.context import AttemptContext
from accsd.work.lease import LeaseKeeper, boot_time
from accsd.work.reporter import Reporter
from accsd.work.service import LocalService
from tests.support.eventually import eventually
from tests.support.factory import NODE, SERVICE
from tests.support.tasks import command

LEASE = timedelta(seconds=60)


@dataclass
class Shop:
    """A node's workbench with its heartbeat, and one group of attempts."""

    bench: AttemptContext
    attempts: Attempts
    group: TaskGroup

    def serving(self, program: str, *, service: str = SERVICE, **settings: Any) -> LocalService:
        table = {"runner": "process", "command": command(program), **settings}
        made = ServiceSettings.model_validate(table)
        folder = self.bench.attempts_folder
        return LocalService(
            service=service,
            runner=ProcessRunner(service, made, base=folder, attempts=folder),
            concurrency=made.concurrency,
            timeout=made.timeout,
            stop_grace=made.stop_grace,
            idle_stop=None,
            output_limit=made.limits.output,
        )

    async def claim(self, service: str = SERVICE) -> ClaimedTask:
        (task,) = await claim_tasks(self.bench.db, service, owner=NODE, node=NODE, limit=1, lease=LEASE)
        return task

    def in_hands_of(self, served: LocalService, runner: object) -> LocalService:
        """The same service with a runner that a test has put around the real one."""
        return replace(served, runner=cast("Runner", runner))

    async def begin(self, served: LocalService, *, ended: Callable[[Attempt], None] = lambda _: None) -> Attempt:
        """The next task of the service, under way."""
        return self.start(await self.claim(served.service), served, ended=ended)

    def start(
        self, task: ClaimedTask, served: LocalService, *, ended: Callable[[Attempt], None] = lambda _: None
    ) -> Attempt:
        attempt = Attempt(task, served, self.bench, granted=boot_time(), adopted=False, when_decided=lambda _: None)
        self.attempts.start(attempt, ended)
        return attempt

    async def idle(self, within: float = 10) -> None:
        await eventually(lambda: not len(self.attempts), within=within, what="the end of all attempts")


@asynccontextmanager
async def shop(db: Database, root: Path, **values: Any) -> AsyncGenerator[Shop]:
    """`root` gets the folders of attempts and the objects; values are those of the workbench."""
    folder = root / "attempts"
    folder.mkdir(parents=True, exist_ok=True)
    metrics = Metrics([SERVICE])
    keeper = LeaseKeeper(db, node=NODE, lease=LEASE, every=timedelta(seconds=1), metrics=metrics)
    async with (
        open_store(StorageSettings(), default_folder=root / "objects") as store,
        anyio.create_task_group() as group,
    ):
        given: dict[str, Any] = {
            "node": NODE,
            "db": db,
            "store": store,
            "keeper": keeper,
            "reporter": Reporter(db, owner=NODE),
            "attempts_folder": folder,
            "min_free_disk": lambda: 0,
            "patience": timedelta(minutes=2),
            "metrics": metrics,
            "backoff_base": timedelta(seconds=15),
        }
        attempts = Attempts()
        for serve in (keeper.serve, keeper.beat_on, attempts.serve):
            group.start_soon(serve)
        await anyio.wait_all_tasks_blocked()
        yield Shop(AttemptContext(**{**given, **values}), attempts, group)
        group.cancel_scope.cancel()
