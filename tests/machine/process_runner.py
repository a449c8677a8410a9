"""Attempts of the process runner on the real kernel: a folder, a command, what came out, and that nobody is left."""

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from uuid import UUID, uuid4

from accsd import proc
from accsd.model.fence import Fence
from accsd.runners.base import TASK_FILE, Launch, Output, Stream
from accsd.runners.process.runner import ProcessRunner, processes
from accsd.settings import ServiceSettings

ENVELOPE = b'{"schema_version": 1, "params": {"n": 3}}\n'
NO_GRACE = timedelta(0)


@dataclass
class Collected:
    """What a watch handed on."""

    outputs: list[Output] = field(default_factory=list)

    async def __call__(self, output: Output) -> None:
        self.outputs.append(output)

    def text(self, stream: Stream = Stream.STDOUT) -> str:
        return b"".join(output.data for output in self.outputs if output.stream is stream).decode()

    @property
    def cursor(self) -> dict[str, int]:
        return dict(self.outputs[-1].cursor) if self.outputs else {}


def python(code: str) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", code]


class Node:
    """A machine's own part: where attempts lie, and runners of one service or another."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.attempts = root / "attempts"
        self.attempts.mkdir(parents=True, exist_ok=True)

    def runner(self, command: list[str], *, service: str = "echo", **settings: object) -> ProcessRunner:
        table = {"runner": "process", "command": command, **settings}
        return ProcessRunner(service, ServiceSettings.model_validate(table), base=self.root, attempts=self.attempts)

    def launch(self, fence: Fence | None = None, **environ: str) -> Launch:
        fence = fence or Fence(uuid4(), 1)
        folder = self.attempts / str(fence)
        (folder / "work").mkdir(parents=True, exist_ok=True)
        (folder / TASK_FILE).write_bytes(ENVELOPE)
        runner = self.runner(["true"])
        return Launch(fence, UUID(int=7), folder, runner.workdir(fence, folder), environ)

    def fences(self) -> list[Fence]:
        return [Fence.parse(entry) for entry in os.listdir(self.attempts) if entry.count("-") == 4]

    def left(self) -> list[int]:
        """Every process that bears the marker of an attempt of this node, shims too."""
        ours = {(str(fence.task_id), str(fence.attempt_id)) for fence in self.fences()}
        found = {pid: processes.environment(pid) for pid in proc.everyone()}
        return [
            pid
            for pid, variables in found.items()
            if (variables.get("ACC_JOB_TASK_ID"), variables.get("ACC_ATTEMPT_ID")) in ours
        ]


def running(pid: int) -> bool:
    process = proc.look(pid)
    return process is not None and not process.has_ended


def numbers(path: Path, count: int) -> Callable[[], list[int]]:
    """For eventually(): the process ids that a command wrote into a file, once all are there."""

    def read() -> list[int]:
        words = path.read_text().split() if path.exists() else []
        return [int(word) for word in words] if len(words) >= count else []

    return read
