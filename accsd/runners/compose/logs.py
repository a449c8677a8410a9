"""What the engine made of a container's output, made what it was: pure parsing, one object per stream and reading.

The engine cuts a line into parts of 16 KiB and writes a timestamp before every part, also in the middle of a line; all
parts of a line have the same one. Measured on engine 20.10, both drivers with the same output: `json-file` keeps every
newline, but writes U+FFFD for each half of a character at a cut and for every byte that is not UTF-8; `local` keeps all
bytes, but drops the newline after the last part of a long line. So containers get `local`, and with the timestamps the
lost newline can be put back.
"""

import re
from typing import Final

PART: Final = 16 * 1024
_STAMP: Final = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}(?:Z|[+-]\d\d:\d\d) ")
_LONGEST_STAMP: Final = 36


class Unstamped:
    """Takes `docker logs --timestamps` of one stream in any pieces; gives back what the task wrote."""

    def __init__(self) -> None:
        self._held: bytes = b""
        self._at: int = 0  # what is held before this has been given back
        self._expects_stamp: bool = True
        self._stamp: bytes = b""
        self._room: int = PART  # left in the part that is being read
        self._part_was_full: bool = False
        self._is_later_part: bool = False  # of a long line

    def feed(self, data: bytes) -> bytes:
        self._held += data
        pieces: list[bytes] = []
        while (piece := self._next()) is not None:
            pieces.append(piece)
        self._held, self._at = self._held[self._at :], 0
        return b"".join(pieces)

    def end(self) -> bytes:
        """The rest, once nothing more can come; a long line that has lost its newline gets it back."""
        rest, self._held = self._held, b""
        return rest + b"\n" if self._is_later_part and not self._expects_stamp else rest

    def _next(self) -> bytes | None:
        """The next piece of content, perhaps empty; None until more is fed."""
        if self._expects_stamp:
            return self._read_stamp()
        return self._read_later_part() if self._is_later_part else self._read_part()

    def _read_stamp(self) -> bytes | None:
        found = _STAMP.match(self._held, self._at)
        if found is None and len(self._held) - self._at < _LONGEST_STAMP:
            return None
        # Where none is, this engine cuts otherwise than known: better a stamp too many than a byte lost.
        stamp = found.group() if found else b""
        self._is_later_part = self._part_was_full and stamp == self._stamp
        self._stamp, self._room, self._expects_stamp = stamp, PART, False
        self._at += len(stamp)
        return b""

    def _read_part(self) -> bytes | None:
        """Up to the newline, or until the part is full."""
        newline = self._held.find(b"\n", self._at, self._at + self._room)
        if newline >= 0:
            return self._finish_part(newline + 1)
        if len(self._held) - self._at >= self._room:
            return self._finish_part(self._at + self._room, full=True)
        return self._take(len(self._held))

    def _read_later_part(self) -> bytes | None:
        """Up to a newline where this engine writes one, to the stamp of the next line, or until the part is full."""
        full = self._at + self._room
        newline = self._held.find(b"\n", self._at, full)
        stamp = self._next_lines_stamp(newline if newline >= 0 else full)
        if stamp is not None:
            return self._finish_part(stamp) + b"\n"
        if newline >= 0:
            return self._finish_part(newline + 1)
        if (same := _STAMP.match(self._held, full)) and same.group() == self._stamp:
            return self._finish_part(full, full=True)
        # The last bytes may be the beginning of a stamp.
        return self._take(min(full, len(self._held) - _LONGEST_STAMP))

    def _next_lines_stamp(self, before: int) -> int | None:
        """A stamp that the task itself wrote into its line is older than the line; the engine's next one is not."""
        for found in _STAMP.finditer(self._held, self._at, before + _LONGEST_STAMP):
            if found.start() < before and found.group() >= self._stamp:
                return found.start()
        return None

    def _finish_part(self, end: int, *, full: bool = False) -> bytes:
        piece, self._at = self._held[self._at : end], end
        self._expects_stamp, self._part_was_full = True, full
        return piece

    def _take(self, end: int) -> bytes | None:
        """What is sure to belong to the part."""
        if end <= self._at:
            return None
        piece, self._room = self._held[self._at : end], self._room - (end - self._at)
        self._at = end
        if self._room == 0:  # full, and no stamp behind it: cut otherwise than known
            self._room = PART
        return piece
