"""Calls that must get through although the database may be away for a while."""

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TypeVar

import anyio

from accsd.errors import DatabaseUnavailable
from accsd.log import get_logger
from accsd.wakeup import Backoff

_log = get_logger(component="attempt")
T = TypeVar("T")
# A database that comes back is asked within a second.
PAUSES = (timedelta(seconds=0.1), timedelta(seconds=1))


async def insist(call: Callable[[], Awaitable[T]]) -> T:
    """Until it is answered. The end of an attempt's lease ends this too: it cancels what is carried out."""
    pauses = Backoff(*PAUSES)
    while True:
        try:
            return await call()
        except DatabaseUnavailable as error:
            _log.warning("database_away", error=str(error))
            await anyio.sleep(pauses.next().total_seconds())
