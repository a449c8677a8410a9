"""A node and its attempts on a real database, without a daemon around them: what is claimed is run."""

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import anyio
from anyio.abc import TaskGroup

from accsd.agent.node import Node
from accsd.clock import boot_time
from accsd.db import ClaimedTask, Database, claim_tasks
from accsd.db.listen import Listener
from accsd.health import Health
from accsd.metrics import Metrics
from accsd.runners.base import Runner
from accsd.runners.process.runner import ProcessRunner
from accsd.settings import ServiceSettings, Settings, StorageSettings
from accsd.storage import ObjectStore, open_store
from accsd.work.attempt import Attempt
from accsd.work.attempts import Attempts
from accsd.work.cache import FileCache
from accsd.work.lease import LeaseKeeper
from accsd.work.reporter import Reporter
from accsd.work.service import LocalService
from tests.support.eventually import eventually
from tests.support.factory import NODE, SERVICE
from tests.support.tasks import command

LEASE = timedelta(seconds=60)


def node_of(db: Database, *, name: str = NODE, root: Path = Path("/nowhere"), **given: Any) -> Node:
    """A node whose roles are woken by nobody. `given` are its fields; sections of the settings are tables."""
    sections = {section: given.pop(section) for section in list(given) if section in Settings.model_fields}
    database = {"url": "postgresql://nowhere/nothing"}
    settings = Settings.model_validate({"database": database, "node": {"name": name}, **sections})
    metrics = Metrics([SERVICE])
    fields: dict[str, Any] = {
        "name": name,
        "db": db,
        "store": cast("ObjectStore", None),
        "leases": LeaseKeeper(db, node=name, lease=LEASE, every=timedelta(seconds=1), metrics=metrics),
        "reporter": Reporter(db, owner=name),
        "metrics": metrics,
        "attempts_folder": root / "attempts",
        "files": FileCache(root / "files", limit=2**30),
        "patience": timedelta(minutes=2),
        "backoff_base": timedelta(seconds=15),
        "settings": settings,
        "secrets": settings.secrets,
        "listener": Listener(settings.database, settings.notify_channel_prefix, behind_pooler=False, db=db),
        "health": Health(name),
        "attempts": Attempts(),
        "stop": lambda: None,
        "is_registered": True,
        **given,
    }
    node = Node(**fields)
    node.leases.when_changed = node.attempts.when_changed = node.count
    return node


@dataclass
class Shop:
    """A node with its heartbeat, and one group of attempts."""

    context: Node
    group: TaskGroup

    @property
    def attempts(self) -> Attempts:
        return self.context.attempts

    def serving(self, program: str, *, service: str = SERVICE, **settings: Any) -> LocalService:
        table = {"runner": "process", "command": command(program), **settings}
        made = ServiceSettings.model_validate(table)
        folder = self.context.attempts_folder
        return LocalService(
            name=service,
            runner=ProcessRunner(service, made, base=folder, attempts=folder),
            concurrency=made.concurrency,
            timeout=made.timeout,
            stop_grace=made.stop_grace,
            idle_stop=None,
            output_limit=made.limits.output,
        )

    async def claim(self, service: str = SERVICE) -> ClaimedTask:
        (task,) = await claim_tasks(self.context.db, service, owner=NODE, node=NODE, limit=1, lease=LEASE)
        return task

    def in_hands_of(self, served: LocalService, runner: object) -> LocalService:
        """The same service with a runner that a test has put around the real one."""
        return replace(served, runner=cast("Runner", runner))

    async def begin(self, served: LocalService, *, ended: Callable[[Attempt], None] = lambda _: None) -> Attempt:
        """The next task of the service, under way."""
        return self.start(await self.claim(served.name), served, ended=ended)

    def start(
        self, task: ClaimedTask, served: LocalService, *, ended: Callable[[Attempt], None] = lambda _: None
    ) -> Attempt:
        attempt = Attempt(task, served, self.context, granted=boot_time(), adopted=False, when_decided=lambda _: None)
        self.attempts.start(attempt, ended)
        return attempt

    async def idle(self, within: float = 10) -> None:
        await eventually(lambda: not len(self.attempts), within=within, what="the end of all attempts")


@asynccontextmanager
async def shop(db: Database, root: Path, **values: Any) -> AsyncGenerator[Shop]:
    """`root` gets the folders of attempts and the objects; values are those of the node."""
    (root / "attempts").mkdir(parents=True, exist_ok=True)
    async with (
        open_store(StorageSettings(), default_folder=root / "objects") as store,
        anyio.create_task_group() as group,
    ):
        given: dict[str, Any] = {"store": store, **values}
        node = node_of(db, root=root, **given)
        for serve in (node.leases.serve, node.leases.beat_on, node.attempts.serve):
            group.start_soon(serve)
        await anyio.wait_all_tasks_blocked()
        yield Shop(node, group)
        group.cancel_scope.cancel()
