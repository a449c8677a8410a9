"""A stream as an answer: its pieces, when it ends, and who is told."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from starlette.types import Message as Sent

from accsd.errors import DatabaseUnavailable
from accsd.gateway.hub import Hub
from accsd.gateway.messages import JOBS, Message, Topic
from accsd.gateway.stream import Format, StreamAnswer, format_of
from accsd.gateway.subscriptions import Subscription
from accsd.metrics import Metrics


class OneStream:
    """A hub with one subscription, which the test fills."""

    def __init__(self) -> None:
        self.subscription: Subscription = Subscription([JOBS])
        self.after: str | None = None
        self.is_open: bool = False

    @asynccontextmanager
    async def subscribe(self, topics: list[Topic], after: str | None) -> AsyncGenerator[Subscription]:
        self.after = after
        self.is_open = True
        try:
            yield self.subscription
        finally:
            self.is_open = False


async def always() -> bool:
    return True


def answer(hub: OneStream, metrics: Metrics, form: Format = "sse", **options: Any) -> StreamAnswer:
    given: dict[str, Any] = {"after": "5.7", "may": always, **options}
    return StreamAnswer(cast("Hub", hub), [JOBS], metrics=metrics, form=form, **given)


def closed(metrics: Metrics, why: str) -> bool:
    return f'accsd_stream_closed_total{{why="{why}"}} 1.0'.encode() in metrics.render()


async def sent_by(streamed: StreamAnswer, *, stuck_at: int | None = None) -> list[Sent]:
    sent: list[Sent] = []

    async def send(message: Sent) -> None:
        if len(sent) == stuck_at:
            await asyncio.Event().wait()
        sent.append(message)

    async def receive() -> Sent:
        await asyncio.Event().wait()
        raise AssertionError

    await streamed({"type": "http", "asgi": {"spec_version": "2.4"}}, receive, send)
    return sent


@pytest.mark.parametrize(
    ("form", "kind", "pieces"),
    [
        ("sse", "text/event-stream; charset=utf-8", [b"retry: 1000\n\n", b'id: 1.1\nevent: job\ndata: {"a":1}\n\n']),
        ("ndjson", "application/x-ndjson", [b'{"id":"1.1","event":"job","data":{"a":1}}\n']),
    ],
)
async def test_messages_are_sent_in_the_form_that_was_asked_for(form: Format, kind: str, pieces: list[bytes]) -> None:
    hub, metrics = OneStream(), Metrics()
    hub.subscription.offer(Message("job", {"a": 1}, "1.1"))
    hub.subscription.end()
    start, *body, end = await sent_by(answer(hub, metrics, form))
    headers = {name.decode(): value.decode() for name, value in start["headers"]}
    assert headers == {"content-type": kind, "cache-control": "no-store", "x-accel-buffering": "no"}
    assert [message["body"] for message in body] == pieces
    assert end == {"type": "http.response.body", "body": b"", "more_body": False}
    assert hub.after == "5.7"
    assert closed(metrics, "drained")


async def test_what_waits_is_one_piece_and_silence_is_a_ping() -> None:
    hub = OneStream()
    streamed = answer(hub, Metrics(), ping=0.01)
    pieces = streamed.pieces()
    assert await anext(pieces) == b"retry: 1000\n\n"
    assert await anext(pieces) == b": ping\n\n"
    for n in range(3):
        hub.subscription.offer(Message("job", {"n": n}, "1.1"))
    assert (await anext(pieces)).count(b"event: job") == 3
    await pieces.aclose()
    assert not hub.is_open


async def test_a_reader_who_may_not_look_any_more_is_cut_off() -> None:
    hub, metrics = OneStream(), Metrics()
    answers = [True, False]

    async def may() -> bool:
        return answers.pop(0)

    await sent_by(answer(hub, metrics, may=may, check=0.01))
    assert answers == []
    assert not hub.is_open
    assert closed(metrics, "refused")


async def test_an_outage_of_the_database_ends_no_stream_and_it_is_asked_again() -> None:
    """Streams tell of the outage; a token that was revoked in it ends them after it."""
    hub, metrics, asked = OneStream(), Metrics(), 0

    async def may() -> bool:
        nonlocal asked
        asked += 1
        if asked < 3:
            raise DatabaseUnavailable("it restarts")
        return False

    await sent_by(answer(hub, metrics, may=may, check=0.01))
    assert asked == 3
    assert closed(metrics, "refused")


async def test_a_reader_who_does_not_read_is_cut_off() -> None:
    hub, metrics = OneStream(), Metrics()
    hub.subscription.offer(Message("job", {"a": 1}, "1.1"))
    sent = await sent_by(answer(hub, metrics, write=0.01), stuck_at=2)
    assert len(sent) == 2  # the start and the first piece
    assert not hub.is_open
    assert closed(metrics, "stalled")


@pytest.mark.parametrize(
    ("accept", "form"),
    [(None, "sse"), ("text/event-stream", "sse"), ("application/x-ndjson", "ndjson"), ("*/*", "sse")],
)
def test_lines_of_json_are_for_those_who_ask_for_them(accept: str | None, form: Format) -> None:
    assert format_of(accept) == form
