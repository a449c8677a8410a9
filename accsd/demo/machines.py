"""The processes on the demo's stage: a builder and some agents, each with a log of its own, all gone at the end."""

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import orjson

from accsd import proc
from accsd.demo.pipeline import Pipeline
from accsd.runners.process import processes
from accsd.settings import environment

LEASE_SEC = 4
_BELL = "bell"


@dataclass(frozen=True, slots=True)
class DemoMachine:
    name: str
    services: Sequence[str]  # one slot of each
    labels: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(eq=False, slots=True)
class Stage:
    """Where the processes run. Use as a context manager: what still runs at its end is killed, tasks included."""

    folder: Path
    db_url: str
    pipeline: Pipeline
    _playing: dict[str, proc.Child] = field(default_factory=dict[str, proc.Child])

    def __enter__(self) -> "Stage":
        (self.folder / "logs").mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(self, *_: object) -> None:
        for child in self._playing.values():
            with suppress(TimeoutError):
                proc.stop(child, first=signal.SIGTERM, grace=timedelta(seconds=5))
        for machine in list(self._playing):
            self._kill_tasks(machine)

    @property
    def objects(self) -> Path:
        return self.folder / "objects"

    def start_builder(self) -> None:
        self._start("control", "builder", "")

    def start_gateway(self, listen: str) -> None:
        self._start("gateway", "gateway", f'[gateway]\nlisten = "{listen}"\n')

    def start(self, machine: DemoMachine) -> None:
        tables = [_table(name, self.pipeline.services[name]) for name in machine.services]
        labels = ", ".join(f"{name} = {orjson.dumps(value).decode()}" for name, value in machine.labels.items())
        self._start(machine.name, "agent", f"[node]\nlabels = {{ {labels} }}\n" + "\n".join(tables))

    def cut_power(self, machine: DemoMachine) -> None:
        """Nobody says goodbye: the agent and its tasks are gone between two moments."""
        child = self._playing.pop(machine.name)
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        self._kill_tasks(machine.name)

    def wake_script(self, machine: DemoMachine) -> Path:
        """What the control host runs to wake it: it rings a bell."""
        script = self.folder / f"wake-{machine.name}"
        script.write_text(f'#!/bin/sh\necho "$1" > \'{self.folder / _BELL}\' && echo "magic packet sent to $1"\n')
        script.chmod(0o700)
        return script

    @property
    def bell_rang(self) -> bool:
        return (self.folder / _BELL).exists()

    def _start(self, name: str, role: str, config: str) -> None:
        path = self.folder / f"{name}.toml"
        path.write_text(config)
        environ = {key: value for key, value in environment().items() if not key.startswith("ACC_")} | {
            "ACC_DB_URL": self.db_url,
            "ACC_NODE_NAME": name,
            "ACC_STATE_DIR": str(self.folder / "state"),
            "ACC_STORAGE_URL": f"file://{self.objects}",
            "ACC_HEARTBEAT_TTL_SEC": str(LEASE_SEC),
            "ACC_POLL_SEC": "1",
        }
        with (self.folder / "logs" / f"{name}.jsonl").open("ab") as log:
            self._playing[name] = proc.spawn(
                [sys.executable, "-m", "accsd", "--role", role, "--config", path],
                output=log.fileno(),
                env=environ,
                when_parent_dies=signal.SIGTERM,
            )

    def _kill_tasks(self, name: str) -> None:
        """By what they carry in their environment: the file of a task that lies in this machine's state folder."""
        place = str(self.folder / "state" / name)

        def theirs() -> list[proc.Process]:
            return [
                process
                for process in proc.everyone().values()
                if processes.environment(process.pid).get("ACC_TASK_FILE", "").startswith(place + os.sep)
            ]

        processes.kill_all(theirs, timedelta(seconds=5))


def _table(name: str, service: Mapping[str, Any]) -> str:
    lines = [f"[services.{name}]", 'runner = "process"', f"command = {orjson.dumps(service['command']).decode()}"]
    return "\n".join([*lines, "concurrency = 1", ""])
