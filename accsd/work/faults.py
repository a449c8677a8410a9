"""What an attempt makes of a disk that is full and of a store that is away, while it moves files."""

import errno
import random
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from datetime import timedelta
from typing import Final, TypeVar

import anyio

from accsd.errors import AttemptFailed, StorageUnavailable
from accsd.model.outcome import ErrorCode
from accsd.storage import ChecksumMismatch

T = TypeVar("T")

PATIENCE: Final = timedelta(minutes=2)
_FIRST_PAUSE: Final = 0.5
_LONGEST_PAUSE: Final = 15.0


@contextmanager
def failing_on_a_full_disk(what: str) -> Generator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise AttemptFailed(ErrorCode.AGENT_DISK, f"{what}: {error.strerror}") from error


async def patiently(transfer: Callable[[], Awaitable[T]], patience: timedelta) -> T:
    """Tries until it succeeds. No try begins later than `patience` after the first failure: a transfer may take as long
    as it takes, but an absence is waited for only so long."""
    pause, until = _FIRST_PAUSE, None
    while True:
        try:
            return await transfer()
        except ChecksumMismatch:
            raise
        except StorageUnavailable:
            now = anyio.current_time()
            until = now + patience.total_seconds() if until is None else until
            if now + pause > until:
                raise
        await anyio.sleep(pause * random.uniform(0.5, 1))
        pause = min(2 * pause, _LONGEST_PAUSE)
