"""`accsd config`: what is set, where it came from, and whether it can be used."""

import asyncio
from pathlib import Path
from typing import Any, cast

import click
from pydantic import SecretStr

from accsd.cli.output import output_option, say, show, text
from accsd.cli.session import settings_of
from accsd.errors import ConfigError, DockerUnavailable
from accsd.runners.compose import Declarations, Docker, declared_services
from accsd.settings import Settings, environment
from accsd.settings.database_url import shown as shown_url

_MASK = "***"


@click.group()
def config() -> None:
    """Show the settings and where each comes from; check them."""


@config.command("show")
@click.option("--origin", is_flag=True, help="Say where each value came from.")
@click.option("--changed", is_flag=True, help="Only what is not the default.")
@output_option()
@click.pass_context
def show_command(ctx: click.Context, origin: bool, changed: bool, output: str) -> None:
    """Show every setting as this process would use it. Secrets are masked.

    \b
    accsd config show --origin
    accsd --config /etc/accsd/accsd.toml config show --changed -o json
    """
    settings = settings_of(ctx)
    origins = settings.origins
    rows = [
        {"setting": path, "value": _value(settings, path), "origin": origins[path]}
        for path in settings.paths()
        if not changed or origins[path] != "default"
    ]
    if output == "table":
        for row in rows:
            row["value"] = text(row["value"])
    columns = {"setting": "setting", "value": "value"} | ({"origin": "origin"} if origin else {})
    show(rows, columns, output, name="setting")


@config.command("check")
@click.option(
    "--compose",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Check the labels of this compose file, too, as `accsd up --compose` would.",
)
@click.pass_context
def check_command(ctx: click.Context, compose: Path | None) -> None:
    """Check the settings, and say all that is wrong with them (exit code 2). `accsd doctor` tries them out.

    The labels of the compose file are checked with them, if there is one; where
    the docker command is; it needs no engine.

    \b
    accsd --config /etc/accsd/accsd.toml config check
    accsd config check --compose compose.yaml
    """
    settings = settings_of(ctx)
    if compose is not None:
        settings = settings.model_copy(update={"compose": settings.compose.model_copy(update={"file": compose})})
    problems = _contradictions(settings, is_about_compose=compose is not None)
    offered: list[str] = []
    if settings.compose.file is not None and settings.compose.file.is_file():
        declared = asyncio.run(_declared(settings, is_optional=compose is None))
        offered = list(declared.services)
        problems += [_sentence(problem) for problem in declared.problems]
    if problems:
        for problem in problems:
            say(f"accsd: {problem}", err=True)
        say("  → `accsd config show --origin` says where each setting comes from", err=True)
        raise SystemExit(2)
    if compose is not None:
        say(f"{compose} offers {', '.join(offered)}" if offered else f"{compose} offers no service (accs.mode)")
    changed = sum(origin != "default" for origin in settings.origins.values())
    say(f"the settings are in order: {changed} set, the others are defaults; `accsd doctor` tries them out")


async def _declared(settings: Settings, *, is_optional: bool) -> Declarations:
    """The services of the compose file; none on a machine without docker, where settings are checked, too."""
    try:
        return await declared_services(Docker(environment()), settings.compose, settings.services)
    except ConfigError as wrong:  # the file as a whole
        return Declarations("", {}, [wrong])
    except DockerUnavailable:
        if not is_optional:
            raise
        return Declarations("", {}, [])


def _sentence(problem: ConfigError) -> str:
    return problem.message + (f"; {problem.hint}" if problem.hint else "")


def _contradictions(settings: Settings, *, is_about_compose: bool) -> list[str]:
    """Mistakes that no single value shows. A database need not be configured yet."""
    wrong: list[str] = []
    if settings.database.url is None and not is_about_compose:
        wrong.append("no database is configured: set ACC_DB_URL=postgresql://user@host:5432/name, or database.url")
    if settings.compose.file is None:
        wrong += [
            f'services.{name} has runner "compose", and no compose file is configured (compose.file, ACC_COMPOSE_FILE)'
            for name, service in settings.services.items()
            if service.runner == "compose"
        ]
    elif not settings.compose.file.is_file():
        wrong.append(f"compose.file: {settings.compose.file} does not exist")
    keys = (settings.storage.access_key, settings.storage.secret_key)
    if any(keys) and settings.storage.url is None and settings.storage.endpoint is None:
        wrong.append("storage has keys, and neither storage.url nor storage.endpoint")
    folder = settings.wake.script_dir
    if folder is not None and not folder.is_dir():
        wrong.append(f"wake.script_dir: {folder} is not a folder")
    wrong += [
        f"wake.providers.{name}.token_file: {provider.token_file} does not exist"
        for name, provider in settings.wake.providers.items()
        if provider.token_file is not None and not provider.token_file.is_file()
    ]
    wrong += [
        f"outbox.targets.{name}.secret_file: {target.secret_file} does not exist"
        for name, target in settings.outbox.targets.items()
        if target.secret_file is not None and not target.secret_file.is_file()
    ]
    return wrong


def _value(settings: Settings, path: str) -> Any:
    """A value for eyes: a secret is masked, and a database's address is shown without its password."""
    found = _at(settings, path)
    if isinstance(found, SecretStr):
        return shown_url(found.get_secret_value()) if path.startswith("database.") else _MASK
    return _MASK if path.endswith(".environment") and found else found


def _at(table: Any, path: str) -> Any:
    """The value at a path. The names of services may have dots of their own."""
    if not path:
        return table
    if isinstance(table, dict):
        named = cast("dict[str, Any]", table)
        name = next(name for name in named if path.startswith(f"{name}."))
        return _at(named[name], path.removeprefix(f"{name}."))
    name, _, rest = path.partition(".")
    return _at(getattr(table, name), rest)
