"""Whether this node can serve a service now: asked by an attempt that failed, and before the end of a quarantine."""

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Final

from accsd import proc
from accsd.errors import Unavailable
from accsd.work.context import AttemptContext
from accsd.work.service import LocalService

_WITHIN: Final = timedelta(seconds=20)
_KEPT_OUTPUT: Final = 2000
# what any program needs; the daemon's own environment has its secrets in it
_ENVIRON: Final[Mapping[str, str]] = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LANG": "C.UTF-8",
}


async def unfitness(served: LocalService, bench: AttemptContext) -> str | None:
    """What keeps this node from serving it, or None."""
    try:
        await served.runner.check()
    except Unavailable as away:
        return str(away)
    return bench.folder_problem() or bench.disk_problem() or await probe_problem(served)


async def probe_problem(served: LocalService) -> str | None:
    """What the service's own probe says; None: it passes, or there is none. Where a mount hangs, so does its probe."""
    if served.probe is None:
        return None
    command = served.probe[0]
    environ = {**_ENVIRON, "ACC_SERVICE": served.service}
    try:
        ended = await proc.call(served.probe, within=_WITHIN, env=environ, cwd=Path("/"), keep=_KEPT_OUTPUT)
    except OSError as error:  # a TimeoutError too
        return f"its probe {command} says nothing: {error}"
    if ended.code == 0:
        return None
    said = f": {ended.said}" if ended.said else ""
    return f"its probe {command} ended with {ended.code}{said}"
