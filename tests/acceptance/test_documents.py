"""Every command that the README and the quickstart show is run, in order, as it stands there."""

import asyncio
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.cluster import Connection
from tests.support.compose import PYTHON, why_not
from tests.support.eventually import eventually_sync

ROOT = Path(__file__).parents[2]
# What is not run here, and why. Whoever adds a command to a document meets this list.
ELSEWHERE = {
    "make install": "this very environment was made by it",
    "make test": "this very run",
    "make demo": "tests/acceptance/test_demo.py",
}


def blocks(document: str, language: str = "sh") -> list[str]:
    text = (ROOT / document).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


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


def test_the_readme_shows_no_command_that_is_not_run(tmp_path: Path, shell: dict[str, str]):
    (commands,) = blocks("README.md")
    assert runnable(commands).strip() == ""


async def test_the_readme_s_workflow_and_sql(tmp_path: Path, shell: dict[str, str], db_url: str, conn: Connection):
    workflow, _ = blocks("README.md", "yaml")
    (tmp_path / "media.yaml").write_text(workflow)
    environ = shell | {"ACC_DB_URL": db_url}
    assert "created" in await in_bash("accsd workflows apply media.yaml", tmp_path, environ)
    (statements,) = blocks("README.md", "sql")
    await conn.execute(statements)
    await conn.fetch("SELECT * FROM accs.instantiate_due_jobs()")
    assert await conn.fetchval("SELECT count(*) FROM job_tasks") == 8
    (job, _) = (await in_bash("accsd jobs -o name", tmp_path, environ)).split()
    assert "ingest" in await in_bash(f"accsd why {job}", tmp_path, environ)


@pytest.mark.needs_docker
def test_the_readme_s_compose_file(tmp_path: Path, shell: dict[str, str]):
    """`accsd up --compose compose.yaml`, as it stands there, with an image that is here."""
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    _, compose = blocks("README.md", "yaml")
    compose = compose.replace("studio/renderer", PYTHON).replace(
        '"python", "-m", "render"', '"python3", "-c", "print(7)"'
    )
    (tmp_path / "compose.yaml").write_text(compose)
    (tmp_path / "media.yaml").write_text("name: media\nsteps: [{ key: render, service: renderer }]\n")
    environ = shell | {"HOME": os.environ["HOME"]}  # where docker finds its plugin
    log = tmp_path / "up.log"
    with log.open("wb") as output:
        daemon = subprocess.Popen(
            ["accsd", "up", "--compose", "compose.yaml"],
            cwd=tmp_path,
            env=environ,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        eventually_sync(lambda: b"node_registered" in log.read_bytes(), within=60)
        told = bash("accsd workflows apply media.yaml && accsd submit media --follow", tmp_path, environ)
        assert "running → done" in told
    finally:
        daemon.send_signal(signal.SIGTERM)
        assert daemon.wait(timeout=60) == 0, log.read_text()
        bash("docker compose -f compose.yaml down -t 1", tmp_path, environ)


async def in_bash(script: str, folder: Path, environ: dict[str, str]) -> str:
    return await asyncio.to_thread(bash, script, folder, environ)
