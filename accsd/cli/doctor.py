"""`accsd doctor`: looks at everything that accsd needs on this machine; each line says OK, or what to do."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import click

from accsd.cli.checks import database, engine, machine
from accsd.cli.checks.finding import Check, Finding, Verdict, fail, ok
from accsd.cli.checks.node import node_check
from accsd.cli.output import is_terminal, output_option, show
from accsd.cli.session import read_settings
from accsd.errors import AccsdError, ConfigError
from accsd.settings import Settings

_WITHIN_SEC: Final = 30.0
_COLOURS: Final = {Verdict.OK: "green", Verdict.WARN: "yellow", Verdict.FAIL: "red"}


@dataclass(frozen=True, slots=True)
class _Step:
    name: str
    check: Check
    needs: str | None = None  # a step that must not have failed: the same complaint twice helps nobody


_STEPS: Final = (
    _Step("database", database.server),
    _Step("schema", database.schema, "database"),
    _Step("LISTEN", database.listening, "database"),
    _Step("fleet", database.fleet, "schema"),
    _Step("storage", machine.storage),
    _Step("state folder", machine.folders),
    _Step("docker", engine.docker),
    _Step("services", engine.commands),
    _Step("wake-on-LAN", machine.waking),
)


@click.command()
@click.option("--node", "node", metavar="NAME", help="Look at that machine too: registered, seen, and how it is woken.")
@output_option()
@click.pass_context
def doctor(ctx: click.Context, node: str | None, output: str) -> None:
    """Check everything that accsd needs here: each line says OK, or what to do. Exit code 1 if something fails.

    \b
    accsd doctor
    accsd --config /etc/accsd/accsd.toml doctor --node render-3
    """
    steps = [*_STEPS, *([_Step("node", node_check(node), "schema")] if node else [])]
    findings = asyncio.run(_examine(ctx.find_root().obj, steps, tell=output == "table"))
    if output != "table":
        show([asdict(finding) for finding in findings], {}, output, name="check")
    if any(finding.verdict is Verdict.FAIL for finding in findings):
        raise SystemExit(1)


async def _examine(config: str | None, steps: list[_Step], *, tell: bool) -> list[Finding]:
    found: list[Finding] = []

    def note(finding: Finding) -> None:
        found.append(finding)
        if tell:
            _tell(finding)

    try:
        settings = read_settings(config)
    except ConfigError as wrong:
        note(fail("settings", wrong.message, wrong.hint or "`accsd config check` names each thing that is wrong"))
        return found
    note(ok("settings", _whence(settings, config)))
    failed: set[str | None] = set()
    for step in steps:
        if step.needs in failed:
            failed.add(step.name)
            continue
        async for finding in _guarded(step, settings):
            note(finding)
            if finding.verdict is Verdict.FAIL:
                failed.add(step.name)
    return found


async def _guarded(step: _Step, settings: Settings) -> AsyncIterator[Finding]:
    """Whatever a check meets is a finding: the doctor himself never fails."""
    try:
        async with asyncio.timeout(_WITHIN_SEC):
            async for finding in step.check(settings):
                yield finding
    except AccsdError as error:
        yield fail(step.name, error.message, error.hint or "see the message")
    except TimeoutError:
        yield fail(step.name, f"no answer within {_WITHIN_SEC:g} s", "see whether it is overloaded or unreachable")
    except OSError as error:
        yield fail(step.name, f"{error.filename or ''} {error.strerror or error}".strip(), "see the message")


def _whence(settings: Settings, config: str | None) -> str:
    changed = sorted({origin for origin in settings.origins.values() if origin != "default"})
    if not changed:
        return "only defaults"
    files = [str(Path(config))] if config else []
    others = [origin for origin in changed if origin not in files]
    return "from " + ", ".join([*files, *others])


def _tell(finding: Finding) -> None:
    word = f"{finding.verdict:<4}"
    shown = click.style(word, fg=_COLOURS[finding.verdict]) if is_terminal() else word
    click.echo(f"{shown}  {finding.check:<13} {finding.text}")
    if finding.do:
        click.echo(f"      {'':<13} → {finding.do}")
