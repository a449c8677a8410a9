"""The command line exists and knows its version."""

from click.testing import CliRunner

from accsd import __version__
from accsd.cli import main


def test_the_command_prints_its_version() -> None:
    result = CliRunner().invoke(main, ["--version"])
    assert result.exit_code == 0
    assert __version__ in result.output
