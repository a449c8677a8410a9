"""Wake calls under way: they take longer than the pass of the waker that started them."""

import asyncio
from collections.abc import Awaitable, Callable, Set

import anyio
from anyio.abc import TaskGroup


class CallsUnderWay:
    """Wake calls outlive the pass that started them, but not `serve`. `when_ended` hears of each end."""

    def __init__(self) -> None:
        self.when_ended: Callable[[], None] | None = None
        self._group: TaskGroup | None = None
        self._nodes: set[str] = set()
        self._said: list[str] = []
        self._failure: Exception | None = None
        self._ended: asyncio.Event = asyncio.Event()

    @property
    def nodes(self) -> Set[str]:
        """The nodes that are being called."""
        return self._nodes

    @property
    def is_open(self) -> bool:
        return self._group is not None

    async def serve(self) -> None:
        async with anyio.create_task_group() as group:
            self._group = group
            try:
                await anyio.sleep_forever()
            finally:
                self._group = None

    def start(self, node: str, call: Callable[[], Awaitable[list[str]]]) -> None:
        """Starts a wake call; `call` returns a sentence for each try."""
        assert self._group is not None, "nobody is called before the calls are served"
        assert node not in self._nodes, node
        self._nodes.add(node)
        self._group.start_soon(self._run, node, call, name=f"call {node}")

    def take(self) -> list[str]:
        """The newest sentences. Raises the error of a failed wake call: the supervisor knows what to do."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        said, self._said = self._said, []
        return said

    async def all_ended(self) -> None:
        while self._nodes:
            self._ended.clear()
            await self._ended.wait()

    async def _run(self, node: str, call: Callable[[], Awaitable[list[str]]]) -> None:
        try:
            self._said += await call()
        except Exception as failure:  # noqa: BLE001 - the other wake calls go on; `take` raises it for the supervisor
            self._failure = failure
        finally:
            self._nodes.discard(node)
            self._ended.set()
            if self.when_ended is not None:
                self.when_ended()
