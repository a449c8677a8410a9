"""`accsd tokens`: what lets programs and people in over HTTP."""

from collections.abc import Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import Any, Final, cast

import click

from accsd.cli import times
from accsd.cli.changes import reason_option
from accsd.cli.output import output_option, say, say_json, show, since
from accsd.cli.session import operator, settings_of, with_database
from accsd.db.access import create_token, revoke_token
from accsd.db.access import tokens as all_tokens
from accsd.db.answers import Verdict
from accsd.db.pool import Database
from accsd.model.access import ACTOR_KINDS, ActorKind, CreatedToken, Scope, Token, read_limits
from accsd.settings import Settings

_COLUMNS: Final = ("id", "name", "actor", "scopes", "limits", "used", "expires", "state")
_NOWHERE: Final = "http://127.0.0.1:8700"  # in the example, while the gateway is off


@click.group()
def tokens() -> None:
    """What lets programs and people in over HTTP: make, list and revoke tokens.

    \b
    Scopes
      read     look at everything
      submit   read, and make jobs and schedules, emit events, change one's own
      operate  submit, and change everybody's, write workflows and tools
      admin    operate, and tokens
      agent    carry out tasks, nothing else

    \b
    Examples:
      accsd tokens create ci --scope submit --limit workflows=media-*
      accsd tokens list
      accsd tokens revoke 3kf0a9zq --reason "the laptop was lost"
    """


@tokens.command("create")
@click.argument("name")
@click.option(
    "--scope",
    "scopes",
    type=click.Choice([scope.value for scope in Scope]),
    multiple=True,
    required=True,
    help="What it may; may be repeated.",
)
@click.option("--actor", metavar="NAME", help="In whose name it acts.  [default: one with the token's name, made]")
@click.option(
    "--kind", type=click.Choice(ACTOR_KINDS), help="What that actor is, where it is made.  [default: service]"
)
@click.option(
    "--limit",
    "limits",
    metavar="WHAT=NAME",
    multiple=True,
    help="Only these: workflows, services, events, tools (a name, or its beginning and *), door, project. Repeatable.",
)
@click.option("--expires", metavar="TIME", default="90d", show_default=True, help="In how long; never must be typed.")
@reason_option
@output_option()
@click.pass_context
def create_command(
    ctx: click.Context,
    name: str,
    scopes: Sequence[str],
    actor: str | None,
    kind: str | None,
    limits: Sequence[str],
    expires: str,
    reason: str | None,
    output: str,
) -> None:
    """Make a token and print it, once: the database keeps a digest of it, and nobody can find it again.

    \b
    Examples:
      accsd tokens create ci --scope submit
      accsd tokens create grafana --scope read --expires never
      accsd tokens create laptop --scope operate --actor ada --kind person
    """
    narrowed, lives = read_limits(limits), _lives(expires)

    async def work(db: Database) -> CreatedToken:
        return await create_token(
            db,
            name,
            [Scope(scope) for scope in scopes],
            actor=actor,
            kind=cast("ActorKind | None", kind),
            limits=narrowed,
            lives=lives,
            by=operator(),
            reason=reason,
        )

    made = with_database(ctx, work)
    if output in ("json", "jsonl"):
        say_json(asdict(made))
        return
    say(made.token)
    if output == "name":
        return
    until = "never expires" if made.expires_at is None else f"expires on {made.expires_at.astimezone():%Y-%m-%d}"
    say(f"  → this is the only time that it is shown. It acts as {made.actor} and {until}", err=True)
    where = address(settings_of(ctx)) or _NOWHERE
    say(f'  → ACC_TOKEN=…; curl -H "Authorization: Bearer $ACC_TOKEN" {where}/api/v1/jobs', err=True)
    say(f"  → accsd tokens revoke {made.id} ends it", err=True)


def _lives(expires: str) -> timedelta | None:
    return None if expires.strip().lower() == "never" else times.length(expires)


def address(settings: Settings) -> str | None:
    """Where the gateway is found from this machine; None: it is off. One that listens everywhere is found here."""
    if (listen := settings.gateway.listen) is None:
        return None
    host, _, port = listen.rpartition(":")
    near = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}.get(host, host)
    return f"http://{near}:{port}{settings.gateway.base_path}"


@tokens.command("list")
@click.option(
    "--all", "dead_too", is_flag=True, help="Also those that are expired, revoked, or whose actor is disabled."
)
@output_option()
@click.pass_context
def list_command(ctx: click.Context, dead_too: bool, output: str) -> None:
    """List tokens, the newest first: whose they are, what they may, when they were last used.

    \b
    Example: accsd tokens list --all
    """
    found = [each for each in with_database(ctx, all_tokens) if dead_too or each.state == "live"]
    rows = [_cells(each) if output == "table" else asdict(each) for each in found]
    empty = "there is no token: `accsd tokens create NAME --scope read` makes one"
    show(rows, {name: name for name in _COLUMNS}, output, empty=empty)


def _cells(token: Token) -> dict[str, Any]:
    limits = [f"{what}={','.join(names) if isinstance(names, list) else names}" for what, names in token.limits.items()]  # pyright: ignore[reportUnknownArgumentType]
    return {
        "id": token.id,
        "name": token.name,
        "actor": token.actor,
        "scopes": " ".join(token.scopes),
        "limits": " ".join(limits),
        "used": "never" if token.last_used_at is None else since(token.last_used_at),
        "expires": "never" if token.expires_at is None else f"{token.expires_at.astimezone():%Y-%m-%d}",
        "state": token.state,
    }


@tokens.command("revoke")
@click.argument("token_id", metavar="ID")
@reason_option
@click.pass_context
def revoke_command(ctx: click.Context, token_id: str, reason: str | None) -> None:
    """End a token at once, and the sessions that began with it. ID is that of `accsd tokens list`.

    \b
    Example: accsd tokens revoke 3kf0a9zq --reason "the laptop was lost"
    """
    plain = token_id.removeprefix("accs_")[:8]  # who has the token itself at hand may give it
    verdict = with_database(ctx, lambda db: revoke_token(db, plain, by=operator(), reason=reason))
    say(f"token {plain} {'was revoked before' if verdict is Verdict.REPEATED else 'is revoked'}")
