"""Runs `python -m accsd ...` in this process and notes which of its functions are called while somebody wants to know.

    python tests/support/traced.py FILE python -m accsd --role all

SIGUSR1 begins, SIGUSR2 ends and writes a line `file function` for each function to FILE. Children are not followed, nor
what roles do in the meantime that only look whether there is something to do beside the job: ROLES_BESIDE.
"""

import asyncio
import signal
import sys
import threading
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

ROLES_BESIDE = {"calls", "cleanup", "judge", "orders", "poll", "probe", "prune", "registration", "sleep", "wake"}
_called: dict[CodeType, None] = {}
_is_wanted = False


def _profile(frame: FrameType, event: str, _argument: Any) -> None:
    if event == "call" and _is_wanted and not _is_beside():
        _called[frame.f_code] = None


def _is_beside() -> bool:
    try:
        task = asyncio.current_task()
    except RuntimeError:  # a thread, or a callback of the loop
        return False
    return task is not None and task.get_name() in ROLES_BESIDE


def _begin(*_: Any) -> None:
    global _is_wanted
    _is_wanted = True
    sys.setprofile(_profile)


def _end(*_: Any) -> None:
    global _is_wanted
    _is_wanted = False
    sys.setprofile(None)
    written = Path(sys.argv[0]).with_suffix(".partial")
    written.write_text("".join(f"{code.co_filename} {code.co_qualname}\n" for code in list(_called)))
    written.rename(sys.argv[0])


if __name__ == "__main__":
    from accsd.cli import main

    signal.signal(signal.SIGUSR1, _begin)
    signal.signal(signal.SIGUSR2, _end)
    threading.setprofile(_profile)
    _, answer, _python, _m, _accsd, *arguments = sys.argv
    sys.argv = [answer, *arguments]
    main(arguments)
