"""A subscription as an answer over HTTP: server-sent events for browsers, lines of JSON for programs.

A route parses the topics and returns a `StreamAnswer`. A stream ends when its reader goes, does not read for 20 s, may
not look any more (asked each minute), or when the gateway stops.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Final, Literal

from starlette.responses import StreamingResponse
from starlette.types import Message as Sent
from starlette.types import Send

from accsd.errors import Unavailable
from accsd.gateway.hub import Hub
from accsd.gateway.messages import Message, Topic
from accsd.metrics import Metrics

PING_SEC: Final = 15.0
CHECK_SEC: Final = 60.0
ASK_AGAIN_SEC: Final = 5.0
WRITE_SEC: Final = 20.0
RETRY: Final = b"retry: 1000\n\n"

Format = Literal["sse", "ndjson"]
May = Callable[[], Awaitable[bool]]
Shown = Callable[[Message], Message | None]

_TYPES: Final = {"sse": "text/event-stream; charset=utf-8", "ndjson": "application/x-ndjson"}
_PINGS: Final = {"sse": b": ping\n\n", "ndjson": b"\n"}
# Proxies must neither keep nor gather what is on its way.
_HEADERS: Final = {"cache-control": "no-store", "x-accel-buffering": "no"}


def format_of(accept: str | None) -> Format:
    """Server-sent events, unless the request's Accept asks for lines of JSON."""
    return "ndjson" if "application/x-ndjson" in (accept or "") else "sse"


class StreamAnswer(StreamingResponse):
    """Ends by itself when its reader does not take a piece within `write` seconds, or when `may` says that he may not
    look any more; that is asked each `check` seconds. `shown`: a message as this reader is to see it, if it is."""

    def __init__(
        self,
        hub: Hub,
        topics: Sequence[Topic],
        *,
        after: str | None,
        may: May,
        metrics: Metrics,
        shown: Shown | None = None,
        form: Format = "sse",
        ping: float = PING_SEC,
        check: float = CHECK_SEC,
        write: float = WRITE_SEC,
    ) -> None:
        self._hub = hub
        self._topics = topics
        self._after = after
        self._may = may
        self._shown = shown
        self._metrics = metrics
        self._form: Format = form
        self._ping = ping
        self._check = check
        self._write = write
        self._why: str = "client"  # who ended it
        self._pieces: AsyncGenerator[bytes] = self.pieces()
        super().__init__(self._pieces, headers=_HEADERS, media_type=_TYPES[form])

    async def pieces(self) -> AsyncGenerator[bytes]:
        checked_at = time.monotonic()
        try:
            async with self._hub.subscribe(self._topics, self._after) as subscription:
                if self._form == "sse":
                    yield RETRY
                while True:
                    left = max(0.0, checked_at + self._check - time.monotonic())
                    messages = await subscription.batch(within=min(self._ping, left))
                    if time.monotonic() - checked_at >= self._check:
                        checked_at = time.monotonic()
                        try:
                            is_allowed = await self._may()
                        except Unavailable:  # nothing new is told meanwhile but that the database is away
                            is_allowed = True
                            checked_at -= max(0.0, self._check - ASK_AGAIN_SEC)
                        if not is_allowed:
                            self._why = "refused"
                            return
                    if messages:
                        told = self._of_reader(messages)
                        yield b"".join([m.sse if self._form == "sse" else m.ndjson for m in told])
                    elif subscription.is_ended:
                        self._why = "drained"
                        return
                    else:
                        yield _PINGS[self._form]
        finally:
            self._metrics.stream_closed(self._why)

    def _of_reader(self, messages: list[Message]) -> list[Message]:
        if self._shown is None:
            return messages
        return [shown for message in messages if (shown := self._shown(message)) is not None]

    async def stream_response(self, send: Send) -> None:
        async def send_in_time(sent: Sent) -> None:
            async with asyncio.timeout(self._write):
                await send(sent)

        try:
            await super().stream_response(send_in_time)
        except TimeoutError:
            self._why = "stalled"  # the server closes a connection whose answer did not come to its end
        finally:
            await self._pieces.aclose()
