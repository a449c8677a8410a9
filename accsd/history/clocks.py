"""Whether the database's clock can be trusted with removals: if it has jumped ahead, everything looks old.

A removal can't be undone, so there are two witnesses: this host's clock, and the time since the last look by a counter
that can't be set and runs on while the host sleeps. The counter helps where database and host share a clock.
"""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final

from accsd.clock import boot_time
from accsd.db.history import database_time
from accsd.db.pool import Database
from accsd.errors import AccsdError

MAY_BE_AHEAD: Final = timedelta(minutes=10)
HINT: Final = "set the clocks right; if they are, restart the builder, or run `accsd history prune` and `archive`"


def _here() -> datetime:
    return datetime.now(UTC)


class Clocks:
    def __init__(self, here: Callable[[], datetime] = _here, passed: Callable[[], float] = boot_time) -> None:
        self._here = here
        self._passed = passed
        self._last: tuple[datetime, float] | None = None  # when the database's clock was trusted last

    async def problem(self, db: Database) -> str | None:
        """Why nothing should be removed now. A clock that was seen to jump stays untrusted until it jumps back."""
        there, passed = await database_time(db), self._passed()
        if (said := ahead_of(there, self._here())) is not None:
            return said
        before, then = self._last or (there, passed)
        jumped = there - before - timedelta(seconds=passed - then)
        if jumped > MAY_BE_AHEAD:
            return f"the database's clock has jumped ahead by {_shown(jumped)} since {before:%Y-%m-%d %H:%M} UTC"
        if jumped >= -MAY_BE_AHEAD:  # else it is behind, and correcting it is no jump
            self._last = there, passed
        return None


def ahead_of(there: datetime, here: datetime) -> str | None:
    if there - here <= MAY_BE_AHEAD:
        return None
    return f"the database's clock is {_shown(there - here)} ahead of this host's"


async def require_same_time(db: Database) -> None:
    """Raises if the database's clock is ahead; called by commands that remove things."""
    if (said := ahead_of(await database_time(db), _here())) is not None:
        raise AccsdError(f"nothing is removed: {said}", hint=HINT)


def _shown(length: timedelta) -> str:
    return f"{length.days} days" if length.days else f"{length.total_seconds() / 60:.0f} minutes"
