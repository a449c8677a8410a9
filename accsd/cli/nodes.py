"""`accsd nodes`: the machines of the fleet; to wake, drain and resume them."""

from collections.abc import Mapping
from dataclasses import asdict
from datetime import timedelta
from typing import Any
from uuid import uuid4

import click

from accsd.cli.operator import operator
from accsd.cli.output import output_option, show, show_one, since
from accsd.cli.session import settings_of, with_database
from accsd.db import Pausable, Verdict, fleet, pause, resume
from accsd.db.fleet import NodeView
from accsd.db.pool import Database
from accsd.db.waking import claim_wake, record_wake
from accsd.errors import ConfigError, Unavailable
from accsd.model import Node
from accsd.power import WakeFailed, WakeResult, provider_for
from accsd.settings import Wake

_COLUMNS = {
    "name": "name",
    "state": "state",
    "services": "services",
    "labels": "labels",
    "last_seen": "last seen",
    "wake": "wake",
}


@click.group(invoke_without_command=True)
@output_option()
@click.pass_context
def nodes(ctx: click.Context, output: str) -> None:
    """List the machines: what each offers and uses, whether it is there, how it is woken.

    \b
    accsd nodes
    accsd nodes drain render-3 --reason "new graphics card"
    accsd nodes wake render-3
    """
    if ctx.invoked_subcommand is not None:
        return
    silent = settings_of(ctx).lease
    found = with_database(ctx, fleet.nodes)
    rows = [_row(node, silent) for node in found]
    if output != "table":
        show(rows, {}, output, name="name")
        return
    empty = "no node has registered; `accsd --role agent` on a machine registers it"
    show([{**row, **_for_eyes(node)} for row, node in zip(rows, found, strict=True)], _COLUMNS, output, empty=empty)


@nodes.command("show")
@click.argument("name")
@output_option()
@click.pass_context
def show_command(ctx: click.Context, name: str, output: str) -> None:
    """Show one machine with all that is known of it."""
    silent = settings_of(ctx).lease
    node = with_database(ctx, lambda db: fleet.node_named(db, name))
    row = _row(node, silent)
    if output == "table":
        known = {**row, **_for_eyes(node), "unseen_for": None}
        row = {key: value for key, value in known.items() if value not in (None, "", {})}
    show_one(row, output, name="name")


@nodes.command("drain")
@click.argument("name")
@click.option("--reason", help="Why, for those who wonder.")
@click.pass_context
def drain_command(ctx: click.Context, name: str, reason: str | None) -> None:
    """Let a machine end what it has, and take nothing new."""

    async def work(db: Database) -> tuple[Verdict, NodeView]:
        await fleet.node_named(db, name)
        verdict = await pause(db, Pausable.NODE, name, reason=reason, by=operator())
        return verdict, await fleet.node_named(db, name)

    verdict, node = with_database(ctx, work)
    if verdict is Verdict.REPEATED:
        click.echo(f"node {name} was drained already, {_drained(node)}")
        return
    busy = sum(node.live.values())
    left = f"{busy} tasks go on to their end" if busy else "nothing runs there"
    click.echo(f"node {name} is drained: {left}. `accsd nodes resume {name}` lets it work again")


@nodes.command("resume")
@click.argument("name")
@click.pass_context
def resume_command(ctx: click.Context, name: str) -> None:
    """Let a drained machine work again."""

    async def work(db: Database) -> Verdict:
        await fleet.node_named(db, name)
        return await resume(db, Pausable.NODE, name)

    verdict = with_database(ctx, work)
    click.echo(f"node {name} takes work again" if verdict is Verdict.ACCEPTED else f"node {name} was not drained")


@nodes.command("wake")
@click.argument("name")
@click.pass_context
def wake_command(ctx: click.Context, name: str) -> None:
    """Wake a machine now, as the builder would. From here: its packets, requests and scripts are this machine's."""
    settings = settings_of(ctx)

    async def work(db: Database) -> WakeResult:
        node = await fleet.node_named(db, name)
        if node.wake_method is None:
            raise ConfigError(
                f"node {name} has no wake_method",
                hint="set node.wake_method (wol, provider or script) in its settings, then start its agent once",
            )
        return await _wake(db, node, settings.wake)

    result = with_database(ctx, work)
    if not result:
        raise Unavailable(f"node {name} was not woken by {result.method}: {result.error}", hint=_after(result, name))
    said = f" ({result.output})" if result.output else ""
    click.echo(f"node {name} called by {result.method}{said}; `accsd nodes show {name}` says when it is seen")


async def _wake(db: Database, view: NodeView, settings: Wake) -> WakeResult:
    """On record like every other try, so that a builder does not make the same one a moment later."""
    node = Node.model_validate({field: getattr(view, field) for field in _OF_THE_NODE})
    try_id = uuid4()
    await claim_wake(db, node.name, try_id, retry=timedelta(0))
    try:
        result = await provider_for(node, settings).wake(node)
    except WakeFailed as failure:
        assert node.wake_method is not None, "looked at before"
        result = WakeResult(False, node.wake_method, timedelta(0), error=failure.message)
    await record_wake(db, node.name, try_id, ok=result.ok, job_id=None, message="", data={})
    return result


_OF_THE_NODE = ("name", "labels", "last_seen", "awake_state", "wake_method", "mac", "provider_ref", "script")


def _after(result: WakeResult, name: str) -> str:
    said = f"it said: {result.output}; " if result.output else ""
    return f"{said}`accsd nodes show {name}` has its settings, `accsd doctor` looks at the routes"


def _row(node: NodeView, silent: timedelta) -> dict[str, Any]:
    return {"name": node.name, "state": node.state(silent), **asdict(node)}


def _for_eyes(node: NodeView) -> dict[str, Any]:
    return {
        "services": ", ".join(
            f"{service} {node.live.get(service, 0)}/{slots}" for service, slots in node.slots.items()
        ),
        "labels": ", ".join(f"{label}={_plain(value)}" for label, value in node.labels.items()),
        "wake": _how_woken(node),
    }


def _plain(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _how_woken(node: NodeView) -> str:
    if node.tried_at is None or (node.last_seen is not None and node.tried_at <= node.last_seen):
        return node.wake_method or ""
    how = {True: "sent", False: "failed", None: "under way"}[node.tried_ok]
    return f"{node.wake_method} ({how} {since(node.tried_at)})"


def _drained(node: NodeView) -> str:
    by: Mapping[str, str | None] = {"by": node.drained_by, "because": node.drained_because}
    words = [f"{word} {value}" for word, value in by.items() if value]
    return " ".join([since(node.drained_at) if node.drained_at else "", *words])
