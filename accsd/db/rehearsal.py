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


async def as_rehearsed(
    db: Database, work: Callable[[Database], Awaitable[Result]], is_the_same: Callable[[Result], bool]
) -> tuple[Result, bool]:
    """What `work` returns, and whether it is done: it is undone if it came out otherwise than in its rehearsal. Nobody
    can come between the look and the deed, because the deed is looked at before it is committed."""
    async with db.acquire() as connection:
        transaction = connection.transaction()
        await transaction.start()
        try:
            result = await work(Database.over(connection, like=db))
            is_done = is_the_same(result)
        except BaseException:
            await transaction.rollback()
            raise
        await (transaction.commit() if is_done else transaction.rollback())
        return result, is_done
