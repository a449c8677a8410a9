"""Every command that the README and the quickstart show is run, in order, as it stands there."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.eventually import eventually_sync

ROOT = Path(__file__).parents[2]
# What is not run here, and why. Whoever adds a command to a document meets this list.
ELSEWHERE = {
    "make install": "this very environment was made by it",
    "make test": "this very run",
    "make demo": "tests/acceptance/test_demo.py",
}


def blocks(document: str) -> list[str]:
    return re.findall(r"^```sh\n(.*?)^```", (ROOT / document).read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def runnable(block: str) -> str:
    """Without the commands that run elsewhere."""
    lines = [line for line in block.splitlines() if line.partition("#")[0].strip() not in ELSEWHERE]
    return "\n".join(lines) + "\n"


@pytest.fixture
def shell(tmp_path: Path) -> dict[str, str]:
    """The environment of somebody's terminal, with nothing of ours in it but the installed commands."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ACC_")}
    path = f"{Path(sys.executable).parent}:{kept['PATH']}"
    return kept | {"HOME": str(tmp_path), "ACC_STATE_DIR": str(tmp_path / "state"), "PATH": path, "NO_COLOR": "1"}


def bash(script: str, folder: Path, environ: dict[str, str]) -> str:
    ran = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert ran.returncode == 0, f"{script}\n{ran.stdout}\n{ran.stderr}"
    return ran.stdout


def test_the_quickstart(tmp_path: Path, shell: dict[str, str]):
    install, service, workflow, up, run, look = blocks("docs/quickstart.md")
    bash(runnable(install), tmp_path, shell)
    bash(service, tmp_path, shell)
    hello = tmp_path / "hello"
    bash(workflow, hello, shell)
    log = tmp_path / "up.log"
    with log.open("wb") as output:
        daemon = subprocess.Popen(
            ["bash", "-c", f"exec {up}"], cwd=hello, env=shell, stdout=output, stderr=output, start_new_session=True
        )
    try:
        eventually_sync(lambda: b"node_registered" in log.read_bytes(), within=60)
        told = bash(run, hello, shell)
        assert "greeting world" in told
        shown = bash(look, hello, shell)
        assert "done" in shown
        assert "card.txt" in shown
    finally:
        daemon.send_signal(signal.SIGTERM)
        assert daemon.wait(timeout=60) == 0, log.read_text()
