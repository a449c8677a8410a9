"""PNG files of up to 256 colours, still or animated, written frame by frame. Standard library only."""

import struct
import zlib


class Writer:
    """`frames` more than one make an animated PNG, which every browser plays."""

    def __init__(self, path, width, height, palette, frames=1, frames_per_second=10):
        self._file = open(path, "wb")  # noqa: SIM115 - closed by the end of the block
        self._size, self._frames, self._rate = (width, height), frames, frames_per_second
        self._number = self._sequence = 0
        self._file.write(b"\x89PNG\r\n\x1a\n")
        self._chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0))
        self._chunk(b"PLTE", b"".join(bytes(colour) for colour in palette))
        if frames > 1:
            self._chunk(b"acTL", struct.pack(">II", frames, 0))

    def add(self, rows):
        """`rows` are bytes, one for each pixel: the number of its colour."""
        pixels = zlib.compress(b"".join(b"\0" + row for row in rows), 6)
        if self._frames > 1:
            self._chunk(b"fcTL", struct.pack(">5I2H2B", self._next(), *self._size, 0, 0, 1, self._rate, 0, 0))
        if self._number == 0:
            self._chunk(b"IDAT", pixels)
        else:
            self._chunk(b"fdAT", struct.pack(">I", self._next()) + pixels)
        self._number += 1

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._chunk(b"IEND", b"")
        self._file.close()

    def _next(self):
        self._sequence += 1
        return self._sequence - 1

    def _chunk(self, kind, data):
        self._file.write(struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)))
