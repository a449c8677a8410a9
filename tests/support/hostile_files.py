"""Files for those who read them: laid into a folder of their own, with bytes that no editor writes."""

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random

from accsd.errors import AccsdError

Files = Mapping[str, bytes]  # by name
_ODD_BYTES = (
    *(
        b"\x00",
        b"\xff\xfe",
        b"\xef\xbb\xbf",
        b"\xfe\xff\x00a",
        b"\xed\xa0\x80",
        b"\x80",
        b"\x1b[31m",
        b"\x7f",
        b"\xc2\x85",
    ),
)


def in_a_folder(files: Files, use: Callable[[Path], object]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name, content in files.items():
            Path(folder, name).write_bytes(content)
        use(Path(folder))


def with_odd_bytes(random: Random, content: bytes) -> bytes:
    """At the beginning, or anywhere."""
    at = 0 if random.random() < 0.3 else random.randrange(len(content) + 1)
    return content[:at] + random.choice(_ODD_BYTES) + content[at:]


def in_words(error: AccsdError) -> None:
    assert error.message.strip(), f"{type(error).__name__} says nothing"
    assert "Traceback" not in error.message
