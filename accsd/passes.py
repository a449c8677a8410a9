"""What a pass of a role returns to the supervisor, which owns the only loop."""

from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True)
class Pass:
    """A sentence saying what the role did, or None; whether there is more to do at once; when it next has something
    due; and what keeps it from its work, if anything does."""

    did: str | None = None
    more: bool = False
    next_due: timedelta | None = None
    obstacle: str | None = None
