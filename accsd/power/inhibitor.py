"""While this node is busy nobody else puts the machine to sleep: logind keeps a lock for us (systemd-inhibit).

A child that dies with this process holds it. There is one lock for all tasks, taken with the first and released a while
after the last: a spawn for each task would cost more than many tasks do.
"""

import asyncio
import time
from datetime import timedelta
from pathlib import Path
from typing import Final

import anyio

from accsd import proc
from accsd.log import get_logger

_log = get_logger(component="inhibitor")
_LINGERS: Final = timedelta(seconds=5)
_LETS_GO_SEC: Final = 5.0
# One that could not be had is not asked for with each task.
_ASK_AGAIN: Final = timedelta(minutes=10)
_SYSTEMD_RUNS: Final = Path("/run/systemd/system")
# cat ends with its stdin, which is ours
_COMMAND: Final = (
    *("systemd-inhibit", "--what=sleep", "--mode=block", "--who=accsd", "--why=tasks are running"),
    "cat",
)


class Inhibitor:
    def __init__(self, *, lingers: timedelta = _LINGERS) -> None:
        self._lingers = lingers
        self._wanted: asyncio.Event = asyncio.Event()
        self._unwanted: asyncio.Event = asyncio.Event()
        self._in_the_way: asyncio.Event = asyncio.Event()
        self._gone: asyncio.Event = asyncio.Event()
        self._gone.set()
        self._ask_again_at: float = 0.0  # monotonic
        self._told: bool = False
        self._pid: int | None = None

    @property
    def pid(self) -> int | None:
        """The process that holds the lock, by which logind lists it."""
        return self._pid

    def want(self, *, busy: bool) -> None:
        """Says whether the lock is wanted, and returns at once."""
        (self._wanted if busy else self._unwanted).set()
        (self._unwanted if busy else self._wanted).clear()

    async def let_go(self) -> None:
        """Releases the lock at once: this machine is about to sleep, and our own lock would prevent it."""
        self._in_the_way.set()
        with anyio.move_on_after(_LETS_GO_SEC):
            await self._gone.wait()

    async def serve(self) -> None:
        while True:
            await self._wanted.wait()
            if time.monotonic() >= self._ask_again_at and (problem := await self._hold()):
                self._give_up(problem)
            await self._unwanted.wait()

    def _give_up(self, problem: str) -> None:
        self._ask_again_at = time.monotonic() + _ASK_AGAIN.total_seconds()
        if not self._told:
            _log.info("no_sleep_inhibitor", reason=problem)
        self._told = True

    async def _hold(self) -> str | None:
        """Holds the lock until it is not wanted any more; returns why it could not be held."""
        if not _SYSTEMD_RUNS.is_dir():
            return "systemd does not run here"
        self._gone.clear()
        self._in_the_way.clear()
        try:
            async with proc.streaming(_COMMAND, keep_stdin=True) as child:
                self._pid = child.pid
                return await self._until_unwanted(child)
        except OSError as error:
            return str(error)
        finally:
            self._pid = None
            self._gone.set()

    async def _until_unwanted(self, child: proc.Streaming) -> str | None:
        problems: list[str] = []

        async def watch(scope: anyio.CancelScope) -> None:
            said = (await child.stderr.read(2000)).decode(errors="replace").strip()
            problems.append(said or f"systemd-inhibit ended with exit code {await child.wait()}")
            scope.cancel()

        async with anyio.create_task_group() as group:
            group.start_soon(watch, group.cancel_scope)
            while not self._unwanted.is_set():
                await self._unwanted.wait()
                with anyio.move_on_after(self._lingers.total_seconds()):
                    await self._in_the_way.wait()
            group.cancel_scope.cancel()
        return problems[0] if problems else None
