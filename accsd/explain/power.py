"""To wake a node and to send it to sleep by hand: `accsd nodes wake|sleep`, the cycle of `accsd doctor`, the gateway.

A call is made and recorded as the builder makes it, so that no builder makes the same one a moment later. To sleep the
node is asked, through the database: it alone knows whether it may.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Final, TypeVar
from uuid import uuid4

from accsd.db.orders import ANSWERED_WITHIN, OrderKind, answer_within, ask_node
from accsd.db.pool import Database
from accsd.db.views import fleet
from accsd.db.views.fleet import NodeView
from accsd.db.wake import FleetNode, wake_nodes
from accsd.errors import AccsdError, ConfigError, Unavailable
from accsd.explain.words import duration
from accsd.planning.wake import WakePolicy
from accsd.power import WakeResult
from accsd.settings import Settings
from accsd.work.wake_calls import WakeCaller

GOES_WITHIN: Final = timedelta(seconds=90)
SETTLES_WITHIN: Final = timedelta(seconds=5)
_LOOK_SEC: Final = 0.2
_EVENTS: Final = 50
Value = TypeVar("Value")


async def known_node(db: Database, name: str, settings: Settings) -> FleetNode:
    await fleet.node_named(db, name)  # or the name that was meant
    found = await wake_nodes(db, silent=settings.lease)
    return next(each for each in found if each.node.name == name)


def caller(db: Database, settings: Settings, *, by: str, reason: str | None = None) -> WakeCaller:
    return WakeCaller(db, settings.wake, by=by, reason=reason)


async def call(db: Database, name: str, settings: Settings, *, by: str, reason: str | None = None) -> list[WakeResult]:
    """Calls the node by one method after the other until a call gets through. Empty: another caller is at it now."""
    known = await known_node(db, name, settings)
    calling = caller(db, settings, by=by, reason=reason)
    methods = calling.methods(known)
    if not methods:
        raise ConfigError(
            f"node {name} has no wake_method",
            hint="set node.wake_method (wol, provider or script) in its settings, then start its agent once",
        )
    # who calls again, because it did not come, wants another way
    first = known.state.calls.count % len(methods) if known.state.calls else 0
    return [result for result, _ in await calling.call(known, [*methods[first:], *methods[:first]])]


def patience(node: NodeView, settings: Settings) -> timedelta:
    """How long a node may take from a call until it is seen: by its own measured time, if that is known."""
    return WakePolicy(boot=settings.wake.boot).patience(node.latency)


async def seen(db: Database, before: NodeView, *, within: timedelta) -> NodeView:
    """Returns the node as soon as it is seen again. Exit code 5 if that takes too long."""

    async def look() -> NodeView | None:
        node = await fleet.node_named(db, before.name)
        return node if node.power == "ready" and node.last_seen != before.last_seen else None

    late = f"node {before.name} was not seen within {duration(within)}; it may still come"
    return await _until(look, within, late, f"`accsd doctor --node {before.name}` looks for the cause")


def check_awake(node: NodeView, settings: Settings) -> None:
    """Only a node that is awake can be asked to sleep."""
    if not node.is_here(settings.lease):
        seen_ago = "never seen" if node.unseen_for is None else f"last seen {duration(node.unseen_for)} ago"
        raise Unavailable(
            f"node {node.name} is {node.whereabouts(settings.lease)}, {seen_ago}: nobody there would hear it",
            hint=f"`accsd nodes wake {node.name}`, or start accsd there",
        )


async def ask_to_sleep(db: Database, name: str, *, by: str, reason: str | None = None) -> str:
    """Returns what the node says before it sleeps. AccsdError says why it stays awake."""
    order_id = uuid4()
    await ask_node(db, order_id, name, OrderKind.SLEEP, by=by, reason=reason)
    answer = await answer_within(db, order_id)
    if answer is None:
        said = f"node {name} did not answer within {duration(ANSWERED_WITHIN)}"
        raise AccsdError(said, hint=f"see whether its agent runs: `accsd doctor --node {name}`") from TimeoutError()
    if not answer.ok:
        hint = f"that passes, or stands in its settings, [sleep]; `accsd nodes show {name}` tells what happened"
        raise AccsdError(f"node {name} stays awake: {answer.output}", hint=hint)
    return answer.output


async def asleep(db: Database, name: str, *, since: datetime, within: timedelta) -> NodeView:
    """Returns the node as soon as it has said that it goes to sleep. Exit code 5 if it does not; AccsdError if it came
    back. Its history is read, because both may happen between two looks."""

    async def look() -> NodeView | None:
        if not await _went(db, name, since):
            return None
        return await fleet.node_named(db, name)

    late = f"node {name} has not gone to sleep within {duration(within)}"
    return await _until(look, within, late, f"`accsd nodes show {name}` says why it is awake")


async def stays_asleep(db: Database, name: str, *, since: datetime, settle: timedelta) -> None:
    """A node can't report that it sleeps. One that could not be put to sleep reports that within moments; one that says
    nothing for this long is asleep."""
    ends = time.monotonic() + settle.total_seconds()
    while time.monotonic() < ends:
        await asyncio.sleep(_LOOK_SEC)
        await _went(db, name, since)


async def _went(db: Database, name: str, since: datetime) -> bool:
    """Whether the node said goodbye after that moment. AccsdError: it came back, and why."""
    after = [event for event in await fleet.node_history(db, name, limit=_EVENTS) if event.ts > since]
    goodbyes = [number for number, event in enumerate(after) if event.state == "asleep"]
    if not goodbyes:
        return False
    if back := after[goodbyes[-1] + 1 :]:
        raise AccsdError(
            f"node {name} is awake: {back[0].message}", hint=f"`accsd nodes show {name}` has what happened"
        )
    return True


async def _until(look: Callable[[], Awaitable[Value | None]], within: timedelta, late: str, hint: str) -> Value:
    try:
        async with asyncio.timeout(within.total_seconds()):
            while True:
                if (found := await look()) is not None:
                    return found
                await asyncio.sleep(_LOOK_SEC)
    except TimeoutError as error:
        raise AccsdError(late, hint=hint) from error
