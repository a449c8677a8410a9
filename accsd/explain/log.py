"""The log of one attempt by line: a window of it, its end, what is around an error, and a search that is complete.

Lines are numbered from 1, and a number never changes its line. What the agent has sealed is in the object store, in
parts whose facts say how many lines they have and where the errors are: a window costs one or two reads. What was
written since then is told by events.
"""

from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Final, Literal
from uuid import UUID

import anyio.to_thread
import orjson

from accsd.db.pool import Database
from accsd.db.views.artifacts import StoredArtifact, log_parts
from accsd.db.views.events import attempt_log, attempt_log_events
from accsd.errors import InvalidValue
from accsd.explain.redaction import Redaction
from accsd.model.state import Level
from accsd.runners.base import Stream
from accsd.storage import ObjectStore
from accsd.work.execution import is_rest_in_log
from accsd.work.tasklog import MOST_ERROR_LINES, LogFacts

MOST_LINES: Final = 5_000  # of one window


@dataclass(frozen=True, slots=True)
class Line:
    n: int
    ts: datetime
    level: str
    text: str
    stream: str | None = None
    data: Any = None

    @classmethod
    def stored(cls, n: int, record: dict[str, Any]) -> "Line":
        ts = datetime.fromisoformat(record["ts"])
        return cls(n, ts, record["level"], record["message"], record.get("stream"), record.get("data"))

    def document(self, redaction: Redaction) -> dict[str, Any]:
        return asdict(self) | {"data": redaction.inside(self.data)}


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which lines are wanted: those that have the text, are of one of the levels (all, if there are none) and of the
    stream. Which stream a line came by is known once it is in the store."""

    text: str = ""
    match_case: bool = False
    levels: Collection[Level] = ()
    stream: Stream | None = None

    def has(self, line: Line) -> bool:
        if self.levels and line.level not in self.levels:
            return False
        if self.stream is not None and line.stream != self.stream:
            return False
        return self.text in line.text if self.match_case else self.text.casefold() in line.text.casefold()

    def may_be_in(self, facts: LogFacts) -> bool:
        known = {Level.WARN: facts.warnings, Level.ERROR: facts.errors}
        return not self.levels or any(known.get(level, 1) for level in self.levels)

    def hits(self, content: bytes, before: int) -> list[Line]:
        """Those of a part. Lines are parsed only where their bytes have what is wanted, as JSON writes it."""
        needle = orjson.dumps(self.text)[1:-1].decode()
        needle = needle if self.match_case else needle.casefold()
        levels = [f'"{level}"' for level in self.levels]
        hits: list[Line] = []
        for n, line in enumerate(content.decode().split("\n"), before + 1):
            if not line or (levels and not any(level in line for level in levels)):
                continue
            if needle in (line if self.match_case else line.casefold()):
                found = Line.stored(n, orjson.loads(line))
                if self.has(found):
                    hits.append(found)
        return hits


@dataclass(frozen=True, slots=True)
class LookedAt:
    """How far a search is: so many lines of the log."""

    lines: int


@dataclass(frozen=True, slots=True)
class Window:
    """Lines that follow each other. `errors` are the numbers of the first lines of level error in the whole log."""

    lines: Sequence[Line]
    total_lines: int
    errors: Sequence[int]
    is_complete: bool  # nothing is added any more
    source: Literal["store", "events", "both"]

    def document(self, redaction: Redaction) -> dict[str, Any]:
        return {
            "lines": [line.document(redaction) for line in self.lines],
            "first_line": self.lines[0].n if self.lines else None,
            "last_line": self.lines[-1].n if self.lines else None,
            "total_lines": self.total_lines,
            "errors": list(self.errors),
            "complete": self.is_complete,
            "source": self.source,
        }


@dataclass(frozen=True, slots=True)
class _Part:
    """A sealed part of the log in the store; `before` lines come before it."""

    stored: StoredArtifact
    facts: LogFacts
    before: int

    @property
    def last(self) -> int:
        return self.before + self.facts.lines


class AttemptLines:
    """The log as it is now: parts and events are read once, when it is opened."""

    def __init__(self, store: ObjectStore, parts: Sequence[_Part], recent: Sequence[Line], *, is_live: bool) -> None:
        self._store = store
        self._parts = parts
        self._recent = recent  # what no part has yet
        self._is_live = is_live

    @classmethod
    async def open(cls, db: Database, store: ObjectStore, task_id: UUID, attempt_id: int) -> "AttemptLines":
        """NotFound if the task has no such attempt."""
        attempt = await attempt_log(db, task_id, attempt_id)
        parts: list[_Part] = []
        for stored in await log_parts(db, task_id, attempt_id):
            facts = LogFacts.read(stored.facts) if stored.facts else None
            if facts is None:
                facts = await anyio.to_thread.run_sync(LogFacts.of, await _bytes(store, stored))
            parts.append(_Part(stored, facts, parts[-1].last if parts else 0))
        sealed = parts[-1].last if parts else 0
        recent: list[Line] = []
        if attempt.is_live or not parts:
            said = await attempt_log_events(db, task_id, attempt_id)
            lines = [event for event in said if not is_rest_in_log(event.message)]
            recent = [
                Line(n, event.ts, event.level, event.message or "", data=event.data)
                for n, event in enumerate(lines[sealed:], sealed + 1)
            ]
        return cls(store, parts, recent, is_live=attempt.is_live)

    @property
    def total(self) -> int:
        return self._sealed + len(self._recent)

    @property
    def _sealed(self) -> int:
        return self._parts[-1].last if self._parts else 0

    async def window(self, first: int, limit: int) -> Window:
        """Lines from this number on."""
        if not 1 <= limit <= MOST_LINES:
            raise InvalidValue(f"a window of a log has 1 to {MOST_LINES} lines")
        first = max(1, first)
        last = min(self.total, first + limit - 1)
        lines: list[Line] = []
        for part in self._parts:
            if part.before < last and part.last >= first:
                lines += await self._lines_of(part, first, last)
        lines += [line for line in self._recent if first <= line.n <= last]
        source = "both" if self._parts and self._recent else "events" if self._recent else "store"
        return Window(lines, self.total, self._errors(), not self._is_live, source)

    async def tail(self, limit: int) -> Window:
        return await self.window(self.total - limit + 1, limit)

    async def around_error(self, limit: int) -> Window:
        """The first error in the middle; the end of the log where there is none."""
        errors = self._errors()
        return await self.window(errors[0] - limit // 2, limit) if errors else await self.tail(limit)

    async def around(self, moment: datetime, limit: int) -> Window:
        """The first line of that moment or later in the middle."""
        n = next((line.n for line in self._recent if line.ts >= moment), self.total)
        for part in self._parts:
            if part.facts.last_ts is not None and datetime.fromisoformat(part.facts.last_ts) >= moment:
                n = next(line.n for line in await self._lines_of(part) if line.ts >= moment)
                break
        return await self.window(n - limit // 2, limit)

    async def search(self, wanted: Wanted) -> AsyncIterator[Line | LookedAt]:
        """Yields every line that is wanted, in order, and after each part how far it is. No patterns: a search must
        end."""
        for part in self._parts:
            if wanted.may_be_in(part.facts):
                content = await _bytes(self._store, part.stored)
                for line in await anyio.to_thread.run_sync(wanted.hits, content, part.before):
                    yield line
            yield LookedAt(part.last)
        for line in self._recent:
            if wanted.has(line):
                yield line

    def _errors(self) -> list[int]:
        found = [part.before + n for part in self._parts for n in part.facts.error_lines]
        return [*found, *(line.n for line in self._recent if line.level == Level.ERROR)][:MOST_ERROR_LINES]

    async def _lines_of(self, part: _Part, first: int = 1, last: int | None = None) -> list[Line]:
        """Those of the part whose numbers lie between these; no others are parsed."""
        content = await _bytes(self._store, part.stored)
        begin, end = max(0, first - 1 - part.before), None if last is None else last - part.before
        return await anyio.to_thread.run_sync(_parsed, content, part.before, begin, end)


async def _bytes(store: ObjectStore, stored: StoredArtifact) -> bytes:
    return await store.get_bytes(stored.key, checksum=stored.checksum)


def _parsed(content: bytes, before: int, begin: int, end: int | None) -> list[Line]:
    wanted = content.splitlines()[begin:end]
    return [Line.stored(n, orjson.loads(line)) for n, line in enumerate(wanted, before + begin + 1)]
