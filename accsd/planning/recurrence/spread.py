"""Shares of a schedule: numbers that are even over many schedules, and for one schedule the same on every machine,
after restarts, edits and renames. `H` in a cron expression and the spread of due times come from them."""

import hashlib
from datetime import timedelta
from typing import Final

_BITS: Final = 64


def share(schedule_id: str, purpose: str, of: int) -> int:
    """A whole number in 0 ≤ share < of. What it is for decides too: else minute and hour would go together."""
    digest = hashlib.sha256(f"{purpose}\0{schedule_id}".encode()).digest()
    return int.from_bytes(digest[: _BITS // 8]) * of >> _BITS


def shift(schedule_id: str, spread: timedelta) -> timedelta:
    """How much later than its instant an occurrence of this schedule is due."""
    microsecond = timedelta(microseconds=1)
    return share(schedule_id, "spread", spread // microsecond) * microsecond
