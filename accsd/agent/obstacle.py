"""The obstacle between this node and a service, as its agent sees it: told once, for as long as it lasts.

After an attempt that failed for a reason of this machine's the agent pauses, longer each time. The first claim after
an obstacle shows whether it is gone.
"""

import time
from datetime import timedelta
from typing import Final

from accsd.agent.node import AGENT, Node
from accsd.db.nodes import note_obstacle
from accsd.log import get_logger
from accsd.retry import Backoff
from accsd.supervisor import Pass
from accsd.work.attempt import Attempt

_PAUSES: Final = (timedelta(seconds=2), timedelta(seconds=60))
_RECHECK: Final = timedelta(seconds=5)
_FAILED_HERE: Final = "the last attempt failed for a reason that is not the task's"
_NEXT: Final = "; next claim in "
_UNKNOWN: Final = ""  # an earlier agent may have told an obstacle


class Hindrance:
    def __init__(self, node: Node, service: str) -> None:
        self._node = node
        self._service = service
        self._log = get_logger(role=f"{AGENT}{service}", service=service)
        self._pauses: Backoff = Backoff(*_PAUSES)
        self._pause_ends: float = 0.0  # monotonic
        self._because: str = _FAILED_HERE
        self._logged: str | None = None
        self._told: str | None = _UNKNOWN  # the obstacle that the database knows
        self._is_retrying: bool = False

    def judge(self, attempt: Attempt) -> None:
        """Leaves work to other nodes for a while after an attempt that failed because of this machine or was turned
        away."""
        if (busy := attempt.turned_away) is not None:
            self._pause(busy.message, at_least=busy.again_in)
        elif attempt.was_infrastructure:
            self._pause(_FAILED_HERE)
        elif attempt.was_conclusive:
            self._pauses.reset()

    def recover(self) -> None:
        """Ends the pause: a probe has found this machine well."""
        self._pauses.reset()
        self._pause_ends = 0.0

    def found(self) -> str | None:
        """Why nothing may be claimed now; such a reason passes by itself."""
        if (left := self._pause_ends - time.monotonic()) > 0:
            return f"{self._because}{_NEXT}{left:.0f} s"
        return self._node.disk_problem()

    async def tell(self, obstacle: str, hint: str | None = None) -> Pass:
        """Tells the database the obstacle, so that `accsd why` can name it for as long as it lasts."""
        self._is_retrying = False
        await self._note(obstacle.partition(_NEXT)[0], hint)
        return self.wait(obstacle)

    async def try_again(self) -> None:
        """The obstacle may be gone. It is told as gone only after the first claim has gone well: otherwise an hour of
        refusals would be told as many short obstacles."""
        self._logged = None
        if self._is_retrying or self._told == _UNKNOWN:
            await self._note(None)
        self._is_retrying = self._told is not None

    @property
    def recheck(self) -> timedelta | None:
        return _RECHECK if self._is_retrying else None

    def wait(self, obstacle: str) -> Pass:
        if self._logged != obstacle.partition(";")[0]:
            self._logged = obstacle.partition(";")[0]
            self._log.warning("no_claims", reason=obstacle)
        left = timedelta(seconds=max(0.05, self._pause_ends - time.monotonic()))
        return Pass(next_due=left if self._pause_ends > time.monotonic() else _RECHECK, obstacle=obstacle)

    def _pause(self, because: str, *, at_least: timedelta = timedelta(0)) -> None:
        """Pauses claims. Of many attempts that end alike at once only the first makes the pause longer."""
        now = time.monotonic()
        pause = max(self._pauses.next() if now >= self._pause_ends else timedelta(0), at_least)
        self._pause_ends = max(self._pause_ends, now + pause.total_seconds())
        self._because = because

    async def _note(self, obstacle: str | None, hint: str | None = None) -> None:
        if obstacle != self._told:
            node = self._node
            await note_obstacle(node.db, node=node.name, service=self._service, reason=obstacle, hint=hint)
            self._told = obstacle
