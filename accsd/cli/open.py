"""`accsd open`: a link that logs this person in to the web page, once."""

import webbrowser

import click

from accsd.cli.output import is_terminal, output_option, say, say_json
from accsd.cli.session import operator, settings_of, with_database
from accsd.cli.tokens import address
from accsd.db.access import create_code
from accsd.errors import ConfigError
from accsd.model.access import Scope

_GOOD_FOR_SEC = 60


@click.command("open")
@click.option(
    "--scope",
    "scopes",
    type=click.Choice([scope.value for scope in Scope if scope is not Scope.AGENT]),
    multiple=True,
    default=(Scope.ADMIN.value,),
    show_default=True,
    help="What the session may.",
)
@click.option(
    "--browser/--print", default=False, show_default=True, help="Open it in this machine's browser too, on a terminal."
)
@output_option()
@click.pass_context
def open_link(ctx: click.Context, scopes: tuple[str, ...], browser: bool, output: str) -> None:
    """Print a link that logs you in to the web page as user@host: once, within a minute. The session lasts for 12 h
    without a request, and 7 days at most.

    \b
    Examples:
      accsd open
      accsd open --scope read
    """
    where = address(settings_of(ctx))
    if where is None:
        raise ConfigError(
            "the gateway is off: no address is set", hint='set gateway.listen, for example "127.0.0.1:8700"'
        )
    actor, wanted = operator(), [Scope(scope) for scope in scopes]
    code = with_database(ctx, lambda db: create_code(db, actor=actor, scopes=wanted, by=actor))
    link = f"{where}/#code={code}"  # in the fragment: browsers send it to nobody, so no log has it
    if output == "name":
        say(link)
    elif output == "table":
        say(link)
        say(f"  → it works once, within {_GOOD_FOR_SEC} s, and logs in as {actor} ({', '.join(scopes)})", err=True)
    else:
        say_json({"url": link, "actor": actor, "scopes": list(scopes), "seconds": _GOOD_FOR_SEC})
    if browser and is_terminal():
        webbrowser.open(link)
