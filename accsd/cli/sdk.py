"""`accsd sdk`: what the authors of services need beside the library itself."""

from pathlib import Path

import click

from accsd.cli.output import say


@click.group()
def sdk() -> None:
    """What the authors of services need: copies of the SDK for images that have no accsd."""


@sdk.command("vendor")
@click.argument("folder", metavar="DIR", type=click.Path(file_okay=False, path_type=Path))
@click.option("--force", is_flag=True, help="Replace files that differ from what this version of accsd writes.")
def vendor_command(folder: Path, force: bool) -> None:
    """Copy what a service imports into DIR.

    For an image that has no accsd in it. accsd_wire.py speaks the task protocol; accsd_serving/ is for a service that
    stays up and takes its tasks over HTTP. Both need Python 3.9 or later and nothing else. After an upgrade of accsd,
    run it again.

    \b
    Example: accsd sdk vendor services
    """
    from accsd.sdk.vendor import vendor

    for file in vendor(folder, force=force):
        say(f"wrote {file.path}" if file.is_new else f"{file.path} is there already")
