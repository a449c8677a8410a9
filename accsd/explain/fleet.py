"""A node and a service in words: whether it takes work, since when, and why it does not."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

from accsd.db.nodes import Obstacle, together
from accsd.db.views.fleet import NodeView, ServiceView
from accsd.explain.words import duration, one_line


@dataclass(frozen=True, slots=True)
class Paused:
    """For how long, by whom and why something is paused; `busy` counts the tasks that go on."""

    busy: int
    for_: timedelta | None
    by: str | None
    because: str | None

    def __str__(self) -> str:
        """Empty while it is not paused."""
        if self.for_ is None:
            return ""
        who = f" by {self.by}" if self.by else ""
        return f"{duration(self.for_)} ago{who}" + (f": {self.because}" if self.because else "")


def node_drained(node: NodeView) -> Paused:
    return Paused(sum(node.live.values()), node.drained_for, node.drained_by, node.drained_because)


def service_paused(service: ServiceView) -> Paused:
    return Paused(service.live, service.paused_for, service.paused_by, service.paused_because)


def node_document(node: NodeView, silent: timedelta) -> dict[str, Any]:
    """A node for programs. `silent`: a node that has not been seen for so long is away."""
    return {"name": node.name, "state": node.state(silent), "since": node.since(silent), **asdict(node)}


def node_words(node: NodeView, silent: timedelta) -> dict[str, Any]:
    """What a list says of a node, for people."""
    return {
        "state": node.state(silent),
        "since": node.since(silent),
        "services": ", ".join(_used(node, service, slots, silent) for service, slots in node.slots.items()),
        "last_wake": _last_wake(node),
        "because": node_because(node, silent),
    }


def _used(node: NodeView, service: str, slots: int, silent: timedelta) -> str:
    """A service of a node and its slots. A node that is away shows the name only: its slots are not there, and those of
    a pull process were of its last pace."""
    ill = node.quarantines.get(service)
    state = "" if ill is None else " on trial" if ill["state"] == "trial" else " in quarantine"
    live = node.live.get(service, 0)
    used = f" {live}/{slots}" if live or node.whereabouts(silent) != "away" else ""
    return f"{service}{used}{state}"


def _last_wake(node: NodeView) -> str:
    if node.tried_ago is None:
        return f"never ({node.wake_method})" if node.wake_method else ""
    when = f"{duration(node.tried_ago)} ago"
    if node.tries:
        how = {True: "sent", False: "failed", None: "under way"}[node.tried_ok]
        return f"{node.method} {when}, {how}" + (f", call {node.tries}" if node.tries > 1 else "")
    took = f", took {duration(node.last_latency)}" if node.last_latency else ""
    return f"{node.brought_by} {when}{took}" if node.brought_by else f"{node.method} {when}, in vain"


def node_because(node: NodeView, silent: timedelta) -> str:
    """Why a node is awake or not; if it gave no reason, what happened to it last."""
    if node.drained_at is not None:
        return f"drained {node_drained(node)}"
    if ills := [*_obstacles(node, silent), *_quarantines(node)]:
        return "; ".join(ills)
    if node.because is None and node.power == "ready":
        return "it is at work" if node.live else ""
    return node.because or node.last_said or ""


def _obstacles(node: NodeView, silent: timedelta) -> Iterator[str]:
    """What keeps a node that is awake from its services. Of other nodes nobody knows whether it still does."""
    if node.whereabouts(silent) == "awake":
        for each in together((node.name, service, text) for service, text in node.obstacles.items()):
            yield f"no {', '.join(each.services)}: {each.obstacle.reason}"


def _quarantines(node: NodeView) -> Iterator[str]:
    for service, ill in node.quarantines.items():
        yield f"{service} in quarantine: {ill['reason']}"


def service_state(service: ServiceView) -> str:
    """Why a service is not served, anywhere or on some nodes; empty if it is."""
    if service.paused_at is None:
        ill = f"in quarantine on {', '.join(service.quarantined_on)}" if service.quarantined_on else ""
        ills = [ill, *(f"not on {node}: {Obstacle.read(text).reason}" for node, text in service.obstacles.items())]
        return one_line("; ".join(filter(None, ills))) if service.nodes else "no node offers it"
    return f"paused {service_paused(service)}"
