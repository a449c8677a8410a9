"""The `accsd` command: each group of subcommands is a module of its own, imported only when it is called."""

import click

from accsd import __version__


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="accsd")
def main() -> None:
    """Run multi-step workflows on machines that may be asleep."""
