"""`accsd completion`: what a shell evaluates to complete our commands."""

import click
from click.shell_completion import ShellComplete, get_completion_class

from accsd.cli.output import say

_PROGRAM = "accsd"


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the script that makes a shell complete these commands.

    \b
    eval "$(accsd completion bash)"                                      # now; in ~/.bashrc: always
    accsd completion zsh > ~/.zfunc/_accsd                               # a folder of your fpath
    accsd completion fish > ~/.config/fish/completions/accsd.fish
    """
    from accsd.cli import main

    kind = get_completion_class(shell)
    assert kind is not None, "click knows the three"
    # Not kind.source: for bash that starts one to ask it for its version.
    say(ShellComplete.source(kind(main, {}, _PROGRAM, f"_{_PROGRAM.upper()}_COMPLETE")))
