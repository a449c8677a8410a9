"""A service that stays up and takes its tasks over HTTP. `accsd sdk vendor` copies this folder beside a service:

    if __name__ == "__main__":
        serve_if_asked(work)  # python service.py --serve :8080
        work()

`work` takes one task as it always does: from the file that ACC_TASK_FILE names to stdout and an exit code. Standard
library only, Python 3.9 or later, Linux. docs/http-mode.md says what travels.

tasks       the process that has everything loaded, the keeper; each task is a fork of it
server      a process that speaks HTTP and holds no state; the keeper starts it again if it dies
record      what is known of a task: files, which both of them read
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from .tasks import Keeper, listen

__all__ = ["DRAIN_SECONDS", "serve", "serve_if_asked"]

DRAIN_SECONDS = 7.0  # the engine kills a container that does not stop within ten


def serve_if_asked(work: Callable[[], object], argv: Sequence[str] | None = None) -> None:
    """Returns at once unless the arguments have --serve HOST:PORT; then it serves and never returns."""
    given = list(sys.argv[1:] if argv is None else argv)
    if "--serve" in given:
        sys.exit(serve(work, given[given.index("--serve") + 1] if given[-1] != "--serve" else ""))


def serve(work: Callable[[], object], address: str, *, drain: float = DRAIN_SECONDS) -> int:
    """Serves until SIGTERM, then until the tasks have ended or were stopped."""
    listener = listen(address)
    with tempfile.TemporaryDirectory(prefix="accsd-serve-") as folder:
        return Keeper(work, listener, Path(folder), drain).run()
