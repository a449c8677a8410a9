"""How long an attempt has run, over a restart of the agent too, by a clock that nobody can set.

The monotonic clock goes on from one process to the next for as long as the machine runs; after a boot there is nothing
left to adopt that would still run.
"""

import time
from contextlib import suppress
from pathlib import Path
from typing import Final

_BEGAN: Final = "began"  # in the attempt's folder


def seconds_run(folder: Path) -> float:
    """Since the first call for this folder."""
    now = time.monotonic()
    try:
        return max(0.0, now - float((folder / _BEGAN).read_text()))
    except (OSError, ValueError):
        with suppress(OSError):  # a full disk: an agent that adopts it counts anew
            (folder / _BEGAN).write_text(str(now))
        return 0.0
