"""A stray cancellation, which no scope asked for, stays where it arises.

A task group takes any cancellation of a child for its own end and silently cancels the other children. So code that
runs a runner, a store or an attempt as the child of a group does it in this block.
"""

import asyncio
from collections.abc import Generator
from contextlib import contextmanager

import anyio

from accsd.errors import Bug


@contextmanager
def contained() -> Generator[None]:
    """Raises Bug, with its cause, instead of a cancellation that no scope around this block asked for."""
    try:
        yield
    except asyncio.CancelledError as stray:
        if anyio.get_current_task().has_pending_cancellation():
            raise
        raise Bug("it was cancelled, and nobody had asked for it") from stray
