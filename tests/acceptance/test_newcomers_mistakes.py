"""Five mistakes that a newcomer makes: each gives one clear message, with the way out, and no traceback."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.cluster import Connection
from tests.support.compose import why_not
from tests.support.daemon import running
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
    told(accsd("workflows", "check", "loop.yaml", folder=tmp_path), 1, "loop.yaml:4", "circle: a → b → a")


@pytest.mark.parametrize("command", [("--role", "agent"), ("up", "--compose", "nowhere.yaml")])
def test_a_compose_file_that_is_not_there(tmp_path: Path, db_url: str, command: tuple[str, ...]):
    environ = {} if "up" in command else {"ACC_COMPOSE_FILE": "nowhere.yaml"}
    told(accsd(*command, folder=tmp_path, ACC_DB_URL=db_url, **environ), 2, "nowhere.yaml", "does not exist")


@pytest.mark.needs_docker
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", ("is not valid", "docker compose -f")),
        ("services: {enc: {image: x, labels: {accs.mode: exce}}}", ('"enc" has accs.mode "exce"', "→ it is exec")),
        ("services: {enc: {image: x, labels: {accs.mode: run, accs.comand: a}}}", ('did you mean "accs.command"?',)),
    ],
    ids=["broken", "mode", "label"],
)
def test_a_compose_file_that_is_wrong_ends_what_was_started_by_hand(
    tmp_path: Path, db_url: str, text: str, words: tuple[str, ...]
):
    if reason := why_not():
        pytest.skip(reason)
    (tmp_path / "compose.yaml").write_text(text)
    ended = accsd("up", "--compose", "compose.yaml", folder=tmp_path, ACC_DB_URL=db_url)
    told(ended, 2, *words)
    assert "accsd is up" not in ended.stderr
    checked = accsd("config", "check", "--compose", "compose.yaml", folder=tmp_path)
    told(checked, 2, *(word.removeprefix("→ ") for word in words))


@pytest.mark.needs_docker
def test_a_compose_file_that_is_right_is_said_to_be(tmp_path: Path):
    if reason := why_not():
        pytest.skip(reason)
    (tmp_path / "compose.yaml").write_text("services: {enc: {image: x, labels: {accs.mode: run}}, other: {image: x}}")
    checked = accsd("config", "check", "--compose", "compose.yaml", folder=tmp_path)
    assert (checked.returncode, checked.stdout.splitlines()[0]) == (0, "compose.yaml offers enc")


def test_a_service_that_nothing_runs_ends_it_too(tmp_path: Path, db_url: str):
    config = tmp_path / "accsd.toml"
    config.write_text('[services.greeter]\ncommand = ["true"]\n')
    ended = accsd("--config", config, "up", folder=tmp_path, ACC_DB_URL=db_url)
    told(ended, 2, '"greeter" has runner "compose", and no compose file', "→ set compose.file")


def test_a_second_agent_does_not_say_that_it_is_up(tmp_path: Path, db_url: str):
    with running(tmp_path, db_url, node="n1"):
        second = accsd("up", folder=tmp_path, ACC_DB_URL=db_url, ACC_NODE_NAME="n1")
    told(second, 2, 'an agent runs as node "n1" on this machine already', "→ stop it")
    assert "accsd is up" not in second.stderr
