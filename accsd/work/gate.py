"""Whether this node takes new work: agents pass through here to claim; who wants none shuts it and waits for them."""

import asyncio
from collections.abc import Generator
from contextlib import contextmanager
from datetime import timedelta

import anyio


class Gate:
    def __init__(self) -> None:
        self._is_open: bool = True
        self._inside: int = 0
        self._empty: asyncio.Event = asyncio.Event()
        self._empty.set()

    @property
    def is_open(self) -> bool:
        return self._is_open

    @contextmanager
    def passing(self) -> Generator[None]:
        """Only while it is open. What is claimed in the block has become an attempt at its end."""
        self._inside += 1
        self._empty.clear()
        try:
            yield
        finally:
            self._inside -= 1
            if self._inside == 0:
                self._empty.set()

    async def shut(self, within: timedelta) -> bool:
        """Whether nobody is between a claim and its attempts any more; the gate is shut in any case."""
        self._is_open = False
        with anyio.move_on_after(within.total_seconds()):
            await self._empty.wait()
        return self._empty.is_set()

    def open(self) -> None:
        self._is_open = True
