"""A verb that is carried out and then undone: what it would do is what it did. A dry run can't say it better.

Nothing is notified, because a transaction that is rolled back notifies nobody. Locks are held for its duration only.
"""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from accsd.db.pool import Database

Result = TypeVar("Result")


async def rehearsed(db: Database, work: Callable[[Database], Awaitable[Result]]) -> Result:
    """What `work` returns; everything that it has written is undone."""
    async with db.acquire() as connection:
        transaction = connection.transaction()
        await transaction.start()
        try:
            return await work(Database.over(connection))
        finally:
            await transaction.rollback()
