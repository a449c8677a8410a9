"""`accsd config` and `accsd completion`."""

import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.support.cli import ACCSD, Cli

CONFIG = """
heartbeat_ttl_sec = 30
[database]
url = "postgresql://ann:secret@db.example:5432/accsd?sslmode=require"
[storage]
url = "s3://studio"
secret_key = "very-secret"
[http]
listen = "127.0.0.1:9100"
token = "a-token-of-16-characters"
[services."audio.norm"]
runner = "process"
command = ["true"]
concurrency = 2
[services."audio.norm".environment]
API_KEY = "hidden"
[wake.providers.cloud]
url = "https://cloud.example/{ref}"
token = "also-secret"
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "accsd.toml"
    path.write_text(CONFIG)
    return path


async def test_each_setting_is_shown_with_its_origin_and_no_secret(config: Path):
    cli = Cli(None)
    said = await cli.process("--config", str(config), "config", "show", "--origin")
    said.ends(0, "postgresql://ann@db.example:5432/accsd", "ORIGIN", str(config), "default")
    rows = (await cli("--config", str(config), "config", "show", "-o", "json")).ends(0).json
    found = {row["setting"]: row for row in rows}
    assert found["services.audio.norm.concurrency"]["value"] == 2
    assert found["heartbeat_ttl_sec"] == {"setting": "heartbeat_ttl_sec", "value": 30, "origin": str(config)}
    assert found["poll_sec"]["origin"] == "default"
    for secret in ("secret@", "very-secret", "a-token-of", "hidden", "also-secret"):
        assert secret not in said.out + str(rows), secret
    changed = (await cli("--config", str(config), "config", "show", "--changed", "-o", "name")).out.split()
    assert "storage.url" in changed
    assert "poll_sec" not in changed


async def test_the_environment_goes_before_the_file_and_is_named(config: Path):
    cli = Cli("postgresql://bob@other/accsd")
    rows = (await cli("--config", str(config), "config", "show", "-o", "json")).json
    [url] = [row for row in rows if row["setting"] == "database.url"]
    assert (url["value"], url["origin"]) == ("postgresql://bob@other/accsd", "environment ACC_DB_URL")


async def test_check_says_that_all_is_well_or_all_that_is_wrong(config: Path, tmp_path: Path):
    cli = Cli(None)
    (await cli.process("--config", str(config), "config", "check")).ends(0, "in order", "accsd doctor")
    (await cli("config", "check")).ends(2, "no database is configured", "→ `accsd config show --origin`")
    wrong = tmp_path / "wrong.toml"
    wrong.write_text('poll_sec = -1\n[database]\nulr = "x"\n')
    (await cli("--config", str(wrong), "config", "check")).ends(2, "poll_sec", 'did you mean "url"?', str(wrong))
    wrong.write_text('[database]\nurl = "postgresql:///x"\n[services.x]\n[wake]\nscript_dir = "/nowhere/at/all"\n')
    (await cli("--config", str(wrong), "config", "check")).ends(2, "services.x", "no compose file", "/nowhere/at/all")


async def test_the_completion_of_a_shell_completes_commands(tmp_path: Path):
    cli = Cli(None)
    for shell in ("bash", "zsh", "fish"):
        (await cli("completion", shell)).ends(0, "_ACCSD_COMPLETE")
    (await cli("completion", "tcsh")).ends(2)
    script = (await cli.process("completion", "bash")).ends(0).out
    bash = shutil.which("bash")
    assert bash is not None
    (tmp_path / "script").write_text(script)
    _run([bash, "-n", str(tmp_path / "script")], {})
    asking = {"_ACCSD_COMPLETE": "bash_complete", "COMP_WORDS": "accsd wh", "COMP_CWORD": "1"}
    assert _run(ACCSD, cli.environment() | asking).split() == ["plain,why"]
    # as often as a key is pressed: no command is imported for it
    heavy = _run([sys.executable, "-X", "importtime", "-m", "accsd"], cli.environment() | asking, errors=True)
    assert "asyncpg" not in heavy


def _run(command: Sequence[str], environment: Mapping[str, str], *, errors: bool = False) -> str:
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=30, check=True)
    return ended.stderr if errors else ended.stdout
