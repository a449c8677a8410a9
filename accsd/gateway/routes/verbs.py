"""How a route calls a verb: for real, or as a dry run, which is the same verb undone."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from starlette.requests import Request

from accsd.db import Database
from accsd.db.rehearsal import rehearsed
from accsd.gateway.context import context_of

Result = TypeVar("Result")


async def done(request: Request, work: Callable[[Database], Awaitable[Result]], *, dry_run: bool) -> Result:
    db = context_of(request).verbs
    return await (rehearsed(db, work) if dry_run else work(db))
