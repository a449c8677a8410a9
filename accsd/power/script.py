"""Waking by a script on the control host: for machines that no protocol reaches, behind a relay or a smart plug.

The path comes from the database, where a node wrote it: so it only chooses among what the administrator has put into
one folder, and nothing is run that anybody else could have changed.
"""

import asyncio
import os
import re
import stat
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Final

from accsd import proc
from accsd.model import Node, WakeMethod
from accsd.power.base import WakeFailed, WakeResult, outcome

_KEPT_OUTPUT: Final = 8192
# It becomes an argument: it must not look like an option, nor be anything that a careless script would stumble over.
_SAFE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
_WRITABLE_BY_OTHERS: Final = stat.S_IWGRP | stat.S_IWOTH


@dataclass(frozen=True, slots=True)
class ShellScript:
    """Runs `path NODE` without a shell and with an environment of its own; exit code 0 is success."""

    path: str | Path
    folder: Path | None = field(default=None, kw_only=True)
    within: timedelta = field(default=timedelta(seconds=60), kw_only=True)

    async def wake(self, node: Node) -> WakeResult:
        return await outcome(WakeMethod.SCRIPT, self._wake(node))

    async def _wake(self, node: Node) -> str:
        if not _SAFE_NAME.fullmatch(node.name):
            raise WakeFailed("the node's name is not fit to be an argument: letters, digits, '.', '_' and '-'")
        script = await asyncio.to_thread(trusted_script, Path(self.path), self.folder)
        environ = {**proc.PLAIN_ENVIRON, "ACC_NODE_NAME": node.name}
        ended = await proc.call([script, node.name], within=self.within, env=environ, cwd=Path("/"), keep=_KEPT_OUTPUT)
        if ended.code != 0:
            end = f"ended with exit code {ended.code}" if ended.code > 0 else f"was ended by signal {-ended.code}"
            raise WakeFailed(f"{script.name} {end}", output=ended.said)
        return ended.said


def trusted_script(path: Path, folder: Path | None) -> Path:
    """The script itself, behind all links, if nobody but root and this user can have written it."""
    if not path.is_absolute():
        raise WakeFailed(f"{path} is not an absolute path")
    try:
        real = path.resolve(strict=True)
        within = folder.resolve(strict=True) if folder is not None else real.parent
        if not real.is_relative_to(within):
            raise WakeFailed(f"{path} is not in {folder}, the only folder that scripts are run from")
        for part in [real, *(parent for parent in real.parents if parent.is_relative_to(within))]:
            _check_owner(part)
        if not stat.S_ISREG(real.stat().st_mode) or not os.access(real, os.X_OK):
            raise WakeFailed(f"{path} is not an executable file")
    except (OSError, ValueError, RuntimeError) as error:  # not there, a zero byte, a circle of links
        raise WakeFailed(f"{path} can't be run: {getattr(error, 'strerror', None) or error}") from error
    return real


def _check_owner(part: Path) -> None:
    found = part.stat()
    if found.st_uid not in (0, os.geteuid()):
        raise WakeFailed(f"{part} belongs neither to root nor to the user that accsd runs as")
    if found.st_mode & _WRITABLE_BY_OTHERS:
        raise WakeFailed(f"{part} can be written by others than its owner (chmod go-w)")
