"""`accsd demo`: see it work, without anything installed."""

import asyncio
import tempfile
from pathlib import Path

import click

from accsd.demo.story import perform
from accsd.log import configure_logging


@click.command()
@click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where everything is kept.  [default: a new temporary folder]",
)
@click.option(
    "--story",
    type=click.Choice(["power-cut", "fan-out"]),
    default="power-cut",
    show_default=True,
    help="fan-out: a step that becomes a task for each part of a recording.",
)
@click.option("--plain", is_flag=True, help="Lines instead of a live table; by itself where there is no terminal.")
@click.option("--stay", is_flag=True, help="Leave everything as it is at the end, page included, until Ctrl-C.")
def demo(folder: Path | None, story: str, plain: bool, stay: bool) -> None:
    """Two jobs on three machines, a power cut, and a machine that is woken: real processes, real files, one minute.

    Needs no Docker, no database and no object store. A link shows it in a browser while it plays. Nothing is left
    running; the results stay in the folder.
    """
    configure_logging("error")
    place = folder or Path(tempfile.mkdtemp(prefix="accsd-demo-"))
    place.mkdir(parents=True, exist_ok=True)
    asyncio.run(perform(place.absolute(), plain=plain, story=story, stay=stay))
