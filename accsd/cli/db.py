"""`accsd db`: the schema in PostgreSQL."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import TypeVar

import click

from accsd.cli.output import say, say_json
from accsd.cli.session import read_settings
from accsd.db.install import SchemaStatus, install, pending_migrations, read_status, upgrade
from accsd.db.logins import make_node_login
from accsd.db.pool import Session, connect
from accsd.db.schema import SCHEMA_VERSION
from accsd.settings import Settings, database_url

Result = TypeVar("Result")


@click.group()
def db() -> None:
    """Install, look at and upgrade the schema in PostgreSQL."""


@db.command("install")
@click.option(
    "--roles",
    is_flag=True,
    help="Make the least-privilege roles (accs_scheduler, _archive, _agent, _api, _reader), too.",
)
@click.option(
    "--literal-indexes",
    is_flag=True,
    help="Add the indexes on status and on an event's task; they cost most of the speed.",
)
@click.pass_obj
def install_command(config: str | None, roles: bool, literal_indexes: bool) -> None:
    """Install the schema. Running it again changes nothing but what is asked for."""
    settings = read_settings(config)

    async def work(connection: Session) -> bool:
        return await install(
            connection,
            channel_prefix=settings.notify_channel_prefix,
            backoff_base_sec=settings.backoff_base_sec,
            with_roles=roles,
            literal_indexes=literal_indexes,
        )

    made = _run(settings, work)
    where = settings.database.address
    say(f"{where}: schema version {SCHEMA_VERSION} {'installed' if made else 'was there already'}")
    if roles:
        say("the roles accs_scheduler, _archive, _agent, _api and _reader are ready; give them passwords in psql")


@db.command("node-login")
@click.argument("node")
@click.option("-o", "output", type=click.Choice(["table", "json"]), default="table", help="For eyes, or for programs.")
@click.pass_obj
def node_login_command(config: str | None, node: str, output: str) -> None:
    """Make a login for one node, in the role accs_agent, and hand the node over to it.

    A node belongs to the login that registered it: nodes with logins of their own can't act for each other. The
    password is printed once; the same command again sets another one.

    \b
    Example: accsd db node-login render-3
    """
    settings = read_settings(config)
    made = _run(settings, lambda connection: make_node_login(connection, node))
    url = database_url.with_login(settings.database.required_url, made.login, made.password)
    if output == "json":
        say_json({"node": node, "login": made.login, "password": made.password, "url": url})
        return
    say(f"{node} has the login {made.login}" + ("" if made.is_new else ", with another password from now on"))
    say(f"on {node}: ACC_DB_URL={url}")


@db.command("status")
@click.option("-o", "output", type=click.Choice(["table", "json"]), default="table", help="For eyes, or for programs.")
@click.pass_obj
def status_command(config: str | None, output: str) -> None:
    """Say which schema the database holds. Exit code 1 where it is not the one that this accsd needs."""
    settings = read_settings(config)
    status = _run(settings, read_status)
    if output == "json":
        say_json(asdict(status) | {"is_current": status.is_current})
    else:
        _print_status(settings.database.address, status)
    if not status.is_current:
        raise SystemExit(1)


@db.command("upgrade")
@click.option("--plan", is_flag=True, help="Only say what would be done.")
@click.pass_obj
def upgrade_command(config: str | None, plan: bool) -> None:
    """Bring an older schema up to date. Workers may go on meanwhile."""
    settings = read_settings(config)
    steps = _run(settings, pending_migrations if plan else upgrade)
    if not steps:
        say(f"{settings.database.address}: nothing to do, schema version {SCHEMA_VERSION}")
    for step in steps:
        say(f"{'would apply' if plan else 'applied'} {step.version:04} {step.name}")


def _print_status(where: str, status: SchemaStatus) -> None:
    rows = {
        "database": where,
        "schema": "not installed: run `accsd db install`" if status.found is None else f"version {status.found}",
        "this accsd needs": f"version {status.expected}",
    }
    if status.found is not None:
        rows |= {
            "channel prefix": status.channel_prefix or "",
            "event partitions": str(status.event_partitions),
            "literal indexes": "yes" if status.literal_indexes else "no",
        }
    for name, value in rows.items():
        say(f"{name:<18}{value}")


def _run(settings: Settings, work: Callable[[Session], Awaitable[Result]]) -> Result:
    async def with_connection() -> Result:
        connection = await connect(settings.database)
        try:
            return await work(connection)
        finally:
            await connection.close(timeout=5)

    return asyncio.run(with_connection())
