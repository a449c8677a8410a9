"""`accsd mcp`: the tools for assistants over standard input and output, on the database that the commands use."""

import asyncio
from contextlib import AsyncExitStack
from importlib import import_module
from pathlib import Path
from typing import Final

import click

from accsd.cli.objects import objects
from accsd.cli.session import operator, settings_of
from accsd.db.access import caller_of_token
from accsd.db.install import require_schema
from accsd.db.pool import Database
from accsd.errors import ConfigError, InvalidValue, NotPermitted
from accsd.model.access import Caller, Scope, implied
from accsd.settings import Settings, environment

_POOL: Final = 2  # one assistant asks one thing at a time
_READ_SEC: Final = 5.0
_SCOPES: Final = (Scope.READ, Scope.SUBMIT, Scope.OPERATE, Scope.ADMIN)


@click.command()
@click.option(
    "--token-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The token in whose name the assistant acts.  [default: ACC_TOKEN]",
)
@click.option(
    "--scope",
    type=click.Choice([scope.value for scope in _SCOPES]),
    help="What it may without a token, in your own name.  [default: read]",
)
@click.pass_context
def mcp(ctx: click.Context, token_file: Path | None, scope: str | None) -> None:
    """Serve an assistant over standard input and output (Model Context Protocol), until it closes them.

    An assistant with a token of its own can be told apart, limited and undone: accsd tokens create NAME --kind
    assistant --scope submit. Without a token it may read, in your name. It writes in two steps: a preview, and what
    confirms it.

    \b
    Example, in the configuration of an assistant:
      {"mcpServers": {"accsd": {"command": "accsd", "args": ["mcp"], "env": {"ACC_TOKEN": "accs_…"}}}}
    """
    token = _token(token_file)
    if token is not None and scope is not None:
        raise InvalidValue("a token has its scopes: --scope is for a connection without one")
    _require_library()
    asyncio.run(_serve(settings_of(ctx), token, Scope(scope or Scope.READ)))


def _token(file: Path | None) -> str | None:
    found = environment().get("ACC_TOKEN") if file is None else file.read_text()
    return (found or "").strip() or None


def _require_library() -> None:
    try:
        import_module("accsd.gateway.mcp")  # takes 0.8 s, and its library comes with an extra
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"accsd mcp needs the package {error.name}, which is not installed", hint="pip install 'accsd[doors]'"
        ) from None


async def _serve(settings: Settings, token: str | None, scope: Scope) -> None:
    from accsd.gateway.mcp.desk import Desk
    from accsd.gateway.mcp.server import make_server, serve_stdio

    async with AsyncExitStack() as resources:
        reads, verbs = await _open(settings, resources)
        await require_schema(reads)
        if token is not None:
            await _caller(reads, token, verbs)  # or it would be found out by the assistant
        store = await resources.enter_async_context(objects(settings))

        async def desk() -> Desk:
            """The caller is looked up for each call: a token may be revoked, or expire, meanwhile."""
            caller = _person(scope) if token is None else await _caller(reads, token, verbs)
            return Desk(settings=settings, reads=reads, verbs=verbs.acting("mcp"), store=store, caller=caller)

        await serve_stdio(make_server(desk))


async def _open(settings: Settings, resources: AsyncExitStack) -> tuple[Database, Database]:
    """Two pools, as a gateway has them: one only reads, and is not patient."""
    pool = settings.database.model_copy(update={"pool_size": _POOL})
    reading = pool.model_copy(update={"statement_timeout_sec": _READ_SEC})
    reads = await Database.open(reading, application="accsd mcp", any_time=True, read_only=True)
    resources.push_async_callback(reads.close)
    verbs = await Database.open(pool, application="accsd mcp")
    resources.push_async_callback(verbs.close)
    return reads, verbs


def _person(scope: Scope) -> Caller:
    return Caller(operator(), "person", implied([scope]), {}, token_id=None, session_id=None)


async def _caller(reads: Database, token: str, verbs: Database) -> Caller:
    from accsd.gateway.access import require_door

    found = await caller_of_token(reads, token, verbs=verbs)
    if found is None:
        raise NotPermitted(
            "the token lets nobody in: it is unknown, expired or revoked, or its actor is disabled",
            hint="accsd tokens create NAME --kind assistant --scope submit makes another",
        )
    require_door(found, "mcp")
    return found
