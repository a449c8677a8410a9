"""How a route calls a verb: for real, or as a dry run, which is the same verb undone."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from starlette.requests import Request

from accsd.db import Database
from accsd.db.rehearsal import as_rehearsed, rehearsed
from accsd.gateway.context import context_of

Result = TypeVar("Result")


def verbs_of(request: Request) -> Database:
    """The connections for verbs; what people do through them is in the audit with this request."""
    return context_of(request).verbs.acting("http", request.state.request_id)


async def done(request: Request, work: Callable[[Database], Awaitable[Result]], *, dry_run: bool) -> Result:
    db = verbs_of(request)
    return await (rehearsed(db, work) if dry_run else work(db))


async def done_together(request: Request, work: Callable[[Database], Awaitable[Result]], *, dry_run: bool) -> Result:
    """The same for several verbs: all of them in one transaction, or none."""
    if dry_run:
        return await rehearsed(verbs_of(request), work)
    result, _ = await as_rehearsed(verbs_of(request), work, lambda _: True)
    return result
