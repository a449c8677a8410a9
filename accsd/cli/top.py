"""`accsd top`: the fleet at a glance, each second anew."""

import asyncio
import os
import sys
import termios
import tty
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any, Final

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from accsd.cli.harmless import harmless
from accsd.cli.identifiers import short
from accsd.cli.output import duration, say_json
from accsd.cli.services import state_of
from accsd.cli.session import settings_of, with_database
from accsd.db import fleet
from accsd.db.fleet import Failure, LiveTask, NodeView, ServiceView
from accsd.db.pool import Database
from accsd.errors import DatabaseUnavailable

_EVERY_SEC: Final = 1.0
_TASKS: Final = 15
_FAILURES: Final = 5
_STATES: Final = {
    "awake": "green",
    "drained": "yellow",
    "asleep": "blue",
    "waking": "cyan",
    "booting": "cyan",
    "failed": "red",
    "away": "red",
}


@dataclass(frozen=True, slots=True)
class Snapshot:
    services: list[ServiceView]
    nodes: list[NodeView]
    tasks: list[LiveTask]
    failures: list[Failure]


@click.command()
@click.option("--once", is_flag=True, help="Show it once and end; so does a stdout that is no terminal.")
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", help="json shows it once.")
@click.pass_context
def top(ctx: click.Context, once: bool, output: str) -> None:
    """Watch services, nodes, what runs and what failed. q or Ctrl-C ends it.

    \b
    accsd top
    accsd top --once -o json
    """
    silent = settings_of(ctx).lease
    console = Console()
    if output == "json":
        snapshot = with_database(ctx, _look)
        say_json({name: [asdict(row) for row in rows] for name, rows in _parts(snapshot).items()})
    elif once or not console.is_terminal:
        console.print(_screen(with_database(ctx, _look), silent))
    else:
        try:
            with_database(ctx, lambda db: _watch(db, console, silent))
        except KeyboardInterrupt:
            return


async def _look(db: Database) -> Snapshot:
    return Snapshot(
        await fleet.services(db),
        await fleet.nodes(db),
        await fleet.live_tasks(db, limit=_TASKS),
        await fleet.latest_failures(db, limit=_FAILURES),
    )


async def _watch(db: Database, console: Console, silent: timedelta) -> None:
    """Until q. A database that goes away for a while is waited for: the screen says so."""
    with _keys() as pressed, Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            try:
                live.update(_screen(await _look(db), silent), refresh=True)
            except DatabaseUnavailable as error:
                live.update(Text(f"{error}\n\n→ {error.hint or 'waiting for it'}", style="red"), refresh=True)
            try:
                if await asyncio.wait_for(pressed.get(), _EVERY_SEC) == "q":
                    return
            except TimeoutError:
                continue


@contextmanager
def _keys() -> Generator[asyncio.Queue[str]]:
    """Keys as they are pressed, without a line's end and without an echo."""
    pressed: asyncio.Queue[str] = asyncio.Queue()
    if not sys.stdin.isatty():
        yield pressed
        return
    loop, descriptor = asyncio.get_running_loop(), sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)
    loop.add_reader(descriptor, lambda: pressed.put_nowait(os.read(descriptor, 1).decode(errors="replace")))
    try:
        yield pressed
    finally:
        loop.remove_reader(descriptor)
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _parts(snapshot: Snapshot) -> dict[str, list[Any]]:
    return {
        "services": snapshot.services,
        "nodes": snapshot.nodes,
        "tasks": snapshot.tasks,
        "failures": snapshot.failures,
    }


def _screen(snapshot: Snapshot, silent: timedelta) -> RenderableType:
    tables = [_services(snapshot.services), _nodes(snapshot.nodes, silent), _tasks(snapshot.tasks)]
    return Group(*tables, *([_failures(snapshot.failures)] if snapshot.failures else []))


def _table(title: str, *columns: str, right: tuple[str, ...] = ()) -> Table:
    table = Table(box=None, title=title, title_justify="left", title_style="bold", header_style="dim", expand=False)
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", no_wrap=True)
    return table


def _plain(text: str) -> str:
    """What others wrote: neither the terminal nor rich obeys it."""
    return escape(harmless(text))


def _services(services: list[ServiceView]) -> Table:
    numbers = ("claimable", "backoff", "held", "live", "slots")
    table = _table("services", "service", *numbers, "", right=numbers)
    for each in services:
        held = each.held_by_key + each.paused
        counts = (each.claimable, each.in_backoff, held, each.live, each.slots)
        table.add_row(_plain(each.service), *map(str, counts), Text(harmless(state_of(each)), style="yellow"))
    return table


def _nodes(nodes: list[NodeView], silent: timedelta) -> Table:
    table = _table("nodes", "node", "state", "slots", "seen")
    for node in nodes:
        state = node.state(silent)
        used = "  ".join(f"{service} {node.live.get(service, 0)}/{slots}" for service, slots in node.slots.items())
        seen = "never" if node.unseen_for is None else f"{duration(node.unseen_for)} ago"
        table.add_row(_plain(node.name), Text(state, style=_STATES[state]), _plain(used), seen)
    return table


def _tasks(tasks: list[LiveTask]) -> Table:
    title = "running" if len(tasks) < _TASKS else f"running, the longest {_TASKS}"
    table = _table(title, "task", "service", "node", "", "done", "for", "lease", right=("done", "for", "lease"))
    for task in tasks:
        lease = duration(task.lease_left) if task.lease_left > timedelta(0) else "over"
        table.add_row(
            _plain(f"{short(task.job_id)}/{task.task_key}"),
            _plain(task.service),
            _plain(task.node),
            ProgressBar(total=1.0, completed=task.progress, width=20),
            f"{task.progress:.0%}",
            duration(task.running_for),
            lease,
        )
    return table


def _failures(failures: list[Failure]) -> Table:
    table = _table("failed, and nobody has settled it (accsd dead list)", "task", "code", "ago", "message")
    for each in failures:
        task = _plain(f"{short(each.job_id)}/{each.task_key}")
        said = Text(harmless(each.error_message or ""), style="red", overflow="ellipsis")
        table.add_row(task, _plain(each.error_code or ""), duration(each.age), said)
    return table
