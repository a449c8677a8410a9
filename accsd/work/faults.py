"""What an attempt makes of a disk that is full and of a store that is away, while it moves files."""

import errno
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from datetime import timedelta
from typing import Final, TypeVar

from accsd.errors import AttemptFailed, StorageUnavailable
from accsd.model.outcome import ErrorCode
from accsd.retry import Backoff, while_away
from accsd.storage import ChecksumMismatch

T = TypeVar("T")

PATIENCE: Final = timedelta(minutes=2)
_PAUSES: Final = (timedelta(seconds=0.5), timedelta(seconds=15))


@contextmanager
def failing_on_a_full_disk(what: str) -> Generator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise AttemptFailed(ErrorCode.AGENT_DISK, f"{what}: {error.strerror}") from error


async def while_store_is_away(transfer: Callable[[], Awaitable[T]], patience: timedelta) -> T:
    """A transfer, repeated through absences of the object store. What arrived damaged is not asked for again."""
    pauses = Backoff(*_PAUSES, spread=(0.5, 1))
    return await while_away(
        transfer, away=StorageUnavailable, except_for=(ChecksumMismatch,), pauses=pauses, patience=patience
    )
