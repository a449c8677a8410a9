"""Pages of jobs as a request asks for them: parameters in, a page and its cursor out. The routes only add words."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final
from uuid import UUID

from accsd.db.pool import Database
from accsd.db.views.job_list import JobFilter, Position, list_jobs
from accsd.db.views.jobs import clock
from accsd.errors import InvalidValue
from accsd.gateway.paging import Cursors, Page, limit_of
from accsd.gateway.query import PARAMETERS, read_filter

_ORDERS: Final = ("newest", "oldest")


async def job_page(
    db: Database, cursors: Cursors, parameters: Mapping[str, str], *, prefixes: Sequence[str] | None = None
) -> tuple[Page, JobFilter]:
    """A page of jobs (JobRow), and the filter as it was understood. With `prefixes` only workflows whose names begin
    with one of them are shown, whatever is asked for."""
    asked = replace(read_filter(parameters, await clock(db)), prefixes=prefixes)
    given: dict[str, Any] = {name: parameters[name] for name in PARAMETERS if parameters.get(name)}
    given["order"] = order = order_of(parameters.get("order"))
    cursor = parameters.get("cursor")
    found = await list_jobs(
        db,
        asked,
        after=position_of(cursors.open(cursor, given)) if cursor else None,
        limit=limit_of(parameters.get("limit")),
        oldest_first=order == "oldest",
    )
    after = None if found.next is None else cursors.seal([found.next.order_seq, str(found.next.id)], given)
    return Page(found.rows, after, found.scan, found.as_of), asked


def order_of(text: str | None) -> str:
    if text and text not in _ORDERS:
        raise InvalidValue(f'order "{text[:20]}" is neither newest nor oldest')
    return text or "newest"


def position_of(sealed: Sequence[int | str]) -> Position:
    order_seq, job = sealed
    return Position(int(order_seq), UUID(str(job)))
