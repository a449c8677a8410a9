"""`accsd top`: the fleet at a glance, each second anew; from there to a job and to its log."""

import asyncio
import shutil
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass, field
from io import StringIO
from typing import Final

import click
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from accsd.cli.output import say, say_json, shown
from accsd.cli.screen import ScreenLine, Scroller, keys
from accsd.cli.session import settings_of, with_database
from accsd.cli.snapshot import heading, lines, look
from accsd.db.pool import Database
from accsd.errors import DatabaseUnavailable
from accsd.settings import Settings

_EVERY_SEC: Final = 1.0
_RESTS: Final = 4  # times as long as a look took, so that a large log is not read all the time
_KEPT_LINES: Final = 5000  # of a job's log
_KEYS: Final = "↑↓ choose   Enter job   l logs   ? keys   q leave"
_KEYS_OF_PAGE: Final = "↑↓ scroll   g G first, last   q back"
_HELP: Final = """
↑ ↓  k j          choose a task; on a page of text, scroll
PgUp PgDn         a page up, down (b and space, too)
Home End  g G     the first line, the last one
Enter             the job of the chosen task: accsd job
l                 what that task has written: accsd logs
q  Esc            back; from the first page q leaves
Ctrl-C            leave
"""


@click.command()
@click.option("--once", is_flag=True, help="Show it once and end; so does a stdout that is no terminal.")
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", help="json shows it once.")
@click.pass_context
def top(ctx: click.Context, once: bool, output: str) -> None:
    """Watch jobs, services, nodes, what runs and what failed. Enter shows a job, l its log, ? all keys, q ends it.

    \b
    accsd top
    accsd top --once -o json
    """
    settings = settings_of(ctx)
    console = Console(file=sys.stdout)
    if output == "json":
        say_json(asdict(with_database(ctx, look)))
    elif once or not console.is_terminal:
        snapshot = with_database(ctx, look)
        width = shutil.get_terminal_size().columns if console.is_terminal else None
        for line in [*heading(snapshot, settings, width), *(line.text for line in lines(snapshot, settings, width))]:
            say(line)
    else:
        try:
            with_database(ctx, lambda db: _Top(db, console, settings, ctx.find_root().obj).watch())
        except KeyboardInterrupt:
            return


# On a terminal


@dataclass(slots=True)
class _Page:
    """`load` returns the first lines, which stay, and the lines that are scrolled."""

    load: Callable[[int], Awaitable[tuple[Sequence[str], Sequence[ScreenLine]]]]
    keys: str = _KEYS_OF_PAGE
    scroller: Scroller = field(default_factory=Scroller)
    heading: Sequence[str] = ()


class _Top:
    """A stack of pages; the top one is visible."""

    def __init__(self, db: Database, console: Console, settings: Settings, config: str | None) -> None:
        self._db = db
        self._console = console
        self._settings = settings
        self._config = config
        self._pages: list[_Page] = [_Page(self._fleet, _KEYS)]

    async def watch(self) -> None:
        """Shows the top page until q. While the database is away it waits, and the screen says so."""
        with keys() as pressed, Live(console=self._console, screen=True, auto_refresh=False) as live:
            while self._pages:
                page, began = self._pages[-1], time.monotonic()
                live.update(self._drawn(page), refresh=True)
                await self._load(page)
                again = time.monotonic() + max(_EVERY_SEC, _RESTS * (time.monotonic() - began))
                while self._pages and self._pages[-1] is page and (left := again - time.monotonic()) > 0:
                    live.update(self._drawn(page), refresh=True)
                    try:
                        self._press(await asyncio.wait_for(pressed.get(), left))
                    except TimeoutError:
                        break

    async def _load(self, page: _Page) -> None:
        try:
            page.heading, found = await page.load(self._console.width)
        except DatabaseUnavailable as error:
            page.heading = [str(error), f"→ {error.hint or 'waiting for it'}"]
        else:
            page.scroller.show(found)

    def _press(self, key: str) -> None:
        page = self._pages[-1]
        chosen = page.scroller.chosen
        match key:
            case "q" | "escape" if len(self._pages) > 1:
                self._pages.pop()
            case "q":
                self._pages.clear()
            case "?":
                self._pages.append(_Page(_help))
            case "enter" if chosen is not None:
                self._open("job", str(chosen[0]))
            case "l" if chosen is not None:
                self._open("logs", str(chosen[0]), "--task", chosen[1], at_end=True)
            case _:
                page.scroller.press(key, self._height(page))

    def _open(self, *command: str, at_end: bool = False) -> None:
        title = f"accsd {' '.join(command)}"

        async def load(width: int) -> tuple[Sequence[str], Sequence[ScreenLine]]:
            said = await asyncio.to_thread(_said_by, self._config, command)
            return [title], [ScreenLine(part) for line in said for part in _broken(line, width)]

        self._pages.append(_Page(load, scroller=Scroller(at_end=at_end), heading=[f"{title} …"]))

    async def _fleet(self, width: int) -> tuple[Sequence[str], Sequence[ScreenLine]]:
        snapshot = await look(self._db)
        return heading(snapshot, self._settings, width), list(lines(snapshot, self._settings, width))

    def _height(self, page: _Page) -> int:
        return max(1, self._console.height - len(page.heading) - 1)

    def _drawn(self, page: _Page) -> Group:
        height = self._height(page)
        seen = page.scroller.window(height)
        body = [_styled(line.text, "reverse" if is_chosen else "") for line, is_chosen in seen]
        heading = [_styled(line, "bold") for line in page.heading]
        return Group(*heading, *body, *([Text()] * (height - len(body))), _styled(page.keys, "dim"))


def _styled(line: str, style: str) -> Text:
    drawn = Text.from_ansi(shown(line), no_wrap=True, overflow="ellipsis")
    drawn.stylize(style)
    return drawn


async def _help(_: int) -> tuple[Sequence[str], Sequence[ScreenLine]]:
    return ["keys"], [ScreenLine(line) for line in _HELP.strip().splitlines()]


class _LastLines(StringIO):
    """Keeps the last lines that a command prints."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: deque[str] = deque([""], maxlen=_KEPT_LINES)

    def write(self, s: str, /) -> int:
        first, *others = s.split("\n")
        self.lines[-1] += first
        self.lines.extend(others)
        return len(s)


def _said_by(config: str | None, command: Sequence[str]) -> list[str]:
    """Returns what the command would print into a pipe. It runs in a thread, because it has its own event loop."""
    from accsd.cli import main

    said = _LastLines()
    options = [] if config is None else ["--config", config]
    with redirect_stdout(said), redirect_stderr(said):
        try:
            main.main([*options, *command], prog_name="accsd", standalone_mode=False)
        except click.ClickException as error:
            error.show()
        except SystemExit:
            pass  # it has said why
    return list(said.lines)


def _broken(line: str, width: int) -> list[str]:
    return [line[at : at + width] for at in range(0, max(len(line), 1), width)]
