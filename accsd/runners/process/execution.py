"""One attempt of the process runner under way, whether this daemon started it or an earlier one did."""

import asyncio
import os
import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Final

from accsd.model.fence import Fence
from accsd.model.outcome import ErrorCode
from accsd.runners.base import NO_CURSOR, Cursor, Ending, Stream, TakeOutput
from accsd.runners.process import processes
from accsd.runners.process.files import AttemptFiles, ExitRecord
from accsd.runners.process.processes import Process
from accsd.runners.process.tail import Tail

_GONE_WITHIN: Final = timedelta(seconds=10)
_RECORD_WITHIN: Final = timedelta(seconds=5)  # the shim's last work, after all others are gone
_BY_SIGNAL: Final = 128  # as shells and containers say it


class ProcessExecution:
    """`reap` is called when the shim has ended: it may be this daemon's child."""

    def __init__(self, key: Fence, files: AttemptFiles, *, memory_limit: int | None, reap: Callable[[], None]) -> None:
        self._key = key
        self._files = files
        self._shim = files.shim()
        self._memory_limit = memory_limit
        self._reap = reap
        self._is_stopping = False

    @property
    def key(self) -> Fence:
        return self._key

    async def watch(self, take: TakeOutput, since: Cursor = NO_CURSOR) -> Ending:
        paths = {Stream.STDOUT: self._files.stdout, Stream.STDERR: self._files.stderr}
        with Tail(paths, since) as tail:
            with self._end_of_shim() as ended:
                await tail.follow(take, ended)
            self._reap()
            record = self._files.exit()
            if record is None or not record.nobody_left:
                with suppress(TimeoutError):  # the end is known all the same; remove() will say that somebody is left
                    await self._kill(with_shim=True)
            await tail.drain(take)
        return self._ending(record)

    async def stop(self, grace: timedelta) -> None:
        if self._is_over():
            return
        self._is_stopping = True
        self._files.note_stop()
        with self._end_of_shim() as ended:
            await asyncio.to_thread(self._ask_to_end)
            if not await _is_set_within(ended, grace):
                await self._kill(with_shim=False)
                await _is_set_within(ended, _RECORD_WITHIN)
        await self._kill(with_shim=True)
        self._reap()

    async def remove(self) -> None:
        await self.stop(timedelta(0))
        self._files.clear()

    def _is_over(self) -> bool:
        if self._shim is not None and processes.is_running(self._shim, self._key):
            return False
        self._reap()
        record = self._files.exit()
        return record is not None and record.nobody_left

    def _ask_to_end(self) -> None:
        # The shim is deaf to the first, but a task may have stopped it, as it may have stopped itself.
        for process in self._members(with_shim=True):
            processes.send(process, signal.SIGTERM, signal.SIGCONT)

    async def _kill(self, *, with_shim: bool) -> None:
        """Raises TimeoutError where somebody survives it."""
        await asyncio.to_thread(processes.kill_all, lambda: self._members(with_shim=with_shim), _GONE_WITHIN)

    def _members(self, *, with_shim: bool) -> list[Process]:
        found = processes.members(self._key, self._files.command())
        if with_shim or self._shim is None:
            return found
        return [process for process in found if not process.is_the(self._shim)]

    @contextmanager
    def _end_of_shim(self) -> Generator[asyncio.Event]:
        """Set when the shim has ended, at once. A pidfd also tells of processes that are not our children."""
        ended = asyncio.Event()
        pidfd = processes.open_if_running(self._shim, self._key) if self._shim else None
        if pidfd is None:
            ended.set()
            yield ended
            return
        loop = asyncio.get_running_loop()
        loop.add_reader(pidfd, lambda: (ended.set(), loop.remove_reader(pidfd)))
        try:
            yield ended
        finally:
            loop.remove_reader(pidfd)
            os.close(pidfd)

    def _ending(self, record: ExitRecord | None) -> Ending:
        if record is None and not self._files.is_claimed:  # which the shim did: the mount has gone, or the task did it
            return Ending(cause=ErrorCode.NODE_UNFIT, detail=f"the files in {self._files.folder} have gone")
        if record is None:
            return Ending(cause=ErrorCode.WORKER_LOST, detail="the shim ended without saying how the command did")
        code = record.code if record.signal is None else _BY_SIGNAL + record.signal
        cause, detail = self._cause(record)
        return Ending(code, cause, detail, record.max_rss_bytes, record.cpu)

    def _cause(self, record: ExitRecord) -> tuple[ErrorCode | None, str | None]:
        if record.errno is not None:
            return ErrorCode.START_FAILED, os.strerror(record.errno)
        if record.limit == ErrorCode.OOM:
            return ErrorCode.OOM, f"used {record.seen} bytes of memory"
        if record.limit == ErrorCode.PIDS_LIMIT:
            return ErrorCode.PIDS_LIMIT, f"had {record.seen} processes"
        if self._is_stopping:
            return None, "stopped"
        if record.code != 0 and self._files.stop_was_asked:
            return ErrorCode.WORKER_LOST, "stopped by an agent that has gone since"
        return self._cause_of_signal(record) if record.signal is not None else (None, None)

    def _cause_of_signal(self, record: ExitRecord) -> tuple[ErrorCode, str]:
        # The kernel may have been quicker than the shim's look.
        if record.signal == signal.SIGKILL and (record.max_rss_bytes or 0) > (self._memory_limit or float("inf")):
            return ErrorCode.OOM, f"used {record.max_rss_bytes} bytes of memory"
        return ErrorCode.KILLED, f"ended by signal {record.signal}"


async def _is_set_within(event: asyncio.Event, limit: timedelta) -> bool:
    with suppress(TimeoutError):
        async with asyncio.timeout(limit.total_seconds()):
            await event.wait()
    return event.is_set()
