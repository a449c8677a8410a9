"""Five mistakes that a newcomer makes: each gives one clear message, with the way out, and no traceback."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.cluster import Connection
from tests.support.factory import node

CYCLE = """
name: loop
steps:
  - { key: a, service: render, depends_on: [b] }
  - { key: b, service: render, depends_on: [a] }
"""
MISSPELT = """
name: clip
steps: [{ key: a, service: rendrer }]
"""


def accsd(*arguments: str | Path, folder: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "ACC_STATE_DIR": str(folder / "state"), **environ}
    command = [sys.executable, "-m", "accsd", *map(str, arguments)]
    return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=60, check=False)


def told(ran: subprocess.CompletedProcess[str], code: int, *words: str) -> None:
    assert ran.returncode == code, ran.stderr
    assert "Traceback" not in ran.stderr
    assert len(ran.stderr.strip().splitlines()) <= 6
    for word in words:
        assert word in ran.stderr


def test_no_database(tmp_path: Path):
    told(accsd("jobs", folder=tmp_path), 2, "no database is configured", "→", "accsd up")
    told(accsd("--role", "builder", folder=tmp_path), 2, "no database is configured", "→", "accsd up")


def test_a_wrong_url(tmp_path: Path):
    told(accsd("jobs", folder=tmp_path, ACC_DB_URL="postgres//nowhere"), 2, "ACC_DB_URL", "postgresql://")
    away = accsd("jobs", folder=tmp_path, ACC_DB_URL="postgresql://nobody:secret@127.0.0.1:9/none")
    told(away, 4, "can't be reached", "→")
    assert "secret" not in away.stderr


async def test_an_unknown_service_in_a_workflow(tmp_path: Path, db_url: str, conn: Connection):
    await node(conn, render=1)
    (tmp_path / "clip.yaml").write_text(MISSPELT)
    applied = accsd("workflows", "apply", "clip.yaml", folder=tmp_path, ACC_DB_URL=db_url)
    told(applied, 0, "rendrer", "render")


def test_a_cyclic_workflow(tmp_path: Path):
    (tmp_path / "loop.yaml").write_text(CYCLE)
    told(accsd("workflows", "validate", "loop.yaml", folder=tmp_path), 1, "loop.yaml:4", "circle: a → b → a")


@pytest.mark.parametrize("command", [("--role", "agent"), ("up", "--compose", "nowhere.yaml")])
def test_a_compose_file_that_is_not_there(tmp_path: Path, db_url: str, command: tuple[str, ...]):
    environ = {} if "up" in command else {"ACC_COMPOSE_FILE": "nowhere.yaml"}
    told(accsd(*command, folder=tmp_path, ACC_DB_URL=db_url, **environ), 2, "nowhere.yaml", "does not exist")
