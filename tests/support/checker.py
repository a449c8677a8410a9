"""The history checker of FAULTS.md: checker.sql finds nothing, or the test fails with what it found."""

from collections.abc import Collection
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

from tests.support.cluster import Connection

QUERY = Path(__file__).with_name("checker.sql").read_text()
SHOWN = 20


class Violation(NamedTuple):
    """One row of the checker: the rule, the task or job (or key) it is about, and what was seen."""

    rule: str
    id: str
    detail: str


async def violations(
    conn: Connection,
    *,
    slack: timedelta | None = None,
    lowered: Collection[str] = (),
    acknowledged: Collection[UUID] = (),
) -> list[Violation]:
    """What is wrong in this database. The parameters are those of checker.sql, by name."""
    rows = await conn.fetch(QUERY, slack, list(lowered), list(acknowledged))
    return [Violation(*row) for row in rows]


async def check(
    conn: Connection,
    slack: timedelta | None = None,
    *,
    lowered: Collection[str] = (),
    acknowledged: Collection[UUID] = (),
) -> None:
    """Fails unless everything that can be recounted agrees. `slack` bounds how far a lease may be overrun."""
    found = await violations(conn, slack=slack, lowered=lowered, acknowledged=acknowledged)
    if found:
        lines = [f"  {v.rule}: {v.id}: {v.detail}" for v in found[:SHOWN]]
        if len(found) > SHOWN:
            lines.append(f"  and {len(found) - SHOWN} more")
        raise AssertionError(f"the history checker found {len(found)}:\n" + "\n".join(lines))
