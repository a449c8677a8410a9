"""One machine of the fleet, as the control host sees it."""

from collections.abc import AsyncIterator

from accsd.cli.checks.finding import Check, Finding, fail, ok, warn
from accsd.cli.output import duration
from accsd.db import Database
from accsd.db.fleet import NodeView, node_named
from accsd.model import Node
from accsd.power import WakeFailed, provider_for
from accsd.settings import Settings


def node_check(name: str) -> Check:
    async def check(settings: Settings) -> AsyncIterator[Finding]:
        db = await Database.open(settings.database, application="accsd doctor")
        try:
            node = await node_named(db, name)
        finally:
            await db.close()
        yield _seen(node, settings)
        yield _offers(node)
        yield _wakeable(node, settings)

    return check


def _seen(node: NodeView, settings: Settings) -> Finding:
    seen = "never seen" if node.unseen_for is None else f"seen {duration(node.unseen_for)} ago"
    match node.state(settings.lease):
        case "awake":
            return ok("node", f"{node.name} is awake, {seen}")
        case "drained":
            return warn("node", f"{node.name} is drained, {seen}", f"`accsd nodes resume {node.name}`")
        case state:
            return warn(
                "node", f"{node.name} is {state}, {seen}", f"`accsd nodes wake {node.name}`, or start accsd there"
            )


def _offers(node: NodeView) -> Finding:
    if any(node.slots.values()):
        return ok("node", f"{node.name} offers {', '.join(f'{name} × {slots}' for name, slots in node.slots.items())}")
    return warn(
        "node", f"{node.name} offers no service", "label services in its compose file, or name them in its settings"
    )


def _wakeable(node: NodeView, settings: Settings) -> Finding:
    described = {"name": node.name, "wake_method": node.wake_method, "mac": node.mac}
    described |= {"provider_ref": node.provider_ref, "script": node.script}
    try:
        provider_for(Node.model_validate(described), settings.wake)
    except WakeFailed as failure:
        do = "set node.wake_method and what it needs in that machine's settings, if it is to sleep"
        return warn("node", failure.message, do)
    script_without_folder = node.wake_method == "script" and settings.wake.script_dir is None
    if script_without_folder:
        return fail(
            "node", f"{node.name} is woken by a script, and wake.script_dir is not set here", "set wake.script_dir"
        )
    return ok("node", f"{node.name} is woken by {node.wake_method}")
