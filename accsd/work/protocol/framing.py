"""Bytes → lines, in memory that a task cannot make grow.

A plain line is cut at 64 KiB. A line that begins like a JSON object may be a result and has room for 512 KiB, so that
a result that is too large can be recognised. Of a line that was cut, the beginning and the last bytes are kept.
"""

from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

LINE_LIMIT: Final = 64 * 1024
OBJECT_LIMIT: Final = 512 * 1024
TAIL: Final = 256


class OutputLine(NamedTuple):
    """A line without its line ending. `end` is the offset behind it in its stream; `tail` the last dropped bytes."""

    data: bytes
    truncated: bool = False
    end: int = 0
    tail: bytes = b""


@dataclass(frozen=True, slots=True)
class PartialLine:
    """What a splitter holds between two chunks: enough to go on in another process."""

    head: bytes = b""
    cut: bool = False
    tail: bytes = b""
    offset: int = 0

    def as_json(self) -> dict[str, Any]:
        return {
            "head": b64encode(self.head).decode(),
            "cut": self.cut,
            "tail": b64encode(self.tail).decode(),
            "offset": self.offset,
        }

    @classmethod
    def from_json(cls, saved: Mapping[str, Any]) -> "PartialLine":
        return cls(b64decode(saved["head"]), saved["cut"], b64decode(saved["tail"]), saved["offset"])


class LineSplitter:
    """Splits one stream. However its bytes are chopped into chunks, the lines are the same."""

    __slots__ = ("_growing", "_offset")

    def __init__(self, begun: PartialLine | None = None) -> None:
        begun = begun or PartialLine()
        self._growing = _Growing(begun)
        self._offset = begun.offset

    def feed(self, data: bytes) -> Iterator[OutputLine]:
        """Yields the lines that end in `data`. All of it counts as fed, even if the caller does not take the lines."""
        parts = data.split(b"\n")
        end = self._offset + len(parts[0]) + 1
        self._offset += len(data)
        self._growing.add(parts[0])
        if len(parts) == 1:
            return iter(())
        first = self._growing.line(end)
        self._growing = _Growing()
        self._growing.add(parts[-1])
        return _lines(first, parts, end)

    def close(self) -> OutputLine | None:
        """The last line, if no newline ended it."""
        last, self._growing = self._growing, _Growing()
        return last.line(self._offset) if last.head else None

    @property
    def partial(self) -> PartialLine:
        growing = self._growing
        return PartialLine(bytes(growing.head), growing.cut, growing.tail, self._offset)


class _Growing:
    """A line that may still grow."""

    __slots__ = ("cut", "head", "tail")

    def __init__(self, begun: PartialLine | None = None) -> None:
        self.head = bytearray(begun.head if begun else b"")
        self.cut = begun.cut if begun else False
        self.tail = begun.tail if begun else b""

    def add(self, piece: bytes) -> None:
        limit = OBJECT_LIMIT if (self.head[:1] or piece[:1]) == b"{" else LINE_LIMIT
        room = limit - len(self.head)
        self.head += piece[:room]
        if len(piece) > room:
            self.cut = True
            self.tail = (self.tail + piece[max(room, len(piece) - TAIL) :])[-TAIL:]

    def line(self, end: int) -> OutputLine:
        if self.cut:
            return OutputLine(bytes(self.head), True, end, self.tail)
        return OutputLine(_without_return(bytes(self.head)), False, end)


def _lines(first: OutputLine, parts: Sequence[bytes], end: int) -> Iterator[OutputLine]:
    """The lines of all parts but the last, which no newline has ended. The first may have begun in an earlier chunk."""
    yield first
    for index in range(1, len(parts) - 1):
        part = parts[index]
        end += len(part) + 1
        yield OutputLine(_without_return(part), False, end) if len(part) <= LINE_LIMIT else _long(part, end)


def _long(part: bytes, end: int) -> OutputLine:
    growing = _Growing()
    growing.add(part)
    return growing.line(end)


def _without_return(line: bytes) -> bytes:
    return line[:-1] if line[-1:] == b"\r" else line
