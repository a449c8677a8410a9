"""A service as this node runs it: from its settings, or from the labels of its compose file."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final

from accsd import proc
from accsd.errors import Unavailable
from accsd.runners.base import Runner
from accsd.work.context import AttemptContext

_WITHIN: Final = timedelta(seconds=20)
_KEPT_OUTPUT: Final = 2000


@dataclass(frozen=True, slots=True)
class LocalService:
    name: str
    runner: Runner
    concurrency: int
    timeout: timedelta | None  # for steps that give none
    stop_grace: timedelta
    idle_stop: timedelta | None
    output_limit: int
    probe: Sequence[str] | None = None  # the command that says whether this machine can serve it now
    tool: str | None = None  # that it offers to do
    tool_schema: Path | None = None  # the file that has the types of what the tool takes and gives

    async def why_unfit(self, context: AttemptContext) -> str | None:
        """Why this node can't serve it, or None."""
        try:
            await self.runner.check()
        except Unavailable as away:
            return str(away)
        return context.folder_problem() or context.disk_problem() or await self.probe_problem()

    async def probe_problem(self) -> str | None:
        """What the service's own probe says; None: it passes, or there is none. A probe hangs where a mount hangs."""
        if self.probe is None:
            return None
        command = self.probe[0]
        environ = {**proc.PLAIN_ENVIRON, "ACC_SERVICE": self.name}
        try:
            ended = await proc.call(self.probe, within=_WITHIN, env=environ, cwd=Path("/"), keep=_KEPT_OUTPUT)
        except OSError as error:  # a TimeoutError too
            return f"its probe {command} says nothing: {error}"
        if ended.code == 0:
            return None
        said = f": {ended.said}" if ended.said else ""
        return f"its probe {command} ended with {ended.code}{said}"
