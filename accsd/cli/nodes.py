"""`accsd nodes`: the machines of the fleet, why each is awake or not; to wake, send to sleep, drain and resume."""

from dataclasses import asdict
from datetime import timedelta
from typing import Any, Final

import click

from accsd.cli import completion, times
from accsd.cli.bars import DID, bar, legend
from accsd.cli.changes import reason_option
from accsd.cli.output import output_option, say, show, show_fitting, show_one, since, text
from accsd.cli.pause import Subject, pause_one, resume_one
from accsd.cli.session import operator, settings_of, with_database
from accsd.db import Pausable, Verdict, forget_node
from accsd.db.pool import Database
from accsd.db.tools import ToolOffer, tool_offers
from accsd.db.views import fleet
from accsd.db.views import jobs as job_views
from accsd.db.views.fleet import NodeEvent, NodeView
from accsd.errors import AccsdError, Unavailable
from accsd.explain import power
from accsd.explain.fleet import Paused, node_document, node_drained, node_words
from accsd.explain.fleet_time import Lane, Timeline, energy_document, read_forecast, read_timeline
from accsd.explain.words import duration, one_line, short
from accsd.planning.energy import Use
from accsd.planning.wake import WakePolicy
from accsd.power import WakeResult
from accsd.values.labels import shown_label

_COLUMNS: Final = {
    "name": "name",
    "state": "state",
    "since": "since",
    "services": "services",
    "last_wake": "last wake",
    "because": "because",
}
_BLOCKS: Final = 72
_wait_option = click.option("--wait", is_flag=True, help="Stay until it is so; exit code 5 if it takes too long.")


@click.group(invoke_without_command=True)
@click.option("--all", "every", is_flag=True, help="Also what works under a node's name without being a machine.")
@output_option()
@click.pass_context
def nodes(ctx: click.Context, every: bool, output: str) -> None:
    """List the machines: what each offers and uses, whether it is awake and why, how it was woken.

    \b
    accsd nodes
    accsd nodes show render-3
    accsd nodes wake render-3 --wait
    accsd nodes drain render-3 --reason "new graphics card"
    accsd nodes remove render-3
    accsd nodes energy --since 7d
    """
    if ctx.invoked_subcommand is not None:
        return
    silent = settings_of(ctx).lease
    found = [node for node in with_database(ctx, fleet.nodes) if every or node.is_machine]
    if output == "table":
        empty = "no node has registered; `accsd --role agent` on a machine registers it"
        show_fitting([_line(node, silent) for node in found], _COLUMNS, empty=empty)
    else:
        show([node_document(node, silent) for node in found], {}, output, name="name")


@nodes.command("show")
@click.argument("name", shell_complete=completion.node_names)
@click.option("--history", "count", type=click.IntRange(0, 1000), default=20, show_default=True, metavar="N")
@output_option()
@click.pass_context
def show_command(ctx: click.Context, name: str, count: int, output: str) -> None:
    """Show one machine with all that is known of it, and the last N things that happened to it."""
    silent = settings_of(ctx).lease

    async def work(db: Database) -> tuple[NodeView, list[NodeEvent], list[ToolOffer]]:
        node = await fleet.node_named(db, name)
        return node, await fleet.node_history(db, name, limit=count), await tool_offers(db, node=name)

    node, history, offers = with_database(ctx, work)
    if output != "table":
        more = {"history": [asdict(event) for event in history], "offered_tools": [offer.name for offer in offers]}
        show_one(node_document(node, silent) | more, output, name="name")
        return
    offered = ", ".join(f"{offer.name} ({offer.service})" for offer in offers)
    show_one(_known(node, silent) | ({"offered_tools": offered} if offered else {}), output)
    if history:
        say()
        show_fitting([asdict(event) for event in history], {"ts": "when", "state": "state", "message": "what happened"})


@nodes.command("drain")
@click.argument("name", shell_complete=completion.node_names)
@reason_option
@click.pass_context
def drain_command(ctx: click.Context, name: str, reason: str | None) -> None:
    """Let a machine end what it has, and take nothing new."""
    pause_one(ctx, _SUBJECT, name, reason)


@nodes.command("resume")
@click.argument("name", shell_complete=completion.node_names)
@reason_option
@click.pass_context
def resume_command(ctx: click.Context, name: str, reason: str | None) -> None:
    """Let a machine work again that is drained, or whose services are in quarantine."""
    resume_one(ctx, _SUBJECT, name, reason)


async def _look(db: Database, name: str) -> Paused:
    return node_drained(await fleet.node_named(db, name))


_SUBJECT: Final = Subject(
    Pausable.NODE, _look, "drained", "nothing runs there", "takes work again", "lets it work again"
)


@nodes.command("remove")
@click.argument("name", shell_complete=completion.node_names)
@reason_option
@click.pass_context
def remove_command(ctx: click.Context, name: str, reason: str | None) -> None:
    """Forget a machine that is gone for good. What it did stays in the history of its jobs; should it come back, it
    registers anew.

    \b
    accsd nodes remove render-3
    """

    async def work(db: Database) -> None:
        await fleet.node_named(db, name)
        answer, refusal = await forget_node(db, name, by=operator(), reason=reason)
        if answer is Verdict.REFUSED and refusal != "not_found":  # somebody else was quicker
            why, hint = _KEPT.get(refusal or "", (refusal, "`accsd nodes show {0}`"))
            raise AccsdError(f"node {name} is not removed: {why}", hint=hint.format(name))

    with_database(ctx, work)
    say(f"node {name} is forgotten")


_KEPT: Final = {
    "is_here": ("it was seen a moment ago", "stop accsd on {0} first, or wait until it is silent for two minutes"),
    "holds_tasks": ("it holds tasks", "they are taken from it when their leases end; `accsd jobs --status running`"),
}


@nodes.command("wake")
@click.argument("name", shell_complete=completion.node_names)
@_wait_option
@click.option("--timeout", type=times.LENGTH, metavar="TIME", help="With --wait; otherwise by its own usual time.")
@reason_option
@click.pass_context
def wake_command(ctx: click.Context, name: str, wait: bool, timeout: timedelta | None, reason: str | None) -> None:
    """Wake a machine now, as the builder would: by its wake_method, and by the next one if a call does not get through.

    From here: the packets, requests and scripts are this machine's.

    \b
    accsd nodes wake render-3
    accsd nodes wake render-3 --wait --timeout 3m
    """
    settings = settings_of(ctx)

    async def work(db: Database) -> None:
        before = await fleet.node_named(db, name)
        if before.is_here(3 * settings.heartbeat):
            say(f"node {name} is awake, seen {duration(before.unseen_for or timedelta(0))} ago")
            return
        _tell_calls(name, await power.call(db, name, settings, by=operator(), reason=reason))
        if wait:
            node = await power.seen(db, before, within=timeout or power.patience(before, settings))
            took = "" if node.last_latency is None else f", {duration(node.last_latency)} after the call"
            say(f"node {name} is awake{took}")
        else:
            say(f"  `accsd nodes show {name}` says when it is seen")

    with_database(ctx, work)


def _tell_calls(name: str, results: list[WakeResult]) -> None:
    """Says the result of each wake call. It is an error if none got through."""
    for result in results:
        said = f" ({text(result.output)})" if result.output else ""
        if result.ok:
            say(f"node {name} called by {result.method}{said}")
        else:
            say(f"node {name} was not woken by {result.method}: {text(result.error)}{said}", err=True)
    if not results:
        say(f"node {name} is being called by somebody else at this moment")
    elif not results[-1].ok:
        raise Unavailable(f"node {name} was not woken", hint=f"`accsd doctor --node {name}` looks for the cause")


@nodes.command("sleep")
@click.argument("name", shell_complete=completion.node_names)
@_wait_option
@click.option("--timeout", type=times.LENGTH, default=power.GOES_WITHIN, metavar="TIME", help="With --wait: 90 s.")
@reason_option
@click.pass_context
def sleep_command(ctx: click.Context, name: str, wait: bool, timeout: timedelta, reason: str | None) -> None:
    """Ask a machine to sleep now. It stays awake while it has work, is needed soon, or somebody objects, and says so.

    With --wait, one that says goodbye and comes back within 5 s has failed to sleep: exit code 1, and the reason.

    \b
    accsd nodes sleep render-3
    accsd nodes sleep render-3 --wait
    """
    settings = settings_of(ctx)

    async def work(db: Database) -> None:
        before = await fleet.node_named(db, name)
        if before.whereabouts(settings.lease) == "asleep":
            say(f"node {name} is asleep already, {since(before.power_since) if before.power_since else ''}")
            return
        power.check_awake(before, settings)
        asked_at = await job_views.clock(db)
        say(f"node {name}: {await power.ask_to_sleep(db, name, by=operator(), reason=reason)}")
        if wait:
            node = await power.asleep(db, name, since=asked_at, within=timeout)
            await power.stays_asleep(db, name, since=asked_at, settle=power.SETTLES_WITHIN)
            say(f"node {name} is asleep" + (f": {text(node.last_said)}" if node.last_said else ""))

    with_database(ctx, work)


_since_option = click.option(
    "--since", type=times.LENGTH, default=timedelta(days=1), metavar="TIME", help="How far back. [default: 24h]"
)


async def _timeline(db: Database, back: timedelta, silent: timedelta) -> Timeline:
    now = await job_views.clock(db)
    return await read_timeline(db, now - back, None, silent=silent)


@nodes.command("timeline")
@_since_option
@output_option()
@click.pass_context
def timeline_command(ctx: click.Context, since: timedelta, output: str) -> None:
    """Show what each machine did: asleep, waking, booting, idle, busy, or away. -o json has each change and its reason.

    \b
    accsd nodes timeline --since 7d
    """
    silent = settings_of(ctx).lease
    found = with_database(ctx, lambda db: _timeline(db, since, silent))
    if output != "table":
        show_one(found.document(), output, name="from")
        return
    width = max((len(lane.node) for lane in found.lanes), default=0)
    for lane in found.lanes:
        say(f"{lane.node:<{width}}  ", bar(_pieces(found, lane), DID, _BLOCKS))
    if found.lanes:
        block = duration((found.until - found.since) / _BLOCKS)
        say(" " * (width + 2), legend(((state, state) for state in DID if state), DID), f"  (a block: {block})")
    else:
        say("no node has registered", err=True)


def _pieces(timeline: Timeline, lane: Lane) -> list[tuple[str, float]]:
    """With what is not known before a machine was first seen."""
    pieces = [(piece.state, piece.seconds) for piece in lane.intervals]
    begins = lane.intervals[0].since if lane.intervals else timeline.until
    return [("", (begins - timeline.since).total_seconds()), *pieces]


@nodes.command("energy")
@_since_option
@output_option()
@click.pass_context
def energy_command(ctx: click.Context, since: timedelta, output: str) -> None:
    """Show what each machine has used, and what its sleep has saved: time asleep × (idle watts − asleep watts).

    What a machine draws is a setting of it: [node] watts. Machines without it are named, not guessed.

    \b
    accsd nodes energy --since 7d
    """
    silent = settings_of(ctx).lease
    found = energy_document(with_database(ctx, lambda db: _timeline(db, since, silent)))
    if output != "table":
        show_one(found, output, name="kwh")
        return
    rows = [
        {
            "node": node["node"],
            "awake": node["awake_seconds"] / 3600,
            "asleep": node["asleep_seconds"] / 3600,
            "kwh": node["kwh"],
            "saved": node["saved_kwh"],
        }
        for node in found["nodes"]
    ]
    headings = {"node": "node", "awake": "awake h", "asleep": "asleep h", "kwh": "kWh", "saved": "saved kWh"}
    show(rows, headings, output, empty="no node has registered")
    if rows:
        say(f"in all {found['kwh']:.2f} kWh used, {found['saved_kwh']:.2f} kWh saved")
    if found["without_watts"]:
        say(f"nobody has said what these draw ([node] watts): {', '.join(found['without_watts'])}", err=True)


@nodes.command("forecast")
@click.option("--within", type=times.LENGTH, default=timedelta(days=1), metavar="TIME", help="[default: 24h]")
@output_option()
@click.pass_context
def forecast_command(ctx: click.Context, within: timedelta, output: str) -> None:
    """Show which machines will be woken, and for what: by jobs that are due and schedules that fire, as planned now."""
    settings = settings_of(ctx)
    wake = settings.wake
    policy = WakePolicy(wake.boot, wake.rounds, wake.rest, wake.longest_rest)
    found = with_database(
        ctx, lambda db: read_forecast(db, within, lease=settings.lease, policy=policy, at_once=wake.at_once)
    )
    if output != "table":
        show_one(found, output, name="to")
        return
    columns = {"at": "wakes", "node": "node", "due_at": "due", "service": "service", "because": "for"}
    rows = [
        wake | {"because": f"schedule {wake['schedule']}" if wake["job_id"] is None else f"job {short(wake['job_id'])}"}
        for wake in found["wakes"]
    ]
    show(rows, columns, output, empty=f"no machine will be woken within {duration(within)}, as far as is known")


def _line(node: NodeView, silent: timedelta) -> dict[str, Any]:
    """A row of the list; `nodes show` has every word."""
    cells = node_words(node, silent)
    return {"name": node.name, **cells, "because": one_line(cells["because"])}


def _known(node: NodeView, silent: timedelta) -> dict[str, Any]:
    """Everything that is known of a node, in words where there are some."""
    drawn = node.watts or {}
    raw = {"mac": node.mac, "provider_ref": node.provider_ref, "script": node.script}
    words = {
        "labels": ", ".join(f"{label}={shown_label(value)}" for label, value in node.labels.items()),
        "last_seen": node.last_seen,
        "wake_method": node.wake_method,
        **raw,
        "usual_latency": node.latency,
        "networks": ", ".join(node.networks),
        "watts": ", ".join(f"{use} {drawn[use]:g}" for use in Use if use in drawn),
    }
    known = {"name": node.name, **node_words(node, silent), **words}
    return {key: value for key, value in known.items() if value not in (None, "")}
