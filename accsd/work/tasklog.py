"""The log of one attempt, in segments that go to the object store while it runs: every line in exactly one of them.

A segment gathers in memory. Sealing writes it to the spool and then, in one atomic step, the place up to which the
output has been read. Only then may it be shipped. Whatever a crash leaves behind, the next agent finds sealed
segments, which it ships (again), and a place to read on from; lines that were not sealed are forgotten, since they
come again.
"""

import asyncio
import errno
import os
import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import anyio.to_thread
import orjson
from anyio import CancelScope, move_on_after

from accsd.errors import AttemptFailed
from accsd.log import redact
from accsd.model.outcome import ErrorCode
from accsd.model.state import Level
from accsd.runners.base import NO_CURSOR, Cursor, Stream
from accsd.values.json import sanitise
from accsd.work.protocol.framing import PartialLine
from accsd.work.protocol.wire import MAX_TEXT_BYTES, LogLine

SEGMENT_BYTES: Final = 1024 * 1024
# How long the n-th segment may stay open: a follower sees the first lines soon, a long task makes few objects.
AGES_SEC: Final = (2.0, 5.0, 10.0, 30.0, 60.0)
# A task that writes much is followed closely: a segment with this many bytes need not grow older than that.
MUCH_BYTES: Final = 16 * 1024
MUCH_AGE_SEC: Final = 5.0
LOG_BYTES: Final = 100 * 1024 * 1024
MOST_ERROR_LINES: Final = 1_000  # whose places the facts of a part tell

_STATE: Final = "cursor.json"
_STATE_BEING_WRITTEN: Final = "cursor.json.new"
_SEGMENT: Final = re.compile(r"(\d{6,})\.jsonl")
_DISK_ERRORS: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS})

Ship = Callable[["Segment"], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Segment:
    """A sealed part of the log: under this name its content never changes, so shipping it twice is harmless."""

    number: int
    path: Path

    @property
    def name(self) -> str:
        return self.path.name

    async def facts(self) -> dict[str, Any]:
        return (await anyio.to_thread.run_sync(lambda: LogFacts.of(self.path.read_bytes()))).document()


@dataclass(frozen=True, slots=True)
class LogFacts:
    """What a part of a log has, so that a reader finds a line or an error without reading all parts before it."""

    lines: int
    warnings: int
    errors: int
    first_ts: str | None
    last_ts: str | None
    error_lines: Sequence[int]  # the places of the first MOST_ERROR_LINES errors, from 1

    @classmethod
    def of(cls, content: bytes) -> "LogFacts":
        records = [orjson.loads(line) for line in content.splitlines()]
        levels = Counter(record["level"] for record in records)
        first, last = (records[0]["ts"], records[-1]["ts"]) if records else (None, None)
        errors = [n for n, record in enumerate(records, 1) if record["level"] == Level.ERROR][:MOST_ERROR_LINES]
        return cls(len(records), levels[Level.WARN], levels[Level.ERROR], first, last, errors)

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> "LogFacts | None":
        """None: they were written by an agent that did not say all of it."""
        names = [each.name for each in fields(cls)]
        return cls(*(document[name] for name in names)) if document.keys() >= set(names) else None

    def document(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class LogPosition:
    """Up to where the output has been read, lines that have only begun included; `carried` is the reader's state."""

    cursor: Cursor = field(default_factory=dict[str, Any])
    partial: Mapping[Stream, PartialLine] = field(default_factory=dict[Stream, PartialLine])
    carried: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(slots=True)
class _Open:
    """The segment that gathers."""

    number: int
    # One buffer: the objects that orjson returns leave a hole of a kilobyte beside each short line that is kept.
    lines: bytearray = field(default_factory=bytearray)
    since: float | None = None  # monotonic

    @property
    def size(self) -> int:
        return len(self.lines)


class TaskLog:
    """The log of one attempt. Reading, adding and the synchronous beginning of `seal` belong to one event loop."""

    def __init__(self, spool: Path, *, limit: int = LOG_BYTES) -> None:
        """Takes up what an earlier agent left in `spool`; AttemptFailed if the disk refuses."""
        self._spool = spool
        self._limit = limit
        self._changed: asyncio.Event = asyncio.Event()
        self._sealing: asyncio.Lock = asyncio.Lock()
        with _disk_errors(spool):
            spool.mkdir(parents=True, exist_ok=True)
            saved = _read_state(spool)
            self._unshipped: dict[int, Segment] = _sealed_segments(spool, saved["next"])
        self._open: _Open = _Open(saved["next"])
        self._bytes: int = saved["bytes"]
        self._is_truncated: bool = saved["truncated"]
        self._place: LogPosition = _place_from(saved)

    @property
    def place(self) -> LogPosition:
        """Where to read on: the place of the last sealed segment."""
        return self._place

    @property
    def unshipped(self) -> tuple[Segment, ...]:
        """Sealed segments, in order, that are not known to be in the object store."""
        return tuple(self._unshipped.values())

    @property
    def is_truncated(self) -> bool:
        """The limit was reached, and lines have been dropped since."""
        return self._is_truncated

    @property
    def is_full(self) -> bool:
        return self._open.size >= SEGMENT_BYTES

    def add(self, stream: Stream, line: LogLine, at: datetime) -> bool:
        """Adds a line; returns whether it was kept. Never blocks; the caller must seal when `is_full`."""
        if self._is_truncated:
            return False
        encoded = _encoded(stream, line, at)
        if self._bytes + len(encoded) > self._limit:
            self._is_truncated = True
            encoded = _encoded(stream, LogLine(Level.WARN, f"the log ends here: {self._limit} bytes are its limit"), at)
        self._gather(encoded)
        return not self._is_truncated

    def _gather(self, encoded: bytes) -> None:
        gathering = self._open
        before = gathering.size
        gathering.lines += encoded
        self._bytes += len(encoded)
        if gathering.since is None:
            gathering.since = time.monotonic()
        if any(before < mark <= gathering.size for mark in (1, MUCH_BYTES, SEGMENT_BYTES)):
            self._changed.set()

    async def due(self) -> None:
        """Returns when a segment waits to be shipped, or the open one is due to be sealed."""
        while not self._unshipped and ((wait := self._due_in()) is None or wait > 0):
            self._changed.clear()
            with move_on_after(wait):
                await self._changed.wait()

    @property
    def is_old(self) -> bool:
        """The open segment has gathered for long enough."""
        return self._due_in() == 0

    def _due_in(self) -> float | None:
        gathering = self._open
        if gathering.since is None:
            return None
        if self.is_full:
            return 0
        age = AGES_SEC[min(gathering.number, len(AGES_SEC)) - 1]
        if gathering.size >= MUCH_BYTES:
            age = min(age, MUCH_AGE_SEC)
        return max(0.0, gathering.since + age - time.monotonic())

    async def seal(self, current_place: Callable[[], LogPosition]) -> Segment | None:
        """Closes the open segment; exactly the lines that were added lie before the place. Without lines only the
        place is saved.

        After AttemptFailed(agent_disk) the last seal stands, and this one can be tried again.
        """
        async with self._sealing:
            # Asked only now: while this seal waited for another one, lines may have been added.
            place, sealed = current_place(), self._open
            following = sealed.number + 1 if sealed.lines else sealed.number
            state = _state(following, self._bytes, self._is_truncated, place)
            self._open = _Open(following)
            writing = asyncio.get_running_loop().run_in_executor(None, _write_seal, self._spool, sealed, state)
            cancelled = await _ended(writing)
            try:
                return self._settle(sealed, place, writing)
            finally:
                if cancelled is not None:
                    raise cancelled

    def _settle(self, sealed: _Open, place: LogPosition, writing: asyncio.Future[None]) -> Segment | None:
        try:
            writing.result()
        except BaseException:
            sealed.lines += self._open.lines
            self._open = sealed
            raise
        self._place = place
        if not sealed.lines:
            return None
        segment = Segment(sealed.number, self._spool / _name(sealed.number))
        self._unshipped[segment.number] = segment
        self._changed.set()
        return segment

    async def ship_next(self, ship: Ship) -> None:
        """Hands the first of the unshipped segments to `ship` and removes it from the spool."""
        segment = next(iter(self._unshipped.values()))
        await ship(segment)
        segment.path.unlink(missing_ok=True)
        del self._unshipped[segment.number]


async def _ended(writing: asyncio.Future[None]) -> asyncio.CancelledError | None:
    """Waits for a thread that can't be stopped, and holds a cancellation back until the thread's outcome is known."""
    cancelled: asyncio.CancelledError | None = None
    with CancelScope(shield=True):
        while not writing.done():
            try:
                await asyncio.wait([writing])
            except asyncio.CancelledError as error:
                cancelled = error
    return cancelled


def _encoded(stream: Stream, line: LogLine, at: datetime) -> bytes:
    record: dict[str, Any] = {"ts": at, "stream": stream, "level": line.level, "message": redact(line.message)}
    if line.data is not None:
        record["data"] = sanitise(line.data, max_bytes=MAX_TEXT_BYTES, scrub=redact)
    if line.truncated:
        record["truncated"] = True
    return orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE)


def _write_seal(spool: Path, sealed: _Open, state: bytes) -> None:
    with _disk_errors(spool):
        if sealed.lines:
            _write_durably(spool / _name(sealed.number), bytes(sealed.lines))
        _write_durably(spool / _STATE_BEING_WRITTEN, state)
        os.replace(spool / _STATE_BEING_WRITTEN, spool / _STATE)  # the seal: before it nothing has happened
        _sync_folder(spool)


def _write_durably(path: Path, content: bytes) -> None:
    with path.open("wb", buffering=0) as file:
        view = memoryview(content)
        while view:
            view = view[file.write(view) :]
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _state(next_number: int, size: int, truncated: bool, place: LogPosition) -> bytes:
    return orjson.dumps(
        {
            "next": next_number,
            "bytes": size,
            "truncated": truncated,
            "cursor": dict(place.cursor),
            "partial": {stream: partial.as_json() for stream, partial in place.partial.items()},
            "carried": dict(place.carried),
        },
        option=orjson.OPT_NON_STR_KEYS,  # orjson takes a StrEnum for a key that is no string
    )


def _read_state(spool: Path) -> dict[str, Any]:
    try:
        return orjson.loads((spool / _STATE).read_bytes())
    except FileNotFoundError:
        return {"next": 1, "bytes": 0, "truncated": False, "cursor": NO_CURSOR, "partial": {}, "carried": {}}
    except orjson.JSONDecodeError as error:
        raise AttemptFailed(ErrorCode.WORKER_LOST, f"{spool / _STATE} cannot be read: {error}") from error


def _place_from(saved: Mapping[str, Any]) -> LogPosition:
    partial = {Stream(stream): PartialLine.from_json(line) for stream, line in saved["partial"].items()}
    return LogPosition(saved["cursor"], partial, saved["carried"])


def _sealed_segments(spool: Path, next_number: int) -> dict[int, Segment]:
    """The segments that the last seal stands for; files written after it are removed."""
    sealed: list[Segment] = []
    for path in spool.iterdir():
        match = _SEGMENT.fullmatch(path.name)
        if match and int(match[1]) < next_number:
            sealed.append(Segment(int(match[1]), path))
        elif match:
            path.unlink()
    return {segment.number: segment for segment in sorted(sealed, key=lambda each: each.number)}


def _name(number: int) -> str:
    return f"{number:06d}.jsonl"


@contextmanager
def _disk_errors(spool: Path) -> Generator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in _DISK_ERRORS:
            raise
        raise AttemptFailed(ErrorCode.AGENT_DISK, f"the log in {spool} cannot be written: {error.strerror}") from error
