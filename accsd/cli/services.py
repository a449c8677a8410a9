"""`accsd services`: what waits for each service and who offers it; to pause and resume them."""

from dataclasses import asdict

import click

from accsd.cli import completion
from accsd.cli.changes import reason_option
from accsd.cli.output import output_option, show
from accsd.cli.pause import Subject, pause_one, resume_one
from accsd.cli.session import with_database
from accsd.db import Pausable
from accsd.db.pool import Database
from accsd.db.views import fleet
from accsd.db.views.fleet import ServiceView
from accsd.explain.fleet import Paused, service_paused, service_state

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
@click.argument("name", shell_complete=completion.service_names)
@reason_option
@click.pass_context
def pause_command(ctx: click.Context, name: str, reason: str | None) -> None:
    """Let nobody begin a task of a service. What runs goes on."""
    pause_one(ctx, _SUBJECT, name, reason)


@services.command("resume")
@click.argument("name", shell_complete=completion.service_names)
@reason_option
@click.pass_context
def resume_command(ctx: click.Context, name: str, reason: str | None) -> None:
    """Let the tasks of a service begin again, also on machines where it is in quarantine."""
    resume_one(ctx, _SUBJECT, name, reason)


async def _look(db: Database, name: str) -> Paused:
    return service_paused(await fleet.service_named(db, name))


_SUBJECT = Subject(Pausable.SERVICE, _look)


def _for_eyes(service: ServiceView) -> dict[str, object]:
    return {
        "service": service.service,
        "claimable": service.claimable,
        "in_backoff": service.in_backoff,
        "held": service.held_by_key + service.paused,
        "running": f"{service.live}/{service.slots}",
        "nodes": ", ".join(service.nodes),
        "state": service_state(service),
    }
