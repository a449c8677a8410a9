"""`accsd services`: what waits for each service and who offers it; to pause and resume them."""

from dataclasses import asdict

import click

from accsd.cli.operator import operator
from accsd.cli.output import output_option, show, since
from accsd.cli.session import with_database
from accsd.db import Pausable, Verdict, fleet, pause, resume
from accsd.db.fleet import ServiceView
from accsd.db.pool import Database

_COLUMNS = {
    "service": "service",
    "claimable": "claimable",
    "in_backoff": "backoff",
    "held": "held",
    "running": "running",
    "nodes": "nodes",
    "state": "state",
}


@click.group(invoke_without_command=True)
@output_option()
@click.pass_context
def services(ctx: click.Context, output: str) -> None:
    """List the services: what waits for each one, what runs, and which machines offer it.

    \b
    accsd services
    accsd services pause renderer --reason "the licence server is down"
    accsd services resume renderer
    """
    if ctx.invoked_subcommand is not None:
        return
    found = with_database(ctx, fleet.services)
    if output == "table":
        empty = "no service is known; a workflow names them, and nodes offer them"
        show([_for_eyes(service) for service in found], _COLUMNS, output, empty=empty)
    else:
        show([asdict(service) for service in found], {}, output, name="service")


@services.command("pause")
@click.argument("name")
@click.option("--reason", help="Why, for those who wonder.")
@click.pass_context
def pause_command(ctx: click.Context, name: str, reason: str | None) -> None:
    """Let nobody begin a task of a service. What runs goes on."""

    async def work(db: Database) -> tuple[Verdict, ServiceView]:
        await fleet.service_named(db, name)
        verdict = await pause(db, Pausable.SERVICE, name, reason=reason, by=operator())
        return verdict, await fleet.service_named(db, name)

    verdict, service = with_database(ctx, work)
    if verdict is Verdict.REPEATED:
        click.echo(f"service {name} was {state_of(service)} already")
    else:
        go_on = f"{service.live} tasks go on to their end" if service.live else "nothing of it runs"
        click.echo(f"service {name} is paused: {go_on}. `accsd services resume {name}` lets it go on")


@services.command("resume")
@click.argument("name")
@click.pass_context
def resume_command(ctx: click.Context, name: str) -> None:
    """Let the tasks of a service begin again."""

    async def work(db: Database) -> Verdict:
        await fleet.service_named(db, name)
        return await resume(db, Pausable.SERVICE, name)

    verdict = with_database(ctx, work)
    click.echo(f"service {name} goes on" if verdict is Verdict.ACCEPTED else f"service {name} was not paused")


def state_of(service: ServiceView) -> str:
    if service.paused_at is None:
        return "" if service.nodes else "no node offers it"
    by = f" by {service.paused_by}" if service.paused_by else ""
    why = f": {service.paused_because}" if service.paused_because else ""
    return f"paused {since(service.paused_at)}{by}{why}"


def _for_eyes(service: ServiceView) -> dict[str, object]:
    return {
        "service": service.service,
        "claimable": service.claimable,
        "in_backoff": service.in_backoff,
        "held": service.held_by_key + service.paused,
        "running": f"{service.live}/{service.slots}",
        "nodes": ", ".join(service.nodes),
        "state": state_of(service),
    }
