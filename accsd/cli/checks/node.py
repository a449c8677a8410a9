"""One machine of the fleet, as this one sees it: whether it is there, and how it could be woken from here."""

import socket
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

from accsd.cli.checks.database import not_for_agents
from accsd.cli.checks.finding import Check, Finding, fail, ok, warn
from accsd.cli.session import operator
from accsd.db import Database
from accsd.db.views.doctor import is_agents_login
from accsd.db.views.fleet import NodeView, node_named
from accsd.db.wake import FleetNode
from accsd.explain.power import caller, known_node
from accsd.explain.words import duration
from accsd.model import WakeMethod
from accsd.power import RELAY, WakeFailed, networks
from accsd.power.script import trusted_script
from accsd.settings import Settings


def node_check(name: str) -> Check:
    async def check(settings: Settings) -> AsyncIterator[Finding]:
        db = await Database.open(settings.database, application="accsd doctor")
        try:
            if await is_agents_login(db):
                yield not_for_agents("node")
                return
            node = await node_named(db, name)
            known = await known_node(db, name, settings)
            methods = caller(db, settings, by=operator()).methods(known)
        finally:
            await db.close()
        for finding in [_seen(node, settings), _offers(node), *_wakeable(known, methods, settings), *_last_wake(node)]:
            yield finding

    return check


def elsewhere(name: str) -> Check:
    async def check(_: Settings) -> AsyncIterator[Finding]:
        yield ok("node", f"its network card and its sleep are looked at there: `accsd doctor --node` on {name}")

    return check


def _seen(node: NodeView, settings: Settings) -> Finding:
    seen = "never seen" if node.unseen_for is None else f"seen {duration(node.unseen_for)} ago"
    because = f" ({node.because})" if node.because else ""
    said = f"{node.name} is {node.state(settings.lease)}, {seen}{because}"
    match node.state(settings.lease):
        case "awake":
            return ok("node", said)
        case "drained":
            return warn("node", said, f"`accsd nodes resume {node.name}`")
        case "asleep" | "waking" | "booting" if node.wake_method is not None:
            return ok("node", said)
        case _:
            return warn("node", said, f"`accsd nodes wake {node.name}`, or start accsd there")


def _offers(node: NodeView) -> Finding:
    if any(node.slots.values()):
        return ok("node", f"{node.name} offers {', '.join(f'{name} × {slots}' for name, slots in node.slots.items())}")
    return warn(
        "node", f"{node.name} offers no service", "label services in its compose file, or name them in its settings"
    )


def _wakeable(known: FleetNode, methods: Sequence[str], settings: Settings) -> Iterator[Finding]:
    if not methods:
        do = "set node.wake_method and what it needs in that machine's settings, if it is to sleep"
        yield warn("node", f"node {known.node.name} has no wake_method", do)
        return
    yield ok("node", f"{known.node.name} is woken by {', then '.join(methods)}")
    for method in methods:
        yield from _way(known, method, settings)


def _way(known: FleetNode, method: str, settings: Settings) -> Iterator[Finding]:
    """Checks what a wake method needs on this machine."""
    match method:
        case WakeMethod.WOL:
            yield _reached(known, settings)
        case WakeMethod.PROVIDER:
            yield _provided(known, settings)
        case WakeMethod.SCRIPT:
            yield _scripted(known, settings)
        case _:
            assert method == RELAY, method
            yield ok("relay", f"{', '.join(known.relays)} can send the packet for {known.node.name}")


def _reached(known: FleetNode, settings: Settings) -> Finding:
    if not known.node.mac:
        do = "set node.mac in that machine's settings, and start its agent once"
        return fail("packets", f"{known.node.name} is woken by packets, and has no mac", do)
    if shared := sorted(set(known.networks) & set(networks())):
        return ok("packets", f"this machine and {known.node.name} are both in {', '.join(shared)}")
    if not known.networks:
        return ok(
            "packets", f"{known.node.name} has not said yet which networks it is in; they go everywhere from here"
        )
    said = f"this machine is in none of the networks of {known.node.name} ({', '.join(known.networks)})"
    if settings.wake.broadcast:
        return ok("packets", f"{said}; wake.broadcast is to lead there")
    if known.relays:
        return ok("packets", f"{said}; a neighbour sends them")
    do = "keep a machine awake there, or set wake.broadcast to its broadcast address if the router lets it through"
    return warn("packets", said, do)


def _provided(known: FleetNode, settings: Settings) -> Finding:
    name = (known.node.provider_ref or "").partition("/")[0]
    if name in settings.wake.providers:
        return ok("provider", f"{name} is in [wake.providers]")
    said = f'{known.node.name} names the provider "{name}", which is not in [wake.providers] of {socket.gethostname()}'
    return fail("provider", said, "add it to the settings of the control host")


def _scripted(known: FleetNode, settings: Settings) -> Finding:
    try:
        return ok("script", f"{trusted_script(Path(known.node.script or ''), settings.wake.script_dir)} may be run")
    except WakeFailed as refusal:
        return fail("script", f"{refusal.message} (on {socket.gethostname()})", "correct it, where the builder runs")


def _last_wake(node: NodeView) -> Iterator[Finding]:
    if node.tried_error:
        yield warn("last wake", f"{node.method}: {node.tried_error}", f"`accsd nodes show {node.name}` has them all")
    elif node.brought_by and node.last_latency:
        usual = f", usually {duration(node.latency)}" if node.latency else ""
        yield ok("last wake", f"{node.brought_by}, it was seen after {duration(node.last_latency)}{usual}")
