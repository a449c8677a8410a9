"""The cases of a problem: read from its test data one by one, and compared with what a program has written."""

import zipfile
from pathlib import Path

LARGEST_FILE = 64 * 1024 * 1024


class Tests:
    """tests.zip: NAME.in and NAME.out, checked when the problem was made, and again here as far as they are read."""

    def __init__(self, path: Path) -> None:
        self._archive = zipfile.ZipFile(path)
        names = set(self._archive.namelist())
        # the order of their names as text: 10 comes before 2
        self.names = sorted(name[:-3] for name in names if name.endswith(".in") and f"{name[:-3]}.out" in names)

    def given(self, name: str) -> bytes:
        return self._read(f"{name}.in")

    def wanted(self, name: str) -> bytes:
        return self._read(f"{name}.out")

    def _read(self, name: str) -> bytes:
        with self._archive.open(name) as file:
            data = file.read(LARGEST_FILE + 1)
        if len(data) > LARGEST_FILE:
            raise ValueError(f"{name} is too large")
        return data


def is_same(written: bytes, wanted: bytes) -> bool:
    """CRLF counts as LF, and white space at both ends of the whole does not count."""
    return _plain(written) == _plain(wanted)


def _plain(text: bytes) -> bytes:
    return text.replace(b"\r\n", b"\n").strip()
