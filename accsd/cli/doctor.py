"""`accsd doctor`: looks at everything that accsd needs on this machine; each line says OK, or what to do."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final

import click

from accsd.cli import completion, times
from accsd.cli.checks import card, database, engine, machine
from accsd.cli.checks.cycle import cycle_check
from accsd.cli.checks.finding import Check, Finding, Grade, fail, ok
from accsd.cli.checks.node import elsewhere, node_check
from accsd.cli.output import output_option, say, show, styled, text
from accsd.cli.session import read_settings
from accsd.errors import AccsdError, ConfigError
from accsd.settings import Settings

_WITHIN_SEC: Final = 30.0
_HERE: Final = ""  # the value of --node without a name
_COLOURS: Final = {Grade.OK: "green", Grade.WARN: "yellow", Grade.FAIL: "red"}


@dataclass(frozen=True, slots=True)
class _Step:
    name: str
    check: Check
    needs: str | None = None  # a step that must not have failed: the same complaint twice helps nobody
    within: float | None = _WITHIN_SEC  # None: it has deadlines of its own


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
@click.option(
    "--node",
    "node",
    shell_complete=completion.node_names,
    metavar="[NAME]",
    is_flag=False,
    flag_value=_HERE,
    help="Look at that machine too, or at this one as a node: is it there, how is it woken, how does it sleep.",
)
@click.option("--cycle", is_flag=True, help="With --node NAME: send it to sleep and wake it again, really.")
@click.option(
    "--settle", type=times.LENGTH, default=timedelta(seconds=20), metavar="TIME", help="With --cycle: between both."
)
@click.option("--yes", is_flag=True, help="With --cycle: do not ask.")
@output_option()
@click.pass_context
def doctor(ctx: click.Context, node: str | None, cycle: bool, settle: timedelta, yes: bool, output: str) -> None:
    """Check everything that accsd needs here: each line says OK, or what to do. Exit code 1 if something fails.

    \b
    accsd doctor
    accsd --config /etc/accsd/accsd.toml doctor --node
    accsd --config /etc/accsd/accsd.toml doctor --node render-3 --cycle
    """
    if cycle and node in (None, _HERE):
        raise click.UsageError("--cycle needs --node NAME: another machine than this one, which has to wake it")
    if cycle and not yes:
        click.confirm(f"{node} goes to sleep now and is woken again from here. Go on?", abort=True, err=True)
    last = [_Step("cycle", cycle_check(node or "", settle), "node", within=None)] if cycle else []
    findings = asyncio.run(_examine(ctx.find_root().obj, node, last, tell=output == "table"))
    if output != "table":
        show([asdict(finding) for finding in findings], {}, output, name="check")
    if any(finding.verdict is Grade.FAIL for finding in findings):
        raise SystemExit(1)


async def _examine(config: str | None, node: str | None, last: list[_Step], *, tell: bool) -> list[Finding]:
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
    for step in [*_STEPS, *_about(node, settings), *last]:
        if step.needs in failed:
            failed.add(step.name)
            continue
        async for finding in _guarded(step, settings):
            note(finding)
            if finding.verdict is Grade.FAIL:
                failed.add(step.name)
    return found


def _about(node: str | None, settings: Settings) -> list[_Step]:
    """The steps about a node. Its network card can be looked at only on that machine."""
    if node is None:
        return []
    name = settings.node.name if node == _HERE else node
    look = card.sleeper if name == settings.node.name else elsewhere(name)
    return [_Step("network card", look), _Step("node", node_check(name), "schema")]


async def _guarded(step: _Step, settings: Settings) -> AsyncIterator[Finding]:
    """Runs a check. An error that it meets is a finding: the doctor itself never fails."""
    try:
        async with asyncio.timeout(step.within):
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
    say(styled(f"{finding.verdict:<4}", _COLOURS[finding.verdict]), f"  {finding.check:<13} {text(finding.text)}")
    if finding.do:
        say(f"      {'':<13} → {finding.do}")
